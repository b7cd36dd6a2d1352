"""The user's own data: PyTorch datasets and tensors, and the Hugging Face library, which a small module replaces here."""

import re
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

import fedskew as fs
from fedskew.cli.main import main
from fedskew.core.component import build, to_table
from fedskew.core.errors import BadInput
from fedskew.data import DATASETS
from fedskew.data.datasets.hugging_face import HuggingFaceData
from fedskew.data.datasets.own import from_torch
from fedskew.data.datasets.table import TableData
from fedskew.skew.exported import FromFolder
from fedskew.store.runs import RunStore

X, Y = torch.arange(24.0).reshape(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])


def test_torch_datasets_and_pairs_of_tensors_are_the_same():
    one = from_torch(TensorDataset(X, Y), TensorDataset(X[:3], Y[:3]), name="mine")
    two = from_torch((X, Y), (X[:3], Y[:3]), name="mine")
    assert one.fingerprint() == two.fingerprint()
    assert np.array_equal(one.x, X.numpy())
    assert one.classes == ("0", "1", "2")
    named = from_torch((X, Y), (X, Y), classes=["a", "b", "c", "d"], groups=["u", "v", "u", "v", "w", "w"])
    assert named.num_classes == 4
    assert named.groups.tolist() == [0, 1, 0, 1, 2, 2]


def test_word_ids_stay_integers_and_bytes_become_numbers():
    assert from_torch((X.long(), Y), (X.long(), Y)).x.dtype == np.int64
    assert from_torch((X.to(torch.uint8), Y), (X.to(torch.uint8), Y)).x.dtype == np.float32


@pytest.mark.parametrize(
    ("train", "test", "words"),
    [
        ([(X[0], 0), (X[:2], 1)], [(X[0], 0)], "mine: train: rows have different shapes"),
        ([X[0]], [(X[0], 0)], "every item must be a pair"),
        ([], [(X[0], 0)], "no rows"),
        ((X, Y.float()), (X, Y), "labels must be integers, not float32"),
        ((X, -Y), (X, -Y), r"training labels must lie in 0\.\.0, found -2\.\.0"),
        ((X[:2], Y[:2]), (X, Y), "mine: the test part has rows of 2, but the training part has none"),
    ],
)
def test_bad_torch_data_gives_a_one_line_error(train, test, words):
    with pytest.raises(fs.BadInput, match=words):
        from_torch(train, test, name="mine")


# the Hugging Face library


class Split(dict[str, list[object]]):
    """A split of a data set: columns, and the class names of the column ``label``."""

    def __init__(self, names: list[str] | None = None, **columns: list[object]) -> None:
        super().__init__(columns)
        self.column_names = list(columns)
        self.features = {c: SimpleNamespace(names=names if c == "label" else None) for c in columns}


@pytest.fixture
def hub(monkeypatch):
    """Return an empty dict: name -> data set on the hub. The test fills it."""
    known: dict[str, dict[str, Split]] = {}

    def load_dataset(path: str, subset: str | None) -> dict[str, Split]:
        if path not in known:
            raise FileNotFoundError(f"Dataset '{path}' doesn't exist on the Hub\nor cannot be accessed")
        return known[path]

    module = ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    return known


def test_texts_of_the_hub(hub):
    hub["news/tiny"] = {
        "train": Split(["bad", "good"], text=["a b", "c", "a"], label=[0, 1, 1], user=["x", "y", "x"]),
        "test": Split(["bad", "good"], text=["c zebra"], label=[1], user=["z"]),
    }
    data = fs.load("hf:news/tiny,client=user,length=2")
    assert data.x.tolist() == [[2, 3], [4, 0], [2, 0]]
    assert data.x_test.tolist() == [[4, 1]]
    assert data.classes == ("bad", "good")
    assert data.groups.tolist() == [0, 1, 0]
    assert data.texts == (("a b", "c", "a"), ("c zebra",))
    component = build("dataset", DATASETS, "hf:news/tiny,client=user")
    assert build("dataset", DATASETS, to_table(component, DATASETS)) == component


