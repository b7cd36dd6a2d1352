"""Test rows that are drawn: exact shares of clients and classes, folds, and a draw of its own for each seed of a comparison."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from fedskew.core.errors import BadInput
from fedskew.data.datasets.heart import Heart
from fedskew.data.datasets.images import carried
from fedskew.data.datasets.table import TableData
from fedskew.data.splits import held_out, in_fold, share_of_strata, with_splits
from fedskew.experiment.config import Experiment
from fedskew.studies.compare import cross, seeds_from

CLIENT = np.repeat([0, 1, 3], [50, 20, 7])
CLASS = np.concatenate([np.repeat([0, 1], [40, 10]), np.repeat([0, 1], [5, 15]), np.zeros(7, dtype=int)])


HOSPITALS = np.repeat(np.arange(8), [188, 115, 37, 26, 8, 115, 51, 149])
DIGITS = carried()[1].astype(np.int64)


@pytest.mark.parametrize(
    ("stratum", "share", "seed", "published"),
    [
        (HOSPITALS, 1 / 3, 0, "526af6227a39bcf7"),
        (HOSPITALS, 1 / 3, 3, "5e650bcb053f25d7"),
        (DIGITS, 0.2, 0, "4c5ae63eee351fd0"),
        (DIGITS, 0.35, 0, "6e9736556f7ce11b"),
    ],
)
def test_published_test_rows_stay_the_same(stratum: np.ndarray, share: float, seed: int, published: str) -> None:
    drawn = share_of_strata(stratum, share, seed)
    assert hashlib.sha256(np.packbits(drawn).tobytes()).hexdigest()[:16] == published


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
    assert with_splits(TableData(path="rows.csv", label="y"), [4])[4].split_seed == 4
    assert with_splits(TableData(path="rows.csv", label="y", test="new.csv"), [4])[4].split_seed == 0


def folds_of(client: np.ndarray, folds: str, seed: int, stratum: np.ndarray | None = None) -> np.ndarray:
    """(folds, rows) whether each fold tests a row."""
    number = int(folds.partition(":")[0])
    return np.stack([in_fold(client, f"{k}/{folds}", seed, stratum) for k in range(1, number + 1)])


def test_folds_of_any_rows_differ_by_at_most_one_row_in_each_class_of_a_client() -> None:
    rng = np.random.default_rng(0)
    client, stratum = rng.integers(0, 5, 301), rng.integers(0, 4, 301)
    found = folds_of(client, "7", 3, stratum)
    assert (found.sum(0) == 1).all()
    assert np.ptp(found.sum(1)) == 0
    for k in range(5):
        assert np.ptp(found[:, client == k].sum(1)) <= 1
        for c in range(4):
            assert np.ptp(found[:, (client == k) & (stratum == c)].sum(1)) <= 1
    assert (found != folds_of(client, "7", 4, stratum)).any()


def test_folds_of_clients_leave_out_whole_clients() -> None:
    client = np.repeat([0, 2, 3, 5, 9], [1, 30, 2, 8, 4])
    for folds, sizes in (("5:clients", [1] * 5), ("2:clients", [2, 3])):
        found = folds_of(client, folds, 1)
        assert (found.sum(0) == 1).all()
        assert sorted(len(np.unique(client[fold])) for fold in found) == sizes
        assert all(set(client[fold]).isdisjoint(client[~fold]) for fold in found)


@pytest.mark.parametrize("folds", ["4", "3:clients"])
def test_folds_of_a_table_test_each_row_once_and_train_on_the_others(folds: str, tmp_path: Path) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "rows.csv"
    lines = [f"{number},{rng.normal():.3f},{'abc'[number % 3]}" for number in range(50)]
    path.write_text("\n".join(["number,x,place", *lines]) + "\n")
    seeds = range(int(folds[0]))
    source = TableData(path=str(path), target="number", client="place")
    tested: list[float] = []
    for one in with_splits(source, seeds, folds).values():
        data = one.load()
        assert sorted([*data.y, *data.y_test]) == list(range(50))
        tested += data.y_test.tolist()
        if "clients" in folds:
            assert len({number % 3 for number in data.y_test}) == 1
    assert sorted(tested) == list(range(50))


def test_folds_of_the_hospitals_test_one_hospital_each() -> None:
    people = np.array([[188, 106], [164, 139], [51, 149], [8, 115]])
    tested = []
    for k in range(4):
        data = Heart(fold=f"{k + 1}/4:clients").load()
        tested.append(np.bincount(data.y_test).tolist())
        assert data.groups is not None
        assert len(np.unique(data.groups)) == 3
        assert np.bincount(data.y).tolist() == (people.sum(0) - tested[-1]).tolist()
    assert sorted(tested) == sorted(people.tolist())


def test_each_seed_of_a_repetition_tests_another_fold() -> None:
    seeds = seeds_from(2, 3, "3")
    assert seeds == [3, 4, 5, 6, 7, 8]
    planned = cross(Experiment(dataset="heart"), ["fedavg", "scaffold"], seeds, "3")
    assert [one.training.seed for one in planned[::2]] == [one.clients.partition_seed for one in planned[1::2]] == seeds
    splits = [(one.dataset.split_seed, one.dataset.fold) for one in planned]  # type: ignore[attr-defined]
    assert splits[::2] == splits[1::2] == [(s, f"{k}/3") for s in (3, 6) for k in (1, 2, 3)]
    assert seeds_from(None) == [0, 1, 2, 3, 4]
    assert seeds_from(None, 0, "4:clients") == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("dataset", "folds", "message"),
    [
        (
            "heart",
            "1",
            "folds: write a number of at least 2, such as 5, or 4:clients to leave out whole clients; got '1'",
        ),
        ("digits", "5", "folds need a data set that draws its test rows: table:.* or heart"),
        ("table:path=rows.csv,label=y,test=new.csv", "5", "folds need a data set that draws its test rows"),
        ("heart", "3", "3 folds need 3 seeds for each repetition, got 5; write the number of repetitions"),
    ],
)
def test_folds_that_are_refused(dataset: str, folds: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        cross(Experiment(dataset=dataset), ["fedavg"], range(5), folds)


def test_wrong_folds_of_a_data_set_are_refused() -> None:
    for fold in ("6/5", "0/5", "2", "2/", "/5", "a/5", "9" * 5000 + "/5"):
        with pytest.raises(BadInput, match=r"folds?: write"):
            Heart(fold=fold)
    with pytest.raises(
        BadInput, match="folds 5:clients: the data have 4 natural clients; name fewer folds, or folds of rows"
    ):
        Heart(fold="1/5:clients").load()
    with pytest.raises(BadInput, match="folds 999: the data have 920 rows; name fewer folds"):
        Heart(fold="1/999").load()
    with pytest.raises(BadInput, match="test=FILE gives the test rows, so there are no folds"):
        TableData(path="rows.csv", label="y", test="new.csv", fold="1/5")
