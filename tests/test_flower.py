"""Deployed runs, with nodes in this process: the simulator's numbers, faults, resume, what travels."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedskew.algorithms import ALGORITHMS
from fedskew.experiment.config import Experiment
from fedskew.experiment.results import run
from fedskew.flower.server import serve
from fedskew.store import checkpoints
from fedskew.store.runs import RunStore
from tests.flower_nodes import Direct, configuration, nodes_of, small

VERSIONS = {"flwr": "none"}


def final(store: RunStore, number: int) -> dict[str, torch.Tensor]:
    path = checkpoints.latest(store.run_folder(number))
    assert path
    return checkpoints.load(path)[0]


def same_as_simulated(experiment: Experiment, folder: Path, **options: object) -> Direct:
    """Model, server state and every stored number, to the last bit; seconds aside, and what a codec saves."""
    simulated = run(experiment, folder=folder / "simulated")
    channel = Direct(nodes_of(experiment, folder))
    number = serve(channel, configuration(experiment, folder, **options), VERSIONS)
    store = RunStore(folder / "runs")
    theirs, ours = final(simulated.store, simulated.ids[0]), final(store, number)
    assert torch.equal(ours["x"], theirs["x"])
    frames = []
    for s, n in ((simulated.store, simulated.ids[0]), (store, number)):
        frame = s.measurements([n])
        left_out = frame.name.isin(["seconds", "rejected", "bytes_up"])
        frame = frame[~left_out].sort_values(["round", "client", "split", "name"])
        frames.append(frame.drop(columns="run").reset_index(drop=True))
    assert frames[0].shape == frames[1].shape
    assert frames[0].drop(columns="value").equals(frames[1].drop(columns="value"))
    assert ((frames[0].value - frames[1].value).abs() < 1e-6).all()
    store.close()
    return channel


SETTINGS: dict[str, dict[str, object]] = {
    "dp-fedavg": {"algorithm": "dp-fedavg:q=0.5", "selection": "poisson:rate=0.5"},
    "dualmetric": {"server_data": {"share": 0.05}},
    "f3": {"server_data": {"share": 0.05}, "dataset": "adult", "skew": "iid"},
    "f3-gradient": {"server_data": {"share": 0.05}, "dataset": "adult", "skew": "iid"},
    "fairfed": {"dataset": "adult", "skew": "iid"},
    "fedga": {"server_data": {"share": 0.05}},
    "fedproc": {"model": "mlp:hidden=[16]"},
    "krum": {"algorithm": "krum:f=0"},
    "moon": {"model": "mlp:hidden=[16]"},
}
"""What a method needs besides the defaults."""


@pytest.mark.parametrize("method", sorted(ALGORITHMS))
def test_every_method_gives_the_simulators_numbers(method: str, tmp_path: Path) -> None:
    same_as_simulated(small(**{"algorithm": method, **SETTINGS.get(method, {})}), tmp_path, labels=True)
