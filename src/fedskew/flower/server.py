"""The server's side of a run on nodes: clients that are reached over a channel, and the run that they take part in."""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray
from torch import Tensor

from fedskew.core.contract import Availability
from fedskew.core.errors import BadInput, FedskewError, require
from fedskew.core.records import BatchPlan, Info, Server, Upload
from fedskew.core.seeding import Secret
from fedskew.core.sites import Harmonisation, RowHarmonisation, SiteSums, of_own_rows
from fedskew.core.trees import Tree, map_leaves, pick, stack
from fedskew.core.user_code import ORIGINS
from fedskew.data.dataset import Dataset
from fedskew.data.preprocessing import Preprocessing, Tabular, Texts, as_it_is
from fedskew.engine.sequential import Sequential
from fedskew.engine.states import ClientStates
from fedskew.execution.build import Assembly, assemble, check_needs, setup_of
from fedskew.execution.deal import ClientData, fitted_maps
from fedskew.execution.learned import kept
from fedskew.execution.prepare import fitted
from fedskew.execution.run import Listener, Stop, execute, register
from fedskew.execution.site import ClientScores, Site, faults_as_rows
from fedskew.experiment.combinations import suited
from fedskew.experiment.config import Experiment, from_toml
from fedskew.flower import wire
from fedskew.flower.events import observed
from fedskew.flower.limits import tasks_on, weights_of
from fedskew.flower.node import SENT, upload_tree
from fedskew.flower.nodes import Channel, Deployment, Nodes, deployment_of
from fedskew.flower.tables import agreed, consecutive, sized, table_of
from fedskew.loop.evaluate import client_means
from fedskew.loop.federation import Federation
from fedskew.loop.limits import check_enough, length_fault, too_far
from fedskew.loop.personal import measures_personal
from fedskew.loop.round import fresh, play_round, shared_model, taken_apart
from fedskew.loop.work import Done, Outcome, Program, States, Work
from fedskew.models.encoder import Encoder
from fedskew.skew.concept import Labels
from fedskew.skew.partition import Ints
from fedskew.store import checkpoints
from fedskew.store.runs import Row, RunStore

NO_SCORES = ClientScores(np.empty(0, np.int64), {"loss": torch.empty(0), "accuracy": torch.empty(0)}, None)


class Silent(FedskewError):
    """Raised if candidates do not reply to a survey. The round then starts again without them."""


class RemoteStates(ClientStates):
    """Client states on the nodes. The server has only each state's stamp: the number of finished rounds when it was stored."""

    def __init__(self) -> None:
        super().__init__()
        self.needed: dict[int, int] = {}  # stamps of the checkpoint before the last, in case the last is damaged
        self.saved_last: dict[int, int] = {}  # stamps of the last checkpoint

    def get(self, clients: Ints, fresh: Callable[[], Tree]) -> Tree:
        """Return stamps (C,) of the states in use, and stamps (C,) of the oldest states that may still be needed."""
        needed = torch.tensor([self.needed.get(int(k), 0) for k in clients])
        return {**super().get(clients, lambda: {"stamp": torch.tensor(0)}), "needed": needed}

    def saved(self) -> None:
        """Note a new checkpoint. States that are older than the checkpoint before it are not needed any more."""
        ids, rows = self.export()
        self.needed = self.saved_last
        self.saved_last = dict(zip(ids.tolist(), rows["stamp"].tolist(), strict=True)) if rows else {}


@dataclass(frozen=True)
class Connected:
    """The experiment's availability, without the clients whose nodes are not connected or were silent in this round."""

    inner: Availability
    nodes: Nodes
    away: set[int]

    def available(self, clients: Info, round_: int, seed: int) -> NDArray[np.bool_]:
        connected = [int(k) in self.nodes.node_of and int(k) not in self.away for k in clients.index]
        return np.asarray(self.inner.available(clients, round_, seed)) & np.asarray(connected, dtype=np.bool_)


