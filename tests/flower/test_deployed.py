"""Deployed runs, with nodes in this process: the simulator's numbers, faults, resume, what travels."""

from __future__ import annotations

import tempfile
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np
import pytest
import torch

from fedskew.algorithms import ALGORITHMS
from fedskew.cli.main import main
from fedskew.core.algorithm import Algorithm
from fedskew.core.errors import BadInput, FedskewError, TooFew
from fedskew.core.records import Info
from fedskew.core.seeding import Secret
from fedskew.core.trees import leaves
from fedskew.engine.sequential import Sequential
from fedskew.engine.states import ClientStates
from fedskew.experiment.build import assemble
from fedskew.experiment.config import Experiment, from_toml
from fedskew.experiment.deal import partition_of
from fedskew.experiment.results import run
from fedskew.experiment.run import execute
from fedskew.flower.node import Node
from fedskew.flower.nodes import Recipe
from fedskew.flower.resident import listening
from fedskew.flower.rows import read_rows
from fedskew.flower.server import serve
from fedskew.flower.wire import Fault, Kind, Reply, pack, unpack
from fedskew.loop.round import play_round, start
from fedskew.measure.registry import stored
from fedskew.slots import Uncompressed
from fedskew.store import checkpoints
from fedskew.store.runs import RunStore
from tests.flower_nodes import Direct, configuration, nodes_of, small

VERSIONS = {"flwr": "none"}


def final(store: RunStore, number: int) -> dict[str, torch.Tensor]:
    path = checkpoints.latest(store.run_folder(number))
    assert path
    return checkpoints.load(path)[0]


def same_as_simulated(experiment: Experiment, folder: Path, **options: object) -> Direct:
    """Model, server state and every stored number, to the last bit; seconds aside, and measures of updates before a codec."""
    simulated = run(experiment, folder=folder / "simulated")
    channel, encoded = Direct(nodes_of(experiment, folder)), type(experiment.codec) is not Uncompressed
    number = serve(channel, configuration(experiment, folder, **options), VERSIONS)
    store = RunStore(folder / "runs")
    theirs, ours = final(simulated.store, simulated.ids[0]), final(store, number)
    assert torch.equal(ours["x"], theirs["x"])
    frames = []
    for s, n in ((simulated.store, simulated.ids[0]), (store, number)):
        frame = s.measurements([n])
        left_out = frame.name.isin(["seconds", "rejected", *(AFTER_A_CODEC if encoded else ())])
        frame = frame[~left_out].sort_values(["round", "client", "split", "name"])
        frames.append(frame.drop(columns="run").reset_index(drop=True))
    assert frames[0].shape == frames[1].shape
    assert frames[0].drop(columns="value").equals(frames[1].drop(columns="value"))
    assert ((frames[0].value - frames[1].value).abs() < 1e-6).all()
    store.close()
    return channel


# the server sees updates as the codec leaves them; a simulation measures them before
AFTER_A_CODEC = ("update_norm", "drift", "divergence", "relative_drift", "distance", "alignment", "signal_to_noise")

SETTINGS: dict[str, dict[str, object]] = {
    "dp-fedavg": {"algorithm": "dp-fedavg:q=1,noise=0", "selection": "poisson:rate=1"},
    "dualmetric": {"server_data": {"share": 0.05}},
    "f3": {"server_data": {"share": 0.05}, "dataset": "adult", "skew": "iid"},
    "f3-gradient": {"server_data": {"share": 0.05}, "dataset": "adult", "skew": "iid"},
    "fairfed": {"dataset": "adult", "skew": "iid"},
    "fedga": {"server_data": {"share": 0.05}},
    "fedproc": {"model": "mlp:hidden=[16]"},
    "krum": {"algorithm": "krum:f=0"},
    "moon": {"model": "mlp:hidden=[16]"},
}
"""What a method needs besides the defaults; DP-FedAvg draws nothing, since what a deployed server draws is its secret."""


DEPLOYABLE = [name for name, method in ALGORITHMS.items() if method.public is Algorithm.public]
"""Methods that train on public rows are refused."""

QUICK = ("drfa", "fedavg", "ditto")
"""One that surveys candidates, one plain, one with models of the clients' own; the others are slow only by their number."""


@pytest.mark.parametrize("method", [m if m in QUICK else pytest.param(m, marks=pytest.mark.slow) for m in DEPLOYABLE])
def test_every_method_gives_the_simulators_numbers(method: str, tmp_path: Path) -> None:
    same_as_simulated(small(**{"algorithm": method, **SETTINGS.get(method, {})}), tmp_path, labels=True)