def test_images_and_numbers_of_the_hub(hub):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 6, 5, 3), dtype=np.uint8)
    names = ["cat", "dog"] * 4
    images = [Image.fromarray(p) for p in pixels]
    hub["pets"] = {"train": Split(img=images, label=names), "test": Split(img=images[:2], label=names[:2])}
    data = HuggingFaceData(path="pets").load()
    assert data.shape == (3, 6, 5)
    assert data.classes == ("cat", "dog")
    exact = pixels.transpose(0, 3, 1, 2) / 255
    mean, std = exact.mean((0, 2, 3), keepdims=True), exact.std((0, 2, 3), keepdims=True)
    np.testing.assert_allclose(data.x, (exact - mean) / std, rtol=1e-4, atol=1e-5)
    hub["table"] = {"train": Split(v=[[1, 2], [3, 4]], label=[5, 9]), "validation": Split(v=[[1, 2]], label=[9])}
    table = HuggingFaceData(path="table", x="v", test="validation").load()
    assert table.x.tolist() == [[1, 2], [3, 4]]
    assert table.y_test.tolist() == [1]
    assert table.classes == ("5", "9")


def test_pixels_of_a_palette_are_colours(hub):
    image = Image.fromarray(np.array([[0, 1], [2, 3]], dtype=np.uint8), "P")
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255, 255, 255, 255])
    hub["flags"] = {part: Split(img=[image, image.convert("RGB")], label=[0, 1]) for part in ("train", "test")}
    data = HuggingFaceData(path="flags").load()
    assert data.shape == (3, 2, 2)
    assert np.array_equal(data.x[0], data.x[1])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"path": "nowhere"}, "hf:nowhere: cannot be loaded: Dataset 'nowhere' doesn't exist on the Hub"),
        ({"path": "odd"}, "which column holds the rows.*one of v, w, label"),
        ({"path": "odd", "x": "v", "test": "validation"}, "no split 'validation', there are train, test"),
        ({"path": "odd", "x": "u"}, "no column 'u', there are v, w, label"),
        ({"path": "odd", "x": "v"}, "different shapes"),
        ({"path": "odd", "x": "w"}, "has rows of 3, but the training part has none"),
    ],
)
def test_bad_data_of_the_hub_gives_a_one_line_error(hub, options, words):
    hub["odd"] = {
        "train": Split(v=[[1], [2, 3]], w=[[1], [2]], label=[0, 1]),
        "test": Split(v=[[1], [2]], w=[[1], [2]], label=[0, 1 if options.get("x") == "v" else 3]),
    }
    with pytest.raises(fs.BadInput, match=words):
        HuggingFaceData(**options).load()


def test_error_without_the_library_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(fs.BadInput, match=r"pip install '\.\[hf\]' in the clone"):
        fs.load("hf:imdb")


# paths


@pytest.fixture
def table(tmp_path):
    """A file t.csv of 60 rows, two classes, no clients."""
    path = tmp_path / "t.csv"
    path.write_text("x,y\n" + "".join(f"{i % 7},{'ab'[i % 2]}\n" for i in range(60)))
    return path


def test_run_on_files_is_repeated_from_any_folder(table, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = ["run", "--rounds", "1", "--clients", "3", "--skew", "iid", "--engine", "sequential"]
    assert main([*command, "--dataset", "table:path=t.csv,label=y,test=t.csv"]) == 0
    assert "table:redraw=false,path=t.csv,label=y,test=t.csv, 3 clients" in capsys.readouterr().err.replace("\n", " ")
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    assert main(["run", str(tmp_path / "runs" / "1" / "experiment.toml")]) == 0
    one, two = (RunStore(f / "runs").measurements([1]).query("name == 'loss'") for f in (tmp_path, other))
    assert len(one)
    assert one.equals(two)


def test_only_existing_paths_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert HuggingFaceData(path="stanfordnlp/imdb").path == "stanfordnlp/imdb"
    with pytest.raises(BadInput, match=rf"^t\.csv: no such file or folder in {re.escape(str(tmp_path))}$"):
        TableData(path="t.csv", label="y").load()
    (tmp_path / "pets").mkdir()
    assert HuggingFaceData(path="pets").path == str(tmp_path / "pets")
    assert FromFolder(path="pets").path == str(tmp_path / "pets")
