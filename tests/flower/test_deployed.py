"""Deployed runs, with nodes in this process: the numbers of the simulation, and the messages that travel."""

import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedskew.algorithms import ALGORITHMS
from fedskew.api.functions import run
from fedskew.cli.main import main
from fedskew.core.errors import BadInput, FedskewError
from fedskew.core.seeding import Secret
from fedskew.core.trees import leaves
from fedskew.execution.deal import dealt_rows, finished
from fedskew.experiment.config import Experiment, from_toml
from fedskew.flower.resident import listening
from fedskew.flower.server import serve
from fedskew.flower.tables import read_rows
from fedskew.flower.wire import Reply, pack, unpack
from fedskew.slots import Uncompressed
from fedskew.store.runs import RunStore
from tests.flower_nodes import VERSIONS, Direct, configuration, final, nodes_of, request, served, small


def same_as_simulated(experiment: Experiment, folder: Path, **options: object) -> Direct:
    """Check that the models are bitwise equal, and all stored numbers except seconds and measures of uncoded updates."""
    simulated = run(experiment, runs=folder / "simulated")
    (channel, store), encoded = served(experiment, folder, **options), type(experiment.codec) is not Uncompressed
    assert torch.equal(final(store)["x"], final(simulated.store)["x"])
    frames, sites = [], []
    for each in (simulated.store, store):
        frame = each.measurements([1])
        left_out = frame.name.isin(["seconds", "rejected", *(AFTER_A_CODEC if encoded else ())])
        at_sites = frame["split"] == "sites"
        sites.append(frame[at_sites].set_index(["round", "client", "name"])["value"])
        frame = frame[~left_out & ~at_sites].sort_values(["round", "client", "split", "name"])
        frames.append(frame.drop(columns="run").reset_index(drop=True))
    assert frames[0].shape == frames[1].shape
    assert frames[0].drop(columns="value").equals(frames[1].drop(columns="value"))
    assert ((frames[0].value - frames[1].value).abs() < 1e-6).all()
    # the server has no rows of the sites; it knows what they report
    assert len(sites[1]) > 0
    assert ((sites[0].loc[sites[1].index] - sites[1]).abs() < 1e-6).all()
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
"""Options of methods besides the defaults. DP-FedAvg draws nothing here: a deployed server draws from its secret."""


DEPLOYABLE = [name for name, method in ALGORITHMS.items() if method().contract().shares_model]
"""Methods that train on public rows are refused."""

QUICK = ("drfa", "fedavg", "ditto")
"""A method that surveys candidates, a plain one, and one with personal models. The others run among the slow tests."""


@pytest.mark.first
@pytest.mark.parametrize("method", [m if m in QUICK else pytest.param(m, marks=pytest.mark.slow) for m in DEPLOYABLE])
def test_a_deployed_method_gives_the_numbers_of_the_simulation(method: str, tmp_path: Path) -> None:
    same_as_simulated(small(**{"algorithm": method, **SETTINGS.get(method, {})}), tmp_path, labels=True)


OTHER_TARGETS = [("parkinsons", "mlp:hidden=[8]"), ("tcga-brca", "mlp:hidden=[8]"), ("shakespeare", "symbol-lstm")]
"""Data sets whose targets are no classes, with a model."""


@pytest.mark.slow
@pytest.mark.parametrize(("data", "model"), OTHER_TARGETS)
def test_numbers_times_and_symbols_give_the_numbers_of_the_simulation(data: str, model: str, tmp_path: Path) -> None:
    """Classes are above; `test_tables.py` has sets of labels and texts."""
    same_as_simulated(small(dataset=data, model=model, skew="iid", rounds=2), tmp_path)


def test_a_client_with_too_few_rows_to_hold_one_out_is_not_measured(tmp_path: Path) -> None:
    same_as_simulated(small(skew=["iid", "quantity-sizes:rows=[4,300,300,300]"]), tmp_path)


def test_a_server_with_rows_warms_its_model_up(tmp_path: Path) -> None:
    """Nodes refused the recipe: they leave out the server's rows, and warm-up needs some."""
    same_as_simulated(small(rounds=1, server_data={"share": 0.05, "warm_up": 5}), tmp_path)


def test_slots_that_act_at_clients_give_the_numbers_of_the_simulation(tmp_path: Path) -> None:
    """A codec with error feedback, a personal head, fine-tuning, stragglers, half of the clients in a round."""
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
def test_a_message_has_the_bytes_that_a_simulation_counts(codec: str, tmp_path: Path) -> None:
    """Besides the update, a message holds a checksum, names and a few numbers."""
    channel = same_as_simulated(small("feddyn", codec=codec, rounds=2), tmp_path, labels=True)
    frame = RunStore(tmp_path / "runs").measurements([1])
    counted = frame[(frame.name == "bytes_up") & (frame["round"] == 1)].value.item() / 4
    sent = [len(data) for _, kind, _, data in channel.seen if kind == "train"]
    assert 0 < max(sent) - counted < 1200
    assert codec == "clip:norm=0.1" or counted < 0.35 * 650 * 4


