"""Runs side by side in processes of their own, each with its connection to the store; progress comes back through a queue."""

from __future__ import annotations

import multiprocessing
import queue
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedskew.core.errors import BadInput, Diverged, FedskewError, Interrupted
from fedskew.data.dataset import Dataset
from fedskew.data.shared import shared
from fedskew.experiment.compare import Ended
from fedskew.experiment.run import Listener, Progress, Stop, execute
from fedskew.store.runs import RunStore

ERRORS: dict[str, type[FedskewError]] = {"diverged": Diverged, "bad input": BadInput, "failed": FedskewError}


def work(folder: Path, tasks: Any, events: Any, stop: Any, dataset: Dataset | None) -> None:
    """Take runs until there are none or a stop is asked for. The parent hears Ctrl-C; the worker finishes its round."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    store = RunStore(folder)
    while not stop.is_set() and (run := tasks.get()) is not None:
        events.put(("begun", run, multiprocessing.current_process().pid))
        try:
            execute(store, run, dataset, lambda p: events.put(("progress", p, None)), stop.is_set)
            events.put(("ended", run, None))
        except Interrupted:
            break
        except Exception as error:
            kind = next((k for k, cls in ERRORS.items() if type(error) is cls), "failed")
            text = str(error) if isinstance(error, FedskewError) else f"{type(error).__name__}: {error}"
            events.put(("ended", run, (kind, text)))
    store.close()


def side_by_side(
    folder: Path,
    runs: Sequence[int],
    dataset: Dataset | None,
    jobs: int,
    listener: Listener,
    note: Callable[[Ended], None],
    stop: Stop,
) -> None:
    """Carry out the runs in ``jobs`` processes. A process that dies costs the run it was at, which is noted as failed."""
    with shared(dataset) as rows:
        context = multiprocessing.get_context("spawn")
        tasks, events, halt = context.Queue(), context.Queue(), context.Event()
        processes = []
        for run in (*runs, *[None] * jobs):
            tasks.put(run)
        for _ in range(min(jobs, len(runs))):
            process = context.Process(target=work, args=(folder, tasks, events, halt, rows), daemon=True)
            process.start()
            processes.append(process)
        at: dict[int, int] = {}
        while any(p.is_alive() for p in processes) or not events.empty():
            if stop():
                halt.set()
            try:
                kind, first, second = events.get(timeout=0.2)
            except queue.Empty:
                for process in processes:
                    lost = at.pop(process.pid or 0, None) if not process.is_alive() else None
                    if lost is not None and not halt.is_set():
                        note(Ended(lost, mark_lost(folder, lost, process.exitcode)))
                continue
            if kind == "progress":
                assert isinstance(first, Progress)
                listener(first)
            elif kind == "begun":
                at[second] = first
            else:
                at = {pid: run for pid, run in at.items() if run != first}
                note(Ended(first, ERRORS[second[0]](second[1]) if second else None))
        for process in processes:
            process.join()


def mark_lost(folder: Path, run: int, exitcode: int | None) -> FedskewError:
    """Note in the store that the process of a run is gone."""
    message = f"run {run}: its process ended unexpectedly (exit code {exitcode}; killed, or out of memory?)"
    store = RunStore(folder)
    store.update(run, status="failed", message=message)
    store.close()
    return FedskewError(message)
