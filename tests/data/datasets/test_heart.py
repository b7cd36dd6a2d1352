"""The patients of four hospitals: the counts of the source, the split, and no knowledge of test rows."""

import csv
import dataclasses

import numpy as np
import pytest

from fedskew.data.datasets.heart import CSV, NEVER_ZERO, Heart
from fedskew.data.find import Files
from fedskew.data.splits import share_of_strata
from tests.real import real_data

PEOPLE = {"Budapest": (188, 106), "Cleveland": (164, 139), "Long Beach": (51, 149), "Switzerland": (8, 115)}
"""Healthy and ill people of each hospital in the source's files."""


def cells() -> list[list[str]]:
    with CSV.open() as file:
        return list(csv.reader(file))


def test_file_has_every_value_of_the_source() -> None:
    files = {"cleveland": "Cleveland", "hungarian": "Budapest", "switzerland": "Switzerland", "va": "Long Beach"}
    source = [
        [name, *(None if cell.strip() == "?" else float(cell) for cell in line.split(","))]
        for file, name in files.items()
        for line in (real_data() / "heart-disease" / f"processed.{file}.data").read_text().split()
    ]
    assert [[row[0], *(float(cell) if cell else None for cell in row[1:])] for row in cells()[1:]] == source
    assert len(source) == 920


@pytest.mark.parametrize("seed", [0, 1])
def test_a_third_of_each_class_in_each_hospital_is_tested(seed: int) -> None:
    data = Heart(split_seed=seed).load()
    assert (data.classes, data.group_names) == (("healthy", "ill"), tuple(PEOPLE))
    third = [[round(number / 3) for number in both] for both in PEOPLE.values()]
    assert data.groups is not None
    trained = [np.bincount(data.y[data.groups == k]).tolist() for k in range(4)]
    assert trained == (np.array([*PEOPLE.values()]) - third).tolist()
    assert np.bincount(data.y_test).tolist() == np.sum(third, axis=0).tolist()


def test_split_seed_chooses_other_test_rows() -> None:
    assert Heart().load().fingerprint() == Heart().load().fingerprint() != Heart(split_seed=1).load().fingerprint()


def test_known_training_values_are_standardised_and_missing_ones_are_zero() -> None:
    head, *rows = cells()
    cholesterol = np.array([float(row[head.index("chol")] or 0) for row in rows])
    strata = np.unique([f"{row[0]}{row[-1] != '0'}" for row in rows], return_inverse=True)[1]
    test, missing = share_of_strata(strata, 1 / 3), cholesterol == 0
    data = Heart().load()
    at = 7  # age, sex, four kinds of chest pain and blood pressure come before
    assert np.array_equal(data.x[:, at] == 0, missing[~test])
    assert np.array_equal(data.x_test[:, at] == 0, missing[test])
    known = data.x[data.x[:, at] != 0, at].astype(np.float64)
    assert (known.mean(), known.std()) == pytest.approx((0, 1), abs=1e-6)
    assert "chol" in NEVER_ZERO
    assert data.notes.startswith("1,932 of 11,960 values are missing")
    assert (data.x[data.groups == 3, at] == 0).all(), "no Swiss cholesterol is known"


def test_values_of_test_rows_change_no_training_row(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    head, *rows = cells()
    strata = np.unique([f"{row[0]}{row[-1] != '0'}" for row in rows], return_inverse=True)[1]
    for row, is_test in zip(rows, share_of_strata(strata, 1 / 3), strict=True):
        if is_test:
            row[1], row[4], row[5] = "999", "999", ""
    changed = tmp_path / "heart.csv"
    changed.write_text("\n".join(map(",".join, [head, *rows])) + "\n")
    real = Heart().load()
    monkeypatch.setattr(Heart, "files", dataclasses.replace(Heart.files, packaged=(changed,)))
    other = Heart().load()
    assert np.array_equal(other.x, real.x)
    assert not np.array_equal(other.x_test, real.x_test)


def test_file_is_found_without_any_folder_of_data(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("FEDSKEW_DATA", str(tmp_path))
    assert Heart.files.here() == [CSV]
    assert isinstance(Heart.files, Files)
