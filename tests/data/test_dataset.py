"""What every data set must satisfy, and its fingerprint."""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_matrix

import fedskew as fs
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


def with_bad() -> np.ndarray:
    x = np.zeros((5, 3), dtype=np.float32)
    x[1, 2] = x[1, 0] = np.nan
    x[4, 1] = np.inf
    return x


def test_names_may_be_arrays_and_client_ids_may_be_letters():
    data = Dataset(**valid(classes=np.array(["a", "b", "c"]), groups=np.array(list("vuuvu"))))
    assert (data.classes, data.group_names) == (("a", "b", "c"), ("u", "v"))
    assert data.groups.tolist() == [1, 0, 0, 1, 0]
    assert Dataset(**valid(group_names=np.array(list("wxyz")))).group_names == ("w", "x", "y", "z")
    with pytest.raises(BadInput, match="must hold integers, since group_names"):
        Dataset(**valid(groups=np.array(list("vuuvu")), group_names=("u", "v")))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"y": np.array([0, 1, 2, 1])}, ["5 training rows", "4 labels"]),
        ({"y_test": np.array([0])}, ["2 test rows", "1 labels"]),
        ({"y": np.array([0, 1, 3, 1, 0])}, ["training labels", "0..2", "0..3"]),
        ({"y_test": np.array([0, 7])}, ["test labels", "0..7"]),
        ({"y": np.array([0.5, 1, 2, 1, 0])}, ["integers", "float64"]),
        ({"x": with_bad()}, ["2 training rows", "finite"]),
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
    assert all(word in str(error.value) for word in ("mine", *words))


def test_fingerprint_depends_on_values_groups_shapes_and_types():
    deeper = {"x": np.zeros((5, 3, 1)), "x_test": np.zeros((2, 3, 1))}
    parts = {"x": np.eye(5, 3, dtype=np.float32), "y": [0, 1, 0, 1, 0], "x_test": np.ones((2, 3)), "y_test": [1] * 2}
    parts |= {"groups": [1] * 5}
    changed = [{}, {"groups": None}, {"x": np.zeros((5, 3))}, deeper, *({name: part} for name, part in parts.items())]
    prints = [Dataset(**valid(**changes)).fingerprint() for changes in (*changed, {})]
    assert (len({*prints}), prints[0]) == (len(changed), prints[-1])
    assert len(prints[0]) == 16


def test_own_data_cannot_be_loaded_again():
    with pytest.raises(BadInput, match=r"fingerprint 0123456789abcdef.*data="):
        OwnData(fingerprint="0123456789abcdef").load()


def test_some_rows_differ_between_parts_and_all_rows_stay_in_order():
    train, test = (some_rows(50, 20, part, "mine") for part in (0, 1))
    assert len(set(train.tolist())) == len(set(test.tolist())) == 20
    assert train.tolist() != test.tolist()
    assert some_rows(50, 0, 0, "mine").tolist() == list(range(50))


RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
FRAME = pd.DataFrame(X, columns=["age", "dose", "weight"])
WORDS = np.where(Y, "yes", "no")
SITES = np.array([f"h{i % 4}" for i in range(60)], dtype=object)


def dataset(**parts: Any) -> fs.Dataset:
    given = {"x": X, "y": Y, "x_test": X[:20], "y_test": Y[:20], "classes": ("no", "yes")} | parts
    for part in ("x", "y"):
        if part in parts and f"{part}_test" not in parts:
            given[f"{part}_test"] = parts[part][:20]
    return fs.Dataset(**given)


def missing(at: int, value: object) -> Any:
    groups = SITES.copy()
    groups[at] = value
    return groups


@pytest.mark.parametrize(
    "parts",
    [
        {"x": X.tolist(), "y": Y.tolist()},
        {"x": FRAME, "y": pd.Series(Y)},
        {"x": torch.tensor(X), "y": torch.tensor(Y)},
        {"x": torch.tensor(X, requires_grad=True)},
        {"x": csr_matrix(X)},
        {"x": X.astype(object)},
        {"x": np.ma.MaskedArray(X)},
        {"y": Y[:, None]},
        {"y": Y.astype(float)},
        {"y": Y.astype(bool)},
        {"y": WORDS},
        {"y": WORDS.tolist(), "classes": ()},
        {"y": pd.Series(WORDS).astype("category"), "classes": None},
    ],
    ids=["lists", "frame", "tensors", "gradient", "sparse", "objects", "masked", "column", "floats", "truth", "words",
         "words without classes", "categories"],
)  # fmt: skip
def test_other_containers_hold_the_same_data(parts: dict[str, Any]) -> None:
    data = dataset(**parts)
    assert data.fingerprint() == dataset().fingerprint() or data.x.dtype == np.float64
    assert np.array_equal(data.x, X.astype(data.x.dtype))
    assert np.array_equal(data.y, Y)
    assert (data.target, data.classes) == ("classes", ("no", "yes"))


