"""A run on several processes (ranks) of ``torchrun``. Rank 0 owns the store; each rank trains a part of each cohort."""

import os
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import partial, wraps
from tempfile import TemporaryFile
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist

from fedskew.core.errors import BadInput, FedskewError, NoRoom
from fedskew.core.machine import launcher
from fedskew.core.records import Server
from fedskew.core.trees import num_bytes
from fedskew.engine.group import TIME_LIMIT, Distributed, Group, Lost, collective
from fedskew.engine.states import AnyStates, ClientStates, DiskStates
from fedskew.execution.build import Assembly, assemble
from fedskew.execution.rounds import on_disk, rounds_of, taken_up
from fedskew.execution.site import LocalClients
from fedskew.experiment.config import from_toml
from fedskew.loop.round import fresh, start
from fedskew.store.checkpoints import to_device

PART = 1 << 26
"""Number of bytes of client states that rank 0 sends at a time."""

T = TypeVar("T")


def on_ranks(verb: Callable[[Namespace], int | None]) -> Callable[[Namespace], int]:
    """Decorator of a command: rank 0 executes it, and the other ranks train for it."""

    @wraps(verb)
    def carried_out(parsed: Namespace) -> int:
        if launcher()[1] == 1:
            return verb(parsed) or 0
        group, code = join(), 0
        try:
            if group.rank:
                work_for_rank_0(group)
            else:
                try:
                    code = verb(parsed) or 0
                finally:
                    with suppress(Lost):  # end the other ranks
                        group.broadcast_text()
        except FedskewError as error:
            print(f"fedskew: {f'rank {group.rank}: ' * (group.rank > 0)}{error}", file=sys.stderr)
            code = error.exit_code
        sys.stdout.flush()
        sys.stderr.flush()
        # skip Python's clean-up: threads of PyTorch's process group may abort the process in it
        os._exit(code)

    return carried_out


def join() -> Group:
    """Join the process group of ``torchrun``; choose a GPU for this rank if the machine has any."""
    with collective():
        dist.init_process_group("gloo", timeout=TIME_LIMIT)
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
    return Group(dist.get_rank(), dist.get_world_size())


def group_of_run() -> Group | None:
    """Return the process group of this run; None without ``torchrun``. Raises `BadInput` if the command cannot use ranks."""
    if launcher()[1] == 1:
        return None
    if not dist.is_initialized():
        raise BadInput(
            "torchrun shares the runs of `fedskew run`, `compare` and `resume` only; leave torchrun and --jobs out"
        )
    return Group(dist.get_rank(), dist.get_world_size())


def lead(group: Group, assembly: Assembly, server: Server, states: AnyStates) -> None:
    """Send the other ranks the experiment, the server and the client states, so that they can train the next rounds."""
    group.broadcast_text(assembly.experiment.toml())
    group.broadcast_tree({"round": torch.tensor(server.round), "x": server.x, "opt": server.opt, "state": server.state})
    like = partial(fresh, assembly.federation, server.x)
    number = max(PART // max(num_bytes(like()), 1), 1)
    for done in range(0, len(states.clients), number):
        clients = states.clients[done : done + number]
        group.broadcast_tree({"ids": torch.as_tensor(clients), "states": states.get(clients, like)})
    group.broadcast_tree({})


def in_step(group: Group | None, rounds: Iterator[T]) -> Generator[T, None, None]:
    """Yield the rounds on rank 0. If the caller or an error ends the loop early, the other ranks end the run, too."""
    for round_ in rounds:
        try:
            yield round_
        except GeneratorExit:
            if group:
                with suppress(Lost):
                    group.broadcast_flag(True)
            raise
        if group:
            group.broadcast_flag(False)


def work_for_rank_0(group: Group) -> None:
    """Train for the runs of rank 0 until it has none left. This rank ignores signals; rank 0 handles them."""
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, signal.SIG_IGN)
    while toml := group.broadcast_text():
        follow(group, toml)


def follow(group: Group, toml: str) -> None:
    """Train for one run of rank 0. Raises only errors that rank 0 does not have itself."""
    # trusted: the user started this command on this machine, and so confirmed the code that it names
    experiment = from_toml(toml, trusted=True)
    torch.set_num_threads(experiment.training.threads)
    assembly = assemble(experiment, experiment.dataset.load())
    device, num_clients = assembly.x0.device, len(assembly.partition)
    tree = to_device(group.broadcast_tree(), device)
    server = taken_up(start(assembly.federation, assembly.x0), tree, int(tree["round"]))
    with TemporaryFile() as file:
        states: AnyStates = DiskStates(file, num_clients) if on_disk(assembly) else ClientStates()
        while part := to_device(group.broadcast_tree(), device):
            states.put(part["ids"].cpu().numpy().astype(np.int64), part.get("states", {}))
        site = LocalClients(Distributed(assembly.engine, group), experiment.faults)
        try:
            for _ in rounds_of(assembly, site, server, states):
                if group.broadcast_flag():
                    break
        except (Lost, NoRoom):
            raise
        except FedskewError:
            # all ranks get this error, and rank 0 reports it
            return
