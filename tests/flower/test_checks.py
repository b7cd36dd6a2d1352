"""The checks of server and nodes one at a time, and the states that nodes keep for a server that restarts."""

import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from fedskew.cli.main import main
from fedskew.core.errors import BadInput
from fedskew.core.trees import map_leaves
from fedskew.flower.limits import Limits
from fedskew.flower.node import Node, Visit
from fedskew.flower.nodes import Deployment, Nodes
from fedskew.flower.server import RemoteStates
from fedskew.flower.wire import Rejected, Reply, check_scores, pack, unpack
from fedskew.store import checkpoints
from tests.flower_nodes import RUN, Direct, nodes_of, request, small


def server(most_rows: int = 1000, labels: bool = False) -> Nodes:
    return Nodes(Direct([]), request("", classes=3, shape=(2,)), Deployment(labels=labels), most_rows)


def test_a_reply_to_another_request_is_rejected() -> None:
    fields = {"run": RUN, "round": 1, "kind": "train", "client": 2}
    reply, _ = server().opened(pack(Reply(**fields)), "train", 1, 2)
    assert reply.client == 2
    for change, fault in (
        ({"run": "1" * 32}, "other_round"),
        ({"round": 2}, "other_round"),
        ({"kind": "survey"}, "other_round"),
        ({"client": 3}, "garbage"),
        ({"kind": "refused"}, "refused"),
    ):
        with pytest.raises(Rejected) as rejected:
            server().opened(pack(Reply(**{**fields, **change})), "train", 1, 2)
        assert rejected.value.fault == fault


def met(client: int = 0, rows: int = 6, measured_rows: int = 0, label_counts: tuple[int, ...] = (1, 2, 3)) -> Reply:
    return Reply(
        kind="meet", run=RUN, round=0, client=client, rows=rows, measured_rows=measured_rows, label_counts=label_counts
    )


@pytest.mark.parametrize(
    "reply",
    [
        met(client=-1),
        met(client=4),
        met(rows=0, label_counts=(0, 0, 0)),
        met(measured_rows=-1),
        met(rows=1001, label_counts=(1001, 0, 0)),
        met(measured_rows=1001),
        met(label_counts=(1, 2)),
        met(label_counts=(1, 2, 2)),
        met(label_counts=(-1, 4, 3)),
    ],
)
def test_impossible_numbers_of_rows_are_rejected(reply: Reply) -> None:
    nodes = server(labels=True)
    nodes.check_met(met())
    nodes.check_met(met(client=3))
    with pytest.raises(Rejected):
        nodes.check_met(reply)


def test_a_client_with_more_rows_than_the_limit_is_rejected() -> None:
    nodes = server(most_rows=2000)
    nodes.check_met(met(rows=2000, label_counts=()))
    for rows in (2001, 1 << 26, 10**15):
        with pytest.raises(Rejected, match=f"says it has {rows} rows, and 2000 are agreed") as rejected:
            nodes.check_met(met(rows=rows, label_counts=()))
        assert rejected.value.fault == "out_of_range"


@pytest.mark.parametrize(
    ("scores", "rows"),
    [
        ({"accuracy": 1e30}, 1),
        ({"accuracy": -0.1}, 1),
        ({"accuracy": 8.0}, 7),
        ({"loss": -1e-3}, 1),
        ({"loss": 1e30}, 7),
        ({"global": {"accuracy": 0.5, "loss": 2.0}, "personal": {"accuracy": 1.1, "loss": 2.0}}, 1),
    ],
)
def test_scores_outside_their_range_are_rejected(scores: dict, rows: int) -> None:
    check_scores({"loss": torch.tensor(0.0), "accuracy": torch.tensor(float(rows))}, rows)
    with pytest.raises(Rejected, match="lies in 0") as rejected:
        check_scores(map_leaves(torch.tensor, scores), rows)
    assert rejected.value.fault == "out_of_range"


@pytest.mark.parametrize("name", ["x" * 61, "two\nlines", "site 0", "Budapest", "\u202e"])
def test_a_name_that_is_none_or_another_sites_is_rejected(name: str) -> None:
    nodes = server()
    nodes.met[3] = msgspec.structs.replace(met(3, label_counts=()), name="Budapest")
    nodes.check_met(msgspec.structs.replace(met(1, label_counts=()), name="Long Beach"))
    with pytest.raises(Rejected, match="name"):
        nodes.check_met(msgspec.structs.replace(met(1, label_counts=()), name=name))


def test_a_client_that_comes_back_with_other_rows_is_rejected() -> None:
    nodes = server(labels=True)
    nodes.met[0] = met(measured_rows=2)
    nodes.check_met(met(measured_rows=2))
    for other in (met(measured_rows=1), met(rows=5, label_counts=(1, 1, 3), measured_rows=2)):
        with pytest.raises(Rejected, match="client 0 had 6 rows"):
            nodes.check_met(other)


def test_states_are_needed_back_to_the_checkpoint_before_the_last() -> None:
    states, clients = RemoteStates(), np.array([1, 3])
    needed = []
    for stamp in (2, 4, 6):
        states.put(clients, {"stamp": torch.full((2,), stamp)})
        states.saved()
        needed.append(states.get(clients, dict)["needed"].tolist())
    assert needed == [[0, 0], [2, 2], [4, 4]]
    back = RemoteStates.restore(*states.export())
    assert back.get(clients, dict)["needed"].tolist() == [0, 0]


def visit(folder: Path, round_: int = 0, **facts: int) -> Visit:
    """A request to client 1. Only run, round and stamps are read."""
    made = Visit.__new__(Visit)
    made.node = Node(1, folder / "rows.npz", folder)
    made.request = request("", "train", 1, round_, **facts)
    made.states = made.node.states(RUN)
    return made


