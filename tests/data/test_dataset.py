"""What every data set must satisfy, and its fingerprint."""

import numpy as np
import pytest

from fedskew.core.errors import BadInput
from fedskew.data.dataset import Dataset, some_rows
from fedskew.data.datasets.own import OwnData


def valid(**changes) -> dict:
    return {
        "x": np.zeros((5, 3), dtype=np.float32),
        "y": np.array([0, 1, 2, 1, 0]),
        "x_test": np.zeros((2, 3), dtype=np.float32),
        "y_test": np.array([0, 2]),
        "classes": ("a", "b", "c"),
        "groups": np.array([1, 1, 2, 2, 3]),
        "name": "mine",
    } | changes


def with_bad(value: float) -> np.ndarray:
    x = np.zeros((5, 3), dtype=np.float32)
    x[1, 2] = x[1, 0] = x[4, 1] = value
    return x


def test_valid_data_set_is_accepted():
    data = Dataset(**valid())
    assert data.num_classes == 3
    assert data.shape == (3,)
    assert Dataset(**valid(groups=None)).groups is None


def test_names_may_be_arrays_and_client_ids_may_be_letters():
    data = Dataset(**valid(classes=np.array(["a", "b", "c"]), groups=np.array(list("vuuvu"))))
    assert (data.classes, data.group_names) == (("a", "b", "c"), ("u", "v"))
    assert data.groups.tolist() == [1, 0, 0, 1, 0]
    assert Dataset(**valid(group_names=np.array(list("wxyz")))).group_names == ("w", "x", "y", "z")
    with pytest.raises(BadInput, match="must be integers if group_names names them"):
        Dataset(**valid(groups=np.array(list("vuuvu")), group_names=("u", "v")))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"y": np.array([0, 1, 2, 1])}, ["5 training rows", "4 labels"]),
        ({"y_test": np.array([0])}, ["2 test rows", "1 labels"]),
        ({"y": np.array([0, 1, 3, 1, 0])}, ["training labels", "0..2", "0..3"]),
        ({"y": np.array([0, -1, 2, 1, 0])}, ["training labels", "0..2", "-1..2"]),
        ({"y_test": np.array([0, 7])}, ["test labels", "0..7"]),
        ({"y": np.array([0.5, 1, 2, 1, 0])}, ["integers", "float64"]),
        ({"x": with_bad(np.nan)}, ["2 training rows", "finite"]),
        ({"x": with_bad(np.inf)}, ["2 training rows", "finite"]),
        ({"x_test": np.full((2, 3), np.nan)}, ["2 test rows", "finite"]),
        ({"x_test": np.zeros((2, 4))}, ["(3,)", "(4,)"]),
        ({"groups": np.array([1, 2])}, ["groups"]),
        ({"x": np.zeros((0, 3)), "y": np.zeros(0, dtype=int), "groups": None}, ["no training rows"]),
        ({"x_test": np.zeros((0, 3)), "y_test": np.zeros(0, dtype=int)}, ["no test rows"]),
    ],
)
def test_bad_arrays_give_one_line_errors(changes, words):
    with pytest.raises(BadInput) as error:
        Dataset(**valid(**changes))
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in ("mine", *words))


@pytest.mark.parametrize("part", ["x", "y", "x_test", "y_test", "groups"])
def test_fingerprint_changes_with_any_value(part):
    changed = valid()
    changed[part] = changed[part].copy()
    changed[part][0] += 1
    assert Dataset(**changed).fingerprint() != Dataset(**valid()).fingerprint()
    assert Dataset(**valid()).fingerprint() == Dataset(**valid()).fingerprint()
    assert len(Dataset(**valid()).fingerprint()) == 16


def test_fingerprint_depends_on_groups_shapes_and_types():
    prints = {
        Dataset(**valid(**changes)).fingerprint()
        for changes in (
            {},
            {"groups": None},
            {"x": np.zeros((5, 3))},
            {"x": np.zeros((5, 3, 1)), "x_test": np.zeros((2, 3, 1))},
        )
    }
    assert len(prints) == 4


def test_own_data_cannot_be_loaded_again():
    with pytest.raises(BadInput, match=r"fingerprint 0123456789abcdef.*data="):
        OwnData(fingerprint="0123456789abcdef").load()


def test_some_rows_differ_between_parts_and_all_rows_stay_in_order():
    train, test = (some_rows(50, 20, part, "mine") for part in (0, 1))
    assert len(set(train.tolist())) == len(set(test.tolist())) == 20
    assert train.tolist() != test.tolist()
    assert some_rows(50, 0, 0, "mine").tolist() == list(range(50))