def test_slots_that_act_at_clients_give_the_simulators_numbers(tmp_path: Path) -> None:
    """A codec with a memory, a part of the model that clients keep, tuning, partial work, half of the clients a round."""
    experiment = small(
        "fedprox:mu=0.1",
        model="mlp:hidden=[16]",
        codec="top-k:share=0.2",
        sharing="personal:head=1",
        selection="uniform:clients=2",
        solver="sgd:lr=0.1,momentum=0.9",
        system={"stragglers": 0.5},
        evaluation={"adapt_steps": 2},
    ).replace(local__epochs=2)
    same_as_simulated(experiment.replace(local__epochs=2), tmp_path, labels=True)


@pytest.mark.parametrize("codec", ["int8:rounding=stochastic,error_feedback=true", "qsgd", "clip:norm=0.1"])
def test_a_codec_saves_on_the_way_what_a_simulation_counts(codec: str, tmp_path: Path) -> None:
    """Beside the update travel a checksum, names and a few numbers."""
    channel = same_as_simulated(small("feddyn", codec=codec, rounds=2), tmp_path, labels=True)
    frame = RunStore(tmp_path / "runs").measurements([1])
    counted = frame[(frame.name == "bytes_up") & (frame["round"] == 1)].value.item() / 4
    sent = [len(data) for _, kind, _, data in channel.seen if kind == "train"]
    assert max(sent) - counted < 1200
    assert codec == "clip:norm=0.1" or counted < 0.35 * 650 * 4


# what leaves a node


@pytest.mark.parametrize(
    ("method", "numbers"),
    [("fedavg", 1), ("scaffold", 2)],
)
def test_only_what_the_method_sends_leaves_a_node(method: str, numbers: int, tmp_path: Path) -> None:
    """Row counts once; then so many models as the card says, and single numbers; no row, no label, no state."""
    experiment = small(method, rounds=2)
    channel = Direct(nodes_of(experiment, tmp_path))
    serve(channel, configuration(experiment, tmp_path, measure=False), VERSIONS)
    assert not [e for e in RunStore(tmp_path / "runs").run(1).facts.get("warnings", []) if "class" in e["line"]]
    size = 650  # softmax regression on the digits: 64 x 10 + 10
    assert {kind for _, kind, _, _ in channel.seen} == {"meet", "train"}
    for node, kind, _, data in channel.seen:
        reply, tree = unpack(data, Reply)
        assert reply.label_counts == ()
        assert reply.client == node
        leaves_ = dict(leaves(tree))
        if kind == "meet":
            assert not leaves_
            assert reply.rows > 0
            continue
        assert reply.rows == 0
        models = [name for name, leaf in leaves_.items() if tuple(leaf.shape) == (size,)]
        assert len(models) == numbers
        others = {name: leaf for name, leaf in leaves_.items() if name not in models}
        assert all(leaf.dim() == 0 for leaf in others.values())
        assert {name.split("/")[0] for name in others} <= {"report", "scores"}


