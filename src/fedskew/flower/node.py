"""A node: one client with its own rows, and its state on its own disk. It answers the server's requests. It needs no Flower."""

import re
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import Tensor

from fedskew.core.errors import FedskewError, first_line, require
from fedskew.core.records import BatchPlan, Upload, rows_of, targets_of
from fedskew.core.sites import SiteMaps, SiteSums
from fedskew.core.trees import Tree, map_leaves, pick
from fedskew.data.datasets.table import TableData
from fedskew.data.targets import TARGETS
from fedskew.engine.sequential import Sequential
from fedskew.execution.build import DTYPES, device_of, federation_of, intercepts_of
from fedskew.flower import tables
from fedskew.flower.diagnosis import Answers
from fedskew.flower.events import event
from fedskew.flower.limits import Limits, check_size, tasks_on, weights_of
from fedskew.flower.wire import Reply, Request, pack, unpack
from fedskew.loop.evaluate import evaluate_clients
from fedskew.loop.federation import Federation
from fedskew.loop.personal import means_of, measures_personal, tuning
from fedskew.loop.round import Broadcast, fresh, shared_model, transmit, work_on
from fedskew.loop.work import Work
from fedskew.store import checkpoints

SENT = ("mean", "squares", "products")
"""The parts of `SiteSums` that a node sends, if its owner agrees. The server knows the number of rows."""

SURVEYED, CHANGES = "survey", "harmonisation"
"""Folders beside the states: results of `Algorithm.before`, and the change of rows that the server fitted."""


@dataclass(frozen=True)
class Node:
    """A client of the population: the file of its rows, the folder of its states, and the limits that its owner sets.

    A node may have a ``table`` instead of arrays. For each run the server says how to convert the table to rows. These rows are
    stored next to the run's states. The ``name`` of the site is for readers of the run (empty: it has none).
    """

    client: int
    rows: Path
    folder: Path
    limits: Limits = field(default_factory=Limits)
    table: TableData | None = None
    name: str = ""

    def answer(self, data: bytes) -> bytes:
        """Return the reply to a request. An error becomes a refusal with one line."""
        run, round_, kind, reason, began = "", 0, "unreadable", "", time.monotonic()
        try:
            self.limits.check("bytes", len(data))
            request, tensors = unpack(data, Request)
            run, round_, kind = request.run, request.round, request.kind
            reply = pack(*Visit(self, request, tensors).answer())
        except Exception as error:
            reason = str(error) if isinstance(error, FedskewError) else f"{type(error).__name__}: {first_line(error)}"
            refusal = Reply(kind="refused", run=run, round=round_, client=self.client, name=self.name, reason=reason)
            reply = pack(refusal)
        words = {"kind": kind, "outcome": "refused" if reason else "answered", "run": run}
        numbers = {"round": round_, "seconds": time.monotonic() - began, "bytes_in": len(data), "bytes_out": len(reply)}
        event(reason or "answered", words, numbers)
        return reply

    def states(self, run: str) -> Path:
        """Return the folder of this client's states in one run."""
        require(re.fullmatch("[0-9a-f]{32}", run) is not None, "the run's name must be 32 hexadecimal digits")
        return self.folder / run

    def file(self, run: str) -> Path:
        """Return the file of this client's rows in one run."""
        return self.states(run) / "rows.npz" if self.table else self.rows


