"""The runner of planned experiments: what the store lacks is run, here or in worker processes, and the rest is read."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import queue
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from multiprocessing.util import get_temp_dir
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Literal

from fedskew.core.errors import BadInput, Diverged, FedskewError, Interrupted, require
from fedskew.data.dataset import Dataset
from fedskew.data.shared import shared
from fedskew.engine.group import Lost
from fedskew.execution.plan import Latest, Plan
from fedskew.execution.run import Ended, Listener, Progress, Stop, begin, execute, register
from fedskew.experiment.config import Experiment
from fedskew.skew.partition import Partition
from fedskew.store.lock import busy
from fedskew.store.runs import RunRecord, RunStore

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that a terminal or a scheduler sends to all processes of a command to stop them."""

ERRORS: dict[str, type[FedskewError]] = {"diverged": Diverged, "bad input": BadInput, "failed": FedskewError}


Task = tuple[int, Partition | None] | None
"""A run and its dealt rows; None: there are no more."""

Report = (
    tuple[Literal["ready"], int, None]
    | tuple[Literal["begun"], int, int]
    | tuple[Literal["progress"], Progress, None]
    | tuple[Literal["ended"], int, tuple[str, str] | None]
)
"""A worker's report: ready (process id), begun (run, process id), progress, or ended (run, kind and text of its error)."""


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


def side_by_side(
    folder: Path,
    runs: Mapping[int, Plan | None],
    dataset: Dataset | None,
    jobs: int,
    listener: Listener,
    note: Callable[[Ended], None],
    stop: Stop,
) -> None:
    """Execute the runs in ``jobs`` processes. If a process dies, the run that it executed gets the status failed."""
    with shared(dataset) as rows:
        context = worker_context()
        with signals_held():
            tasks: Queue[Task] = context.Queue()
            events: Queue[Report] = context.Queue()
            halt = context.Event()
        # stopped workers leave runs in the queue; without this, the program would wait forever for a reader
        tasks.cancel_join_thread()
        for run, plan in runs.items():
            tasks.put((run, plan.dealt if plan else None))
        for _ in range(jobs):
            tasks.put(None)
        given = (folder, tasks, events, halt, rows, dict(os.environ), get_temp_dir())
        processes = [context.Process(target=work, args=given, daemon=True) for _ in range(min(jobs, len(runs)))]
        at: dict[int, int] = {}
        ready: set[int] = set()
        try:
            with signals_held(), without_program():
                for process in processes:
                    process.start()
            while any(p.is_alive() for p in processes) or not events.empty():
                if stop():
                    halt.set()
                try:
                    report = events.get(timeout=0.2)
                except queue.Empty:
                    for process in processes:
                        if halt.is_set() and process.pid not in ready:
                            process.kill()  # it has no run yet; importing libraries may take seconds
                        lost = at.pop(process.pid or 0, None) if not process.is_alive() else None
                        if lost is not None and not halt.is_set():
                            note(Ended(lost, mark_lost(folder, lost, process.exitcode)))
                    continue
                if report[0] == "ready":
                    ready.add(report[1])
                elif report[0] == "progress":
                    listener(report[1])
                elif report[0] == "begun":
                    at[report[2]] = report[1]
                else:
                    _, ended, error = report
                    at = {pid: run for pid, run in at.items() if run != ended}
                    note(Ended(ended, ERRORS[error[0]](error[1]) if error else None))
        except BaseException:
            # kill the workers in the middle of their rounds: this may be a second Ctrl-C
            started = [process for process in processes if process.pid]
            for process in started:
                process.kill()
            for process in started:
                process.join()
            store = RunStore(folder)
            for run in at.values():
                store.update(run, status="interrupted")
            store.close()
            raise
        for process in processes:
            process.join()


def mark_lost(folder: Path, run: int, exitcode: int | None) -> FedskewError:
    """Set the status of a run to failed, because its process has died; return the error."""
    message = f"run {run}: its process ended unexpectedly (exit code {exitcode}; killed, or out of memory?)"
    store = RunStore(folder)
    store.update(run, status="failed", message=message)
    store.close()
    return FedskewError(message)


EndListener = Callable[[Ended], None]

DONE = ("finished", "diverged")
"""Final statuses. A run that diverged is not repeated, because it would diverge again."""


