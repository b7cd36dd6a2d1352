"""Processes that stand for ranks: ``python -m tests.ranks STORE RANK SIZE NAME...`` runs the named checks of test_distributed."""

import os
import subprocess
import sys
import tempfile
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from fedskew.engine.group import Group

LIMIT = 100
"""Seconds after which a rank gives up waiting for another one."""


def check_on_ranks(names: list[str], size: int = 2, seconds: float = 110.0) -> None:
    """Run the checks on ``size`` ranks. Fails with their output if one fails, or if all together take longer than ``seconds``."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / f"rank {rank}" for rank in range(size)]
        processes = []
        for rank, output in enumerate(outputs):
            words = [sys.executable, "-m", "tests.ranks", str(Path(folder) / "store"), str(rank), str(size), *names]
            with output.open("w") as file:
                processes.append(subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, env=environment()))
        try:
            codes = [process.wait(timeout=seconds) for process in processes]
        except subprocess.TimeoutExpired:
            codes = ["not done"]
        finally:
            for process in processes:
                process.kill()
                process.wait(timeout=10)
        assert not any(codes), "\n".join(f"{path.name}:\n{path.read_text()}" for path in outputs)


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def main(store: str, rank: str, size: str, *names: str) -> int:
    from tests.engine.test_distributed import CHECKS

    torch.set_num_threads(1)
    group, failed = Group(int(rank), int(size)), 0
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store, group.size),
        rank=group.rank,
        world_size=group.size,
        timeout=timedelta(seconds=LIMIT),
    )
    for name in names:
        try:
            CHECKS[name](group)
        except Exception:
            failed = 1
            print(f"{name} failed:")
            traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    # without Python's clean-up, in which threads of PyTorch may abort the process
    os._exit(failed)


if __name__ == "__main__":
    main(*sys.argv[1:])
