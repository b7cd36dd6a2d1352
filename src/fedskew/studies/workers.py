"""Execute runs in parallel worker processes. Each has its own connection to the store and reports through a queue."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import queue
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
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

from fedskew.core.errors import BadInput, Diverged, FedskewError, Interrupted
from fedskew.data.dataset import Dataset
from fedskew.data.shared import shared
from fedskew.execution.plan import Latest, Plan
from fedskew.execution.run import Ended, Listener, Progress, Stop, begin, execute
from fedskew.skew.partition import Partition
from fedskew.store.runs import RunStore

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