@pytest.mark.parametrize(("method", "numbers"), [("fedavg", 1), ("scaffold", 2)])
def test_a_node_sends_row_counts_once_and_then_only_the_methods_vectors(
    method: str, numbers: int, tmp_path: Path
) -> None:
    """The method's card says how many vectors. No row, no label, no state leaves the node."""
    channel, store = served(small(method, rounds=2), tmp_path, measure=False)
    assert not [e for e in store.run(1).facts.get("warnings", []) if "class" in e["line"]]
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


def test_a_private_update_leaves_the_node_clipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The privacy loss equals the simulation's. The server's secret is the run's seed here, so that both draw the same."""
    pytest.importorskip("dp_accounting")
    monkeypatch.setattr(Secret, "fresh", lambda: 0)
    experiment = small("dp-fedavg:q=0.5,clip=0.05,noise=2", selection="poisson:rate=0.5", rounds=4)
    channel = same_as_simulated(experiment, tmp_path)
    sent = [unpack(data, Reply)[1]["delta"]["values"] for _, kind, _, data in channel.seen if kind == "train"]
    assert sent
    assert all(float(delta.norm()) == pytest.approx(0.05, rel=1e-4) for delta in sent)
    stores = [RunStore(tmp_path / name).measurements([1]) for name in ("runs", "simulated")]
    deployed, simulated = (frame[frame.name == "epsilon"].value.tolist() for frame in stores)
    assert len(deployed) == 4
    assert deployed == simulated
    assert 0 < deployed[0] < deployed[-1]


def test_a_node_has_only_its_own_rows(tmp_path: Path) -> None:
    experiment = small()
    nodes = nodes_of(experiment, tmp_path)
    rows = [{row.tobytes() for row in read_rows(node.rows).x} for node in nodes]
    data = experiment.dataset.load()
    dealt = finished(experiment, data, dealt_rows(experiment, data))
    for k, own in enumerate(rows):
        assert own == {row.tobytes() for row in data.x[dealt.rows(k)]}
    for other in nodes[1:]:
        other.rows.unlink()
    assert unpack(nodes[0].answer(pack(request(experiment))), Reply)[0].rows == len(dealt.rows(0))
    gone = nodes[1].answer(pack(request(experiment, client=1)))
    assert "there is no such file" in unpack(gone, Reply)[0].reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"evaluation": {"inexactness": True}}, "stay on the nodes"),
        ({"availability": "blocks:phase=label"}, "set deployment.labels = true"),
        ({"algorithm": "moon"}, "hidden features"),
        ({"skew": "pooled"}, "pooled puts all rows on one client, and nodes keep theirs"),
        ({"faults": {"share": 0.1, "kinds": ["missing"]}}, "faults: only simulated runs have them"),
    ],
)
def test_an_experiment_that_needs_a_simulation_is_refused_before_any_node_is_asked(
    change: dict[str, object], reason: str, tmp_path: Path
) -> None:
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


def test_init_writes_an_app_that_flower_builds_and_the_rows(tmp_path: Path) -> None:
    build = pytest.importorskip("flwr.cli.build")
    recipe = tmp_path / "my.toml"
    recipe.write_text(small("scaffold").toml())
    app = tmp_path / "My App"
    assert main(["flower", "init", str(app), "--recipe", str(recipe), "--rows"]) == 0
    table = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert from_toml(table["config"]["recipe"]) == small("scaffold", skew="natural")
    assert len(build.build_fab_from_disk(app)) < 20_000
    assert sorted(path.name for path in (tmp_path / "My App-rows").iterdir()) == [f"{k}.npz" for k in range(4)]
    assert main(["flower", "init", str(app)]) == 2  # there is something already


def test_a_socket_with_too_long_a_path_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 110)
    folder.mkdir()
    with (
        pytest.raises(FedskewError, match=r"^node: no socket at .*too long; set TMPDIR to a shorter folder$"),
        listening(f"{folder}/node", lambda connection: None),
    ):
        pass


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (lambda path: None, "there is no such file"),
        (lambda path: path.write_bytes(b"PK garbage"), "not a NumPy .npz file"),
        (lambda path: np.savez(path, x=np.zeros((2, 3))), "it needs the arrays x and y"),
        (lambda path: np.savez(path, x=np.zeros((2, 3)), y=np.zeros(3, int)), "2 rows in x, 3 in y"),
        (lambda path: np.savez(path, x=np.full((2, 3), np.nan), y=np.zeros(2, int)), "not finite"),
        (lambda path: np.savez(path, x=np.float64(1), y=np.int64(1)), "x must be an array of numbers"),
        (lambda path: np.savez(path, x=np.array(["a"]), y=np.zeros(1, int)), "x must be an array of numbers"),
        (lambda path: np.savez(path, x=np.array([{}]), y=np.zeros(1, int)), "not a NumPy .npz file"),
    ],
)
def test_a_bad_file_of_rows_is_refused(write: Callable[[Path], object], reason: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    write(path)
    with pytest.raises(BadInput, match=reason):
        read_rows(path)
