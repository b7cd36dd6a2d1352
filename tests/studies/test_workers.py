"""Worker processes of `jobs`."""

import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest

import fedskew as fs
from fedskew.execution.plan import prepare
from fedskew.execution.run import Progress
from fedskew.experiment.config import Experiment
from fedskew.store.runs import RunStore
from fedskew.studies import runner as workers

NEEDS = """
import os
from dataclasses import dataclass
from fedskew.core.algorithm import Algorithm

os.environ["SET_LATER"]

@dataclass(frozen=True, kw_only=True)
class Mine(Algorithm):
    pass
"""


def test_workers_have_the_environment_of_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that forks the workers was started by the first comparison and has its old environment."""
    file = tmp_path / "needs.py"
    file.write_text(NEEDS)
    options = {"dataset": "digits", "clients": 3, "rounds": 1, "epochs": 1, "engine": "sequential", "jobs": 2}
    fs.compare(["fedavg"], seeds=2, runs=tmp_path / "a", **options)
    monkeypatch.setenv("SET_LATER", "1")
    runs = fs.compare([f"{file}::Mine"], seeds=2, runs=tmp_path / "b", **options)
    assert [(r.status, r.message) for r in runs.records] == [("finished", "")] * 2


@pytest.mark.skipif(sys.platform != "linux", reason="other systems import PyTorch in each worker")
def test_workers_share_one_import() -> None:
    assert workers.worker_context().get_start_method() == "forkserver"


@pytest.mark.thorough
def test_workers_import_no_module_of_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "selectors.py").write_text("raise SystemExit('the wrong module')")
    words = "compare --algorithms fedavg --dataset heart --seeds 2 --rounds 1 --epochs 1 --jobs 2"
    command = [Path(sys.executable).with_name("fedskew"), *words.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr


def test_runs_whose_processes_end_while_progress_is_shown_have_failed(tmp_path: Path) -> None:
    def kill(progress: Progress) -> None:
        for process in multiprocessing.active_children():
            process.kill()
            process.join(30)

    base = Experiment().replace(dataset="heart", skew="natural", training__rounds=500, engine="sequential")
    store = RunStore(tmp_path)
    plans, data = prepare([base, base.replace(training__seed=1)], None, 2)
    runs = workers.register_all(store, plans, "two")
    ended = workers.Executor(store, data, 2, kill).execute(runs)
    assert ended
    assert all("its process ended unexpectedly" in str(each.error) for each in ended)
    assert {run.status for run in store.runs()} <= {"failed", "planned"}
