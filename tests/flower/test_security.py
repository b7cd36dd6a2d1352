"""The page on security: each line names tests that exist. The other tests of this file exist nowhere else."""

import os
import re
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch

from fedskew.flower import resident
from fedskew.flower.limits import Limits
from fedskew.flower.node import Node
from fedskew.flower.nodes import SPARE
from fedskew.flower.wire import PROTOCOL, Rejected, Reply, pack, unpack
from tests.flower.test_checks import server
from tests.flower_nodes import RUN, nodes_of, request, small

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanations" / "security.md").read_text(encoding="utf-8")


def test_each_line_of_the_page_names_tests_that_exist() -> None:
    known = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.M)
    }
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not re.match(r"\| (threat|---) ", line)]
    assert len(rows) > 20
    assert [row for row in rows if not re.search(r"`test_\w+`", row.rsplit("|", 2)[1])] == []
    assert sorted(set(re.findall(r"`(test_\w+)`", PAGE)) - known) == []


def refusal(node: Node, data: bytes) -> str:
    reply, _ = unpack(node.answer(data), Reply)
    assert reply.kind == "refused"
    assert "\n" not in reply.reason
    return reply.reason


def test_another_version_is_named(tmp_path: Path) -> None:
    """This also holds for messages with other fields."""
    later = {**msgspec.to_builtins(request(small())), "protocol": 8, "new": 1}
    other = msgspec.defstruct("Later", [(name, object) for name in later])(**later)
    reason = f"its protocol is 8, ours {PROTOCOL}; install the same fedskew on all machines"
    assert reason in refusal(nodes_of(small(), tmp_path)[0], pack(other))  # type: ignore[arg-type]
    with pytest.raises(Rejected, match=reason):
        server().opened(pack(Reply(kind="train", run=RUN, round=1, client=2, protocol=8)), "train", 1, 2)


def test_a_message_that_is_too_long_is_refused(tmp_path: Path) -> None:
    node = Node(0, tmp_path / "rows.npz", tmp_path, Limits(bytes=1000))
    assert "asks for 1001 bytes, but this node allows 1000" in refusal(node, b"x" * 1001)


def test_a_reply_that_is_too_long_is_rejected() -> None:
    with pytest.raises(Rejected, match=f"a message of 16,777,217 bytes; at most {SPARE:,} are expected") as rejected:
        server().opened(bytes(SPARE + 1), "train", 1, 2)
    assert rejected.value.fault == "garbage"


def test_a_replayed_request_changes_no_later_round(tmp_path: Path) -> None:
    """A node that gets the request of round 1 again after round 2 answers with the same update, and round 3 stays as it is."""
    experiment = small("scaffold")
    node = nodes_of(experiment, tmp_path)[0]

    def ask(round_: int) -> bytes:
        tensors = {"x": torch.full((650,), 0.1 * round_), "extras": {"c": torch.zeros(650)}}
        message = request(experiment, "train", round_=round_, stamp=round_, steps=3)
        return pack(message, tensors)

    once = [unpack(node.answer(ask(round_)), Reply) for round_ in range(3)]
    assert [reply.kind for reply, _ in once] == ["train"] * 3
    for round_ in (0, 2):
        again = unpack(node.answer(ask(round_)), Reply)[1]
        assert torch.equal(again["delta"]["values"], once[round_][1]["delta"]["values"])


def test_a_node_downloads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries of Hugging Face read a variable when a model is first built, after the node has started."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    seen: list[str] = []

    def start(*command: object) -> SimpleNamespace:
        seen.append(os.environ["HF_HUB_OFFLINE"])
        return SimpleNamespace(poll=lambda: 0, returncode=0)

    monkeypatch.setattr(resident, "start", start)
    monkeypatch.setattr(resident, "end", lambda *rest, **facts: None)
    assert resident.keep_running(Node(0, tmp_path / "rows.npz", tmp_path), "server:9092", []) == 0
    assert seen == ["1"]
