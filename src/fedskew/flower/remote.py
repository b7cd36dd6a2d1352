"""The server's side of the nodes: an engine whose clients train elsewhere. Replies are checked, and taken in clients' order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedskew.core.errors import FedskewError
from fedskew.core.records import Info, Plan, Server, Upload
from fedskew.core.trees import Tree, map_leaves, pick, stack
from fedskew.engine.sequential import Sequential
from fedskew.engine.states import ClientStates
from fedskew.experiment.site import ClientScores, faults_as_rows
from fedskew.flower.node import upload_tree
from fedskew.flower.nodes import Nodes
from fedskew.flower.updates import Decoded
from fedskew.flower.wire import (
    Body,
    Kind,
    Rejected,
    Request,
    Signature,
    body,
    check_finite_leaves,
    check_scores,
    check_signature,
    signature,
)
from fedskew.loop.evaluate import per_row
from fedskew.loop.failures import check_enough
from fedskew.loop.federation import Federation
from fedskew.loop.limits import length_fault, too_far
from fedskew.loop.local import Program
from fedskew.loop.personal import measures_personal
from fedskew.loop.round import Done, Outcome, States, Work, fresh, play_round, shared_model, taken_apart
from fedskew.skew.partition import Ints
from fedskew.store.runs import Row

NOBODY = ClientScores(np.empty(0, np.int64), {"loss": torch.empty(0), "accuracy": torch.empty(0)}, None)


class Silent(FedskewError):
    """Some of those surveyed did not answer; the round is opened again without them."""


class Elsewhere(ClientStates):
    """Client states that lie on the nodes: here each has only the stamp of the one that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.needed: dict[int, int] = {}  # by the checkpoint before the last, in case the last is damaged
        self.saved_last: dict[int, int] = {}

    def get(self, clients: Ints, fresh: Callable[[], Tree]) -> Tree:
        """The stamp that counts, and the one before which no state is needed."""
        needed = torch.tensor([self.needed.get(int(k), 0) for k in clients])
        return {**super().get(clients, lambda: {"stamp": torch.tensor(0)}), "needed": needed}

    def saved(self) -> None:
        """The checkpoint is there, and states older than the one before it are not needed."""
        ids, rows = self.export()
        self.needed = self.saved_last
        self.saved_last = dict(zip(ids.tolist(), rows["stamp"].tolist(), strict=True)) if rows else {}

    @classmethod
    def restore(cls, ids: Ints, states: Tree) -> Elsewhere:
        made = cls()
        if len(ids):
            made.put(ids, states)
        made.saved()
        return made


@dataclass(frozen=True, eq=False)
class Remote:
    """An engine whose clients are nodes: it sends each its view, and returns what the server accepts."""

    fed: Federation
    nodes: Nodes
    row: Tensor  # (1, ...) any row, to find out what a reply must look like
    away: set[int] = field(default_factory=set)  # in this round
    found: Tree = field(
        default_factory=dict
    )  # what a client finds that was not among those surveyed: zeros, leading axis 1

    def survey(self, program: Program, work: Work, x: Tensor, y: Tensor) -> tuple[Tree, Tree]:
        """The candidates' answers; what they found on their rows stays with them."""
        if not program.convenes:
            return {}, {}
        y = torch.zeros(1, dtype=torch.int64, device=self.row.device)
        before, answers = Sequential().survey(program, self.imitated(work), self.row, y)
        self.found.update(map_leaves(torch.zeros_like, before))
        expected = signature(pick(answers, 0))
        heard = self.nodes.ask(self.requests("survey", work), checker(expected))
        if missing := [int(k) for k in work.clients if int(k) not in heard]:
            self.away.update(missing)
            raise Silent(f"round {work.round + 1}: no answer from {len(missing)} of {len(work.clients)} candidates")
        told = [{"asked": torch.ones((), device=work.view.x.device)} for _ in heard]
        return stack(told), self.here(stack([tensors for _, tensors in heard.values()]))

    def run(self, program: Program, work: Work, x: Tensor, y: Tensor) -> Done:
        alone, y = self.imitated(work), torch.zeros(1, dtype=torch.int64, device=self.row.device)
        found = self.found if program.convenes else Sequential().survey(program, alone, self.row, y)[0]
        done = Sequential().run(program, alone._replace(view=alone.view._replace(before=found)), self.row, y)
        kept, deployment = self.fed.kept, self.nodes.deployment
        codec, model = self.fed.codec, shared_model(self.fed)
        assert isinstance(codec, Decoded)
        row = (kept.sent(done.uploads.delta) if kept else done.uploads.delta)[0]
        pattern = {**upload_tree(done.uploads), "scores": done.scores}
        expected = signature({**pick(pattern, 0), "delta": codec.pattern(row, model)})

        def take(client: int, tensors: Tree) -> Tree:
            checker(expected)(client, tensors)
            met = self.nodes.met[client]
            check_scores(tensors.get("scores", {}), met.measured_rows or met.rows)
            read = codec.opened(tensors["delta"], row, model)
            check_finite_leaves({"delta": read})
            if fault := length_fault(read, deployment.longest):
                raise Rejected("too_long", fault)
            return {**tensors, "delta": read}

        heard = self.nodes.ask(self.requests("train", work), take)
        self.check_enough(len(heard), work)
        trees = self.here(stack([{k: tree.get(k, {}) for k in pattern} for _, tree in heard.values()]))
        at = np.flatnonzero(np.isin(work.clients, list(heard)))
        far = too_far(self.fed, work, at, {k: trees[k] for k in ("delta", "extras")}, deployment.longest_ratio)
        for i, fault in far.items():
            self.nodes.note(int(work.clients[at[i]]), Rejected("too_long", fault))
        near = np.delete(np.arange(len(at)), list(far))
        self.check_enough(len(near), work)
        trees = pick(trees, near)
        uploads = Upload(trees["delta"], trees["extras"], trees["report"])
        if kept:
            uploads = uploads._replace(delta=kept.received(uploads.delta))
        stamps = torch.full((len(near),), work.round + 1)
        return Done(uploads, {"stamp": stamps}, trees["scores"], at[near])

    def check_enough(self, usable: int, work: Work) -> None:
        last = "".join(f"client {k}: {message}; " for k, _, message in self.nodes.faults[-3:])
        wanted = max(1, ceil(self.nodes.deployment.fewest * len(work.clients)))
        cure = f"{last}`flwr run` with resume goes on from the last checkpoint"
        check_enough(self.fed, work.round, usable, len(work.clients), wanted, cure)

    def requests(self, kind: Kind, work: Work) -> dict[int, tuple[Request, Body]]:
        """What each client of the cohort is asked and sent: the model and what the method adds."""
        view, asked = work.view, work.view.before.get("asked")
        tensors = {"x": view.x, "extras": view.extras}
        told, made = body(tensors), {}
        for i, k in enumerate(work.clients.tolist()):
            request = self.nodes.recipe.request(
                kind,
                work.round,
                k,
                stamp=int(view.state["stamp"][i]),
                needed=int(view.state["needed"][i]),
                steps=len(work.plans[i].index),
                measured=bool(work.measured),
                asked=asked is None or bool(asked[i]),
            )
            made[k] = (request, told if request.asked else body({**tensors, "before": pick(self.found, 0)}))
        return made

    def imitated(self, work: Work) -> Work:
        """The work of a client with one row: of what comes of it, only names, shapes and types are looked at."""
        view, one = work.view, Plan(np.zeros((1, 1), dtype=np.int64), np.ones((1, 1)))
        state, memory = taken_apart(map_leaves(lambda leaf: leaf[None], fresh(self.fed, view.x)))
        return Work(
            round=work.round,
            clients=work.clients[:1],
            view=view._replace(state=state, info=pick(view.info, slice(0, 1)), before={}, steps=view.steps[:1] * 0 + 1),
            plans=[one],
            passes=[one],
            measured=[one] if work.measured else [],
            turnout=work.turnout,
            memory=memory,
        )

    def here(self, tree: Any) -> Any:
        return map_leaves(lambda leaf: leaf.to(self.row.device), tree)


