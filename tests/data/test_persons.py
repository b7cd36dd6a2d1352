"""Persons with several rows: no person is in training rows and in rows that measure, wherever rows are drawn."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedskew as fs
from fedskew.core.errors import BadInput
from fedskew.core.seeding import whole_units
from fedskew.data.dataset import Dataset
from fedskew.data.splits import held_out, in_fold
from fedskew.execution.deal import client_data
from fedskew.experiment.config import Experiment

PERSONS, VISITS = 130, 5
RNG = np.random.default_rng(0)
PERSON = RNG.permutation(np.repeat(np.arange(PERSONS), VISITS))
CLIENT, STRATUM = (PERSON * 7) % 4, RNG.integers(0, 3, len(PERSON))


def write_visits(path: Path, travel: int = 0, person: str = "patient") -> Path:
    """A table of visits: ``x`` numbers the rows, ``travel`` of the persons have a visit at another hospital, too."""
    lines = [f"{person},hospital,x,sex,birth,ill"]
    for row, who in enumerate(PERSON.tolist()):
        first = row == int(np.flatnonzero(who == PERSON)[0])
        hospital = "abcd"[(CLIENT[row] + (who < travel and first)) % 4]
        lines.append(
            f"p{who:03d},{hospital},{row}.5,{'fm'[who % 2]},{1930 + who % 60},{['no', 'yes'][STRATUM[row] % 2]}"
        )
    path.write_text("\n".join(lines) + "\n")
    return path


def visits(path: Path, options: str = "person=patient") -> Dataset:
    return fs.load(f"table:path={path},label=ill,client=hospital,{options}")


def persons_of(data: Dataset) -> tuple[set[str], set[str]]:
    """The persons of training and test rows, from the row numbers in ``x``."""
    assert data.preprocessing is not None
    (column,) = (part for part in data.preprocessing.columns if part.name == "x")  # type: ignore[union-attr]
    at = data.columns.index("x")
    rows = [np.round(x[:, at] * column.scale + column.mean - 0.5).astype(int) for x in (data.x, data.x_test)]
    train, test = ({f"p{who:03d}" for who in PERSON[part]} for part in rows)
    return train, test


@pytest.mark.parametrize("options", ["", ",fold=2/5", ",fold=1/4:clients", ",test_share=0.37,split_seed=4"])
@pytest.mark.parametrize("travel", [0, 40])
def test_no_person_has_training_and_test_rows(tmp_path: Path, options: str, travel: int) -> None:
    path = write_visits(tmp_path / "visits.csv", travel)
    train, test = persons_of(visits(path, f"person=patient{options}"))
    assert train
    assert test
    assert not train & test
    # without the column, the same persons are on both sides of a draw of rows
    train, test = persons_of(visits(path, f"redraw=true{options}"))
    assert bool(train & test) == ("clients" not in options or travel > 0)


def test_persons_with_one_row_change_no_draw() -> None:
    each = RNG.permutation(len(CLIENT))
    for fraction in (0.2, 0.37):
        assert (held_out(CLIENT, fraction, 3, STRATUM) == held_out(CLIENT, fraction, 3, STRATUM, each)).all()
    for fold in ("2/5", "3/4:clients"):
        assert (in_fold(CLIENT, fold, 3, STRATUM) == in_fold(CLIENT, fold, 3, STRATUM, each)).all()


def test_shares_of_clients_and_classes_are_as_near_as_whole_persons_allow() -> None:
    for stratum, nearest in ((PERSON // 4 % 3, VISITS), (STRATUM, 2 * VISITS)):
        for seed in range(5):
            test = held_out(CLIENT, 0.2, seed, stratum, PERSON)
            assert abs(test.sum() - 0.2 * len(test)) <= VISITS
            for k in range(4):
                own = k == CLIENT
                assert abs(test[own].sum() - 0.2 * own.sum()) <= VISITS / 2 + 1
                for c in range(3):
                    cell = own & (stratum == c)
                    assert abs(test[cell].sum() - 0.2 * cell.sum()) < nearest
    # each person is drawn by some seed
    drawn = [set(PERSON[held_out(CLIENT, 0.2, seed, STRATUM, PERSON)]) for seed in range(40)]
    assert len(set.union(*drawn)) == PERSONS


def test_persons_of_different_sizes_are_drawn_alike_often() -> None:
    person = np.repeat(np.arange(200), RNG.integers(1, 10, 200))
    sizes, client = np.bincount(person), np.zeros(len(person), dtype=int)
    drawn = np.zeros(200)
    for seed in range(100):
        drawn[np.unique(person[held_out(client, 0.2, seed, None, person)])] += 1
    for size in (1, 5, 9):
        assert drawn[sizes == size].mean() == pytest.approx(20, abs=3)


def test_each_person_is_tested_by_one_fold_of_five() -> None:
    folds = np.stack([in_fold(CLIENT, f"{k}/5", 3, STRATUM, PERSON) for k in range(1, 6)])
    assert (folds.sum(0) == 1).all()
    assert {len(set(PERSON[fold])) for fold in folds} == {PERSONS // 5}
    assert sorted(who for fold in folds for who in set(PERSON[fold])) == list(range(PERSONS))
    with pytest.raises(BadInput, match="folds 200: the data have 130 persons; name fewer folds"):
        in_fold(CLIENT, "1/200", 3, STRATUM, PERSON)


def test_a_client_keeps_a_row_and_barred_units_are_not_taken() -> None:
    unit, client = np.array([0, 0, 1, 1, 2, -1]), np.array([0, 0, 1, 1, 1, 2])
    taken = whole_units(unit, client, np.arange(6), [(np.zeros(6, dtype=int), np.array([6]))])
    assert taken.tolist() == [False, False, True, True, False, False]


@pytest.mark.parametrize("skew", ["natural", "iid", "label-dirichlet:alpha=0.5"])
@pytest.mark.parametrize("more", [{}, {"clients.unseen": 0.5}, {"server_data.share": 0.02}, {"shared_data.beta": 0.02}])
def test_no_person_is_trained_on_at_one_client_and_measures_another(
    tmp_path: Path, skew: str, more: dict[str, float]
) -> None:
    data = visits(write_visits(tmp_path / "visits.csv", travel=40))
    assert data.persons is not None
    person = data.persons[0]
    experiment = Experiment(skew=skew, clients={"number": 6}).replace(
        **{name.replace(".", "__"): value for name, value in more.items()}
    )
    dealt = client_data(experiment, data)
    parts = [part for part in (dealt.partition, dealt.unseen) if part is not None]
    measured = np.concatenate([part.held_out[0] for part in parts if part.held_out])
    trained = np.concatenate([part.indices for part in parts])
    assert len(measured) > 0.1 * len(data.y)
    assert not set(person[measured]) & set(person[trained])
    assert min(part.sizes.min() for part in parts) > 0
    if not more:
        assert abs(len(measured) - 0.2 * len(data.y)) < 0.05 * len(data.y)
    # the same data without persons: some are on both sides
    rows = client_data(experiment, replace(data, persons=None)).partition
    assert rows.held_out is not None
    assert set(person[rows.held_out[0]]) & set(person[rows.indices])


def test_a_test_file_with_the_same_persons_takes_their_rows_out_of_training(tmp_path: Path) -> None:
    path, later = write_visits(tmp_path / "visits.csv"), tmp_path / "later.csv"
    head, *lines = path.read_text().splitlines()
    later.write_text("\n".join([head, *lines[:10]]) + "\n")
    data = visits(path, f"person=patient,test={later}")
    train, test = persons_of(data)
    assert test == {line.partition(",")[0] for line in lines[:10]}
    assert not train & test
    assert len(data.y) == len(lines) - VISITS * len(test)
    assert f"{VISITS * len(test)} rows of tested persons outside the test rows left out" in data.notes


def test_persons_at_several_clients_are_counted(tmp_path: Path) -> None:
    path = write_visits(tmp_path / "visits.csv", travel=40)
    assert (
        "130 persons in column 'patient', which is no input: a person's rows stay together as test, held-out or training rows; "
        "40 persons at several clients"
    ) in visits(path).notes
    notes = visits(path, "person=patient,fold=1/4:clients").notes
    assert "rows of tested persons outside the test rows left out" in notes
    assert "several clients" not in visits(write_visits(tmp_path / "visits.csv")).notes


def test_the_column_of_persons_is_no_input_and_changes_the_fingerprint(tmp_path: Path) -> None:
    path = write_visits(tmp_path / "visits.csv")
    data = visits(path)
    assert not [name for name in data.columns if "patient" in name]
    assert data.fingerprint() != replace(data, persons=None).fingerprint()
    assert data.persons is not None
    assert [len(part) for part in data.persons] == [len(data.y), len(data.y_test)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("client=hospital,person=pateint", "no column 'pateint'; did you mean 'patient'"),
        ("client=hospital,person=patient,fewest=5", "fewest counts rows, not persons"),
    ],
)
def test_persons_that_are_refused(tmp_path: Path, options: str, message: str) -> None:
    path = write_visits(tmp_path / "visits.csv")
    with pytest.raises(BadInput, match=message):
        fs.load(f"table:path={path},label=ill,{options}")


def test_arrays_name_their_persons() -> None:
    x, y = np.zeros((6, 2)), np.array([0, 1, 0, 1, 0, 1])
    arrays = {"x": x, "y": y, "x_test": x[:2], "y_test": y[:2], "classes": ("no", "yes")}
    data = Dataset(**arrays, persons=([3, 3, "a", "a", 7, 7], ["b", "b"]))  # type: ignore[arg-type]
    assert data.persons is not None
    assert [part.tolist() for part in data.persons] == [[0, 0, 2, 2, 1, 1], [3, 3]]
    for persons, message in (
        (([1] * 5, [2, 2]), "persons must have one entry a row in each part"),
        (([1] * 6, [1, 2]), "person '1' has training and test rows"),
        (([1, 1, 1, None, np.nan, 1], [2, 2]), "2 rows have no person"),
    ):
        with pytest.raises(BadInput, match=message):
            Dataset(**arrays, persons=persons)  # type: ignore[arg-type]


def repeats(data: Dataset) -> list[str]:
    return [note.split("'")[1] for note in data.notes.split("; ") if "repeats like an id" in note]


def test_a_column_that_repeats_like_an_id_is_named(tmp_path: Path) -> None:
    for name in ("patient", "fall", "subject_id", "Proband"):
        path = write_visits(tmp_path / "visits.csv", person=name)
        data = visits(path, "split_seed=0")
        assert repeats(data) == [name]
        says = f"'{name}' repeats like an id, 130 values in 650 rows: if it names persons, write person={name}"
        assert says in data.notes
        assert repeats(visits(path, f"person={name}")) == []
        numbers = path.read_text().replace("p0", "1000").replace("p1", "1001")
        path.write_text(numbers)
        assert repeats(visits(path, "split_seed=0")) == [name]


def test_ages_codes_and_measurements_are_not_taken_for_ids(tmp_path: Path) -> None:
    rng, path = np.random.default_rng(1), tmp_path / "rows.csv"
    rows = rng.normal(size=(900, 2))
    ages = rng.normal(50, 12, 900).astype(int)
    lines = [
        f"{row},{'abc'[row % 3]},{a:.1f},{b:.3f},{age},{age // 10},{rng.integers(60)},{['no', 'yes'][int(a > b)]}"
        for row, ((a, b), age) in enumerate(zip(rows, ages, strict=True))
    ]
    path.write_text("\n".join(["row,hospital,a,b,age,decade,minute,ill", *lines]) + "\n")
    assert repeats(visits(path, "split_seed=0")) == []
    for name in ("heart", "digits"):
        assert "repeats" not in fs.load(name).notes
