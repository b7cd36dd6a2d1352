"""The kinds of targets that `Dataset.y` may hold: their checks, strata and default tasks."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import BadInput, require

Rows: TypeAlias = NDArray[Any]
"""Rows (n, ...) of floating-point numbers or integers."""
Ints: TypeAlias = NDArray[np.int64]
Numbered: TypeAlias = tuple[Ints, tuple[str, ...]]
"""Numbers (n,) from 0 on, and the name of each number."""

PADDING = -1
"""The symbol after the end of a row that is shorter than others."""

SETS = 9
"""Number of sets of labels that are separate strata: the most frequent ones. All other sets are one more stratum."""


class Target(NamedTuple):
    """A kind of target.

    words: its name in messages. task: the default task. column: the option that names it for a table.
    check(what, y, size): raises `BadInput` unless y (n, ...) is of this kind; ``size`` is the number of classes, labels or symbols.
    useless(y): why nothing can be learnt from these training targets; empty if something can.
    strata(y, names): the strata by which label skews deal rows.
    """

    words: str
    task: str
    column: str
    check: Callable[[str, Rows, int], None]
    useless: Callable[[Rows], str]
    strata: Callable[[Rows, tuple[str, ...]], Numbered]


def check_labels(what: str, y: Ints, classes: int) -> None:
    """Raise `BadInput` unless the labels are integers in 0..``classes`` - 1."""
    require(np.issubdtype(y.dtype, np.integer), f"{what} must be integers, not {y.dtype}")
    require(y.ndim == 1, f"{what} must be one integer a row, their shape is {y.shape}")
    if y.min() < 0 or y.max() >= classes:
        raise BadInput(f"{what} must lie in 0..{classes - 1}, found {y.min()}..{y.max()}")


def check_numbers(what: str, y: Rows, size: int = 0) -> None:
    """Raise `BadInput` unless the targets are finite numbers (n,)."""
    require(y.ndim == 1, f"{what} must be one number a row, their shape is {y.shape}")
    check_finite(what, y)


def check_finite(what: str, y: Rows) -> None:
    advice = "; for classes give their names, classes=(...)" * np.issubdtype(y.dtype, np.integer)
    require(np.issubdtype(y.dtype, np.floating), f"{what} must be floating-point numbers, not {y.dtype}{advice}")
    bad = int((~np.isfinite(y)).sum())
    require(bad == 0, f"{what}: {bad} are not finite")


def check_sets(what: str, y: Rows, labels: int) -> None:
    """Raise `BadInput` unless each row has 0 or 1 for each label."""
    require(np.issubdtype(y.dtype, np.integer), f"{what} must be integers, 0 or 1, not {y.dtype}")
    require(y.shape[1:] == (labels,), f"{what} must be {labels} a row, one for each label; their shape is {y.shape}")
    require(bool(np.isin(y, (0, 1)).all()), f"{what} must be 0 or 1, found {y.min()}..{y.max()}")


def check_survival(what: str, y: Rows, size: int = 0) -> None:
    """Raise `BadInput` unless each row has a time above 0, and 1 for an event or 0 for the end of observation."""
    require(y.ndim == 2 and y.shape[1] == 2, f"{what} must be time and event of each row, their shape is {y.shape}")
    check_finite(what, y)
    short, other = y[y[:, 0] <= 0, 0], y[~np.isin(y[:, 1], (0, 1)), 1]
    for wrong, rule in ((short, "times must be above 0"), (other, "events must be 0 or 1")):
        require(not len(wrong), f"{what}: {rule}, found {[*wrong, 0][0]:g}; correct or remove such rows")


def check_symbols(what: str, y: Rows, symbols: int) -> None:
    """Raise `BadInput` unless each row has symbols 0..``symbols`` - 1, or padding."""
    require(np.issubdtype(y.dtype, np.integer), f"{what} must be integers, not {y.dtype}")
    require(y.ndim == 2, f"{what} must be a sequence of symbols a row, their shape is {y.shape}")
    require(symbols > 1, f"{what}: a vocabulary of {symbols} leaves nothing to predict")
    require(
        bool(y.min() >= PADDING and y.max() < symbols),
        f"{what} must lie in 0..{symbols - 1}, or be {PADDING} where a row has ended, found {y.min()}..{y.max()}",
    )


def tenths(y: Rows, names: tuple[str, ...] = ()) -> Numbered:
    """Return the tenth (n,) in which each number or time lies, from 0 on, and the tenths' names. Equal targets share a tenth."""
    y = y if y.ndim == 1 else y[:, 0]
    edges = np.unique(np.quantile(y, np.arange(1, 10) / 10))
    numbers, tenth = np.unique(np.searchsorted(edges, y), return_inverse=True)
    ends = [f"{edge:.4g}" for edge in edges]
    between = [f"{low} to {high}" for low, high in pairwise(ends)]
    titles = [f"up to {ends[0]}", *between, f"above {ends[-1]}"]
    return tenth.astype(np.int64), tuple(titles[i] for i in numbers.tolist())


