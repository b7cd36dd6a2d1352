"""Nodes that fail, lie or come back late, with nodes in this process: the others train on, and a restarted server resumes."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import torch

from fedskew.api.functions import run
from fedskew.core.errors import BadInput, TooFew
from fedskew.execution.run import execute
from fedskew.experiment.config import Experiment
from fedskew.flower.server import serve
from fedskew.flower.tables import read_rows, write_rows
from fedskew.flower.wire import Fault, Kind, Reply, pack, unpack
from fedskew.measure.registry import Measures
from fedskew.store.runs import RunStore
from tests.flower_nodes import (
    VERSIONS,
    Direct,
    Spoil,
    clients_of,
    configuration,
    final,
    nodes_of,
    restarted,
    served,
    small,
    unspoilt,
    without,
)


def scaled(data: bytes, change: Callable[[torch.Tensor], torch.Tensor]) -> bytes:
    reply, tree = unpack(data, Reply)
    return pack(reply, {**tree, "delta": {"values": change(tree["delta"]["values"])}})


def scored(data: bytes, accuracy: float) -> bytes:
    reply, tree = unpack(data, Reply)
    return pack(reply, {**tree, "scores": {**tree["scores"], "accuracy": torch.tensor(accuracy)}})


def old(data: bytes) -> bytes:
    reply, tree = unpack(data, Reply)
    return pack(msgspec.structs.replace(reply, round=reply.round - 1), tree)


def other_control(data: bytes) -> bytes:
    """Return a much too long change of SCAFFOLD's control variate."""
    reply, tree = unpack(data, Reply)
    return pack(reply, {**tree, "extras": {"c": tree["extras"]["c"] * 1e10}})


FAULTS: dict[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda data: None,
    "garbage": lambda data: data[:-1],
    "not_finite": lambda data: scaled(data, lambda d: d * float("nan")),
    "wrong_shape": lambda data: scaled(data, lambda d: d[:-1]),
    "out_of_range": lambda data: scored(data, 1e30),
    "too_long": lambda data: scaled(data, lambda d: d * 1e6),
    "other_round": old,
    "refused": lambda data: pack(Reply(kind="refused", run="", round=0, client=0, reason="disk full")),
}


def deployed(experiment: Experiment, folder: Path, spoil: Spoil, **options: object) -> tuple[torch.Tensor, list, list]:
    """Return the model, the faults as (round, client, name, number), and the number of clients in each round."""
    _, store = served(experiment, folder, spoil, **{"measure": False, **options})
    assert store.run(1).status == "finished"
    return final(store)["x"], faults_of(store), clients_of(store)


def faults_of(store: RunStore) -> list[list[Any]]:
    """The faults of run 1, as [round, client, name, number]."""
    return store.measurements([1]).query("split == 'fault'")[["round", "client", "name", "value"]].values.tolist()


def test_each_fault_is_rejected_and_counted_and_the_round_goes_on(tmp_path: Path) -> None:
    """Client 2's answer has another fault in each round after the first. The run is that without client 2 in these rounds."""
    assert set(FAULTS) == {name for split, name in Measures().stored if split == "fault"} == set(get_args(Fault))
    rounds = len(FAULTS) + 1
    experiment = small("scaffold", rounds=rounds)

    def spoil(client: int, kind: Kind, round_: int, data: bytes) -> bytes | None:
        return list(FAULTS.values())[round_ - 1](data) if (client, kind) == (2, "train") and round_ else data

    # a node that gave no answer is set aside, and replies again at once
    x, faults, clients = deployed(experiment, tmp_path, spoil, longest=1e3)
    assert faults == [[2 + i, 2, fault, 2.0] for i, fault in enumerate(FAULTS)]  # asked twice
    assert clients == [4, *[3] * len(FAULTS)]
    assert torch.equal(x, without(experiment, [{}, *[{2}] * len(FAULTS)]))


def test_one_node_does_not_decide_the_model_by_default(tmp_path: Path) -> None:
    """Its update, or a vector beside it, is far longer than the others'."""
    lies = [lambda data, f=f: scaled(data, lambda d: d * f) for f in (1e10, 1e37, 30.0)] + [other_control]
    experiment = small("scaffold", rounds=len(lies))

    def spoil(client: int, kind: Kind, round_: int, data: bytes) -> bytes | None:
        return lies[round_](data) if (client, kind) == (1, "train") else data

    x, faults, clients = deployed(experiment, tmp_path, spoil, attempts=1)
    assert faults == [[r, 1, "too_long", 1] for r in (1, 2, 3, 4)]
    assert clients == [3, 3, 3, 3]
    assert torch.equal(x, without(experiment, [{1}] * 4))


def test_a_node_whose_rows_change_during_the_run_is_refused(tmp_path: Path) -> None:
    """It trained on half of its rows with the weight of all, and the store had the steps of all."""
    experiment = small(rounds=3)
    channel = Direct(nodes := nodes_of(experiment, tmp_path))

    def spoil(client: int, kind: Kind, round_: int, data: bytes) -> bytes | None:
        if (client, kind, round_) == (0, "train", 0):
            rows = read_rows(nodes[0].rows)
            write_rows(nodes[0].rows, replace(rows, x=rows.x[::2], y=rows.y[::2]))
        return data

    channel.spoil = spoil
    serve(channel, configuration(experiment, tmp_path, measure=False), VERSIONS)
    store = RunStore(tmp_path / "runs")
    assert faults_of(store) == [[2, 0, "refused", 2.0], [3, 0, "refused", 2.0]]
    assert torch.equal(final(store)["x"], without(experiment, [{}, {0}, {0}]))


