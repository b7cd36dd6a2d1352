"""The runner of planned experiments: what the store lacks is run, here or in worker processes, and the rest is read."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import queue
import shutil
import signal
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from multiprocessing.util import get_temp_dir
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

from fedskew.core.errors import BadInput, Diverged, FedskewError, Interrupted, require
from fedskew.data.dataset import Dataset, SharedDataset, shared
from fedskew.engine.group import Lost
from fedskew.execution.plan import Latest, Plan
from fedskew.execution.rounds import data_of
from fedskew.execution.run import Ended, Listener, Stop, begin, execute, register
from fedskew.experiment.config import Experiment, from_toml
from fedskew.skew.partition import Partition
from fedskew.store.lock import busy, held
from fedskew.store.runs import RunRecord, RunStore

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that a terminal or a scheduler sends to all processes of a command to stop them."""

ERRORS: dict[str, type[FedskewError]] = {"diverged": Diverged, "bad input": BadInput, "failed": FedskewError}


Task = tuple[int, Partition | None] | None
"""A run and its dealt rows; None: there are no more."""

Report = tuple[str, Any, Any]
"""A worker's report: ("ready", process id, None), ("begun", run, process id), ("progress", `Progress`, None), or ("ended", run,
kind and text of its error or None)."""


def work(
    folder: Path,
    tasks: Queue[Task],
    events: Queue[Report],
    stop: Event,
    dataset: Dataset | None,
    environment: Mapping[str, str],
    temporary: str,
) -> None:
    """Execute runs from the queue ``tasks`` until it gives None or ``stop`` is set.

    Signals do not reach a worker; the parent handles them and sets ``stop``. If the parent ends, the worker exits, and removes
    the parent's folder ``temporary``.
    """
    os.environ.clear()
    os.environ.update(environment)
    Thread(target=end_with_parent, args=(temporary,), daemon=True).start()
    events.put(("ready", os.getpid(), None))
    store, load = RunStore(folder), Latest()
    while not stop.is_set() and (task := tasks.get()) is not None:
        run, dealt = task
        events.put(("begun", run, os.getpid()))
        try:
            planned = partial(begin, store, run, dataset or load, dealt=dealt)
            execute(store, run, dataset, lambda p: events.put(("progress", p, None)), stop.is_set, planned)
            events.put(("ended", run, None))
        except Interrupted:
            break
        except Exception as error:
            kind = next((k for k, cls in ERRORS.items() if type(error) is cls), "failed")
            text = str(error) if isinstance(error, FedskewError) else f"{type(error).__name__}: {error}"
            events.put(("ended", run, (kind, text)))
    store.close()


def end_with_parent(temporary: str) -> None:
    """Wait until the parent process has ended, remove its temporary folder, and exit. This works even after ``kill -9``."""
    parent = multiprocessing.parent_process()
    if parent:
        multiprocessing.connection.wait([parent.sentinel])
        shutil.rmtree(temporary, ignore_errors=True)
        os._exit(1)


def worker_context() -> SpawnContext | ForkServerContext:
    """Return how workers start: on Linux a fork server imports PyTorch once; elsewhere each worker imports it.

    The fork server keeps the environment variables of its start. Therefore a worker gets the current ones as an argument.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


@contextmanager
def signals_held() -> Iterator[None]:
    """Delay signals until the end of this context. Processes started in it never get them, and so print no tracebacks."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def without_program() -> Iterator[None]:
    """Processes that start in this context do not run the user's script again. The script needs no ``if __name__ == ...``.

    They have no objects of the script; the user's own classes are read from the store.
    """
    program = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = program


