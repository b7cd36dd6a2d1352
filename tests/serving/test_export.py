"""A run's model as a file gives the stored accuracy."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedskew.api.functions import run
from fedskew.cli.main import main
from fedskew.core.errors import BadInput
from fedskew.data.datasets.own import from_torch
from fedskew.execution.run import register
from fedskew.experiment.config import Experiment
from fedskew.serving.export import export, program
from fedskew.store.runs import RunStore
from tests.commands import error_of


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    experiment = Experiment(model="mlp:hidden=[8]", engine="sequential").replace(training__rounds=1, local__epochs=1)
    return run(experiment, runs=tmp_path_factory.mktemp("export")).store


def test_torchscript_gives_the_stored_accuracy(stored: RunStore) -> None:
    data = Experiment().dataset.load()
    with torch.no_grad():
        predicted = torch.jit.load(str(export(stored, 1, "torchscript")))(torch.as_tensor(data.x_test).float()).argmax(
            1
        )
    frame = stored.measurements([1])
    accuracy = frame[(frame["round"] == 1) & (frame.split == "test") & (frame.name == "accuracy")].value.item()
    assert float((predicted.numpy() == data.y_test).mean()) == pytest.approx(accuracy, abs=1e-12)


def test_safetensors_holds_the_parameters_by_name(stored: RunStore, tmp_path: Path) -> None:
    path = tmp_path / "sub" / "model.safetensors"
    assert main(["export", "1", "--runs", str(stored.folder), "--output", str(path)]) == 0
    shapes = sorted(tuple(leaf.shape) for leaf in load_file(path).values())
    assert shapes == [(8,), (8, 64), (10,), (10, 8)]


def test_exported_weights_load_into_a_user_module(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\n\n\nclass Net(nn.Sequential):\n    def __init__(self, shape, classes):\n"
        "        super().__init__(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, classes))\n"
    )
    rows = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    data = from_torch((rows, (rows[:, 0] > 0).long()), (rows, (rows[:, 0] > 0).long()))
    given = Experiment(model=f"{tmp_path / 'net.py'}::Net", skew="iid", clients={"number": 2}, training={"rounds": 1})
    store = run(given.replace(engine="sequential"), data=data, runs=tmp_path).store
    net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))
    net.load_state_dict(load_file(export(store, 1, dataset=data)))
    written = load_file(export(store, 1))
    assert all(torch.equal(written[name], leaf) for name, leaf in net.state_dict().items()), "the data are not needed"


@pytest.mark.slow
def test_onnx_gives_the_logits_of_torchscript_for_any_number_of_rows(stored: RunStore) -> None:
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(str(export(stored, 1, "onnx")))
    script = torch.jit.load(str(export(stored, 1, "torchscript")))
    for rows in (1, 7):
        x = torch.as_tensor(Experiment().dataset.load().x_test[:rows]).float()
        with torch.no_grad():
            logits = script(x)
        assert torch.allclose(torch.as_tensor(session.run(["logits"], {"x": x.numpy()})[0]), logits, atol=1e-5)


@pytest.mark.slow
def test_missing_onnx_is_refused_in_one_line(stored: RunStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Strange(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if bool(x.sum() > 0) else -x

    with pytest.raises(BadInput, match=r"^export: this model cannot be written as onnx \(.*\); take safetensors$"):
        program(Strange(), torch.zeros(2, 3), "onnx")
    monkeypatch.setattr("fedskew.serving.export.find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"pip install '\.\[onnx\]' in the clone"):
        export(stored, 1, "onnx")


def test_a_run_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    register(store, Experiment())
    with pytest.raises(BadInput, match="no checkpoint"):
        export(store, 1)


def test_a_place_that_cannot_be_written_gives_a_one_line_error(stored: RunStore, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    for place in (tmp_path / "folder", tmp_path / "file" / "model", Path()):
        words = ["export", "1", "--runs", str(stored.folder), "--format", "safetensors", "--output", str(place)]
        assert error_of(*words, code=1).startswith(f"fedskew: export {place}: cannot be written: ")
