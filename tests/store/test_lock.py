"""Only one process at a time executes a run. The run of a process that has ended is free at once."""

import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

import pytest
from filelock import FileLock

from fedskew.core.errors import BadInput
from fedskew.store import lock
from fedskew.store.lock import busy, held, owner
from fedskew.store.runs import RunStore

HOLD = """
import sys
from fedskew.store.lock import held
from fedskew.store.runs import RunStore
with held(RunStore(sys.argv[1]), 1):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    made = RunStore(tmp_path)
    made.add_run(name="fedavg", experiment="", experiment_hash="", seed=0, partition_seed=0, rounds=3)
    return made


@contextmanager
def another_process(store: RunStore) -> Iterator[subprocess.Popen[str]]:
    """Start a process that holds run 1 until its standard input is closed."""
    command = [sys.executable, "-c", HOLD, str(store.folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_second_process_is_refused_in_one_line_that_names_the_first(store: RunStore) -> None:
    with another_process(store) as process:
        reason = f"run 1: process {process.pid} on {platform.node()} is executing it; wait for it, or stop it first"
        assert busy(store, 1) == reason
        with pytest.raises(BadInput, match=f"run 1: process {process.pid} on .* is executing it"):
            held(store, 1).__enter__()


def test_the_run_of_a_killed_process_is_free_at_once(store: RunStore) -> None:
    with another_process(store) as process:
        process.kill()
        process.wait(10)
        assert busy(store, 1) == ""
        with held(store, 1):
            assert owner(store, 1).startswith("process ")
        assert owner(store, 1) == ""


def test_two_host_names_on_one_folder_give_one_owner(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers that share a folder have their own host names and their own process numbers."""
    other = RunStore(store.folder)
    monkeypatch.setattr(platform, "node", lambda: "first-host")
    with held(store, 1):
        monkeypatch.setattr(platform, "node", lambda: "second-host")
        with pytest.raises(BadInput, match=r"process .* on first-host is executing it"):
            held(other, 1).__enter__()
    with held(other, 1):
        assert owner(store, 1).endswith("on second-host")


def test_a_look_at_a_run_does_not_keep_another_process_from_it(store: RunStore) -> None:
    """Looking holds the lock for a moment. A process that wants the run waits for it."""
    store.run_folder(1).mkdir()
    look = FileLock(lock.lock_file(store, 1), thread_local=False)
    look.acquire()
    Timer(0.1, look.release).start()
    with held(store, 1):
        assert not look.is_locked


def test_a_folder_in_which_nothing_can_be_written_shows_the_last_owner(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with another_process(store) as process:

        def refused(*_: object, **__: object) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(FileLock, "acquire", refused)
        assert owner(RunStore(store.folder, read_only=True), 1) == f"process {process.pid} on {platform.node()}"
