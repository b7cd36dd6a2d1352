"""Skews by quantiles of the target, by a column and by time: exact counts, limits of alpha, and refusals."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedskew.core.errors import BadInput
from fedskew.data.dataset import Dataset
from fedskew.execution.deal import client_data, partition_facts
from fedskew.experiment.config import Experiment
from fedskew.skew.label import dirichlet
from fedskew.skew.partition import deal
from fedskew.skew.values import BinDirichlet, ColumnDirichlet, QuantileDirichlet, TimeBlocks, quantile_bins

QUICK = settings(max_examples=60, deadline=None)

RNG = np.random.default_rng(0)
X = np.column_stack([RNG.normal(size=200), *np.eye(2)[RNG.integers(0, 2, 200)].T]).astype(np.float32)
Y = RNG.normal(size=200)
AIR = Dataset(x=X, y=Y, x_test=X[:5], y_test=Y[:5], columns=("wind", "site = north", "site = south"), name="air")


def counts(skew: BinDirichlet, labels: np.ndarray, clients: int, seed: int = 0) -> np.ndarray:
    return deal(skew, labels, None, clients, seed).label_counts(labels, int(labels.max()) + 1)


@QUICK
@given(st.lists(st.floats(-9, 9), min_size=1, max_size=99), st.integers(2, 12))
def test_bins_keep_the_order_and_have_no_gaps(values: list[float], bins: int) -> None:
    held, y = quantile_bins(np.array(values), bins), np.array(values)
    assert sorted(set(held.tolist())) == list(range(held.max() + 1))
    assert held.max() < bins
    assert (held[np.argsort(y, kind="stable")] == np.sort(held)).all()
    assert all(len({*held[y == v]}) == 1 for v in values)


def test_different_values_fall_into_bins_of_one_size() -> None:
    assert np.bincount(quantile_bins(RNG.permutation(120) / 7, 8)).tolist() == [15] * 8


@pytest.mark.parametrize("clients", [4, 10, 20])
def test_a_large_alpha_gives_every_client_the_same_bins(clients: int) -> None:
    labels = quantile_bins(RNG.permutation(800), 8)
    assert (counts(BinDirichlet(alpha=1e12), labels, clients) == 100 / clients).all()


@pytest.mark.parametrize("seed", range(5))
def test_a_tiny_alpha_gives_a_client_one_bin_until_the_bin_is_empty(seed: int) -> None:
    """Each bin has rows for two of the 16 clients. A client has only rows of its bin, unless a third client wants it, too."""
    labels = quantile_bins(RNG.permutation(800), 8)
    dealt = BinDirichlet(alpha=1e-9).deal(labels, None, 16, np.random.default_rng(seed))
    wanted = dirichlet(1e-9, (16, 8), np.random.default_rng(seed)).argmax(1)
    held = np.stack([np.bincount(labels[rows], minlength=8) for rows in dealt])
    assert (held.sum(1) == 50).all()
    assert (held.sum(0) == 100).all()
    room = np.bincount(wanted, minlength=8) <= 2
    assert (held[np.arange(16), wanted] == 50)[room[wanted]].all()
    assert room.any()


def test_clients_have_equal_sizes_and_every_row_one_client() -> None:
    for skew in (BinDirichlet(alpha=0.1), TimeBlocks(blocks=3)):
        part = deal(skew, quantile_bins(Y, 10), None, 7, 0)
        assert sorted(part.indices.tolist()) == list(range(200))
        assert part.sizes.max() - part.sizes.min() <= (1 if isinstance(skew, BinDirichlet) else 3)


def test_one_block_of_time_a_client_follows_the_order() -> None:
    part = deal(TimeBlocks(), np.argsort(np.argsort(-Y)), None, 5, 3)
    newest_first = np.argsort(-Y)
    assert [sorted(part.rows(k)) for k in range(5)] == [sorted(newest_first[40 * k : 40 * k + 40]) for k in range(5)]


def test_several_blocks_are_pieces_of_consecutive_rows() -> None:
    part = deal(TimeBlocks(blocks=4), np.arange(200), None, 5, 0)
    for k in range(5):
        rows = np.sort(part.rows(k))
        assert {*(rows[rows % 10 == 0] + 9)} <= {*rows}
        assert len(rows) == 40


def test_values_come_from_the_target_or_the_column() -> None:
    assert np.array_equal(QuantileDirichlet(bins=5).values(AIR), quantile_bins(Y, 5))
    assert np.array_equal(ColumnDirichlet(column="wind", bins=4).values(AIR), quantile_bins(X[:, 0], 4))
    assert np.array_equal(ColumnDirichlet(column="site").values(AIR), X[:, 2])
    assert np.array_equal(TimeBlocks().values(AIR), np.arange(200))
    assert (np.diff(TimeBlocks(column="wind").values(AIR)[np.argsort(X[:, 0])]) == 1).all()


def test_an_experiment_deals_by_these_values() -> None:
    made = Experiment(skew="column-dirichlet:column=site,alpha=1e-9", clients={"number": 2}, task="regression")
    part = client_data(made, AIR).partition
    held = [set(X[part.rows(k), 2].tolist()) for k in range(2)]
    assert min(map(len, held)) == 1
    with_sizes = Experiment(
        skew=["quantile-dirichlet:alpha=0.1", "quantity-sizes:rows=[150,50]"], clients={"number": 2, "held_out": 0.0}
    )
    data = client_data(with_sizes, AIR)
    assert data.partition.sizes.tolist() == [150, 50]
    assert 0 <= partition_facts(with_sizes, AIR, data, 0)["label_shift"] <= 1


@pytest.mark.parametrize(
    ("skew", "data", "message"),
    [
        (
            ColumnDirichlet(column="winds"),
            AIR,
            "skew column-dirichlet: air has no column 'winds'; did you mean 'wind'?",
        ),
        (
            TimeBlocks(column="day"),
            replace(AIR, columns=()),
            "skew time-blocks: air does not name its columns; use a table of your own, or a skew that needs no column",
        ),
        (
            QuantileDirichlet(),
            replace(AIR, target="", y=(Y > 0).astype(int), y_test=(Y[:5] > 0).astype(int), classes=("no", "yes")),
            "skew quantile-dirichlet: the targets of air have no quantiles; use label-dirichlet-balanced, or "
            "column-dirichlet:column=NAME",
        ),
    ],
)
def test_data_without_such_values_are_refused(skew, data: Dataset, message: str) -> None:
    with pytest.raises(BadInput) as error:
        skew.values(data)
    assert str(error.value) == message