def checker(expected: Signature) -> Callable[[int, Tree], Tree]:
    """A check that an answer has these names, shapes and types, and finite values."""

    def check(client: int, tensors: Tree) -> Tree:
        check_signature(tensors, expected)
        check_finite_leaves(tensors)
        return tensors

    return check


@dataclass(frozen=True)
class Connected:
    """The experiment's availability, of the clients whose nodes are there."""

    inner: Any
    nodes: Nodes
    away: set[int]

    def available(self, clients: Info, round_: int, seed: int) -> NDArray[np.bool_]:
        there = [int(k) in self.nodes.node_of and int(k) not in self.away for k in clients.index]
        return np.asarray(self.inner.available(clients, round_, seed)) & np.asarray(there, dtype=np.bool_)


@dataclass(frozen=True, eq=False)
class There:
    """Where clients are: on nodes."""

    remote: Remote

    states: ClassVar[type[ClientStates]] = Elsewhere

    @property
    def engine(self) -> Remote:
        return self.remote

    def play_round(self, fed: Federation, server: Server, states: States, measure_local: bool) -> Outcome:
        """One round; those who are silent when they are surveyed are left out when it is opened again."""
        nodes = self.remote.nodes
        self.remote.away.clear()
        nodes.await_clients(ceil(nodes.deployment.fewest * nodes.recipe.clients))
        fed = replace(fed, availability=Connected(fed.availability, self.remote.nodes, self.remote.away))
        while True:
            try:
                return play_round(fed, self.remote, server, states, measure_local)
            except Silent:
                continue

    def client_scores(self, fed: Federation, server: Server, states: States, clients: Ints) -> ClientScores:
        """Each client's own measurement of the models, of those that answer."""
        nodes, row = self.remote.nodes, self.remote.row
        if not nodes.deployment.measure:
            return NOBODY
        personal = measures_personal(fed)
        told = body({"x": server.x, "extras": fed.algorithm.broadcast(fed.view(server)) if personal else {}})
        stamps = states.get(clients, dict)["stamp"].tolist()
        requests = {
            k: (nodes.recipe.request("measure", server.round, k, stamp=stamp), told)
            for k, stamp in zip(clients.tolist(), stamps, strict=True)
        }
        score = per_row(fed.task, server.x, row, torch.zeros(1, dtype=torch.int64, device=row.device))
        wanted = {"global": score, "personal": score} if personal else {"global": score}
        check = checker(signature(pick(wanted, 0)))

        def take(client: int, tensors: Tree) -> Tree:
            check_scores(check(client, tensors), 1)
            return tensors

        heard = nodes.ask(requests, take)
        if not heard:
            return NOBODY
        found = stack([tensors for _, tensors in heard.values()])
        return ClientScores(np.asarray(list(heard)), found["global"], found.get("personal"))

    def fault_rows(self) -> list[Row]:
        """What was rejected since it was last asked."""
        faults, self.remote.nodes.faults = self.remote.nodes.faults, []
        return faults_as_rows([(client, fault) for client, fault, _ in faults])