class Workers:
    """Processes that execute the ``runs`` of an executor. If one dies, the run that it executed gets the status failed."""

    def __init__(self, executor: Executor, runs: Mapping[int, Plan | None], rows: SharedDataset | None) -> None:
        self.executor = executor
        context = worker_context()
        with signals_held():
            self.tasks: Queue[Task] = context.Queue()
            self.events: Queue[Report] = context.Queue()
            self.halt = context.Event()
        # stopped workers leave runs in the queue; without this, the program would wait forever for a reader
        self.tasks.cancel_join_thread()
        for run, plan in runs.items():
            self.tasks.put((run, plan.dealt if plan else None))
        number = min(executor.jobs, len(runs))
        for _ in range(number):
            self.tasks.put(None)
        folder, environment = executor.store.folder, dict(os.environ)
        arguments = (folder, self.tasks, self.events, self.halt, rows, environment, get_temp_dir())
        self.processes = [context.Process(target=work, args=arguments, daemon=True) for _ in range(number)]
        self.run_of: dict[int, int] = {}  # by process id
        self.ready: set[int] = set()

    def execute(self) -> Iterator[Ended]:
        """Start the processes; yield each run that has ended."""
        with signals_held(), without_program():
            for process in self.processes:
                process.start()
        while self.run_of or any(process.is_alive() for process in self.processes) or not self.events.empty():
            if self.executor.stop():
                self.halt.set()
            try:
                kind, what, detail = self.events.get(timeout=0.2)
            except queue.Empty:
                yield from self.lost()
                continue
            if kind == "ready":
                self.ready.add(what)
            elif kind == "progress":
                self.executor.listener(what)
            elif kind == "begun":
                self.run_of[detail] = what
            else:
                self.run_of = {process: run for process, run in self.run_of.items() if run != what}
                yield Ended(what, ERRORS[detail[0]](detail[1]) if detail else None)
        for process in self.processes:
            process.join()

    def lost(self) -> Iterator[Ended]:
        """Yield the runs of processes that have died. If the runs stop, kill the processes that have no run yet."""
        for process in self.processes:
            if self.halt.is_set() and process.pid not in self.ready:
                process.kill()  # importing libraries may take seconds
            run = None if process.is_alive() else self.run_of.pop(process.pid or 0, None)
            if run is not None and not self.halt.is_set():
                reason = f"(exit code {process.exitcode}; killed, or out of memory?)"
                message = f"run {run}: its process ended unexpectedly {reason}"
                self.executor.store.update(run, status="failed", message=message)
                yield Ended(run, FedskewError(message))

    def kill(self) -> None:
        """Kill the processes in the middle of their rounds."""
        processes = [process for process in self.processes if process.pid]
        for process in processes:
            process.kill()
        for process in processes:
            process.join()
        for run in self.run_of.values():
            self.executor.store.update(run, status="interrupted")


UNFINISHED = ("planned", "running", "interrupted", "failed")
"""Statuses of runs that can continue."""

DONE = ("finished", "diverged")
"""Final statuses. A run that diverged is not repeated, because it would diverge again."""


def stored_runs(
    store: RunStore, experiments: Sequence[Experiment], dataset: Dataset | None = None
) -> dict[str, RunRecord]:
    """Return the stored runs of these experiments, by hash. All use ``dataset``, if given; else each loads its own.

    If an experiment has several runs, a finished or diverged run is returned, or else the oldest. Runs on rows of the user's
    files that have changed since then do not count.
    """
    sources = {experiment.hash(): experiment.dataset for experiment in experiments}
    runs: dict[str, RunRecord] = {}
    loaded: dict[str, str] = {}
    for record in store.requested(list(sources)):
        key = record.facts.get("asked", record.experiment_hash)
        trained_on = record.facts.get("data", {}).get("fingerprint")
        source = sources[key]
        if trained_on and Path(getattr(source, "path", "")).is_absolute():
            if repr(source) not in loaded:
                loaded[repr(source)] = (dataset or source.load()).fingerprint()
            if trained_on != loaded[repr(source)]:
                continue
        if key not in runs or (record.status in DONE and runs[key].status not in DONE):
            runs[key] = record
    return runs


def records_of(store: RunStore, experiments: Sequence[Experiment], dataset: Dataset | None = None) -> list[RunRecord]:
    """Return the stored runs of experiments that were executed, in their order. Raises `BadInput` if their rows have changed."""
    stored = stored_runs(store, experiments, dataset)
    if any(experiment.hash() not in stored for experiment in experiments):
        raise BadInput("the rows have changed since they were read; repeat the command")
    return [stored[experiment.hash()] for experiment in experiments]


Planner = Callable[[Sequence[Experiment]], Sequence[Plan]]


Facts = Callable[[Experiment], Mapping[str, object]]
"""What the store also notes of a new run."""


def no_facts(experiment: Experiment) -> Mapping[str, object]:
    return {}


def to_execute(
    store: RunStore,
    experiments: Sequence[Experiment],
    title: str,
    planner: Planner = lambda experiments: [*map(Plan, experiments)],
    facts: Facts = no_facts,
    dataset: Dataset | None = None,
) -> dict[int, Plan | None]:
    """Return the runs to execute, by number, until all experiments are done.

    By default, plans deal rows and choose an engine only when a run begins. A stored run has no plan and continues. What the store
    lacks becomes a new comparison, with these ``facts``. All use ``dataset``, if given.
    """
    stored = stored_runs(store, experiments, dataset)
    runs: dict[int, Plan | None] = {r.id: None for r in stored.values() if r.status not in DONE}
    new = list({key: e for e in experiments if (key := e.hash()) not in stored}.values())
    if new:
        added = register_all(store, planner(new), title)
        for experiment, (number, plan) in zip(new, added.items(), strict=True):
            more = dict(facts(experiment))
            if plan.experiment.hash() != experiment.hash():
                more["asked"] = experiment.hash()
            if more:
                store.add_facts(number, more)
        runs |= added
    return runs


def register_all(store: RunStore, plans: Sequence[Plan], title: str) -> dict[int, Plan]:
    """Store the runs of a new comparison with status planned. Return the plans by run number."""
    comparison = store.add_comparison(title)
    return {register(store, plan.experiment, plan.trial, comparison): plan for plan in plans}