@dataclass(frozen=True, eq=False)
class RemoteClients:
    """Clients on nodes. ``run`` sends each client its view, and returns the updates that the server accepts.

    ``codec`` reads the messages of updates. ``row`` and ``target`` (1, ...), any row with its target, show what a valid reply looks
    like: names, shapes and types.
    """

    fed: Federation
    codec: wire.Decoded
    nodes: Nodes
    row: Tensor
    target: Tensor
    away: set[int] = field(default_factory=set)  # clients that were silent when they were surveyed in this round
    # zeros in place of `before`, for clients that were not surveyed; leading axis 1
    surveyed: Tree = field(default_factory=dict)

    states: ClassVar[type[ClientStates]] = RemoteStates

    @property
    def engine(self) -> RemoteClients:
        return self

    def survey(self, program: Program, work: Work, x: Tensor, y: Tensor) -> tuple[Tree, Tree]:
        """Return the candidates' answers. The values that these are computed from stay on the nodes."""
        if not program.convenes:
            return {}, {}
        before, answers = Sequential().survey(program, self.example(work), self.row, self.target)
        self.surveyed.update(map_leaves(torch.zeros_like, before))
        replies = self.nodes.ask(self.requests("survey", work), checker(wire.signature(pick(answers, 0))))
        if missing := [int(k) for k in work.clients if int(k) not in replies]:
            self.away.update(missing)
            raise Silent(f"round {work.round + 1}: no answer from {len(missing)} of {len(work.clients)} candidates")
        surveyed = torch.ones(len(replies), device=work.view.x.device)
        return {"surveyed": surveyed}, checkpoints.to_device(stack(list(replies.values())), self.row.device)

    def run(self, program: Program, work: Work, x: Tensor, y: Tensor) -> Done:
        example = self.example(work)
        before = self.surveyed if program.convenes else Sequential().survey(program, example, self.row, self.target)[0]
        example = example._replace(view=example.view._replace(before=before))
        done = Sequential().run(program, example, self.row, self.target)
        part, deployment, model = self.fed.own_part, self.nodes.deployment, shared_model(self.fed)
        update = self.fed.sent(done.uploads.delta)[0]
        pattern = {**upload_tree(done.uploads), "scores": done.scores}
        check = checker(wire.signature({**pick(pattern, 0), "delta": self.codec.pattern(update, model)}))

        def accept(client: int, tensors: Tree) -> Tree:
            check(client, tensors)
            met = self.nodes.met[client]
            wire.check_scores(tensors.get("scores", {}), met.measured_rows or met.rows)
            delta = self.codec.opened(tensors["delta"], update, model)
            wire.check_finite_leaves({"delta": delta})
            if fault := length_fault(delta, deployment.longest):
                raise wire.Rejected("too_long", fault)
            return {**tensors, "delta": delta}

        earlier = len(self.nodes.faults)
        replies = self.nodes.ask(self.requests("train", work), accept)
        self.check_enough(len(replies), work)
        stacked = stack([{k: tree.get(k, {}) for k in pattern} for tree in replies.values()])
        trees = checkpoints.to_device(stacked, self.row.device)
        at = np.flatnonzero(np.isin(work.clients, list(replies)))
        far = too_far(self.fed, work, at, {k: trees[k] for k in ("delta", "extras")}, deployment.longest_ratio)
        for i, fault in far.items():
            self.nodes.note(int(work.clients[at[i]]), wire.Rejected("too_long", fault))
        near = np.delete(np.arange(len(at)), list(far))
        self.check_enough(len(near), work)
        trees = pick(trees, near)
        uploads = Upload(trees["delta"], trees["extras"], trees["report"])
        if part:
            uploads = uploads._replace(delta=part.received(uploads.delta))
        stamps = torch.full((len(near),), work.round + 1)
        new = self.nodes.faults[earlier:]
        arrived = sum(client >= 0 and fault not in ("missing", "refused") for client, fault, _ in new)
        return Done(uploads, {"stamp": stamps}, trees["scores"], at[near], arrived)

    def check_enough(self, usable: int, work: Work) -> None:
        last = "".join(f"{self.nodes.name(k)}: {message}; " for k, _, message in self.nodes.faults[-3:])
        fewest = max(1, ceil(self.nodes.deployment.fewest * len(work.clients)))
        cure = f"{last}`flwr run` with resume continues from the last checkpoint"
        check_enough(self.fed, work.round, usable, len(work.clients), fewest, cure)

    def requests(self, kind: wire.Kind, work: Work) -> dict[int, tuple[wire.Request, wire.Body]]:
        """Return the request to each client of the cohort: the model and the method's broadcast."""
        view, surveyed = work.view, work.view.before.get("surveyed")
        tensors = {"x": view.x, "extras": view.extras}
        sent, requests = wire.body(tensors), {}
        for i, k in enumerate(work.clients.tolist()):
            request = self.nodes.request(
                kind,
                work.round,
                k,
                stamp=int(view.state["stamp"][i]),
                needed=int(view.state["needed"][i]),
                steps=len(work.plans[i].index),
                measured=bool(work.measured),
                asked=surveyed is None or bool(surveyed[i]),
            )
            requests[k] = (request, sent if request.asked else wire.body({**tensors, "before": pick(self.surveyed, 0)}))
        return requests

    def example(self, work: Work) -> Work:
        """Return the work of a client with one row. Only names, shapes and types of its results are used."""
        view, plan = work.view, BatchPlan(np.zeros((1, 1), dtype=np.int64), np.ones((1, 1)))
        state, memory = taken_apart(map_leaves(lambda leaf: leaf[None], fresh(self.fed, view.x)))
        view = view._replace(state=state, info=pick(view.info, slice(0, 1)), before={}, steps=view.steps[:1] * 0 + 1)
        clients, measured = work.clients[:1], [plan] if work.measured else []
        return work._replace(clients=clients, view=view, plans=[plan], passes=[plan], measured=measured, memory=memory)

    def play_round(self, fed: Federation, server: Server, states: States, measure_local: bool) -> Outcome:
        """Play one round. If candidates do not reply to the survey, the round starts again without them."""
        self.away.clear()
        self.nodes.await_clients(ceil(self.nodes.deployment.fewest * self.nodes.template.clients))
        fed = dataclasses.replace(fed, availability=Connected(fed.availability, self.nodes, self.away))
        while True:
            try:
                return play_round(fed, self, server, states, measure_local)
            except Silent:
                continue

    def client_scores(self, fed: Federation, server: Server, states: States, clients: Ints) -> ClientScores:
        """Return the clients' measurements of the models on their own rows, for clients that reply."""
        if not self.nodes.deployment.measure:
            return NO_SCORES
        clients = np.array([k for k in clients.tolist() if len(fed.partition.measured_rows(k))], dtype=np.int64)
        personal = measures_personal(fed)
        sent = wire.body({"x": server.x, "extras": fed.algorithm.broadcast(fed.view(server)) if personal else {}})
        stamps = states.get(clients, dict)["stamp"].tolist()
        requests = {
            k: (self.nodes.request("measure", server.round, k, stamp=stamp), sent)
            for k, stamp in zip(clients.tolist(), stamps, strict=True)
        }
        score = client_means(fed.task, server.x, self.row, self.target, torch.arange(1))
        pooled = tuple(filter(None, [fed.task.pooled_primary]))
        score |= dict.fromkeys(pooled, score["loss"])
        check = checker(wire.signature({"global": score, "personal": score} if personal else {"global": score}), pooled)

        def accept(client: int, tensors: Tree) -> Tree:
            wire.check_scores(check(client, tensors), 1)
            return tensors

        replies = self.nodes.ask(requests, accept)
        if not replies:
            return NO_SCORES
        scores = stack(list(replies.values()))
        return ClientScores(np.asarray(list(replies)), scores["global"], scores.get("personal"))

    def fault_rows(self) -> list[Row]:
        """Return the faults since the last call as measurements."""
        faults, self.nodes.faults = self.nodes.faults, []
        return faults_as_rows([(client, fault) for client, fault, _ in faults])


