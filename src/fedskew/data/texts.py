"""Texts as word ids. The vocabulary comes from training rows only, and similar texts stay in the same part."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Protocol

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fedskew.core.errors import require
from fedskew.core.seeding import stream
from fedskew.data.dataset import Dataset, Ints, Numbered, Rows, check_all_trained
from fedskew.data.find import Files
from fedskew.data.preprocessing import Preprocessing, Texts

PAD, UNKNOWN = 0, 1
"""Ids of padding after a text's end, and of words that are not in the vocabulary."""

MOST_WORDS = 100_000
"""Maximum number of words that a site sends: its most frequent ones."""

Labelled = tuple[Sequence[str], Ints]
"""Texts and their labels."""


class WordOptions(Protocol):
    """Options of a data set of texts: number of words that are read of a text, and maximum number of ids."""

    @property
    def length(self) -> int: ...

    @property
    def vocabulary(self) -> int: ...


def check_options(options: WordOptions) -> None:
    length, ids = options.length, options.vocabulary
    require(length >= 1, f"length must be at least 1 word, got {length}")
    require(ids >= 3, f"vocabulary must be at least 3, with the ids of padding and unknown words, got {ids}")


def words(text: str) -> list[str]:
    """Return the words of a text in lower case: runs of letters, digits and inner apostrophes."""
    return re.findall(r"[^\W_]+(?:'[^\W_]+)*", text.lower())