def test_a_node_removes_the_states_that_no_server_asks_for(tmp_path: Path) -> None:
    for round_, needed in ((0, 0), (1, 0), (2, 2), (3, 2)):
        visit(tmp_path, round_, needed=needed).keep({"c": torch.ones(1)})
    assert sorted(path.name for path in (tmp_path / RUN).iterdir()) == ["000002", "000003", "000004"]


@pytest.mark.parametrize("stranger", [{"client": 2}, {"run": "1" * 32}])
def test_a_state_of_another_client_or_run_is_not_used(tmp_path: Path, stranger: dict[str, object]) -> None:
    visit(tmp_path, 4).keep({"c": torch.ones(1)})
    assert visit(tmp_path, stamp=5).kept(None, torch.zeros(1)) == {"c": torch.ones(1)}
    facts = {"run": RUN, "client": 1, "round": 5, **stranger}
    checkpoints.save(tmp_path / RUN / "000005", 5, {"state": {"c": torch.ones(1)}}, facts)
    with pytest.raises(BadInput, match=f"not to run {RUN} and client 1"):
        visit(tmp_path, stamp=5).kept(None, torch.zeros(1))


@pytest.mark.parametrize("code", ["mine.py", "mine::Mine", "/srv/mine.py::Mine"])
@pytest.mark.parametrize("place", ['name = "{}"', 'list = ["{}"]', '[algorithm]\nname = "{}"', '[[skew]]\nname = "{}"'])
def test_a_recipe_that_names_a_file_of_code_is_refused(place: str, code: str) -> None:
    with pytest.raises(BadInput, match="names a file of code"):
        Limits().recipe(place.format(code))


def test_node_imports_only_the_code_that_its_owner_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evil_package.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w').close()\nimport torch\nclass Net(torch.nn.Linear):\n"
        "    def __init__(self, shape, classes): super().__init__(shape[0], classes)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    node = nodes_of(small(), tmp_path)[0]
    experiment = small(model="evil_package::Net")
    # the node has not imported it
    monkeypatch.delitem(sys.modules, "evil_package")
    (tmp_path / "ran").unlink()
    message = pack(request(experiment, "train", steps=1), {"x": torch.zeros(650)})
    refused, _ = unpack(node.answer(message), Reply)
    assert refused.reason.startswith("recipe: it names a file of code")
    assert not (tmp_path / "ran").exists()
    assert Limits(allow=("evil_package::Net",)).recipe(experiment.toml()).labels("model") == ["evil_package::Net"]


@pytest.mark.parametrize("spec", ['algorithm = "other:mu=1"', '[algorithm]\nname = "other"'])
def test_another_packages_method_is_not_looked_up_unless_listed(spec: str) -> None:
    with pytest.raises(BadInput, match="algorithm other is not part of fedskew"):
        Limits().recipe(spec)
    with pytest.raises(BadInput, match="unknown algorithm 'other'"):  # it is not installed
        Limits(allow=("other",)).recipe(spec)


@pytest.mark.parametrize(
    ("change", "facts", "reason"),
    [
        ({"training__threads": 1000}, {}, "asks for 1000 threads, but this node allows 256"),
        ({}, {"clients": 10**9}, "asks for 1000000000 clients, but this node allows 100000"),
        ({}, {"classes": 10**9}, "asks for 1000000000 classes"),
        ({}, {"steps": 3_000_000}, "asks for 3000000 steps, but this node allows 100000; .* --limit steps=3000000"),
        ({}, {"steps": -1}, "asks for -1 steps"),
        ({"local__steps": 3_000_000}, {}, "asks for 3000000 steps"),
        ({"local__epochs": 10**9}, {}, "asks for .* steps"),
        ({"local__epochs": 90_000, "local__batch_size": "all"}, {}, "asks for .* examples"),
        ({"model": "mlp:hidden=[100000]"}, {}, "has 7500010 parameters, but the server sent 650"),
        (
            {"model": "hf:bert"},
            {},
            "model hf:bert is not part of fedskew; .* --allow bert, .* a node downloads nothing",
        ),
    ],
)
def test_a_server_may_not_ask_for_more_than_the_owner_allows(change, facts, reason, tmp_path: Path) -> None:
    """The node refuses in one line, before it costs memory. The server counts the fault "refused"."""
    node = nodes_of(small(), tmp_path)[0]
    oversized = request(small().replace(**change), "train", **{"steps": 1, **facts})
    began = time.process_time()
    data = node.answer(pack(oversized, {"x": torch.zeros(650)}))
    assert time.process_time() - began < 2
    with pytest.raises(Rejected, match=reason) as rejected:
        server().opened(data, "train", 0, 0)
    assert rejected.value.fault == "refused"


def test_the_owner_of_a_node_sets_limits_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[Node] = []
    monkeypatch.setattr("fedskew.flower.resident.keep_running", lambda node, *rest: held.append(node) or 0)
    monkeypatch.setattr("fedskew.flower.superlink.check_superlink", lambda *rest: "")
    rows = nodes_of(small(), tmp_path)[0].rows
    words = ["flower", "node", "--client", "0", "--rows", str(rows), "--superlink", "server:9092"]
    assert main([*words, "--limit", "steps=7", "--limit", "threads=2", "--allow", "mine.Net"]) == 0
    assert held[0].limits == Limits(steps=7, threads=2, allow=("mine.Net",))
    assert main([*words, "--limit", "stepps=7"]) == 2
    assert main([*words, "--limit", "steps"]) == 2