def checker(expected: wire.Signature, may_lack: Collection[str] = ()) -> Callable[[int, Tree], Tree]:
    """Return a check of replies.

    A reply must have these names, shapes and types. Its values must be finite, except in leaves that ``may_lack`` this.
    """

    def check(client: int, tensors: Tree) -> Tree:
        wire.check_signature(tensors, expected)
        wire.check_finite_leaves(tensors, may_lack)
        return tensors

    return check


NO_LABELS = "labels not reported"


def serve(
    channel: Channel,
    config: Mapping[str, object],
    versions: Mapping[str, str],
    listener: Listener = lambda _: None,
    stop: Stop = lambda: False,
) -> int:
    """Execute or resume the run of an app's configuration. Returns the run's number in the store.

    ``config`` holds ``recipe`` (an experiment as TOML), ``runs`` (the store's folder), ``resume`` (a run's number, or 0) and
    the options of `Deployment` as ``deployment.timeout`` and so on. Raises `BadInput` before any node is asked.
    """
    deployment = deployment_of(config)
    run = int(str(config.get("resume", 0)))
    experiment = None if run else deployable(from_toml(str(config["recipe"]), "recipe"), deployment)
    with contextlib.closing(RunStore(Path(str(config["runs"])).expanduser())) as store:
        if experiment:
            run = register(store, experiment)
            store.add_facts(run, {"flower": {"token": uuid.uuid4().hex}})
        facts = store.run(run).facts
        require("flower" in facts, f"resume: run {run} was not made on Flower; use `fedskew resume {run}`")
        options = {k: v for k, v in dataclasses.asdict(deployment).items() if v != getattr(Deployment, k)}
        store.add_facts(run, {"flower": {**facts["flower"], **versions, "deployment": options}})
        with observed(deployment.status, deployment.json_log):
            execute(store, run, None, listener, stop, partial(begin, store, run, channel, deployment, experiment))
    return run