def test_updates_leave_a_node_clipped_and_the_privacy_loss_is_that_of_the_simulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's secret is the run's seed here, so that both draw the same."""
    pytest.importorskip("dp_accounting")
    monkeypatch.setattr(Secret, "fresh", lambda: 0)
    experiment = small("dp-fedavg:q=0.5,clip=0.05,noise=2", selection="poisson:rate=0.5", rounds=4)
    channel = same_as_simulated(experiment, tmp_path)
    sent = [unpack(data, Reply)[1]["delta"]["values"] for _, kind, _, data in channel.seen if kind == "train"]
    assert sent
    assert all(float(delta.norm()) == pytest.approx(0.05, rel=1e-4) for delta in sent)
    stores = [RunStore(tmp_path / name).measurements([1]) for name in ("runs", "simulated")]
    told = [frame[frame.name == "epsilon"].value.tolist() for frame in stores]
    assert len(told[0]) == 4
    assert told[0] == told[1]
    assert 0 < told[0][0] < told[0][-1]


def test_a_node_has_only_its_own_rows(tmp_path: Path) -> None:
    experiment = small()
    nodes = nodes_of(experiment, tmp_path)
    rows = [{row.tobytes() for row in read_rows(node.rows).x} for node in nodes]
    data = experiment.dataset.load()
    dealt = partition_of(experiment, data)
    for k, own in enumerate(rows):
        assert own == {row.tobytes() for row in data.x[dealt.rows(k)]}
    for other in nodes[1:]:
        other.rows.unlink()
    request = Recipe("ab", experiment.toml(), 4, 10, (64,), 1797).request("meet", 0, 0)
    assert unpack(nodes[0].answer(pack(request)), Reply)[0].rows == len(dealt.rows(0))
    gone = Recipe("ab", experiment.toml(), 4, 10, (64,), 1797).request("meet", 0, 1)
    assert "there is no such file" in unpack(nodes[1].answer(pack(gone)), Reply)[0].reason


# refused before any node is asked


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"evaluation": {"inexactness": True}}, "stay on the nodes"),
        ({"availability": "blocks:rounds=2"}, "labels"),
        ({"algorithm": "moon"}, "hidden features"),
        ({"model": "text-cnn"}, "words of all clients"),
        ({"faults": {"share": 0.1, "kinds": ["missing"]}}, "faults are simulated"),
    ],
)
def test_what_cannot_run_there_is_refused_first(change: dict[str, object], reason: str, tmp_path: Path) -> None:
    channel = Direct([])
    with pytest.raises(BadInput, match=reason):
        serve(channel, configuration(small(**{"algorithm": "fedavg", **change}), tmp_path), VERSIONS)
    assert not channel.seen
    assert not (tmp_path / "runs").exists()


def test_a_method_from_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from dataclasses import dataclass\nfrom fedskew import Algorithm\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Mine(Algorithm):\n    mu: float = 1.0\n"
    )
    experiment = small(f"{path}::Mine")
    with pytest.raises(BadInput, match="offer it from a package"):
        serve(Direct([]), configuration(experiment, tmp_path), VERSIONS)
    node = nodes_of(small(), tmp_path)[0]
    request = Recipe("ab", experiment.toml(), 4, 10, (64,), 1797).request("meet", 0, 0)
    assert "names a file of code" in unpack(node.answer(pack(request)), Reply)[0].reason


# what nodes may do wrong


def scaled(data: bytes, change: Callable[[torch.Tensor], torch.Tensor]) -> bytes:
    reply, tree = unpack(data, Reply)
    return pack(reply, {**tree, "delta": {"values": change(tree["delta"]["values"])}})


def scored(data: bytes, accuracy: float) -> bytes:
    reply, tree = unpack(data, Reply)
    return pack(reply, {**tree, "scores": {**tree["scores"], "accuracy": torch.tensor(accuracy)}})


def old(data: bytes) -> bytes:
    reply, tree = unpack(data, Reply)
    return pack(msgspec.structs.replace(reply, round=reply.round - 1), tree)


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


def test_every_fault_is_described() -> None:
    assert set(FAULTS) == {name for split, name in stored() if split == "fault"} == set(get_args(Fault))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_rejected_counted_and_named_and_the_round_goes_on(fault: str, tmp_path: Path) -> None:
    """The run is that in which client 2 dropped out of round 2: its answer is never taken, nor is its state."""
    experiment = small("scaffold", rounds=3)

    def spoil(client: int, kind: Kind, round_: int, data: bytes) -> bytes | None:
        return FAULTS[fault](data) if (client, kind, round_) == (2, "train", 1) else data

    channel = Direct(nodes_of(experiment, tmp_path), spoil)
    number = serve(channel, configuration(experiment, tmp_path, longest=1e3, measure=False), VERSIONS)
    store = RunStore(tmp_path / "runs")
    frame = store.measurements([number])
    assert store.run(number).status == "finished"
    faults = frame[frame.split == "fault"][["round", "client", "name", "value"]].values.tolist()
    assert faults == [[2, 2, fault, 2.0]]  # asked twice
    assert frame[(frame.name == "clients") & (frame.split == "round")].value.tolist() == [4, 3, 4]
    assert torch.equal(final(store, number)["x"], by_hand(experiment, [-1, 2, -1]))


def by_hand(experiment: Experiment, away: list[int]) -> torch.Tensor:
    """The model of the same rounds in the simulator, with this client unreachable in each."""
    assembly = assemble(experiment, experiment.dataset.load())
    fed, states = assembly.federation, ClientStates()
    server = start(fed, assembly.x0)
    for client in away:
        there = replace(fed, availability=Away(client))
        server = play_round(there, Sequential(), server, states).server
    return server.x


@pytest.mark.parametrize("factor", [1e10, 1e37, 30.0])
def test_one_node_does_not_decide(factor: float, tmp_path: Path) -> None:
    """By default; the model is that of the rounds without the node, and the fault is the node's."""
    experiment = small("scaffold", rounds=3)

    def spoil(client: int, kind: Kind, round_: int, data: bytes) -> bytes | None:
        return scaled(data, lambda d: d * factor) if (client, kind) == (1, "train") else data

    number = serve(
        Direct(nodes_of(experiment, tmp_path), spoil), configuration(experiment, tmp_path, attempts=1), VERSIONS
    )
    store = RunStore(tmp_path / "runs")
    frame = store.measurements([number])
    faults = frame[frame.split == "fault"][["round", "client", "name", "value"]].values.tolist()
    assert faults == [[r, 1, "too_long", 1] for r in (1, 2, 3)]
    assert frame[(frame.name == "clients") & (frame.split == "round")].value.tolist() == [3, 3, 3]
    assert torch.equal(final(store, number)["x"], by_hand(experiment, [1, 1, 1]))


