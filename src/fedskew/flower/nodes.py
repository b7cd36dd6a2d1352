"""Who the nodes are, how they are asked, and which of their answers are taken."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedskew.core.errors import TooFew, require
from fedskew.core.privacy import alone
from fedskew.core.trees import Tree
from fedskew.flower.wire import (
    Body,
    Kind,
    Rejected,
    Reply,
    Request,
    pack,
    unpack,
)
from fedskew.loop.limits import RATIO

LOG = logging.getLogger("fedskew.flower")

POLL = 0.25
"""Seconds between two looks for nodes or replies."""

PAUSE = 30.0
"""Seconds, at most, after which a node whose answer was rejected is asked again who it is."""


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """How the server deals with its nodes.

    ``timeout`` is how many seconds a node has for an answer. ``attempts`` is how often it is asked in all while its answers are not
    usable; one that gives none in time is set aside until it answers again. ``fewest`` is the share of the clients asked, at least
    one, without which there is no round.

    An update longer than ``longest`` is rejected (0: no limit), and one longer than ``longest_ratio`` times the round's median (0:
    no limit; see `fedskew.loop.limits.outliers`). A client may have ``most_rows`` rows (0: as many as the recipe's data set has for
    training).

    With ``labels`` nodes tell how many rows of each class they hold, with ``measure`` they measure the global model on their rows.
    ``wait`` is how many seconds the server waits for all its clients.
    """

    timeout: float = 600.0
    fewest: float = 0.5
    attempts: int = 2
    longest: float = 0.0
    longest_ratio: float = RATIO
    most_rows: int = 0
    labels: bool = False
    measure: bool = True
    wait: float = 300.0
    private = alone

    def __post_init__(self) -> None:
        require(self.timeout > 0, f"timeout must be above 0 seconds, got {self.timeout}")
        require(0 < self.fewest <= 1, f"fewest is a share, above 0 and at most 1, got {self.fewest}")
        require(self.attempts >= 1, f"attempts must be at least 1, got {self.attempts}")
        require(self.longest >= 0, f"longest must be at least 0, got {self.longest}")
        require(self.longest_ratio >= 0, f"longest_ratio must be at least 0, got {self.longest_ratio}")
        require(self.most_rows >= 0, f"most_rows must be at least 0, got {self.most_rows}")
        require(self.wait > 0, f"wait must be above 0 seconds, got {self.wait}")


class Channel(Protocol):
    """The way to the nodes, which have numbers of their own."""

    def nodes(self) -> Sequence[int]: ...

    def ask(self, requests: Mapping[int, bytes], kind: Kind, round_: int, timeout: float) -> dict[int, bytes]:
        """The replies of the nodes that answered in time."""
        ...

    def send(self, requests: Mapping[int, bytes], kind: Kind, timeout: float) -> None:
        """Send requests that are void after ``timeout`` seconds, and do not wait for replies."""
        ...

    def received(self) -> dict[int, bytes]:
        """The replies to what was sent by `send` that have come since the last call."""
        ...


@dataclass(frozen=True)
class Recipe:
    """What every request says of its run."""

    run: str
    toml: str
    clients: int
    classes: int
    shape: tuple[int, ...]
    rows: int  # that the data set has for training

    def request(self, kind: Kind, round_: int, client: int, **facts: Any) -> Request:
        return Request(
            kind=kind,
            run=self.run,
            round=round_,
            client=client,
            clients=self.clients,
            recipe=self.toml,
            classes=self.classes,
            shape=self.shape,
            **facts,
        )


@dataclass(eq=False)
class Nodes:
    """Which node is which client, and the faults since they were last stored."""

    channel: Channel
    recipe: Recipe
    deployment: Deployment
    node_of: dict[int, int] = field(default_factory=dict)  # clients that answered their last request
    met: dict[int, Reply] = field(default_factory=dict)
    faults: list[tuple[int, str, str]] = field(default_factory=list)  # client, fault, message
    ask_from: dict[int, float] = field(default_factory=dict)  # node to the time from which it is asked again who it is
    waiting: set[int] = field(default_factory=set)  # nodes that were asked who they are and have not answered
    first: bool = True  # whether no round has begun

    def meet(self) -> None:
        """Ask nodes that are no client yet, or were set aside, who they are, and take the answers that have come; never waits.

        A second node that says it is a client that is there is rejected.
        """
        there = set(self.channel.nodes())
        self.node_of = {client: node for client, node in self.node_of.items() if node in there}
        now = time.monotonic()
        due = sorted(n for n in there - set(self.node_of.values()) if now >= self.ask_from.get(n, now))
        request = pack(self.recipe.request("meet", 0, -1, labels=self.deployment.labels))
        self.channel.send(dict.fromkeys(due, request), "meet", self.deployment.timeout)
        self.ask_from.update(dict.fromkeys(due, now + self.deployment.timeout))
        self.waiting |= set(due)
        for node, data in sorted(self.channel.received().items()):
            self.waiting.discard(node)
            try:
                reply, _ = self.opened(data, "meet", 0, None)
                if self.node_of.get(reply.client, node) != node:
                    raise Rejected("garbage", f"two nodes say they are client {reply.client}")
                self.check_met(reply)
            except Rejected as error:
                self.ask_from[node] = now + min(PAUSE, self.deployment.timeout)
                self.note(-1, error)
                continue
            self.node_of[reply.client] = node
            self.met[reply.client] = reply

    def await_clients(self, wanted: int) -> None:
        """Wait until as many clients are there; raises `TooFew` after ``wait`` seconds.

        The first call also gives all other nodes up to ``timeout`` seconds to say who they are.
        """
        start = time.monotonic()
        self.meet()
        while len(self.node_of) < wanted or (self.first and self.may_still_answer(start)):
            if len(self.node_of) < wanted and time.monotonic() - start > self.deployment.wait:
                missing = sorted(set(range(self.recipe.clients)) - set(self.node_of))
                reasons = "".join(f"; {message}" for _, _, message in self.faults[-2:])
                raise TooFew(
                    f"{len(self.node_of)} of {self.recipe.clients} clients are there after {self.deployment.wait:g} s, and "
                    f"{wanted} are needed; missing: {', '.join(map(str, missing))}{reasons}"
                )
            time.sleep(POLL)
            self.meet()
        self.first = False

    def may_still_answer(self, start: float) -> bool:
        """Whether a client is missing that one of the nodes asked since ``start`` may turn out to be."""
        late = time.monotonic() - start > self.deployment.timeout
        return bool(self.waiting) and len(self.node_of) < self.recipe.clients and not late

    def set_aside(self, client: int) -> None:
        """Ask this client for nothing until its node answers `meet` again, for which nobody waits."""
        self.ask_from.pop(self.node_of.pop(client), None)

    def note(self, client: int, error: Rejected) -> None:
        """Count a fault, and write it to the log; client -1 where nobody knows whose it is."""
        self.faults.append((client, error.fault, str(error)))
        LOG.warning("%s: %s", f"client {client}" if client >= 0 else "a node", error)

    def check_met(self, reply: Reply) -> None:
        """Raise `Rejected` if this is no client of the run, or not the one it was."""
        before = self.met.get(reply.client)
        if not 0 <= reply.client < self.recipe.clients or reply.rows < 1 or reply.measured_rows < 0:
            raise Rejected("garbage", f"client {reply.client} with {reply.rows} rows is none of this run")
        if before and (before.rows, before.measured_rows) != (reply.rows, reply.measured_rows):
            raise Rejected("garbage", f"client {reply.client} had {before.rows} rows, and has {reply.rows}")
        most = self.deployment.most_rows or self.recipe.rows
        if (rows := max(reply.rows, reply.measured_rows)) > most:
            raise Rejected(
                "out_of_range",
                f"client {reply.client} says it has {rows} rows, and {most} are agreed; set deployment.most_rows",
            )
        counts = reply.label_counts
        wanted = self.recipe.classes if self.deployment.labels else 0
        if len(counts) != wanted or (counts and (min(counts) < 0 or sum(counts) != reply.rows)):
            raise Rejected("garbage", f"client {reply.client}: rows of each class that are none")

    def ask(
        self, requests: Mapping[int, tuple[Request, Body]], take: Callable[[int, Tree], Tree]
    ) -> dict[int, tuple[Reply, Tree]]:
        """What ``take(client, answer)`` makes of these clients' usable answers, ascending; unusable ones are asked for again."""
        heard: dict[int, tuple[Reply, Tree]] = {}
        for attempt in range(self.deployment.attempts):
            left = [k for k in requests if k not in heard]
            if not left:
                break
            self.meet()
            nodes = {k: self.node_of[k] for k in left if k in self.node_of}
            if not attempt:
                for k in set(left) - set(nodes):
                    self.note(k, Rejected("missing", "it is not there"))
            kind, round_ = requests[left[0]][0].kind, requests[left[0]][0].round
            packed = {node: pack(*requests[k]) for k, node in nodes.items()}
            replies = self.channel.ask(packed, kind, round_, self.deployment.timeout) if packed else {}
            for k, node in nodes.items():
                try:
                    if node not in replies:
                        self.set_aside(k)
                        timeout = f"{self.deployment.timeout:g} s"
                        raise Rejected("missing", f"no answer in {timeout}; it is set aside until it answers again")
                    reply, tensors = self.opened(replies[node], kind, round_, k)
                    heard[k] = reply, take(k, tensors)
                except Rejected as error:
                    self.note(k, error)
        return dict(sorted(heard.items()))

    def opened(self, data: bytes, kind: Kind, round_: int, client: int | None) -> tuple[Reply, Tree]:
        """A reply to this very request, or `Rejected`."""
        reply, tensors = unpack(data, Reply)
        if reply.kind == "refused":
            raise Rejected("refused", reply.reason)
        if (reply.run, reply.round, reply.kind) != (self.recipe.run, round_, kind):
            raise Rejected("other_round", f"an answer of round {reply.round} of run {reply.run} ({reply.kind})")
        if client is not None and reply.client != client:
            raise Rejected("garbage", f"client {client} answers as client {reply.client}")
        return reply, tensors