def deployable(experiment: Experiment, deployment: Deployment) -> Experiment:
    """Return the experiment with its engine and threads set for nodes. Raises `BadInput` if it cannot run on nodes."""
    check_needs(experiment)
    require(
        deployment.measure or experiment.training.patience is None,
        "training: patience needs the nodes' held-out rows; set deployment.measure to true, or leave patience out",
    )
    if deployment.agree:
        table_of(experiment)
    for part in experiment.components():
        origin = ORIGINS.get(type(part))
        if origin and origin.file_hash:
            raise BadInput(
                f"{origin.name} is in a file, which the nodes do not have; offer it from a package that is installed on them"
            )
    check_needs(experiment, dataclasses.replace(setup_of(experiment), simulated=False, labels_known=deployment.labels))
    # no skew deals the rows of nodes: each has its own
    return experiment.replace(skew="natural", engine=Sequential(), training__threads=experiment.training.threads or 1)


def begin(
    store: RunStore, run: int, channel: Channel, deployment: Deployment, experiment: Experiment | None
) -> tuple[Assembly, Site]:
    """Connect to the clients, and assemble the run. The clients report their numbers of rows.

    Without ``experiment``, resume the run of the store.
    """
    experiment = experiment or from_toml(store.run(run).experiment, f"run {run}")
    dataset = experiment.dataset.load()
    facts, clients = store.run(run).facts["flower"], experiment.clients.number
    most_rows = deployment.most_rows or len(dataset.y)
    if deployment.agree:
        learned = kept(store, run)
        preprocessing = learned.preprocessing if learned else None
        if not isinstance(preprocessing, Tabular | Texts):
            about = facts["token"], clients, experiment.toml(), dataset.num_categories
            asking = wire.first_request(*about, purpose="columns")
            preprocessing = agreed(channel, asking, deployment, most_rows, table_of(experiment))
        dataset = table_of(experiment).load(preprocessing)
        experiment = experiment.replace(model=sized(experiment.model, preprocessing))
    experiment = suited(experiment, dataset)
    # the server's rows set the size of a vocabulary and the scale of a loss
    model, x, _ = fitted(experiment.model, dataset, dataset.x, dataset.x_test)
    experiment = experiment.replace(task=experiment.task.fitted(dataset.y), model=model)
    shape = (model.length,) if isinstance(model, Encoder) else tuple(x.shape[1:])
    preprocessing = dataset.preprocessing or (None if dataset.texts else as_it_is(dataset.x, dataset.columns))
    template = replace(
        wire.first_request(facts["token"], clients, experiment.toml(), dataset.num_categories),
        shape=shape,
        encoding=wire.Encoding(preprocessing=preprocessing, classes=dataset.classes) if preprocessing else None,
        weights=weights_of(model, tasks_on(experiment, shape, dataset.num_categories)[0]),
    )
    # targets of another kind than classes are not counted
    deployment = dataclasses.replace(deployment, labels=deployment.labels and dataset.num_classes > 0)
    nodes = Nodes(channel, template, deployment, most_rows, on_left=lambda left: store.add_facts(run, {"left": left}))
    nodes.left = store.run(run).facts.get("left", {})
    meet(store, run, nodes, clients)
    note = DRAWN if getattr(experiment.dataset, "test", None) == "" else ""
    data = rows_by_client([nodes.met[k] for k in range(clients)], dataset, preprocessing, note)
    data = with_maps(data, experiment.harmonisation, nodes, store, run)
    assembly = assemble(experiment, dataset, data)
    if assembly.federation.intercepts is not None:
        nodes.template = replace(template, totals=tuple(assembly.data.label_counts().sum(0).tolist()))
    codec = wire.Decoded(assembly.federation.codec)
    federation = dataclasses.replace(assembly.federation, codec=codec)
    if experiment.algorithm.contract().privacy:
        # new at each start: the same noise on two sums of a round, one without a client, would reveal that client's update
        federation = dataclasses.replace(federation, hidden=Secret.fresh())
        assembly = dataclasses.replace(assembly, repeated=repeated(store, run) if "population" in facts else 0)
    if not deployment.labels:
        if dataset.num_classes:
            dataset = dataclasses.replace(dataset, classes=(NO_LABELS, *dataset.classes[1:]))
        assembly = dataclasses.replace(assembly, dataset=dataset, labels_known=False)
    assembly = dataclasses.replace(assembly, federation=federation)
    return assembly, RemoteClients(federation, codec, nodes, assembly.x_test[:1], assembly.y_test[:1])


