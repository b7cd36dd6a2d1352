"""Signals to a whole command, and the death of its first process: runs can be resumed, and nothing is left behind."""

import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fedskew.store.lock import owner
from fedskew.store.runs import RunStore
from fedskew.studies import runner as workers
from fedskew.studies.progress import stop_on_signal
from tests.cli.test_resume import wait_for_round
from tests.waiting import wait_until

COMPARE = ["compare", "--algorithms", "fedavg", "scaffold", "--seeds", "1", "--rounds", "2000", "--epochs", "1"]
COMPARE += ["--engine", "stacked", "--jobs", "2", "--set", "training.threads=1"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_way_to_end_a_command_asks_for_a_stop(number: signal.Signals, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # the command ``nohup`` ignores one of them
    try:
        with stop_on_signal() as stopper:
            assert not stopper()
            os.kill(os.getpid(), number)
            assert stopper()
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), number)
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_a_hang_up_that_is_ignored_stays_ignored() -> None:
    """The command ``nohup`` does this."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signal() as stopper:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stopper()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_worker_ends_with_the_process_that_started_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Parent:
        sentinel, end = os.pipe()

    (tmp_path / "left").mkdir()
    ended: list[int] = []
    monkeypatch.setattr(workers.multiprocessing, "parent_process", Parent)
    monkeypatch.setattr(workers.os, "_exit", ended.append)
    watching = threading.Thread(target=workers.end_with_parent, args=(str(tmp_path / "left"),), daemon=True)
    watching.start()
    time.sleep(0.05)
    assert not ended
    os.close(Parent.end)
    watching.join(5)
    assert ended == [1]
    assert not (tmp_path / "left").exists()


def test_program_ends_if_stopped_workers_leave_large_runs_in_the_queue(tmp_path: Path) -> None:
    script = tmp_path / "stopped.py"
    script.write_text(
        "import sys, numpy as np\nfrom types import SimpleNamespace\n"
        "if __name__ == '__main__':\n"
        "    from fedskew.store.runs import RunStore\n"
        "    from fedskew.studies.runner import Executor, Workers\n"
        "    runs = {run: SimpleNamespace(dealt=np.zeros(100_000)) for run in range(2)}\n"
        "    list(Workers(Executor(RunStore(sys.argv[1]), stop=lambda: True), runs, None).execute())\n"
    )
    command = [sys.executable, str(script), str(tmp_path / "runs")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run(command, env=environment, timeout=90, check=False).returncode == 0


def started(folder: Path, **options: object) -> subprocess.Popen[bytes]:
    temporary = folder / "temporary"
    temporary.mkdir()
    return subprocess.Popen(
        [sys.executable, "-m", "fedskew", *COMPARE, "--runs", str(folder / "runs")],
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": os.pathsep.join(sys.path)},
        **options,
    )


def executed(store: RunStore) -> list[str]:
    """Return the processes that execute a run."""
    return [process for record in store.runs() if (process := owner(store, record.id))]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "terminate all", "hang up"])
def test_ended_comparison_leaves_no_process_or_file(tmp_path: Path, how: str) -> None:
    printed: list[bytes] = []
    if how == "hang up":
        terminal, side = pty.openpty()
        handler = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the process must not inherit that nohup ignores it
        process = started(tmp_path, stdin=side, stdout=side, stderr=side, start_new_session=True)
        signal.signal(signal.SIGHUP, handler)
        os.close(side)
        threading.Thread(target=drain, args=(terminal, printed), daemon=True).start()
    else:
        process = started(tmp_path, start_new_session=True, stderr=subprocess.DEVNULL)
    for number in (1, 2):
        wait_for_round(tmp_path / "runs", number, 2)
    store = RunStore(tmp_path / "runs", read_only=True)
    assert len(executed(store)) == 2
    if how == "kill":
        process.kill()
    elif how == "terminate all":
        os.killpg(process.pid, signal.SIGTERM)
    else:
        os.killpg(process.pid, signal.SIGHUP)
    process.wait(60)
    wait_until(lambda: not executed(store), 20)
    assert list((tmp_path / "temporary").iterdir()) == []
    assert b"Traceback" not in b"".join(printed)
    if how != "kill":
        assert process.returncode == 130
        assert {record.status for record in store.runs()} == {"interrupted"}
        assert all(list(store.run_folder(number).glob("round-*.safetensors")) for number in (1, 2))


def drain(terminal: int, printed: list[bytes]) -> None:
    """Read what a process writes to its terminal."""
    try:
        while text := os.read(terminal, 4096):
            printed.append(text)
    except OSError:
        return
