"""The server's connections. They know the node of each client, send requests, and accept or reject replies."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from fedskew.core.component import from_table
from fedskew.core.errors import TooFew
from fedskew.core.limits import NonNegativeInt, NonNegativeOrInf, PositiveInt, PositiveOrInf, PositiveShare
from fedskew.core.privacy import alone
from fedskew.core.trees import Tree, leaves
from fedskew.flower.events import event
from fedskew.flower.wire import NAME_RULE, Body, Kind, Rejected, Reply, Request, is_name, pack, unpack
from fedskew.loop.limits import RATIO

SPARE = 1 << 24
"""A reply may have four times the bytes of its request, and these."""

POLL = 0.25
"""Seconds between two checks for nodes or replies."""

PAUSE = 30.0
"""Seconds, at most, before a node whose reply was rejected is asked again which client it is."""


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Settings of the server's connections to nodes.

    ``timeout``: seconds that a node has for a reply. ``attempts``: how often a client is asked in all while its replies are not
    usable; a node that does not reply in time is set aside until it replies again. ``fewest``: the smallest share of the asked
    clients that must reply, at least one client; with fewer the run stops.

    An update longer than ``longest`` is rejected (0: no limit), and one longer than ``longest_ratio`` times the round's median (0:
    no limit; see `fedskew.loop.limits.outliers`). ``most_rows``: rows of a client at most (0: as many as the recipe's data set has
    for training).

    ``labels``: nodes report how many rows of each class they hold. ``measure``: they measure the global model on their rows.
    ``wait``: seconds that the server waits for its clients. ``agree``: summaries of the nodes' tables give the
    preprocessing, not the server's table.

    ``status``: the port of this machine that serves /health and /metrics (0: none). ``json_log``: write what happens as JSON lines.
    """

    timeout: PositiveOrInf = 600.0
    fewest: PositiveShare = 0.5
    attempts: PositiveInt = 2
    longest: NonNegativeOrInf = 0.0
    longest_ratio: NonNegativeOrInf = RATIO
    most_rows: NonNegativeInt = 0
    labels: bool = False
    measure: bool = True
    wait: PositiveOrInf = 300.0
    agree: bool = False
    status: Annotated[int, Meta(ge=0, lt=1 << 16)] = 0
    json_log: bool = False
    private = alone


PREFIX = "deployment."
"""Begins the options of `Deployment` in an app's configuration."""


def deployment_of(config: Mapping[str, object]) -> Deployment:
    """Return the deployment of an app's configuration."""
    options = {key.removeprefix(PREFIX): value for key, value in config.items() if key.startswith(PREFIX)}
    return from_table(Deployment, options, "deployment")


class Channel(Protocol):
    """Sends messages to nodes. A node's number is not its client's."""

    def nodes(self) -> Sequence[int]:
        """Return the numbers of all connected nodes."""

    def ask(self, requests: Mapping[int, bytes], kind: Kind, round_: int, timeout: float) -> dict[int, bytes]:
        """Send requests, and wait at most ``timeout`` seconds for replies. Returns the replies by node."""

    def send(self, requests: Mapping[int, bytes], kind: Kind, timeout: float) -> None:
        """Send requests without waiting for replies. The requests expire after ``timeout`` seconds."""

    def received(self) -> dict[int, bytes]:
        """Return the replies to requests of `send` that arrived since the last call, by node."""