def meet(store: RunStore, run: int, nodes: Nodes, clients: int) -> None:
    """Wait for all clients of a run that begins, and store what they report; a resumed run has it in the store."""
    facts = store.run(run).facts["flower"]
    for k, (rows, measured_rows, of_classes, *name) in enumerate(facts.get("population", [])):
        reply = wire.Reply(kind="meet", run=facts["token"], round=0, client=k, rows=rows, measured_rows=measured_rows)
        nodes.met[k] = replace(reply, label_counts=tuple(of_classes), name="".join(name))
    if "population" not in facts:
        nodes.await_clients(clients)
        met = [nodes.met[k] for k in range(clients)]
        counts = [[reply.rows, reply.measured_rows, list(reply.label_counts), reply.site] for reply in met]
        store.add_facts(run, {"flower": {**facts, "population": counts}})


def repeated(store: RunStore, run: int) -> int:
    """Return how many rounds at most are played again after a restart, although nodes already received their models.

    These are the rounds since the checkpoint, plus one that may have been in progress. The number is the maximum over all starts
    of the run, and the run's facts store it.
    """
    record, checkpoint = store.run(run), checkpoints.newest(store.run_folder(run), store.covered(run))
    facts = record.facts["flower"]
    total: int = facts.get("repeated", 0) + record.rounds_done - (checkpoint[1]["round"] if checkpoint else 0) + 1
    store.add_facts(run, {"flower": {**facts, "repeated": total}})
    return total


