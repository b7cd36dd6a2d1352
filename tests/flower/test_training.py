"""Options of training between machines: the numbers of the simulation, or a refusal."""

from pathlib import Path

import pytest
import torch

from fedskew.api.functions import run
from fedskew.core.errors import BadInput
from fedskew.execution.initial import after_round, hash_of
from fedskew.experiment.config import Experiment, from_toml
from fedskew.flower.server import serve
from fedskew.store import checkpoints
from fedskew.store.runs import RunStore
from tests.flower.test_deployed import same_as_simulated
from tests.flower_nodes import VERSIONS, Direct, configuration, nodes_of, small


def begun(method: str, rounds: int, init: str, folder: Path) -> Experiment:
    """An experiment that starts from run 1, which has a checkpoint of each of its two rounds."""
    run(small("fedavg", 2, checkpoint__every=1), runs=folder)
    runs = run(small(method, rounds), runs=folder, init=init)
    training = from_toml(runs.records[0].experiment).training
    return small(method, rounds, training__init=training.init, training__init_hash=training.init_hash)


def test_nodes_follow_a_schedule_and_stop_early_at_the_best_round(tmp_path: Path) -> None:
    experiment = small("scaffold", 12, lr_decay="warm-up:2+cosine", lr=3.0, patience=2)
    same_as_simulated(experiment, tmp_path)
    stores = [RunStore(tmp_path / name) for name in ("simulated", "runs")]
    records = [store.run(1) for store in stores]
    assert records[0].rounds_done == records[1].rounds_done == records[0].used_round + 2 < 12
    assert records[0].used_round == records[1].used_round
    assert torch.equal(*(checkpoints.newest(store.run_folder(1), store.used(1))[0]["x"] for store in stores))


def test_nodes_start_from_a_trained_model(tmp_path: Path) -> None:
    same_as_simulated(begun("scaffold", 2, "1", tmp_path / "first"), tmp_path)


def test_training_that_nodes_cannot_do_is_refused(tmp_path: Path) -> None:
    nodes = Direct(nodes_of(small(), tmp_path))
    serve(nodes, configuration(small(rounds=2, checkpoint__every=1), tmp_path), VERSIONS)
    between_sites = after_round(RunStore(tmp_path / "runs"), 1, 1)
    for experiment, options, message in [
        (small("ditto", patience=2), {}, "patience needs the personal models of the best round, and nodes keep only"),
        (small(patience=2), {"measure": False}, "patience needs the nodes' held-out rows; set deployment.measure"),
        (
            begun("fedavg", 4, "1:1", tmp_path / "first"),
            {},
            "that run's clients, but skew differ; start from its model, without :ROUND",
        ),
        (
            small(rounds=4, training__init=str(between_sites), training__init_hash=hash_of(between_sites)),
            {},
            "nodes have no states of another run; start from its model",
        ),
    ]:
        with pytest.raises(BadInput, match=message):
            serve(nodes, configuration(experiment, tmp_path, **options), VERSIONS)


def test_nodes_take_parts_of_epochs_and_weights_of_classes(tmp_path: Path) -> None:
    same_as_simulated(small(task="classification:weights=balanced").replace(epochs=0.5), tmp_path)