def test_rejected_answers_that_arrive_count_in_bytes_as_in_a_simulation(tmp_path: Path) -> None:
    counted = {}
    for fault in ("missing", "not_finite"):

        def spoil(client: int, kind: Kind, round_: int, data: bytes, fault: str = fault) -> bytes | None:
            return FAULTS[fault](data) if (client, kind) == (2, "train") else data

        _, store = served(small(rounds=1), tmp_path / fault, spoil, measure=False)
        counted[fault] = store.measurements([1]).query("name == 'bytes_up'")["value"].item()
    assert counted == {"missing": 3 * 2600, "not_finite": 5 * 2600}  # asked twice


@dataclass
class Stopped:
    """Client 3's node does not answer in these rounds. A fifth node never answers."""

    rounds: range

    def __call__(self, client: int, kind: Kind, round_: int, data: bytes) -> bytes | None:
        self.round = max(getattr(self, "round", 0), round_)
        silent = client == 4 or (client == 3 and self.round in self.rounds)
        return None if silent else data


def test_a_stopped_node_costs_one_timeout_once(tmp_path: Path) -> None:
    """Rounds 2 to 5 go on without it. A node that is no client costs nothing."""
    experiment = small(rounds=6)
    nodes = nodes_of(experiment, tmp_path)
    channel = Direct([*nodes, replace(nodes[0], client=4)], Stopped(range(2, 9)))
    serve(channel, configuration(experiment, tmp_path, measure=False, timeout=7.0), VERSIONS)
    store = RunStore(tmp_path / "runs")
    assert clients_of(store) == [4, 4, 3, 3, 3, 3]
    assert faults_of(store) == [[3, 3, "missing", 1]]
    assert channel.waited == 7.0


def test_a_node_that_was_set_aside_takes_part_again_when_it_answers(tmp_path: Path, caplog) -> None:
    experiment = small(rounds=5)
    channel = Direct(nodes_of(experiment, tmp_path), Stopped(range(1, 2)))

    def nodes() -> list[int]:  # a round takes its seconds
        time.sleep(0.06)
        return [100, 101, 102, 103]

    channel.nodes = nodes
    serve(channel, configuration(experiment, tmp_path, measure=False, timeout=0.05), VERSIONS)
    assert clients_of(RunStore(tmp_path / "runs")) == [4, 3, 3, 4, 4]
    assert "site 3: no answer in 0.05 s; it is set aside until it answers again" in caplog.text


def test_a_client_that_was_silent_in_a_survey_is_asked_again_in_the_next_round(tmp_path: Path) -> None:
    def spoil(client: int, kind: Kind, round_: int, data: bytes) -> bytes | None:
        return None if (client, kind, round_) == (2, "survey", 1) else data

    _, store = served(small("drfa", rounds=3), tmp_path, spoil, measure=False, labels=True)
    assert store.measurements([1]).query("name == 'available'")["value"].tolist() == [4, 3, 4]


def test_too_few_clients_stop_the_run_and_resume_continues_it(tmp_path: Path) -> None:
    experiment = small("scaffold", rounds=4).replace(checkpoint__every=1)
    channel = Direct(nodes_of(experiment, tmp_path))
    channel.spoil = lambda client, kind, round_, data: None if client > 0 and round_ == 2 else data
    options = configuration(experiment, tmp_path, labels=True)
    with pytest.raises(TooFew, match="round 3: 1 of 4 clients gave a usable answer, but 2 are needed"):
        serve(channel, options, VERSIONS)
    store = RunStore(tmp_path / "runs")
    assert (store.run(1).status, store.run(1).rounds_done) == ("failed", 2)
    with pytest.raises(BadInput, match="on Flower's nodes"):
        execute(store, 1)
    channel.spoil = unspoilt
    assert serve(channel, {**options, "resume": 1}, VERSIONS) == 1
    theirs = run(experiment, runs=tmp_path / "simulated")
    assert torch.equal(final(store)["x"], final(theirs.store)["x"])


def test_a_restarted_server_finds_the_states_of_its_checkpoint_on_the_nodes(tmp_path: Path) -> None:
    """Rounds 4 and 5 are played, lost with the server, and played again from the checkpoint after round 3."""
    experiment = small("scaffold", rounds=7).replace(checkpoint__every=3)
    channel = Direct(nodes_of(experiment, tmp_path))
    restarted(channel, configuration(experiment, tmp_path), 5)
    theirs = run(experiment, runs=tmp_path / "simulated")
    assert torch.equal(final(RunStore(tmp_path / "runs"))["x"], final(theirs.store)["x"])
    kept = sorted(path.name for path in channel.clients[0].folder.iterdir())
    assert len(kept) == 1
    assert len(list((channel.clients[0].folder / kept[0]).iterdir())) <= 6


def test_the_second_node_that_claims_a_client_is_rejected(tmp_path: Path) -> None:
    experiment = small(rounds=1)
    nodes = nodes_of(experiment, tmp_path)
    impostor = replace(nodes[1], client=0)
    with pytest.raises(TooFew, match="missing: site 1; two nodes say they are client 0"):
        serve(Direct([nodes[0], impostor, *nodes[2:]]), configuration(experiment, tmp_path, wait=0.1), VERSIONS)
