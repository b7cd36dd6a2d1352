"""Test rows that are drawn: exact shares of clients and classes, and a draw of its own for each seed of a comparison."""

from pathlib import Path

import numpy as np
import pytest

from fedskew.core.errors import BadInput
from fedskew.data.datasets.table import Table
from fedskew.data.splits import held_out, with_split
from fedskew.experiment.compare import cross
from fedskew.experiment.config import Experiment

CLIENT = np.repeat([0, 1, 3], [50, 20, 7])
CLASS = np.concatenate([np.repeat([0, 1], [40, 10]), np.repeat([0, 1], [5, 15]), np.zeros(7, dtype=int)])


def test_each_client_and_class_gives_its_share() -> None:
    for seed in range(20):
        held = held_out(CLIENT, 0.2, seed, CLASS)
        counts = [[int((held & (k == CLIENT) & (c == CLASS)).sum()) for c in (0, 1)] for k in (0, 1, 3)]
        assert counts == [[8, 2], [1, 3], [1, 0]]


def test_shares_that_are_no_whole_rows_are_rounded_within_a_client() -> None:
    rng = np.random.default_rng(0)
    client, stratum = rng.integers(0, 5, 300), rng.integers(0, 4, 300)
    held = held_out(client, 0.23, 1, stratum)
    for k in range(5):
        own = client == k
        assert held[own].sum() == np.floor(0.23 * own.sum())
        for c in range(4):
            assert abs(held[own & (stratum == c)].sum() - 0.23 * (own & (stratum == c)).sum()) < 2


def test_another_seed_draws_other_rows() -> None:
    assert (held_out(CLIENT, 0.2, 1, CLASS) != held_out(CLIENT, 0.2, 2, CLASS)).any()
    assert (held_out(CLIENT, 0.2, 1, CLASS) == held_out(CLIENT, 0.2, 1, CLASS)).all()
    # every row is drawn by some seed
    assert np.any([held_out(CLIENT, 0.2, seed, CLASS) for seed in range(60)], axis=0).all()


def test_each_seed_of_a_comparison_draws_its_own_test_rows(tmp_path: Path) -> None:
    planned = cross(Experiment(dataset="heart"), ["fedavg", "scaffold"], [3, 5])
    assert [one.dataset.split_seed for one in planned] == [3, 3, 5, 5]  # type: ignore[attr-defined]
    fixed = cross(Experiment(dataset="heart:redraw=false,split_seed=2"), ["fedavg"], [3, 5])
    assert [one.dataset.split_seed for one in fixed] == [2, 2]  # type: ignore[attr-defined]
    assert with_split(Table(path="rows.csv", label="y"), 4).split_seed == 4
    assert with_split(Table(path="rows.csv", label="y", test="new.csv"), 4).split_seed == 0
    with pytest.raises(BadInput, match="split_seed must be at least 0, got -1"):
        Table(path="rows.csv", label="y", split_seed=-1)