def stored_runs(store: RunStore, experiments: Sequence[Experiment]) -> dict[str, RunRecord]:
    """Return the stored runs of these experiments, by hash: of several one that is done, else the oldest."""
    runs: dict[str, RunRecord] = {}
    for record in store.requested([experiment.hash() for experiment in experiments]):
        key = record.facts.get("asked", record.experiment_hash)
        if key not in runs or (record.status in DONE and runs[key].status not in DONE):
            runs[key] = record
    return runs


Planner = Callable[[Sequence[Experiment]], Sequence[Plan]]


def plan_later(experiments: Sequence[Experiment]) -> list[Plan]:
    """Return plans that deal rows and choose an engine only when a run begins."""
    return [Plan(experiment) for experiment in experiments]


def to_execute(
    store: RunStore,
    experiments: Sequence[Experiment],
    title: str,
    planner: Planner = plan_later,
    facts: Callable[[Experiment], Mapping[str, object]] = lambda _: {},
) -> dict[int, Plan | None]:
    """Return the runs to execute, by number, until all experiments are done.

    A stored run has no plan and continues. What the store lacks becomes a new comparison, with these ``facts``.
    """
    stored = stored_runs(store, experiments)
    runs: dict[int, Plan | None] = {r.id: None for r in stored.values() if r.status not in DONE}
    new = list({key: e for e in experiments if (key := e.hash()) not in stored}.values())
    if new:
        added = register_all(store, planner(new), title)
        for experiment, (number, plan) in zip(new, added.items(), strict=True):
            requested = experiment.hash()
            asked = {} if plan.experiment.hash() == requested else {"asked": requested}
            if more := {**asked, **facts(experiment)}:
                store.add_facts(number, more)
        runs |= added
    return runs


def register_all(store: RunStore, plans: Sequence[Plan], title: str) -> dict[int, Plan]:
    """Store the runs of a new comparison with status planned. Return the plans by run number."""
    comparison = store.add_comparison(title)
    return {register(store, plan.experiment, plan.trial, comparison): plan for plan in plans}


def execute_all(
    store: RunStore,
    runs: Mapping[int, Plan | None],
    dataset: Dataset | None,
    jobs: int,
    listener: Listener,
    ended: EndListener,
    stop: Stop,
) -> list[Ended]:
    """Execute the runs, ``jobs`` at a time; a run that fails does not stop the others. Return how each run ended.

    A run without a plan is executed as stored. Raises `Interrupted` once ``stop`` returns True.
    """
    results: list[Ended] = []

    def note(result: Ended) -> None:
        results.append(result)
        ended(result)

    if jobs == 1 or len(runs) < 2:
        load = Latest()
        for run, plan in runs.items():
            if stop():
                break
            try:
                execute(store, run, dataset, listener, stop, partial(begin, store, run, dataset or load, plan))
                note(Ended(run, None))
            except Interrupted:
                break
            except Lost as error:
                # a process of torchrun is lost, so no other run can begin
                note(Ended(run, error))
                break
            except FedskewError as error:
                note(Ended(run, error))
    else:
        side_by_side(store.folder, runs, dataset, jobs, listener, note, stop)
    missing = len(runs) - len(results)
    if missing and stop():
        raise Interrupted(f"stopped with {missing} of {len(runs)} runs unfinished")
    return results


def unfinished(store: RunStore) -> list[RunRecord]:
    """Return the newest run that can be resumed, with all runs of its comparison; if there is none, the latest runs."""
    waiting = [
        r for r in store.runs("status IN ('planned', 'running', 'interrupted', 'failed')") if not busy(store, r.id)
    ]
    if not waiting:
        return store.select([])
    newest = max(waiting, key=lambda r: r.id)
    return store.select([f"c{newest.comparison}" if newest.comparison else str(newest.id)])


def to_resume(store: RunStore, chosen: Sequence[RunRecord]) -> list[int]:
    """Return the numbers of the unfinished runs. Raises `BadInput` if other processes execute all of them."""
    ids = [r.id for r in chosen if r.status in ("planned", "running", "interrupted", "failed")]
    reasons = [busy(store, run) for run in ids]
    require(not reasons or not all(reasons), reasons[0] if reasons else "")
    return ids


def worst_error(results: Sequence[Ended]) -> FedskewError | None:
    """Return the error that decides the exit code; None without errors. Any other error comes before a divergence."""
    errors = [r.error for r in results if r.error]
    return next((e for e in errors if not isinstance(e, Diverged)), errors[0] if errors else None)
