"""Who the nodes are, how they are asked, and which of their answers are taken."""

from __future__ import annotations

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

POLL = 0.25
"""Seconds between two looks for nodes or replies."""


MOST_ROWS = 1 << 26
"""Of one client; the server keeps sixteen bytes for each, and one that says more would exhaust its memory."""


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """How the server deals with its nodes.

    ``timeout`` is how many seconds a node has for an answer, ``fewest`` the share of the clients asked, at least one, without
    which there is no round, ``attempts`` how often those that did not give a usable answer are asked in all, ``longest`` the
    length above which an update is rejected (0: none is). ``labels`` lets nodes tell how many rows of each class they hold,
    ``measure`` has them measure the global model on their rows. ``wait`` is how many seconds the server waits for all its clients.
    """

    timeout: float = 600.0
    fewest: float = 0.5
    attempts: int = 2
    longest: float = 0.0
    labels: bool = False
    measure: bool = True
    wait: float = 300.0
    private = alone

    def __post_init__(self) -> None:
        require(self.timeout > 0, f"timeout must be above 0 seconds, got {self.timeout}")
        require(0 < self.fewest <= 1, f"fewest is a share, above 0 and at most 1, got {self.fewest}")
        require(self.attempts >= 1, f"attempts must be at least 1, got {self.attempts}")
        require(self.longest >= 0, f"longest must be at least 0, got {self.longest}")
        require(self.wait > 0, f"wait must be above 0 seconds, got {self.wait}")


class Channel(Protocol):
    """The way to the nodes, which have numbers of their own."""

    def nodes(self) -> Sequence[int]: ...

    def ask(self, requests: Mapping[int, bytes], kind: Kind, round_: int, timeout: float) -> dict[int, bytes]:
        """The replies of the nodes that answered in time."""
        ...


@dataclass(frozen=True)
class Recipe:
    """What every request says of its run."""

    run: str
    toml: str
    clients: int
    classes: int
    shape: tuple[int, ...]

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
    """Who is who: which node is which client, and what has gone wrong since it was last told."""

    channel: Channel
    recipe: Recipe
    deployment: Deployment
    node_of: dict[int, int] = field(default_factory=dict)
    met: dict[int, Reply] = field(default_factory=dict)
    faults: list[tuple[int, str, str]] = field(default_factory=list)  # client, fault, message

    def meet(self) -> None:
        """Ask every node that is not known yet who it is. A second one that says it is a client that is there is not heard."""
        there = set(self.channel.nodes())
        known = {client: node for client, node in self.node_of.items() if node in there}
        strangers = sorted(there - set(known.values()))
        request = pack(self.recipe.request("meet", 0, -1, labels=self.deployment.labels))
        replies = self.channel.ask(dict.fromkeys(strangers, request), "meet", 0, self.deployment.timeout)
        for node in sorted(replies):
            try:
                reply, _ = self.opened(replies[node], "meet", 0, None)
                if reply.client in known:
                    raise Rejected("garbage", f"two nodes say they are client {reply.client}")
                self.check_met(reply)
            except Rejected as error:
                self.faults.append((-1, error.fault, str(error)))
                continue
            known[reply.client] = node
            self.met[reply.client] = reply
        self.node_of = known

    def await_clients(self, wanted: int) -> None:
        """Wait until as many clients are there; raises `TooFew` after ``wait`` seconds."""
        end = time.monotonic() + self.deployment.wait
        self.meet()
        while len(self.node_of) < wanted:
            if time.monotonic() > end:
                missing = sorted(set(range(self.recipe.clients)) - set(self.node_of))
                reasons = "".join(f"; {message}" for _, _, message in self.faults[-2:])
                raise TooFew(
                    f"{len(self.node_of)} of {self.recipe.clients} clients are there after {self.deployment.wait:g} s, and "
                    f"{wanted} are needed; missing: {', '.join(map(str, missing))}{reasons}"
                )
            time.sleep(POLL)
            self.meet()

    def check_met(self, reply: Reply) -> None:
        """Raise `Rejected` if this is no client of the run, or not the one it was."""
        before = self.met.get(reply.client)
        if not 0 <= reply.client < self.recipe.clients or reply.rows < 1 or reply.measured_rows < 0:
            raise Rejected("garbage", f"client {reply.client} with {reply.rows} rows is none of this run")
        if before and (before.rows, before.measured_rows) != (reply.rows, reply.measured_rows):
            raise Rejected("garbage", f"client {reply.client} had {before.rows} rows, and has {reply.rows}")
        if max(reply.rows, reply.measured_rows) > MOST_ROWS:
            raise Rejected(
                "garbage", f"client {reply.client} says {reply.rows} rows; at most {MOST_ROWS:,} are believed"
            )
        counts = reply.label_counts
        wanted = self.recipe.classes if self.deployment.labels else 0
        if len(counts) != wanted or (counts and (min(counts) < 0 or sum(counts) != reply.rows)):
            raise Rejected("garbage", f"client {reply.client}: rows of each class that are none")

    def ask(
        self, requests: Mapping[int, tuple[Request, Body]], take: Callable[[Tree], Tree]
    ) -> dict[int, tuple[Reply, Tree]]:
        """What ``take`` makes of these clients' usable answers, ascending; those without one are asked again, as configured."""
        heard: dict[int, tuple[Reply, Tree]] = {}
        if not requests:
            return heard
        kind, round_ = next((r.kind, r.round) for r, _ in requests.values())
        for _ in range(self.deployment.attempts):
            if set(heard) == set(requests):
                break
            self.meet()
            left = [k for k in requests if k not in heard]
            packed = {self.node_of[k]: pack(*requests[k]) for k in left if k in self.node_of}
            replies = self.channel.ask(packed, kind, round_, self.deployment.timeout)
            for k in left:
                try:
                    node = self.node_of.get(k)
                    if node not in replies:
                        raise Rejected("missing", f"client {k} is not there" if node is None else "no answer in time")
                    reply, tensors = self.opened(replies[node], kind, round_, k)
                    heard[k] = reply, take(tensors)
                except Rejected as error:
                    self.faults.append((k, error.fault, str(error)))
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