class SiteWords(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often each word occurs in the texts of a site. Sites agree on a vocabulary with it, without pooling texts."""

    counts: dict[str, int]

    def __post_init__(self) -> None:
        """Raise `ValueError` for words and counts of no texts, which another machine might send."""
        if len(self.counts) > MOST_WORDS or not all(n > 0 and words(word) == [word] for word, n in self.counts.items()):
            raise ValueError("counts of no texts")


def word_counts(texts: Sequence[str], length: int, fewest: int = 1) -> Counter[str]:
    """Count the words among the first ``length`` words of each text, without words of fewer than ``fewest`` texts."""
    counts = Counter(word for text in texts for word in words(text)[:length])
    if fewest < 2:
        return counts
    held = Counter(word for text in texts for word in {*words(text)[:length]})
    return Counter({word: n for word, n in counts.items() if held[word] >= fewest})


def by_frequency(counts: Counter[str]) -> list[str]:
    """Return the words, the most frequent one first. Equally frequent words are in alphabetical order."""
    return sorted(counts, key=lambda word: (-counts[word], word))


def site_words(texts: Sequence[str], length: int, fewest: int) -> SiteWords:
    """Return what leaves a site: at most `MOST_WORDS` words, none of fewer than ``fewest`` texts."""
    counts = word_counts(texts, length, fewest)
    return SiteWords(counts={word: counts[word] for word in by_frequency(counts)[:MOST_WORDS]})


def merged_vocabulary(sites: Iterable[Mapping[str, int]], size: int) -> dict[str, int]:
    """Return ids, from 2 to ``size`` - 1, of the most frequent words of all sites together."""
    counts = Counter[str]()
    for site in sites:
        counts.update(site)
    return {word: at for at, word in enumerate(by_frequency(counts)[: size - 2], start=2)}


def vocabulary_of(
    texts: Sequence[str], size: int, length: int, clients: Ints | None = None, fewest: int = 1
) -> dict[str, int]:
    """Return ids, from 2 to ``size`` - 1, of the most frequent words among the first ``length`` words of each text.

    A word of fewer than ``fewest`` texts of a client counts as none there. ``clients`` (n,) is the client of each text.
    """
    held = defaultdict[int, list[str]](list)
    for text, client in zip(texts, repeat(0) if clients is None else clients.tolist(), strict=False):
        held[client].append(text)
    return merged_vocabulary((word_counts(own, length, fewest) for own in held.values()), size)


def encoded(texts: Sequence[str], known: dict[str, int], length: int) -> Ints:
    """Return ids (n, length) of the first ``length`` words of each text, padded at the end.

    A text without words becomes one unknown word.
    """
    ids = np.full((len(texts), length), PAD, dtype=np.int64)
    for row, text in zip(ids, texts, strict=True):
        found = [known.get(word, UNKNOWN) for word in words(text)[:length]] or [UNKNOWN]
        row[: len(found)] = found
    return ids


def check_texts(dataset: str, where: str, texts: Sequence[str]) -> None:
    """Raise `BadInput` for empty texts. ``where`` names the part or the file in the message."""
    empty = [row for row, text in enumerate(texts, start=1) if not text.strip()]
    require(
        not empty,
        f"data set {dataset}: {len(empty)} texts of {where} are empty, the first one is row {(*empty, 0)[0]}; leave such rows out",
    )


def held_out_rows(texts: Sequence[str], labels: Ints, fraction: float) -> NDArray[np.bool_]:
    """Choose about ``fraction`` of each class as test rows, the same in every run; return True for these rows, (n,).

    Texts with the same set of words form a group, which is never split. A group has the class of its first text.
    """
    groups: dict[frozenset[str], list[int]] = {}
    for row, text in enumerate(texts):
        groups.setdefault(frozenset(words(text)), []).append(row)
    members = list(groups.values())
    owner = np.asarray([labels[rows[0]] for rows in members])
    rng, test = stream(0, "split"), np.zeros(len(texts), dtype=bool)
    for c in np.unique(labels):
        wanted = fraction * int((labels == c).sum())
        for group in rng.permutation(np.flatnonzero(owner == c)):
            if int(test[labels == c].sum()) >= wanted:
                break
            test[members[group]] = True
    return test


def of_texts(
    files: Files,
    train: Labelled,
    test: Labelled,
    classes: Sequence[str],
    options: WordOptions,
    *,
    clients: Numbered | None = None,
    persons: tuple[Ints, Ints] | None = None,
    notes: str = "",
    test_only_classes: bool = False,
    column: str = "text",
    target: str = "",
    others: tuple[str, ...] = (),
    fewest: int = 1,
    known: Sequence[str] | None = None,
    test_units: Ints | None = None,
) -> Dataset:
    """Make a data set of labelled texts, with word ids as ``x``.

    In files of new rows ``column`` has the texts, and ``target`` the labels; ``others`` are further columns of the target.
    The vocabulary has no words of fewer than ``fewest`` texts of a client. ``known`` is a vocabulary that sites agreed on.

    Raises `BadInput` for empty texts, and for a class that only the test part has, unless ``test_only_classes``.
    """
    if not test_only_classes:
        check_all_trained(f"data set {files.dataset}", classes, train[1], test[1])
    check_texts(files.dataset, "the training part", train[0])
    check_texts(files.dataset, "the test part", test[0])
    if known is None:
        owner = clients[0] if clients else None
        ids = vocabulary_of(train[0], options.vocabulary, options.length, owner, fewest)
    else:
        ids = {word: at for at, word in enumerate(known, start=2)}
    return files.build(
        (encoded(train[0], ids, options.length), train[1]),
        (encoded(test[0], ids, options.length), test[1]),
        classes,
        clients=clients,
        persons=persons,
        texts=(tuple(train[0]), tuple(test[0])),
        vocabulary=options.vocabulary,
        fewest=fewest,
        test_units=test_units,
        preprocessing=Texts(column=column, vocabulary=tuple(ids), length=options.length, target=target, others=others),
        notes=notes,
    )


def reworded(dataset: Dataset, rows: Ints, rewritten: bool = False) -> tuple[Rows, Rows, Preprocessing | None]:
    """Return ``x``, ``x_test`` and preprocessing with a vocabulary of the training rows ``rows`` only.

    Words of other rows become unknown. If x holds no word ids, nothing changes. ``rewritten``: the texts have changed since the
    data set's ids were made.
    """
    made = dataset.preprocessing
    if dataset.texts is None or not dataset.vocabulary:
        return dataset.x, dataset.x_test, made
    used = np.unique(rows)
    if len(used) == len(dataset.y) and not rewritten:
        return dataset.x, dataset.x_test, made
    train, test = dataset.texts
    length = dataset.shape[0]
    owner = None if dataset.groups is None else dataset.groups[used]
    known = vocabulary_of([train[row] for row in used], dataset.vocabulary, length, owner, dataset.fewest)
    if isinstance(made, Texts):
        made = replace(made, vocabulary=tuple(known))
    return encoded(train, known, length), encoded(test, known, length), made
