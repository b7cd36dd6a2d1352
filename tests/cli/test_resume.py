"""Commands that are stopped or killed, and `resume`."""

import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedskew.cli.main import main
from fedskew.store.runs import RunStore
from tests.stored import numbers


def start_run(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fedskew", *words, "--runs", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_round(folder: Path, run: int, round_: int) -> None:
    """Wait until the store has this round of the run."""
    for _ in range(3000):
        if (folder / "fedskew.db").exists():
            db = sqlite3.connect(folder / "fedskew.db", timeout=30)
            try:
                row = db.execute("SELECT rounds_done FROM runs WHERE id=?", (run,)).fetchone()
            except sqlite3.OperationalError:
                row = None
            db.close()
            if row and row[0] >= round_:
                return
        time.sleep(0.02)
    raise AssertionError(f"round {round_} was not reached in a minute")


LONG = ["run", "--algorithm", "scaffold", "--rounds", "80", "--epochs", "1", "--engine", "stacked"]
LONG += ["--set", "training.threads=1", "--set", "checkpoint.every=7"]


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> list[tuple]:
    """Return the measurements of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    assert main([*LONG, "--runs", str(folder)]) == 0
    return numbers(RunStore(folder))


@pytest.mark.parametrize(
    ("how", "code"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGKILL, -9)]
)
def test_a_stopped_run_is_resumed_to_the_same_numbers(
    tmp_path: Path, whole_run: list[tuple], how: signal.Signals, code: int
) -> None:
    process = start_run(tmp_path, *LONG)
    wait_for_round(tmp_path, 1, 8)  # after the first checkpoint
    process.send_signal(how)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    if how != signal.SIGKILL:
        assert "fedskew resume 1" in err
    assert main(["resume", "--runs", str(tmp_path)]) == 0
    assert numbers(RunStore(tmp_path)) == whole_run
    assert whole_run
