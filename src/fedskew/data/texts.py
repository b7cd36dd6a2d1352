"""Texts as word ids. The vocabulary comes from training rows only, and similar texts stay in the same part."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fedskew.core.errors import require
from fedskew.core.seeding import stream
from fedskew.data.dataset import Dataset, Ints, Numbered, Rows, check_all_trained
from fedskew.data.find import Files
from fedskew.data.preprocessing import Preprocessing
from fedskew.data.text_inputs import Texts

PAD, UNKNOWN = 0, 1
"""Ids of padding after a text's end, and of words that are not in the vocabulary."""

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


def vocabulary_of(texts: Iterable[str], size: int, length: int) -> dict[str, int]:
    """Return ids, from 2 to ``size`` - 1, of the most frequent words among the first ``length`` words of each text.

    Equally frequent words are in alphabetical order.
    """
    counts = Counter(word for text in texts for word in words(text)[:length])
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[: size - 2]
    return {word: at for at, word in enumerate(ranked, start=2)}


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
    notes: str = "",
    test_only_classes: bool = False,
    column: str = "text",
    target: str = "",
    others: tuple[str, ...] = (),
) -> Dataset:
    """Make a data set of labelled texts, with word ids as ``x``.

    In files of new rows ``column`` has the texts, and ``target`` the labels; ``others`` are further columns of the target.

    Raises `BadInput` for empty texts, and for a class that only the test part has, unless ``test_only_classes``.
    """
    if not test_only_classes:
        check_all_trained(f"data set {files.dataset}", classes, train[1], test[1])
    check_texts(files.dataset, "the training part", train[0])
    check_texts(files.dataset, "the test part", test[0])
    known = vocabulary_of(train[0], options.vocabulary, options.length)
    return files.build(
        (encoded(train[0], known, options.length), train[1]),
        (encoded(test[0], known, options.length), test[1]),
        classes,
        clients=clients,
        texts=(tuple(train[0]), tuple(test[0])),
        vocabulary=options.vocabulary,
        preprocessing=Texts(
            column=column, vocabulary=tuple(known), length=options.length, target=target, others=others
        ),
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
    known = vocabulary_of((train[row] for row in used), dataset.vocabulary, length)
    if isinstance(made, Texts):
        made = replace(made, vocabulary=tuple(known))
    return encoded(train, known, length), encoded(test, known, length), made