def label_sets(y: Rows, names: tuple[str, ...]) -> Numbered:
    """Return the stratum (n,) of each row, and the strata's names. Each of the `SETS` most frequent sets of labels is a stratum.

    All other sets share one more.
    """
    sets, set_of, count = np.unique(y, axis=0, return_inverse=True, return_counts=True)
    order = np.argsort(-count, kind="stable")
    rank = np.argsort(order, kind="stable")
    names_of_sets = [" + ".join(names[i] for i in np.flatnonzero(sets[at])) or "no label" for at in order[:SETS]]
    if len(sets) > SETS:
        names_of_sets.append("other labels")
    return np.minimum(rank, SETS)[set_of.reshape(-1)], tuple(names_of_sets)


def main_symbols(y: Rows, names: tuple[str, ...]) -> Numbered:
    """Return the most frequent symbol of each row as a stratum (n,), and names. A row of padding counts as the first symbol."""
    main = np.array([np.bincount(row[row >= 0], minlength=1).argmax() for row in y], dtype=np.int64)
    numbers, stratum = np.unique(main, return_inverse=True)
    return stratum.astype(np.int64), tuple(names[i] if names else str(i) for i in numbers.tolist())


def lacks(what: str, present: NDArray[Any]) -> str:
    return "" if present.any() else f"no training row has {what}; there is nothing to predict"


def constant(y: Rows) -> str:
    return "" if float(np.ptp(y)) > 0 else f"all training targets are {y[0]:g}; there is nothing to predict"


TARGETS = {
    "classes": Target(
        "classes", "classification", "label=COLUMN", check_labels, lambda y: "", lambda y, names: (y, names)
    ),
    "number": Target("numbers", "regression", "target=COLUMN", check_numbers, constant, tenths),
    "labels": Target(
        "sets of labels", "multi-label", "labels=COLUMN|COLUMN", check_sets, lambda y: lacks("a label", y), label_sets
    ),
    "survival": Target(
        "survival times",
        "survival",
        "time=COLUMN,event=COLUMN",
        check_survival,
        lambda y: lacks("an event", y[:, 1]),
        tenths,
    ),
    "symbols": Target("symbols", "next-token", "", check_symbols, lambda y: lacks("a symbol", y >= 0), main_symbols),
}
"""The kinds by name. `Dataset.target` and the ``target`` of a task hold such a name."""


def target_of(where: str, y: Rows, classes: int, vocabulary: int) -> str:
    """Return the kind of targets with this type and shape. Raises `BadInput` if no kind fits."""
    whole = np.issubdtype(y.dtype, np.integer)
    if y.ndim == 1:
        return "classes" if classes else "number"
    if y.ndim == 2 and whole and y.shape[1] == classes and bool(np.isin(y, (0, 1)).all()):
        return "labels"
    if y.ndim == 2 and whole and (classes or vocabulary):
        return "symbols"
    if y.ndim == 2 and y.shape[1] == 2 and not whole:
        return "survival"
    raise BadInput(
        f"{where}training targets of shape {y.shape} and type {y.dtype} are none of: classes (n,), numbers (n,), sets of labels "
        "(n, labels) of 0 and 1 with their names, survival times (n, 2), symbols (n, length) with their names or a vocabulary"
    )


def refusal(needed: str, present: str) -> str:
    """Say why a task for the kind ``needed`` cannot learn the kind ``present``, and what to use; empty if they are equal."""
    if needed == present:
        return ""
    need, have = TARGETS[needed], TARGETS[present]
    column = f", in a table {need.column}" if need.column else ""
    return f"learns {need.words}, but the targets are {have.words}; use --task {have.task}, or data with {need.words}{column}"
