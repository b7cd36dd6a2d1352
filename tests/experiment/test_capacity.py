"""Memory that does not suffice is explained with the batch size that would do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedskew.core.errors import BadInput
from fedskew.data.dataset import Dataset
from fedskew.experiment.capacity import is_exhaustion
from fedskew.experiment.config import Experiment
from fedskew.experiment.results import run
from fedskew.models.mlp import MlpNet

ROWS = np.random.default_rng(0).standard_normal((90, 4)).astype(np.float32)
DATA = Dataset(x=ROWS, y=np.arange(90) % 2, x_test=ROWS[:2], y_test=np.arange(2), classes=("a", "b"))


def limited(monkeypatch, rows: int, error: Exception) -> None:
    """A model that finds memory for so many rows."""
    plain = MlpNet.forward

    def forward(self, x):
        if torch.is_grad_enabled() and len(x) > rows:
            raise error
        return plain(self, x)

    monkeypatch.setattr(MlpNet, "forward", forward)


def experiment(batch_size: int, engine: str = "sequential") -> Experiment:
    return Experiment(
        model="mlp:hidden=[3]",
        skew="iid",
        clients={"number": 3},
        local={"epochs": 1, "batch_size": batch_size},
        training={"rounds": 1, "threads": 1},
        evaluation={"local_models": False},
        engine=engine,
    )


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory: you tried to allocate"
        ),
        MemoryError(),
    ],
    ids=["gpu", "cpu", "python"],
)
def test_the_message_says_which_batch_size_fits(monkeypatch, tmp_path, error):
    limited(monkeypatch, 7, error)
    with pytest.raises(BadInput, match=r"batches of 30 rows do not fit, batches of 7 do; use --batch-size 7") as told:
        run(experiment(30), data=DATA, folder=tmp_path)
    assert "\n" not in str(told.value)
    assert run(experiment(7), data=DATA, folder=tmp_path).records[0].status == "finished"


def test_a_model_too_large_for_a_single_row_says_so(monkeypatch, tmp_path):
    limited(monkeypatch, 0, MemoryError())
    with pytest.raises(BadInput, match="not even a batch of one row fits"):
        run(experiment(16), data=DATA, folder=tmp_path)


def test_too_many_clients_at_a_time_are_told_from_too_many_rows(monkeypatch, tmp_path):
    from fedskew.engine.stacked import Stacked

    def full(*_):
        raise MemoryError

    monkeypatch.setattr(Stacked, "run", full)
    with pytest.raises(BadInput, match=r"a single client's batches of 16 rows fit; use --engine sequential"):
        run(experiment(16, "stacked"), data=DATA, folder=tmp_path)


def test_other_errors_pass(monkeypatch, tmp_path):
    limited(monkeypatch, 0, RuntimeError("shapes differ"))
    with pytest.raises(RuntimeError, match="shapes differ"):
        run(experiment(16), data=DATA, folder=tmp_path)
    assert not is_exhaustion(RuntimeError("shapes differ"))