@dataclass(frozen=True)
class Executor:
    """How runs of a store are executed: ``jobs`` at a time, on the rows of ``dataset`` (None: each run loads its own).

    ``listener`` gets the progress of each round, and ``ended`` how each run ended. Once ``stop`` returns True, each run ends after
    its round.
    """

    store: RunStore
    dataset: Dataset | None = None
    jobs: int = 1
    listener: Listener = lambda _: None
    ended: Callable[[Ended], None] = lambda _: None
    stop: Stop = lambda: False

    def execute(self, runs: Mapping[int, Plan | None]) -> list[Ended]:
        """Execute the runs; one that fails does not stop the others. Return how each run ended.

        A run without a plan is executed as stored. Raises `Interrupted` once ``stop`` returns True.
        """
        results: list[Ended] = []
        one_by_one = self.jobs == 1 or len(runs) < 2
        with closing(self.one_by_one(runs) if one_by_one else self.side_by_side(runs)) as ends:
            for result in ends:
                results.append(result)
                self.ended(result)
        missing = len(runs) - len(results)
        if missing and self.stop():
            raise Interrupted(f"stopped with {missing} of {len(runs)} runs unfinished")
        return results

    def one_by_one(self, runs: Mapping[int, Plan | None]) -> Generator[Ended]:
        load = Latest()
        for run, plan in runs.items():
            if self.stop():
                return
            planned = partial(begin, self.store, run, self.dataset or load, plan)
            try:
                execute(self.store, run, self.dataset, self.listener, self.stop, planned)
                yield Ended(run, None)
            except Interrupted:
                return
            except FedskewError as error:
                yield Ended(run, error)
                if isinstance(error, Lost):
                    return  # a process of torchrun is lost, so no other run can begin

    def side_by_side(self, runs: Mapping[int, Plan | None]) -> Generator[Ended]:
        with shared(self.dataset) as rows:
            workers = Workers(self, runs, rows)
            try:
                yield from workers.execute()
            except BaseException:
                workers.kill()  # this may be a second Ctrl-C
                raise


def unfinished(store: RunStore) -> list[RunRecord]:
    """Return the newest run that can be resumed, with all runs of its comparison; if there is none, the latest runs."""
    waiting = [r for r in store.runs() if r.status in UNFINISHED and not busy(store, r.id)]
    if not waiting:
        return store.select([])
    newest = max(waiting, key=lambda r: r.id)
    return store.select([f"c{newest.comparison}" if newest.comparison else str(newest.id)])


def to_resume(store: RunStore, records: Sequence[RunRecord]) -> list[int]:
    """Return the numbers of the unfinished runs. Raises `BadInput` if other processes execute all of them."""
    ids = [r.id for r in records if r.status in UNFINISHED]
    reasons = [busy(store, run) for run in ids]
    require(not reasons or not all(reasons), reasons[0] if reasons else "")
    return ids


def extend(store: RunStore, records: Sequence[RunRecord], rounds: int, dataset: Dataset | None = None) -> None:
    """Let finished runs go on up to ``rounds`` rounds, on the ``dataset`` if it came from a Python program.

    Raises `BadInput` if one of them cannot, if its first rounds would be others, or if its data have changed. Then all stay as
    they are.
    """
    load, longer = Latest(), dict[int, Experiment]()
    for record in records:
        run, experiment = record.id, from_toml(record.experiment, f"run {record.id}")
        require(record.status == "finished", f"run {run}: it is {record.status}; resume it first, without --rounds")
        if rounds <= record.rounds:
            raise BadInput(f"run {run}: it has {record.rounds} rounds; --rounds must be larger, got {rounds}")
        schedule, method = str(getattr(experiment.solver, "lr_decay", "")), experiment.algorithm
        obstacles = {
            "its clients are on Flower's nodes": "flower" in record.facts,
            "its held-out rows have ended it (training.patience)": "best_round" in record.facts,
            f"its method, {type(method).__name__}, computes with {record.rounds} planned rounds": method.contract().planned,
            f"its learning rate fell over {record.rounds} rounds ({schedule})": "cosine" in schedule,
        }
        for obstacle, stands in obstacles.items():
            require(not stands, f"run {run}: {obstacle}; start a new run from its model, with --init {run}")
        data_of(store, run, dataset or load(experiment.dataset))
        longer[run] = experiment.replace(training__rounds=rounds)
    for run, experiment in longer.items():
        with held(store, run):
            store.extend(run, experiment.toml(), experiment.hash(), rounds)


def worst_error(results: Sequence[Ended]) -> FedskewError | None:
    """Return the error that decides the exit code; None without errors. Any other error comes before a divergence."""
    errors = [r.error for r in results if r.error]
    return next((e for e in errors if not isinstance(e, Diverged)), errors[0] if errors else None)