DRAWN = "the server drew the test rows from its own table: a node with the same file trains on them (test=FILE names other rows)"


def rows_by_client(
    met: list[wire.Reply], dataset: Dataset, preprocessing: Preprocessing | None, note: str
) -> ClientData:
    """Return the clients' numbers of rows, by class if they report it. The server has no rows of clients."""
    classes, unknown = np.arange(dataset.num_classes), np.zeros_like(dataset.y[:1])
    labels = [np.repeat(classes if m.label_counts else unknown, m.label_counts or m.rows, axis=0) for m in met]
    sizes, measured = (np.asarray(rows) for rows in ([m.rows for m in met], [m.measured_rows for m in met]))
    partition = dataclasses.replace(consecutive(sizes, measured, tuple(reply.site for reply in met)), note=note)
    return ClientData(
        partition=partition,
        sites=partition,
        dataset=dataset,
        x=dataset.x[:0],
        x_test=dataset.x_test,
        labels=Labels(np.concatenate(labels), ()),
        test_labels=Labels(dataset.y_test, ()),
        drawn={},
        preprocessing=preprocessing,
    )


def with_maps(data: ClientData, harmonisation: Harmonisation, nodes: Nodes, store: RunStore, run: int) -> ClientData:
    """Return the data, with test rows harmonised as rows of unknown sites.

    If each node fits the change to its own rows, the server fits the change of the test rows to its training rows.
    Else all nodes send sums when the run begins, and receive the change of their rows.
    """
    if not isinstance(harmonisation, RowHarmonisation):
        return data
    dataset, learned = data.dataset, kept(store, run)
    maps = learned.by_site.maps if learned else None
    if of_own_rows(harmonisation):
        names = dataset.sensitive or harmonisation.protected
        require(
            not names, "harmonisation: nodes do not know which columns stay as they are; use --harmonisation site-bias"
        )
        maps = fitted_maps(harmonisation, dataset, dataset.x, partial(SiteSums.of, [dataset.x])).only(-1)
    elif maps is None:
        maps = fitted_maps(harmonisation, dataset, dataset.x, partial(sums_of_all, nodes, dataset.x.shape[1]))
        changes = [maps.only(k)._asdict().items() for k in range(nodes.template.clients)]
        exchange(nodes, [{name: torch.as_tensor(part) for name, part in change} for change in changes], {})
    return dataclasses.replace(data, x_test=maps.changed(data.x_test, np.full(len(data.x_test), -1)), maps=maps)


def sums_of_all(nodes: Nodes, width: int, protected: Ints) -> SiteSums:
    """Return the sums that all nodes send of their training rows, which have ``width`` columns."""
    example = SiteSums.of([np.zeros((1, width))], protected)
    pattern = {name: torch.as_tensor(getattr(example, name)[0]) for name in SENT}
    replies = exchange(nodes, [{}] * nodes.template.clients, pattern, protected=tuple(protected.tolist()))
    sums = {name: part.numpy() for name, part in stack(list(replies.values())).items()}
    return SiteSums(np.array([nodes.met[k].rows for k in replies], dtype=np.float64), **sums, protected=protected)


def exchange(nodes: Nodes, sent: Sequence[Tree], pattern: Tree, **facts: object) -> dict[int, Tree]:
    """Send each node its tensors; return the replies, which look like ``pattern``. Raises `BadInput` if a node does not answer."""
    requests = {k: (nodes.request("harmonise", 0, k, **facts), wire.body(tree)) for k, tree in enumerate(sent)}
    replies = nodes.ask(requests, checker(wire.signature(pattern)))
    faults = [fault for fault in nodes.faults if fault[0] in requests and fault[0] not in replies]
    reasons = [f"{nodes.name(client)}: {message}" for client, _, message in faults]
    require(len(replies) == len(requests), f"harmonisation: {(*reasons[-1:], 'a node does not answer')[0]}")
    return replies