def test_a_frames_columns_are_named_and_bfloat16_is_read() -> None:
    assert dataset(x=FRAME).columns == ("age", "dose", "weight")
    assert dataset(x=torch.tensor(X).bfloat16()).x.dtype == np.float32
    assert dataset(x=X[:, 0]).shape == (1,)
    assert dataset(x=X > 0).x.dtype == np.float32
    assert dataset(y=X[:, :1], classes=()).target == "number"


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"groups": missing(3, None)}, r"1 rows have no client \(groups\), such as row 3"),
        ({"groups": missing(4, np.nan).tolist()}, r"1 rows have no client \(groups\), such as row 4"),
        ({"groups": np.where(Y, np.nan, 1.0)}, r"rows have no client \(groups\)"),
        ({"groups": pd.array([1] * 59 + [None], dtype="Int64")}, r"1 rows have no client \(groups\), such as row 59"),
        ({"groups": "site"}, r"client \(groups\) must be an array, not str"),
        ({"y": np.eye(2, dtype=np.int64)[Y]}, "a single 1, as one-hot labels have; write y.argmax"),
        ({"y": np.eye(2)[Y], "classes": ()}, "a single 1, as one-hot labels have"),
        ({"classes": ()}, r"not int64; for classes give their names, classes=\(\.\.\.\)"),
        ({"y": np.where(Y, "yes", "maybe")}, "targets such as 'maybe' are not among the classes no, yes"),
        ({"y": [*WORDS[:-1].tolist(), np.nan], "classes": ()}, r"1 rows have no target \(y\), such as row 59"),
        ({"x": FRAME.assign(site=SITES)}, "could not convert string to float: 'h0'; fs.table"),
        ({"x": None, "x_test": X[:20]}, "training rows must be an array, not NoneType"),
        ({"x": [[1.0, 2.0], [3.0]]}, "training rows must be an array: "),
        ({"x": np.ma.masked_less(X, 0)}, "training rows hold values that are not finite"),
        ({"persons": np.arange(60)}, "persons must be a pair"),
    ],
)
def test_ambiguous_data_get_one_line(parts: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        dataset(**parts)


def test_labels_with_a_single_one_are_sets_if_the_target_says_so() -> None:
    assert dataset(y=np.eye(2, dtype=np.int64)[Y], target="labels").target == "labels"


def test_from_torch_refuses_missing_clients_and_frames() -> None:
    with pytest.raises(BadInput, match="1 rows have no client"):
        fs.from_torch((X, Y), (X, Y), groups=missing(3, None))
    with pytest.raises(BadInput, match="train: has no item 0; give a PyTorch dataset"):
        fs.from_torch(FRAME, FRAME)
    assert fs.from_torch((X, Y[:, None]), (X, Y[:, None])).target == "classes"


TABLE = FRAME.assign(outcome=WORDS, site=SITES)


def test_a_frame_is_read_like_its_file(tmp_path) -> None:
    TABLE.to_parquet(tmp_path / "frame.parquet")
    of_file, of_frame = (fs.table(rows, label="outcome", client="site") for rows in (tmp_path / "frame.parquet", TABLE))
    assert of_frame.fingerprint() == of_file.fingerprint()
    assert of_frame.columns == of_file.columns
    numbered = fs.table(TABLE.set_axis(range(5), axis=1), label=3, client="4")
    assert numbered.fingerprint() == of_file.fingerprint()
    of_file, of_frame = (
        fs.diagnose(rows, label="outcome", client="site", progress=False)
        for rows in (tmp_path / "frame.parquet", TABLE)
    )
    assert str(of_frame) == str(of_file)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: fs.run(data=TABLE), r"a fedskew.Dataset, got DataFrame; .* for a data frame fs.table\(FRAME, label=COLUMN"),
        (lambda: fs.run(dataset=TABLE), "data must be a fedskew.Dataset, got DataFrame"),
        (lambda: fs.compare(["fedavg"], data=(X, Y)), "data must be a fedskew.Dataset, got tuple"),
        (lambda: fs.tune(["fedavg"], data=X), "data must be a fedskew.Dataset, got ndarray"),
        (lambda: fs.diagnose(X), "give the path of a file, or a pandas data frame, not a ndarray"),
        (lambda: fs.diagnose(TABLE), "name the column of classes by label"),
        (lambda: fs.clients(TABLE), "expected a name such as 'digits', got a DataFrame"),
        (lambda: fs.partition(TABLE, "iid"), "give a fedskew.Dataset, not a DataFrame"),
        (lambda: fs.compare(3), r"write the methods as a list, \[3\]"),
        (lambda: fs.compare(["fedavg"], seeds="5"), "seeds: write their number, or a list of whole numbers, not '5'"),
        (lambda: fs.run(seeds=5), r"'seeds': only other functions have it, such as fs.compare\(\[METHOD\], seeds=5\)"),
        (lambda: fs.run(epochs="1/4"), "epochs must be a whole number of at least 1 or a finite number above 0, got '1/4'"),
    ],
)  # fmt: skip
def test_other_data_and_options_get_one_line(call: Any, says: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=says):
        call()
    assert not (tmp_path / "runs").exists()