def test_one_node_does_not_decide_by_what_it_sends_beside_its_update(tmp_path: Path) -> None:
    """SCAFFOLD's change of the control variate."""
    experiment = small("scaffold", rounds=2)

    def spoil(client: int, kind: Kind, round_: int, data: bytes) -> bytes | None:
        reply, tree = unpack(data, Reply)
        if (client, kind) != (1, "train"):
            return data
        return pack(reply, {**tree, "extras": {"c": tree["extras"]["c"] * 1e10}})

    number = serve(Direct(nodes_of(experiment, tmp_path), spoil), configuration(experiment, tmp_path), VERSIONS)
    frame = RunStore(tmp_path / "runs").measurements([number])
    faults = frame[frame.split == "fault"][["round", "client", "name", "value"]].values.tolist()
    assert faults == [[r, 1, "too_long", 1] for r in (1, 2)]


@dataclass(frozen=True)
class Away:
    client: int

    def available(self, clients: Info, round_: int, seed: int) -> np.ndarray:
        return np.asarray(clients.index) != self.client


@dataclass
class Stopped:
    """Client 3's node does not answer in these rounds; nor does a fifth node, ever."""

    rounds: range

    def __call__(self, client: int, kind: Kind, round_: int, data: bytes) -> bytes | None:
        self.round = max(getattr(self, "round", 0), round_)
        silent = client == 4 or (client == 3 and self.round in self.rounds)
        return None if silent else data


def test_a_stopped_node_costs_one_timeout_in_all_and_is_named_once(tmp_path: Path) -> None:
    """Rounds 2 to 5 go on without it; a node that nobody knows costs nothing."""
    experiment = small(rounds=6)
    nodes = nodes_of(experiment, tmp_path)
    channel = Direct([*nodes, replace(nodes[0], client=4)], Stopped(range(2, 9)))
    number = serve(channel, configuration(experiment, tmp_path, measure=False, timeout=7.0), VERSIONS)
    frame = RunStore(tmp_path / "runs").measurements([number])
    assert frame[(frame.name == "clients") & (frame.split == "round")].value.tolist() == [4, 4, 3, 3, 3, 3]
    assert frame[frame.split == "fault"][["round", "client", "name", "value"]].values.tolist() == [[3, 3, "missing", 1]]
    assert channel.waited == 7.0


def test_a_node_that_was_set_aside_takes_part_again_when_it_answers(tmp_path: Path, caplog) -> None:
    experiment = small(rounds=5)
    channel = Direct(nodes_of(experiment, tmp_path), Stopped(range(1, 2)))

    def nodes() -> list[int]:  # a round takes its seconds
        time.sleep(0.06)
        return [100, 101, 102, 103]

    channel.nodes = nodes
    number = serve(channel, configuration(experiment, tmp_path, measure=False, timeout=0.05), VERSIONS)
    frame = RunStore(tmp_path / "runs").measurements([number])
    assert frame[(frame.name == "clients") & (frame.split == "round")].value.tolist() == [4, 3, 3, 4, 4]
    assert "client 3: no answer in 0.05 s; it is set aside until it answers again" in caplog.text


