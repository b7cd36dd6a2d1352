"""Other simulators as sides of the benchmark, each from the package index into an environment of its own.

A peer's processes stay over all rounds. Each gets a model over a local socket, plays a round of the work on the same rows and
batches with the peer's own server and messages, and answers with the next model; its start is not counted.
"""

import json
import os
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

import numpy as np
import platformdirs
import torch
from benchmarks.rounds.work import Side, Workload
from torch import Tensor

import fedskew
from fedskew.core.errors import FedskewError

PATIENCE = 300
"""Seconds that a peer may take to start."""


@dataclass(frozen=True)
class Peer:
    """A simulator, and the module that plays our rounds with it."""

    name: str
    requirement: str
    module: str
    alone: bool  # whether one process of ours starts all others


PEERS = (
    Peer("Flower", "flwr[simulation]==1.41.0", "benchmarks.rounds.peer_flower", alone=True),
    Peer("pfl", "pfl==0.6.0", "benchmarks.rounds.peer_pfl", alone=False),
)


def interpreter(peer: Peer) -> Path:
    """Python of the peer's environment, which is created if needed. It has this process's PyTorch and fedskew.

    Raises `FedskewError` in one line where it cannot be installed.
    """
    folder = platformdirs.user_cache_path("fedskew") / "peers" / peer.requirement
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not (python.exists() and (folder / "whole").exists()):
        try:
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder, with_pip=True)
            command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", peer.requirement]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except (OSError, subprocess.SubprocessError) as error:
            raise FedskewError(f"{peer.name}: no environment in {folder}: {str(error).splitlines()[0]}") from None
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
            raise FedskewError(f"{peer.name}: {peer.requirement} cannot be installed: {errors[-1]}")
        (folder / "whole").touch()
    # after the environment's own packages, so that these win
    here = {str(Path(module.__file__ or "").parents[1]) for module in (fedskew, torch)} | {
        str(Path(__file__).parents[2])
    }
    packages = next(folder.glob("[Ll]ib/**/site-packages"))
    (packages / "fedskew-bench.pth").write_text("\n".join(sorted(here)), encoding="utf-8")
    return python


@contextmanager
def started(peer: Peer, work: Workload, processes: int) -> Iterator[Side]:
    """A side of the benchmark that plays rounds with the peer, in ``processes`` processes. Raises `FedskewError` in one line."""
    python = interpreter(peer)
    size = 1 if peer.alone else processes
    with TemporaryDirectory() as folder, ExitStack() as stack:
        place = Path(folder) / "socket"
        try:
            listener = stack.enter_context(Listener(str(place), family="AF_UNIX"))
        except OSError as error:  # a socket's path may have about a hundred letters
            raise FedskewError(f"{peer.name}: no socket at {place}: {error}; set TMPDIR to a shorter folder") from None
        running: list[subprocess.Popen[bytes]] = []
        logs: list[TextIO] = []
        stack.callback(ended, running)
        for rank in range(size):
            # two processes that fail at once would write into one another's lines
            log = stack.enter_context((Path(folder) / f"log {rank}").open("w+", encoding="utf-8", errors="replace"))
            logs.append(log)
            command = [
                str(python),
                "-c",
                f"from {peer.module} import main; main()",
                str(place),
                json.dumps(asdict(work)),
                str(processes),
                str(rank),
            ]
            around = environment(folder, size, rank, max(1, (os.cpu_count() or 1) // processes))
            running.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=around))
        # closed before the processes are waited for, which end when their connection closes
        pipes = [
            stack.enter_context(pipe) for pipe in accepted(listener, running, lambda: failure(peer, running, logs))
        ]

        def play(x0: Tensor) -> Tensor:
            try:
                for pipe in pipes:
                    pipe.send_bytes(x0.numpy().tobytes())
                answers = [pipe.recv_bytes() for pipe in pipes]
            except (OSError, EOFError):
                raise FedskewError(failure(peer, running, logs)) from None
            return torch.from_numpy(np.frombuffer(answers[0], dtype=np.float32).copy())

        yield play


def environment(folder: str, size: int, rank: int, threads: int) -> dict[str, str]:
    """The environment of a peer's process: the address of the other ranks, its threads, and no telemetry."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    torchrun = {"TORCHELASTIC_RUN_ID": "bench", "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
    meeting = {
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(20000 + os.getpid() % 20000),
    }
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "FLWR_HOME": folder}
    return kept | quiet | (torchrun | meeting if size > 1 else {}) | {"OMP_NUM_THREADS": str(threads)}


def accepted(
    listener: Listener, running: Sequence[subprocess.Popen[bytes]], failure: Callable[[], str]
) -> list[Connection]:
    """Accept a connection from each process, and order them by the rank that each sends first."""
    door: Any = listener._listener._socket  # type: ignore[attr-defined]
    found: dict[int, Connection] = {}
    end = time.monotonic() + PATIENCE
    with ExitStack() as silent:
        waiting: list[Connection] = []
        while len(found) < len(running):
            if time.monotonic() > end or any(process.poll() is not None for process in running):
                raise FedskewError(failure())
            for ready in wait([door, *waiting], 1):
                if ready is door:
                    waiting.append(silent.enter_context(listener.accept()))
                    continue
                assert isinstance(ready, Connection)
                waiting.remove(ready)
                with suppress(EOFError):  # its process has failed, and is seen to end
                    found[int(ready.recv_bytes())] = ready
        silent.pop_all()
    return [found[rank] for rank in range(len(running))]


def failure(peer: Peer, running: Sequence[subprocess.Popen[bytes]], logs: Sequence[TextIO]) -> str:
    """The last line printed by the first process that failed."""
    failed = [log for process, log in zip(running, logs, strict=True) if failing(process)]
    log = (failed or logs)[0]
    log.seek(0)
    lines = [line.strip() for line in log.read().splitlines() if line.strip()]
    return f"{peer.name}: ended unexpectedly: {lines[-1] if lines else 'it printed nothing'}"


def failing(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process has ended with an error, or is about to."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(1)
    return bool(process.returncode)


def ended(running: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait for processes whose connections are closed, and kill those that continue."""
    for process in running:
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()
            process.wait()


@contextmanager
def requests() -> Iterator[tuple[Workload, int, Callable[[Side], None]]]:
    """Main function of a peer's process: play a round with ``play`` for every model that arrives."""
    place, text, processes, rank = sys.argv[1:]
    fields = json.loads(text)
    with Client(place, family="AF_UNIX") as pipe:

        def rounds(play: Side) -> None:
            pipe.send_bytes(rank.encode())
            while model := received(pipe):
                x = torch.from_numpy(np.frombuffer(model, dtype=np.float32).copy())
                pipe.send_bytes(play(x).numpy().tobytes())

        yield Workload(**{**fields, "shape": tuple(fields["shape"])}), int(processes), rounds


def received(pipe: Connection) -> bytes:
    """The next message, or None if the connection was closed."""
    try:
        return pipe.recv_bytes()
    except EOFError:
        return b""
