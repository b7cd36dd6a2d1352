"""A run's model as a file gives the stored accuracy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedskew.cli.main import main
from fedskew.core.errors import BadInput
from fedskew.experiment.config import Experiment
from fedskew.experiment.export import export
from fedskew.experiment.results import run
from fedskew.experiment.run import register
from fedskew.store.runs import RunStore


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    experiment = Experiment(model="mlp:hidden=[8]", engine="sequential").replace(training__rounds=1, local__epochs=1)
    return run(experiment, folder=tmp_path_factory.mktemp("export")).store


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


def test_a_run_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    register(store, Experiment())
    with pytest.raises(BadInput, match="no checkpoint"):
        export(store, 1)