@dataclass(eq=False)
class Nodes:
    """The run's nodes. ``template`` is a request of the run, ``most_rows`` the number of rows that a client has at most."""

    channel: Channel
    template: Request
    deployment: Deployment
    most_rows: int
    node_of: dict[int, int] = field(default_factory=dict)  # by client; only those that replied to their last request
    met: dict[int, Reply] = field(default_factory=dict)  # by client: its first reply
    # client, fault, message; since they were last stored
    faults: list[tuple[int, str, str]] = field(default_factory=list)
    # by node: the time from which it may be asked to `meet` again
    meet_from: dict[int, float] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)  # nodes that have not replied to `meet` yet
    first: bool = True  # before the first round
    left: dict[str, dict[str, int]] = field(default_factory=dict)  # names and sizes of accepted tensors, by kind
    on_left: Callable[[dict[str, dict[str, int]]], None] = lambda left: None  # called when ``left`` grows

    def request(self, kind: Kind, round_: int, client: int, **facts: object) -> Request:
        encoding = self.template.encoding if kind == "meet" else None
        facts = {"kind": kind, "round": round_, "client": client, "encoding": encoding, **facts}
        return msgspec.structs.replace(self.template, **facts)

    def meet(self) -> None:
        """Ask unknown nodes, and those that were set aside, which client they are. Read all replies so far, without waiting.

        A second node that claims a connected client is rejected.
        """
        connected = set(self.channel.nodes())
        self.node_of = {client: node for client, node in self.node_of.items() if node in connected}
        now = time.monotonic()
        due = sorted(n for n in connected - set(self.node_of.values()) if now >= self.meet_from.get(n, now))
        request = pack(self.request("meet", 0, -1, labels=self.deployment.labels))
        self.channel.send(dict.fromkeys(due, request), "meet", self.deployment.timeout)
        self.meet_from.update(dict.fromkeys(due, now + self.deployment.timeout))
        self.waiting |= set(due)
        for node, data in sorted(self.channel.received().items()):
            self.waiting.discard(node)
            try:
                reply, _ = self.opened(data, "meet", 0, None)
                if self.node_of.get(reply.client, node) != node:
                    raise Rejected("garbage", f"two nodes say they are client {reply.client}")
                self.check_met(reply)
            except Rejected as error:
                self.meet_from[node] = now + min(PAUSE, self.deployment.timeout)
                self.note(-1, error)
                continue
            self.node_of[reply.client] = node
            self.met[reply.client] = reply

    def await_clients(self, fewest: int) -> None:
        """Wait until ``fewest`` clients are connected. Raises `TooFew` after ``wait`` seconds.

        The first call also gives all other nodes up to ``timeout`` seconds to say which client they are.
        """
        start, all_ = time.monotonic(), self.template.clients
        while True:
            self.meet()
            waited, connected = time.monotonic() - start, len(self.node_of)
            more = self.first and self.waiting and connected < all_ and waited <= self.deployment.timeout
            if connected >= fewest and not more:
                break
            if connected < fewest and waited > self.deployment.wait:
                missing = ", ".join(self.name(k) for k in range(all_) if k not in self.node_of)
                reasons = "".join(f"; {message}" for _, _, message in self.faults[-2:])
                raise TooFew(
                    f"{connected} of {all_} clients are there after {self.deployment.wait:g} s, and {fewest} are needed; "
                    f"missing: {missing}{reasons}"
                )
            time.sleep(POLL)
        self.first = False

    def name(self, client: int) -> str:
        """Return the name of the client's site."""
        reply = self.met.get(client, Reply(kind="meet", run="", round=0, client=client))
        return reply.site if client >= 0 else "a node"

    def set_aside(self, client: int) -> None:
        """Send this client no work until its node replies to `meet` again. The server does not wait for this reply."""
        self.meet_from.pop(self.node_of.pop(client), None)

    def note(self, client: int, error: Rejected) -> None:
        """Count a fault, and write it to the log. Client -1 means that the client is not known."""
        self.faults.append((client, error.fault, str(error)))
        event(f"{self.name(client)}: {error}", {"client": str(client), "fault": error.fault}, level=WARNING)

    def check_met(self, reply: Reply) -> None:
        """Raise `Rejected` if the client is not one of the run, or has other rows than before."""
        before = self.met.get(reply.client)
        if not 0 <= reply.client < self.template.clients or reply.rows < 1 or reply.measured_rows < 0:
            raise Rejected("garbage", f"client {reply.client} with {reply.rows} rows is none of this run")
        if before and (before.rows, before.measured_rows) != (reply.rows, reply.measured_rows):
            raise Rejected("garbage", f"client {reply.client} had {before.rows} rows, and has {reply.rows}")
        if not is_name(reply.name):
            raise Rejected("out_of_range", f"client {reply.client} has a name that is none: {NAME_RULE}")
        if reply.name and any(reply.name == met.name for k, met in self.met.items() if k != reply.client):
            raise Rejected("garbage", f"two sites have the name {reply.name}; start one with another --name")
        if (rows := max(reply.rows, reply.measured_rows)) > self.most_rows:
            reason = f"says it has {rows} rows, and {self.most_rows} are agreed; set deployment.most_rows"
            raise Rejected("out_of_range", f"client {reply.client} {reason}")
        counts = reply.label_counts
        classes = self.template.classes if self.deployment.labels else 0
        if len(counts) != classes or (counts and (min(counts) < 0 or sum(counts) != reply.rows)):
            raise Rejected("garbage", f"client {reply.client}: its rows of each class do not add up to its rows")

    def ask(
        self, requests: Mapping[int, tuple[Request, Body]], accept: Callable[[int, Tree], Tree], longest: int = SPARE
    ) -> dict[int, Tree]:
        """Ask these clients. Return ``accept(client, tensors)`` for each usable reply, in ascending order of clients.

        Clients whose replies are not usable, or that ``accept`` rejects, are asked again. A reply may have four times the
        bytes of its request, and ``longest``.
        """
        accepted: dict[int, Tree] = {}
        for attempt in range(self.deployment.attempts):
            left = [k for k in requests if k not in accepted]
            if not left:
                break
            self.meet()
            nodes = {k: self.node_of[k] for k in left if k in self.node_of}
            if not attempt:
                for k in set(left) - set(nodes):
                    self.note(k, Rejected("missing", "it is not connected"))
            kind, round_ = requests[left[0]][0].kind, requests[left[0]][0].round
            packed = {node: pack(*requests[k]) for k, node in nodes.items()}
            most = longest + 4 * max(map(len, packed.values()), default=0)
            replies = self.channel.ask(packed, kind, round_, self.deployment.timeout) if packed else {}
            for k, node in nodes.items():
                try:
                    if node not in replies:
                        self.set_aside(k)
                        timeout = f"{self.deployment.timeout:g} s"
                        raise Rejected("missing", f"no answer in {timeout}; it is set aside until it answers again")
                    tensors = self.opened(replies[node], kind, round_, k, most)[1]
                    accepted[k] = accept(k, tensors)
                    self.note_left(kind, tensors)
                except Rejected as error:
                    self.note(k, error)
        return dict(sorted(accepted.items()))

    def note_left(self, kind: Kind, tensors: Tree) -> None:
        sizes = {path: leaf.numel() for path, leaf in leaves(tensors)}
        before = self.left.get(kind, {})
        if sizes.keys() - before:
            self.left[kind] = {**before, **sizes}
            self.on_left(self.left)

    def opened(self, data: bytes, kind: Kind, round_: int, client: int | None, most: int = SPARE) -> tuple[Reply, Tree]:
        """Decode the reply to this request. Raises `Rejected` for other messages, and for more than ``most`` bytes."""
        if len(data) > most:
            raise Rejected("garbage", f"a message of {len(data):,} bytes; at most {most:,} are expected")
        reply, tensors = unpack(data, Reply)
        if reply.kind == "refused":
            raise Rejected("refused", reply.reason if client is not None else f"{reply.site}: {reply.reason}")
        if (reply.run, reply.round, reply.kind) != (self.template.run, round_, kind):
            raise Rejected("other_round", f"an answer of round {reply.round} of run {reply.run} ({reply.kind})")
        if client is not None and reply.client != client:
            raise Rejected("garbage", f"client {client} answers as client {reply.client}")
        return reply, tensors