def test_numbers_of_numpy_are_options(tmp_path) -> None:
    runs = fs.compare(["fedavg"], seeds=np.arange(2), rounds=np.int64(1), lr=np.float64(0.1), data=dataset(groups=SITES),
                      model="softmax", runs=tmp_path, progress=False)  # fmt: skip
    assert [record.seed for record in runs.records] == [0, 1]


def images(scale: np.ndarray, test: float = 1.0, y: np.ndarray | None = None) -> Dataset:
    """Forty images of two clients, whose largest values are ``scale`` (40,), and ten test images."""
    x = np.linspace(0, 1, 160, dtype=np.float32).reshape(40, 1, 2, 2)
    y = np.arange(40) % 2 if y is None else y
    names = () if y.dtype.kind == "f" else ("a", "b")
    groups = np.arange(40) // 30
    return Dataset(
        x=x * scale.reshape(-1, 1, 1, 1), y=y, x_test=x[-10:] * test, y_test=y[:10], classes=names, groups=groups
    )


@pytest.mark.parametrize(
    ("scale", "test", "what"),
    [
        (np.ones(40), 255, "the test rows reach 2"),
        (np.full(40, 255.0), 1, "the test rows reach 0"),
        (np.where(np.arange(40) < 30, 1.0, 255.0), 1, "the rows of client 1 reach 2"),
    ],
)
def test_images_on_two_scales_are_named(scale: np.ndarray, test: float, what: str) -> None:
    with pytest.warns(UserWarning, match=f"{what}.*give all images on one scale, such as 0 to 1"):
        images(scale, test)


def test_whole_numbers_as_floats_are_named_as_numbers_to_predict() -> None:
    with pytest.warns(UserWarning, match="y holds 2 whole numbers as floats, which are taken as numbers to predict"):
        images(np.ones(40), y=np.arange(40) % 2 + 1.0)


def test_images_on_one_scale_and_measured_numbers_give_no_warning() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        images(np.ones(40))
        images(np.full(40, 255.0), 255)
        images(np.ones(40), y=np.linspace(0, 1, 40))
    assert not seen


def test_classes_that_count_from_one_are_warned_of() -> None:
    y = {"y": np.array([1, 2, 2, 1, 1]), "y_test": np.array([1, 2])}
    with pytest.warns(
        UserWarning, match=r"^mine: y holds 1 to 2 and never 0, so no row is of class 'a'; classes count from 0, in"
    ):
        Dataset(**valid(**y))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Dataset(**valid(**y, classes=("0", "1", "2")))  # these names are right
        Dataset(**valid(**y | {"y_test": np.array([0, 2])}))


def test_data_frames_with_other_columns_in_the_test_rows_are_refused() -> None:
    """Their cells were taken by place: a model trained on a, b, c was tested on c, b, a."""
    x = pd.DataFrame(np.arange(15.0).reshape(5, 3), columns=list("abc"))
    says = "the columns of x are a, b, c, and of x_test c, b, a; give both the same, in one order"
    with pytest.raises(BadInput, match=says):
        Dataset(**valid(x=x, x_test=x[:2][["c", "b", "a"]].copy()))
    data = Dataset(**valid(x=x, x_test=x[:2]))
    assert data.columns == ("a", "b", "c")
    assert Dataset(**valid(x=x, x_test=x[:2].to_numpy())).columns == ("a", "b", "c")


def test_rows_in_reverse_order_can_be_read() -> None:
    x = np.arange(15.0).reshape(5, 3)
    backwards = Dataset(**valid(x=x[::-1], x_test=x[1::-1, ::-1]))
    assert torch.as_tensor(backwards.x).tolist() == x[::-1].tolist()
