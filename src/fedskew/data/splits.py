"""Test rows drawn out of a table that has no test set of its own: a share of the rows, or one of several folds."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import require
from fedskew.core.limits import NonNegativeInt
from fedskew.core.seeding import stream, whole_units
from fedskew.core.text import count, parse_folds
from fedskew.data.dataset import Ints

Source = TypeVar("Source")


@dataclass(frozen=True, kw_only=True)
class Redrawn:
    """Options of a data set that draws its test rows.

    ``split_seed`` draws them; with ``redraw`` each seed of a comparison draws its own. ``fold=2/5`` tests the second of five folds
    of the rows, ``fold=2/4:clients`` the second of four folds of whole clients. With ``whole`` the drawn rows train, too, so that
    a model for use learns from all rows; numbers on them then say nothing.
    """

    split_seed: NonNegativeInt = 0
    redraw: bool = True
    fold: str = ""
    whole: bool | None = None

    def __post_init__(self) -> None:
        if self.fold:
            match = re.fullmatch(r"(\d{1,9})/(.*)", self.fold, re.ASCII)
            require(
                match is not None and 1 <= int(match[1]) <= parse_folds(match[2]).number,
                f"fold: write 2/5 for the second of five folds, or 2/4:clients; got {self.fold!r}",
            )


def with_splits(source: Source, seeds: Sequence[int], folds: str = "") -> dict[int, Source]:
    """Return the data set for each seed. If it says ``redraw``, it has the test rows that the seed draws; else it is unchanged.

    With ``folds`` each seed tests another fold. The first seed of a repetition draws its folds.
    """
    redrawn = isinstance(source, Redrawn) and source.redraw
    if not folds:
        return {seed: replace(source, split_seed=seed) if redrawn else source for seed in seeds}  # type: ignore[type-var]
    number = parse_folds(folds).number
    require(
        redrawn,
        "compare: folds need a data set that draws its test rows: table:... without test=FILE and redraw=false, or heart, and no "
        "init=RUN, which keeps that run's test rows; name one of these, or leave out folds",
    )
    require(
        len(seeds) % number == 0,
        f"compare: {number} folds need {number} seeds for each repetition, got {len(seeds)}; write the number of repetitions in "
        "place of a list of seeds",
    )
    return {
        seed: replace(source, split_seed=seeds[i - i % number], fold=f"{i % number + 1}/{folds}")  # type: ignore[type-var]
        for i, seed in enumerate(seeds)
    }


def in_fold(
    client: Ints, fold: str, seed: int = 0, stratum: Ints | None = None, person: Ints | None = None
) -> NDArray[np.bool_]:
    """Return whether each row (n,) is in this fold, such as ``2/5``. Each row is in one of the folds.

    In folds of rows the number of rows of a client, and of a ``stratum`` of a client, differs by at most one between two folds. In
    folds of clients (``2/4:clients``) the number of clients differs by at most one. With ``person`` (n,), folds of rows are folds
    of whole persons. A person counts for the client and stratum of the first row.
    """
    number, _, folds = fold.partition("/")
    folds_wanted, of_clients = parse_folds(folds)
    unit, noun = (client, "natural client") if of_clients else (np.arange(len(client)), "row")
    if person is not None and not of_clients:
        unit, noun = person, "person"
    _, first, owner = np.unique(unit, return_index=True, return_inverse=True)
    units = len(first)
    require(
        units >= folds_wanted,
        f"folds {folds}: the data have {count(units, noun)}; name fewer folds" + ", or folds of rows" * of_clients,
    )
    sizes, stratum = np.bincount(owner), np.zeros_like(client) if stratum is None else stratum
    fold_of, rng = np.empty(units, dtype=np.int64), stream(seed, "split")
    chance = rng.random(units) if of_clients else rng.random(len(client))[first]
    order = np.argsort(chance) if of_clients else np.lexsort((chance, sizes, stratum[first], client[first]))
    # neighbours in this order are in different folds
    fold_of[order] = np.arange(units) % folds_wanted
    return fold_of[owner] == int(number) - 1


def share_of_strata(stratum: Ints, share: float, seed: int = 0) -> NDArray[np.bool_]:
    """Return whether each row (n,) is drawn: a random ``share`` of each stratum, to the nearest whole number of rows."""
    rng, drawn = stream(seed, "split"), np.zeros(len(stratum), dtype=np.bool_)
    for number in np.unique(stratum):
        rows = rng.permutation(np.flatnonzero(stratum == number))
        drawn[rows[: round(share * len(rows))]] = True
    return drawn


def held_out(
    client: Ints, fraction: float, seed: int = 0, stratum: Ints | None = None, person: Ints | None = None
) -> NDArray[np.bool_]:
    """Return whether each row (n,) is held out: a random fraction of each client's rows, rounded down.

    The rows of a client are taken from each ``stratum`` in proportion, up to rounding; which ones, the seed decides. With
    ``person`` (n,), all rows of a person are held out or none. Then the numbers of rows are as near as whole persons allow.
    """
    stratum = np.zeros_like(client) if stratum is None else stratum
    chance = stream(seed, "split").random(len(client))
    cell, shape = (client, stratum), (int(client.max(initial=0)) + 1, int(stratum.max(initial=0)) + 1)
    sizes = np.zeros(shape, dtype=np.int64)
    np.add.at(sizes, cell, 1)
    upto = sizes.cumsum(1)
    quota = np.floor(fraction * upto[:, -1:] + 1e-9)
    quotas_of_strata = np.diff(np.floor(upto * quota / np.maximum(upto[:, -1:], 1) + 1e-9), prepend=0.0, axis=1)
    if person is not None:
        part, everything = client * shape[1] + stratum, np.zeros_like(client)
        quotas = ((part, quotas_of_strata.ravel()), (client, quota[:, 0]), (everything, quota.sum(keepdims=True)[0]))
        return whole_units(person, client, chance, [(of, rows.astype(np.int64)) for of, rows in quotas])
    order = np.lexsort((chance, stratum, client))
    starts = (sizes.ravel().cumsum() - sizes.ravel()).reshape(shape)
    test = np.zeros(len(client), dtype=bool)
    test[order] = (np.arange(len(client)) - starts[cell][order]) < quotas_of_strata[cell][order]
    return test


def units_of(test: NDArray[np.bool_], client: Ints, fold: str, person: Ints | None = None) -> Ints:
    """The unit of each test row (rows,), as in `Dataset`: the client in folds of clients, else the person, or the row's number."""
    unit = np.arange(len(test)) if person is None else person
    return client[test] if fold.endswith(":clients") else unit[test]
