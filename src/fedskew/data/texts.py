"""Texts as integer matrices: words, a vocabulary from training rows only, and an honest split of texts that repeat."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import require
from fedskew.core.seeding import stream
from fedskew.data.dataset import Dataset

Ints = NDArray[np.int64]

PAD, UNKNOWN = 0, 1
"""Ids that stand for no word: behind a text's end, and for words that are not in the vocabulary."""


def check_options(length: int, vocabulary: int) -> None:
    require(length >= 1, f"length must be at least 1 word, got {length}")
    require(
        vocabulary >= 3, f"vocabulary must be at least 3, with the ids of padding and unknown words, got {vocabulary}"
    )


def words(text: str) -> list[str]:
    """Runs of letters, digits and apostrophes, in lower case."""
    return re.findall(r"[^\W_]+(?:'[^\W_]+)*", text.lower())


def vocabulary_of(texts: Iterable[str], size: int, length: int) -> dict[str, int]:
    """The most frequent of the texts' first ``length`` words with their ids from 2 on, at most ``size`` ids in all.

    Ties go in alphabetical order.
    """
    counts = Counter(word for text in texts for word in words(text)[:length])
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[: size - 2]
    return {word: at for at, word in enumerate(ranked, start=2)}


def encoded(texts: Sequence[str], known: dict[str, int], length: int) -> Ints:
    """(n, length) ids of the first ``length`` words of each text, padded at the end; a text without words is one unknown word."""
    ids = np.full((len(texts), length), PAD, dtype=np.int64)
    for row, text in zip(ids, texts, strict=True):
        found = [known.get(word, UNKNOWN) for word in words(text)[:length]] or [UNKNOWN]
        row[: len(found)] = found
    return ids


def check_texts(dataset: str, where: str, texts: Sequence[str]) -> None:
    """Raise `BadInput` where a row has no text at all; ``where`` is what the rows are counted in."""
    empty = [row for row, text in enumerate(texts, start=1) if not text.strip()]
    first = empty[0] if empty else None
    require(
        not empty,
        f"data set {dataset}: {len(empty)} texts of {where} are empty, the first one is row {first}; leave such rows out",
    )


def apart(texts: Sequence[str], labels: Ints, share: float) -> NDArray[np.bool_]:
    """Which rows are for testing, about ``share`` of each class: texts with the same set of words stay on one side.

    A class is that of a group's first text. The split is drawn from a stream of its own and is the same in every run.
    """
    groups: dict[frozenset[str], list[int]] = {}
    for row, text in enumerate(texts):
        groups.setdefault(frozenset(words(text)), []).append(row)
    members = list(groups.values())
    owner = np.asarray([labels[rows[0]] for rows in members])
    rng, test = stream(0, "split"), np.zeros(len(texts), dtype=bool)
    for c in np.unique(labels):
        wanted = share * int((labels == c).sum())
        for group in rng.permutation(np.flatnonzero(owner == c)):
            if int(test[labels == c].sum()) >= wanted:
                break
            test[members[group]] = True
    return test


def of_texts(
    train: tuple[Sequence[str], Ints],
    test: tuple[Sequence[str], Ints],
    *,
    classes: tuple[str, ...],
    name: str,
    **about: Any,
) -> Dataset:
    """`as_ids`; raises `BadInput` for a class that only the test part has, too."""
    unseen = sorted({classes[c] for c in set(test[1].tolist()) - set(train[1].tolist())})
    require(
        not unseen, f"data set {name}: the training part has no row of {', '.join(unseen)}, which the test part has"
    )
    return as_ids(train, test, classes=classes, name=name, **about)


def as_ids(
    train: tuple[Sequence[str], Ints],
    test: tuple[Sequence[str], Ints],
    *,
    classes: tuple[str, ...],
    length: int,
    vocabulary: int,
    name: str,
    source: str = "",
    notes: str = "",
    groups: Ints | None = None,
    group_names: tuple[str, ...] = (),
) -> Dataset:
    """A data set of texts with their labels: word ids in ``x``, the texts themselves in ``texts``.

    Raises `BadInput` for empty texts.
    """
    check_texts(name, "the training part", train[0])
    check_texts(name, "the test part", test[0])
    known = vocabulary_of(train[0], vocabulary, length)
    return Dataset(
        x=encoded(train[0], known, length),
        y=train[1],
        x_test=encoded(test[0], known, length),
        y_test=test[1],
        texts=(tuple(train[0]), tuple(test[0])),
        vocabulary=vocabulary,
        groups=groups,
        group_names=group_names,
        classes=classes,
        name=name,
        source=source,
        notes=notes,
    )


def reworded(dataset: Dataset, rows: Ints, rewritten: bool = False) -> tuple[NDArray[Any], NDArray[Any]]:
    """``x`` and ``x_test`` in ids of a vocabulary that these training rows alone make; as they are if they hold no words.

    Words of the other rows are unknown, and do not count for the frequencies. ``rewritten``: the texts are not those that the
    data set's ids were made of.
    """
    if dataset.texts is None or not dataset.vocabulary:
        return dataset.x, dataset.x_test
    used = np.unique(rows)
    if len(used) == len(dataset.y) and not rewritten:
        return dataset.x, dataset.x_test
    train, test = dataset.texts
    length = dataset.shape[0]
    known = vocabulary_of((train[row] for row in used), dataset.vocabulary, length)
    return encoded(train, known, length), encoded(test, known, length)
