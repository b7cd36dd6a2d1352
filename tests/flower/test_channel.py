"""The channel over Flower's grid: a late node gave no answer, and `send` does not wait."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from fedskew.flower import app
from fedskew.flower.app import GridChannel
from fedskew.flower.client import content


@dataclass
class Clock:
    """A clock that only sleep moves on: a busy machine changes no time."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Grid:
    """Flower's grid: nodes in ``answering`` answer with their number, and expired messages give an error."""

    answering: set[int]
    pushed: dict[str, tuple[int, float]] = field(default_factory=dict)  # message to node and expiry

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        ids = []
        for message in messages:
            ids.append(str(len(self.pushed)))
            self.pushed[ids[-1]] = (message.metadata.dst_node_id, app.time.monotonic() + message.metadata.ttl)
        app.time.sleep(0.05)  # Flower needs some time to take the messages
        return ids

    def pull_messages(self, ids: list[str]) -> list[Any]:
        replies = []
        for one in ids:
            node, expiry = self.pushed[one]
            late = app.time.monotonic() > expiry
            if late or node in self.answering:
                made = {"content": content(bytes([node])), "error": SimpleNamespace(reason="expired")}
                metadata = SimpleNamespace(reply_to_message_id=one)
                replies.append(SimpleNamespace(metadata=metadata, has_error=lambda late=late: late, **made))
        return replies


@pytest.fixture(autouse=True)
def plain_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's own messages can only be made within a run."""

    def message(content: object, node: int, message_type: str, **facts: Any) -> SimpleNamespace:
        return SimpleNamespace(content=content, metadata=SimpleNamespace(dst_node_id=node, **facts))

    monkeypatch.setattr(app, "Message", message)


def test_a_node_that_is_late_gave_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's error for an expired message would count as a refusal, and the node would be asked for another timeout."""
    clock = Clock()
    monkeypatch.setattr(app, "time", clock)
    monkeypatch.setattr(app, "POLL", 0.01)
    assert GridChannel(Grid({1})).ask({1: b"", 2: b""}, "train", 0, 0.1) == {1: b"\x01"}
    assert 0.1 <= clock.now < 0.2


def test_received_returns_each_reply_once() -> None:
    grid = Grid({1})
    channel = GridChannel(grid)
    channel.send({1: b"", 2: b""}, "meet", 600.0)
    assert channel.received() == {1: b"\x01"}
    assert channel.received() == {}
    grid.answering = {2}
    channel.send({2: b""}, "meet", 600.0)  # in place of the first message
    assert channel.received() == {2: b"\x02"}
    assert channel.sent == {}