class Visit:
    """One request at a node. Raises `BadInput` if the owner does not allow the request, or if the rows do not fit it."""

    def __init__(self, node: Node, request: Request, tensors: Tree) -> None:
        self.node, self.request, self.tensors = node, request, tensors
        require(request.client in (-1, node.client), f"this is client {node.client}, not {request.client}")
        require(node.client < request.clients, f"client {node.client} is not one of {request.clients}")
        for limited in ("clients", "classes", "steps"):
            node.limits.check(limited, getattr(request, limited))
        self.answers = Answers(node.table, node.folder, node.limits)
        if request.purpose == "diagnosis":
            self.answers.check()
            return
        self.experiment = node.limits.recipe(request.recipe)
        if request.purpose == "columns":
            require(
                node.limits.summary, "this node does not send its columns; its owner can start it with --share-summary"
            )
            return
        self.states, path = node.states(request.run), node.file(request.run)
        if node.table and request.kind == "meet":
            tables.write_rows(path, tables.rows_of_table(node.table, request, self.experiment))
        self.held = tables.read_rows(path)
        check_rows(self.held, request, path, self.experiment.task.target)
        tables.check_unchanged(path, self.states / "rows.txt")
        if request.kind not in ("meet", "harmonise"):
            self.held = tables.harmonised(self.held, self.experiment.harmonisation, self.maps)

    def answer(self) -> tuple[Reply, Tree]:
        r = self.request
        name = self.node.name if r.kind == "meet" else ""
        reply = Reply(kind=r.kind, run=r.run, round=r.round, client=self.node.client, name=name)
        if r.purpose == "diagnosis":
            # one row says nothing: the server learns numbers of rows from answers only
            answer = self.answers.answer(r.run, self.tensors) if r.kind == "diagnose" else {}
            return msgspec.structs.replace(reply, rows=1), answer
        if r.purpose == "columns":
            rows, columns = tables.summary_of(self.node.table, self.experiment, self.node.limits.fewest)
            return msgspec.structs.replace(reply, rows=rows, summary=columns), {}
        y = self.held.y
        if self.experiment.training.threads:
            torch.set_num_threads(self.experiment.training.threads)
        if r.kind == "meet":
            counted = r.labels and self.experiment.task.target == "classes"
            counts = tuple(np.bincount(y, minlength=r.classes).tolist()) if counted else ()
            numbers = {"rows": len(y), "measured_rows": len(self.held.y_measured), "label_counts": counts}
            return msgspec.structs.replace(reply, **numbers), {}
        if r.kind == "harmonise":
            return reply, self.harmonise()
        return reply, {"survey": self.survey, "train": self.train, "measure": self.measure}[r.kind]()

    def harmonise(self) -> Tree:
        """Return sums of the training rows; or keep the change of rows that the server fitted to the sums of all sites."""
        from fedskew.data.tables.guard import without_rare_values

        if self.tensors:
            checkpoints.save(self.states / CHANGES, 0, self.tensors, {})
            return {}
        table, limits = self.node.table, self.node.limits
        require(limits.summary, "this node sends no sums of its columns; its owner can start it with --share-summary")
        require(
            table is None or not table.person or limits.fewest == 1,
            "this node sends sums of rows, not of persons, so that its table with person=COLUMN needs --fewest 1",
        )
        sums = SiteSums.of([without_rare_values(self.held.x, limits.fewest)], np.array(self.request.protected, int))
        return {name: torch.as_tensor(getattr(sums, name)[0]) for name in SENT}

    def maps(self) -> SiteMaps:
        """Return the change of rows that the server fitted to the sums of all sites."""
        tree, _ = checkpoints.load(self.states / CHANGES / checkpoints.file_name(0))
        return SiteMaps(**{name: tree[name].numpy() for name in SiteMaps._fields})

    def survey(self) -> Tree:
        """Return the client's answer as a candidate. The values that the answer is computed from stay on the node."""
        fed = self.federation()
        before, answers = Sequential().survey(fed.program, self.work(fed), fed.x, fed.y)
        checkpoints.save(self.states / SURVEYED, self.request.round, {"before": before}, {"run": self.request.run})
        return pick(answers, 0)

    def train(self) -> Tree:
        """Train locally, as in a simulation. The new state stays on the node."""
        fed = self.federation()
        work = self.work(fed)
        work = work._replace(view=work.view._replace(before=self.before(fed, work)))
        done = Sequential().run(fed.program, work, fed.x, fed.y)
        sent = transmit(fed, work, done)
        self.keep(pick(sent.states, 0))
        message = sent.codec.pack(pick(sent.coded, 0), shared_model(fed))
        return {**upload_tree(pick(done.uploads, 0)), "delta": message, "scores": pick(done.scores, 0)}

    def measure(self) -> Tree:
        """Return mean scores, on the client's rows, of the global model and of the personal model if there is one."""
        fed, k = self.federation(), np.asarray([self.node.client])
        scores = {"global": evaluate_clients(fed.task, self.x(fed), fed.x, fed.y, fed.partition, k)}
        if measures_personal(fed):
            if fed.tuning:
                self.node.limits.check_work(fed.tuning.planner, self.node.client, len(self.held.y))
            work = self.work(fed, *tuning(fed, self.request.round, k))
            scores["personal"] = means_of(fed, Sequential(), work)
        return {name: pick(means, 0) for name, means in scores.items()}

    def federation(self) -> Federation:
        """Return the run's federation with only this client's rows."""
        training, shape = self.experiment.training, tuple(self.request.shape)
        device, dtype = device_of(training.device), DTYPES[training.dtype]
        x = self.tensors.get("x")
        check_size(self.experiment, shape, self.request.classes, x.numel() if isinstance(x, Tensor) else 0)
        tasks = tasks_on(self.experiment, shape, self.request.classes)
        weights = weights_of(self.experiment.model, tasks[0])
        require(
            weights == self.request.weights,
            f"the pretrained model here has the hash {weights}, but the run's has {self.request.weights}; install the same model",
        )
        x = rows_of(np.concatenate([self.held.x, self.held.x_measured]), dtype, device, tasks[0].ids)
        y = targets_of(np.concatenate([self.held.y, self.held.y_measured]), dtype, device)
        mine = np.arange(self.request.clients) == self.node.client
        partition = tables.consecutive(mine * len(self.held.y), mine * len(self.held.y_measured))
        intercepts = None
        if totals := self.request.totals:
            counts = mine[:, None] * np.bincount(self.held.y, minlength=len(totals))
            like = torch.zeros(0, dtype=dtype, device=device)
            intercepts = intercepts_of(self.experiment.harmonisation, tasks[0], counts, np.array(totals), like)
        return federation_of(self.experiment, tasks, x, y, partition, intercepts=intercepts)

    def x(self, fed: Federation) -> Tensor:
        """Return the model (P,) of the server's message. Raises `BadInput` if it has another size or type."""
        x = self.tensors.get("x")
        require(
            isinstance(x, Tensor) and tuple(x.shape) == (fed.task.space.size,) and x.dtype == fed.dtype,
            f"the server did not send a model of {fed.task.space.size} {fed.dtype} parameters",
        )
        assert isinstance(x, Tensor)
        return x.to(fed.x.device)

    def work(self, fed: Federation, plans: list[BatchPlan] | None = None, lr: float | None = None) -> Work:
        """Return the client's work in this round, made in the same way as in a simulation."""
        r, k, x = self.request, self.node.client, self.x(fed)
        if plans is None:
            rows = fed.partition.rows(k)
            self.node.limits.check_work(fed.planner, k, len(rows))
            plans = [fed.planner.train(r.round, k, rows).first(r.steps)]
        both = map_leaves(lambda leaf: leaf[None], self.kept(fed, x))
        extras = map_leaves(lambda leaf: leaf.to(x.device), self.tensors.get("extras", {}))
        rate, measured = fed.rate(r.round) if lr is None else lr, r.measured or r.kind == "measure"
        return work_on(fed, Broadcast(r.round, x, extras), both, np.asarray([k]), plans, rate, measured)

    def before(self, fed: Federation, work: Work) -> Tree:
        """Return the results of `Algorithm.before`: computed now or in this round's survey, or zeros without a survey."""
        if not fed.program.before:
            return {}
        if not fed.program.convenes:
            return Sequential().survey(fed.program, work, fed.x, fed.y)[0]
        if not self.request.asked:
            return map_leaves(lambda leaf: leaf[None].to(work.view.x.device), self.tensors.get("before", {}))
        tree, facts = checkpoints.load(self.states / SURVEYED / checkpoints.file_name(self.request.round))
        require(facts.get("run") == self.request.run, f"client {self.node.client} was not surveyed in this run's round")
        return checkpoints.to_device(tree.get("before", {}), work.view.x.device)

    # a state's folder is named after its stamp: the number of finished rounds when the state was stored
    def kept(self, fed: Federation, x: Tensor) -> Tree:
        """Return the state with the stamp in the request, or the initial state if the client has none yet."""
        run, stamp = self.request.run, self.request.stamp
        if not stamp:
            return fresh(fed, x)
        path = self.states / f"{stamp:06d}" / checkpoints.file_name(stamp)
        tree, facts = checkpoints.load(path)
        belongs = facts.get("run") == run and facts.get("client") == self.node.client
        mine = f"run {run} and client {self.node.client}"
        require(belongs, f"state {path}: belongs to another run or client, not to {mine}")
        return checkpoints.to_device(tree.get("state", {}), x.device)

    def keep(self, state: Tree) -> None:
        """Write the state. Remove older states that the server cannot ask for, even after a restart."""
        run, stamp = self.request.run, self.request.round + 1
        facts = {"run": run, "client": self.node.client, "round": stamp}
        checkpoints.save(self.states / f"{stamp:06d}", stamp, {"state": state}, facts)
        for path in self.states.iterdir():
            if path.name.isdigit() and int(path.name) < self.request.needed:
                shutil.rmtree(path, ignore_errors=True)


def upload_tree(upload: Upload) -> Tree:
    return {"delta": upload.delta, "extras": upload.extras, "report": upload.report}


def check_rows(rows: tables.Rows, request: Request, path: Path, target: str) -> None:
    shape = tuple(request.shape)
    for x, y in ((rows.x, rows.y), (rows.x_measured, rows.y_measured)):
        require(tuple(x.shape[1:]) == shape, f"rows {path}: shape {tuple(x.shape[1:])}, but the run has {shape}")
        if len(y):
            TARGETS[target].check(f"rows {path}: targets", y, request.classes)