def test_too_few_stop_the_run_and_it_goes_on_when_they_are_back(tmp_path: Path) -> None:
    experiment = small("scaffold", rounds=4).replace(checkpoint__every=1)
    broken = {"on": True}

    def spoil(client: int, kind: Kind, round_: int, data: bytes) -> bytes | None:
        return None if broken["on"] and client > 0 and round_ == 2 else data

    channel = Direct(nodes_of(experiment, tmp_path), spoil)
    options = configuration(experiment, tmp_path, labels=True)
    with pytest.raises(TooFew, match="round 3: 1 of 4 clients gave a usable answer, and 2 are needed"):
        serve(channel, options, VERSIONS)
    store = RunStore(tmp_path / "runs")
    assert (store.run(1).status, store.run(1).rounds_done) == ("failed", 2)
    with pytest.raises(BadInput, match="on Flower's nodes"):
        execute(store, 1)
    broken["on"] = False
    assert serve(channel, {**options, "resume": 1}, VERSIONS) == 1
    simulated = run(experiment, folder=tmp_path / "simulated")
    assert torch.equal(final(store, 1)["x"], final(simulated.store, 1)["x"])


def test_a_server_that_lost_rounds_finds_the_states_of_its_checkpoint_on_the_nodes(tmp_path: Path) -> None:
    """Rounds 4 and 5 are played, lost with the server, and played again from the checkpoint after round 3."""
    experiment = small("scaffold", rounds=7).replace(checkpoint__every=3)

    def spoil(client: int, kind: Kind, round_: int, data: bytes) -> bytes | None:
        if dead["on"] and round_ == 5:
            raise KeyboardInterrupt
        return data

    dead = {"on": True}
    channel = Direct(nodes_of(experiment, tmp_path), spoil)
    options = configuration(experiment, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        serve(channel, options, VERSIONS)
    dead["on"] = False
    serve(channel, {**options, "resume": 1}, VERSIONS)
    store = RunStore(tmp_path / "runs")
    simulated = run(experiment, folder=tmp_path / "simulated")
    assert torch.equal(final(store, 1)["x"], final(simulated.store, 1)["x"])
    kept = sorted(path.name for path in channel.clients[0].folder.iterdir())
    assert len(kept) == 1
    assert len(list((channel.clients[0].folder / kept[0]).iterdir())) <= 6


def test_two_nodes_that_claim_one_client_are_not_both_heard(tmp_path: Path) -> None:
    experiment = small(rounds=1)
    nodes = nodes_of(experiment, tmp_path)
    impostor = replace(nodes[1], client=0)
    with pytest.raises(TooFew, match="missing: 1; two nodes say they are client 0"):
        serve(Direct([nodes[0], impostor, *nodes[2:]]), configuration(experiment, tmp_path, wait=0.1), VERSIONS)


# the command line


def test_init_writes_an_app_that_flower_builds_and_the_rows(tmp_path: Path) -> None:
    build = pytest.importorskip("flwr.cli.build")
    recipe = tmp_path / "my.toml"
    recipe.write_text(small("scaffold").toml())
    app = tmp_path / "My App"
    assert main(["flower", "init", str(app), "--recipe", str(recipe), "--rows"]) == 0
    table = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert from_toml(table["config"]["recipe"]) == small("scaffold")
    assert len(build.build_fab_from_disk(app)) < 20_000
    assert sorted(path.name for path in (tmp_path / "My App-rows").iterdir()) == [f"{k}.npz" for k in range(4)]
    assert main(["flower", "init", str(app)]) == 2  # there is something already


def test_a_node_whose_socket_would_have_too_long_a_name_says_so(tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / ("x" * 110)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with (
        pytest.raises(FedskewError, match=r"^node: no socket at .*too long; set TMPDIR to a shorter folder$"),
        listening(Node(0, tmp_path, tmp_path)),
    ):
        pass


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (lambda path: None, "there is no such file"),
        (lambda path: path.write_bytes(b"PK garbage"), "not a NumPy .npz file"),
        (lambda path: np.savez(path, x=np.zeros((2, 3))), "it needs the arrays x and y"),
        (lambda path: np.savez(path, x=np.zeros((2, 3)), y=np.zeros(3, int)), "2 rows in x, 3 in y"),
        (lambda path: np.savez(path, x=np.zeros((2, 3)), y=np.zeros(2)), "must be integers"),
        (lambda path: np.savez(path, x=np.full((2, 3), np.nan), y=np.zeros(2, int)), "not finite"),
        (lambda path: np.savez(path, x=np.float64(1), y=np.int64(1)), "x must be an array of numbers"),
        (lambda path: np.savez(path, x=np.array(["a"]), y=np.zeros(1, int)), "x must be an array of numbers"),
        (lambda path: np.savez(path, x=np.array([{}]), y=np.zeros(1, int)), "not a NumPy .npz file"),
    ],
)
def test_a_bad_file_of_rows_is_named(write: Callable[[Path], object], reason: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    write(path)
    with pytest.raises(BadInput, match=reason):
        read_rows(path)
