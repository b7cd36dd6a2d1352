"""The processes of one run: started here on one machine, or by ``torchrun`` on one or several; all but the first follow it."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from fedskew.core.errors import FedskewError, NoRoom, require
from fedskew.core.records import Server
from fedskew.data.dataset import Dataset
from fedskew.data.lent import Lent, lend
from fedskew.engine.disk import DiskStates
from fedskew.engine.distributed import Distributed
from fedskew.engine.group import Group, Lost, member
from fedskew.engine.homes import HomeStates, parts
from fedskew.engine.states import ClientStates
from fedskew.experiment.build import Assembly, assemble
from fedskew.experiment.config import Experiment, from_toml
from fedskew.experiment.rounds import Kept, checkpoint_due, on_disk, rounds_of, taken_up
from fedskew.experiment.site import Here
from fedskew.loop.round import fresh, start
from fedskew.store.checkpoints import to_device

PATIENCE = timedelta(hours=1)
"""How long one process waits for another's part of a round."""


VARIABLES = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
"""What ``torchrun`` sets, and what each is without it."""


def by_launcher() -> tuple[int, int]:
    """This process's rank and the number of processes, as ``torchrun`` started them; (0, 1) without it.

    Raises `BadInput` for variables that no launcher sets so.
    """
    given = {name: os.environ.get(name, usual) for name, usual in VARIABLES.items()}
    for name, text in given.items():
        require(
            bool(re.fullmatch("[0-9]{1,6}", text)), f"{name}={text!r} is not a number; unset it, or start with torchrun"
        )
    rank, size = int(given["RANK"]), int(given["WORLD_SIZE"])
    lacking = [name for name in ("MASTER_ADDR", "MASTER_PORT") if size > 1 and name not in os.environ]
    require(
        rank < size and not lacking,
        f"RANK={rank} and WORLD_SIZE={size} are not a launcher's{f', {lacking[0]} is missing' if lacking else ''}; unset "
        "them, or start with torchrun",
    )
    return rank, size


def joined() -> Group:
    """This process's place in PyTorch's default group."""
    return Group(dist.get_rank(), dist.get_world_size())


@contextmanager
def launched() -> Iterator[None]:
    """As rank 0 of ``torchrun``: the others follow until this ends. Does nothing without a launcher."""
    if by_launcher()[1] == 1:
        yield
        return
    with member(timeout=PATIENCE) as group:
        yield
        with suppress(Lost):
            group.share_text()


def follow_launcher() -> None:
    """As another rank of ``torchrun``: take part in the runs of rank 0 until it has no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with member(timeout=PATIENCE) as group:
        follow(group)


@contextmanager
def group_of(experiment: Experiment, dataset: Dataset) -> Iterator[Group | None]:
    """The group that a run is carried out in: the launcher's, one started for it, or none. Ends what it has started."""
    size = experiment.training.workers
    if by_launcher()[1] > 1:
        yield joined()
    elif size <= 1:
        yield None
    else:
        with (
            TemporaryDirectory() as folder,
            started(folder, size, partial(follow, lent=lend(dataset, folder))) as processes,
        ):
            try:
                yield joined()
            except Lost as error:
                # the one that died takes a moment to be known as dead, and another until its exit code is
                gone = multiprocessing.connection.wait([p.sentinel for p in processes], timeout=5)
                for process in processes:
                    process.join(5 if process.sentinel in gone else 0)
                ends = [f"worker {p.name} ended with exit code {p.exitcode}" for p in processes if p.exitcode]
                raise Lost("; ".join(ends) or str(error)) from None


@contextmanager
def started(folder: str, size: int, act: Callable[[Group], None]) -> Iterator[Sequence[Any]]:
    """``size - 1`` processes beside this one, which then is rank 0 of a group; the others ``act`` in it."""
    context = multiprocessing.get_context("spawn")
    place = str(Path(folder) / "group")
    processes = [
        context.Process(target=work, args=(place, rank, size, act), name=str(rank), daemon=True)
        for rank in range(1, size)
    ]
    with without_script():
        for process in processes:
            process.start()
    try:
        store = dist.FileStore(place, size)
        while not all(store.check([f"worker {rank}"]) for rank in range(1, size)):
            time.sleep(0.02)
            if not all(p.is_alive() for p in processes):
                raise Lost("a worker process did not start")
        with member(store=store, rank=0, world_size=size, timeout=PATIENCE):
            yield processes
    finally:
        for process in processes:
            process.terminate()
            process.join()


@contextmanager
def without_script() -> Iterator[None]:
    """Processes started meanwhile do not read the user's script again, which may have no guard against that."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def work(place: str, rank: int, size: int, act: Callable[[Group], None]) -> None:
    """A process beside rank 0 on the same machine. The first hears Ctrl-C, and ends this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    store = dist.FileStore(place, size)
    store.set(f"worker {rank}", "here")
    with member(store=store, rank=rank, world_size=size, timeout=PATIENCE) as group, suppress(Lost):
        act(group)


def lead(group: Group, assembly: Assembly, server: Server, states: Kept) -> HomeStates:
    """Tell the others which rounds come, from where on, and what is kept of their clients; returns where all of it then is."""
    group.share_text(assembly.experiment.toml())
    group.share_tree({"round": torch.tensor(server.round), "x": server.x, "opt": server.opt, "state": server.state})
    like = partial(fresh, assembly.federation, server.x)
    for clients in parts(states.clients, like()):
        group.share_tree({"ids": torch.as_tensor(clients), "states": states.get(clients, like)})
    group.share_tree({})
    return HomeStates(group, states, like)


def follow(group: Group, lent: Lent | None = None) -> None:
    """Take part in every run that rank 0 carries out, with data that it lends or that each process loads for itself.

    Ends the process where only this one cannot go on.
    """
    while toml := group.share_text():
        experiment = from_toml(toml)
        torch.set_num_threads(experiment.training.threads)
        assembly = assemble(experiment, lent() if lent else experiment.dataset.load())
        device, num_clients = assembly.x0.device, len(assembly.partition)
        tree = to_device(group.share_tree(), device)
        server = taken_up(start(assembly.federation, assembly.x0), tree, int(tree["round"]))
        try:
            with TemporaryFile() as file:
                kept: Kept = DiskStates(file, num_clients) if on_disk(assembly) else ClientStates()
                states = HomeStates(group, kept, partial(fresh, assembly.federation, server.x))
                while part := to_device(group.share_tree(), device):
                    states.take_up(part["ids"].cpu().numpy(), part.get("states", {}))
                take_part(group, assembly, server, states)
        except NoRoom as error:
            # of this process alone: the others wait for it, until they hear that it is gone
            sys.exit(f"fedskew: {error}")
        except FedskewError:
            # the same in all processes: the first one tells it
            pass


def take_part(group: Group, assembly: Assembly, server: Server, states: HomeStates) -> None:
    """The rounds of one run, until rank 0 stops."""
    engine, experiment = Distributed(assembly.experiment.engine, group), assembly.experiment
    for at, _, _ in rounds_of(assembly, Here(engine, experiment.faults), server, states):
        if at.round > server.round:
            stopping = group.agree(False)
            if checkpoint_due(experiment, at.round, stopping):
                states.collect()
            if stopping:
                break
