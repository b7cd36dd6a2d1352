"""A run in several processes: the same numbers, a stop, a lost worker, and `torchrun`."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fedskew.core.errors import BadInput, FedskewError, Interrupted, NoRoom
from fedskew.experiment import processes
from fedskew.experiment.build import assemble
from fedskew.experiment.config import Experiment
from fedskew.experiment.results import compare, run
from fedskew.experiment.run import Progress, execute, register
from fedskew.store.runs import RunStore


def quick(**training: object) -> Experiment:
    """SCAFFOLD with personal models and inexactness, for which the engine is asked, too."""
    return Experiment(
        algorithm="scaffold",
        selection="uniform:clients=5",
        local={"epochs": 1, "batch_size": 16},
        engine="sequential",
        training={"rounds": 3, "threads": 1, "dtype": "float64", "workers": 2} | training,
        evaluation={"adapt_steps": 1, "inexactness": True},
        checkpoint={"every": 2},
    )


Numbers = dict[tuple, float]


def numbers(store: RunStore, run: int) -> Numbers:
    """All that was measured, but the seconds."""
    rows = store.db.execute("SELECT * FROM measurements WHERE run = ? AND name != 'seconds'", (run,))
    return {tuple(row)[1:-1]: tuple(row)[-1] for row in rows}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Numbers:
    made = run(quick(workers=1), folder=tmp_path_factory.mktemp("alone"))
    return numbers(made.store, made.ids[0])


@pytest.mark.parametrize("states", ["memory", "disk"])
def test_a_run_of_two_workers_survives_a_stop_and_a_lost_worker(tmp_path: Path, alone: Numbers, states: str) -> None:
    store, seen = RunStore(tmp_path), list[int]()
    number = register(store, quick(states=states))
    with pytest.raises(Interrupted):
        execute(store, number, listener=lambda p: seen.append(p.round), stop=lambda: True)
    assert seen == [0, 1]

    def lose(progress: Progress) -> None:
        seen.append(progress.round)
        if progress.round == 2:
            (worker,) = multiprocessing.active_children()
            worker.kill()

    with pytest.raises(FedskewError, match=r"run 1: worker 1 ended with exit code -9; .* `fedskew resume 1` goes on"):
        execute(store, number, listener=lose)
    assert seen[2:] == [1, 2], "it went on from where it was stopped"
    assert store.run(number).status == "failed"
    assert not multiprocessing.active_children()
    execute(store, number)
    assert numbers(store, number) == pytest.approx(alone, rel=1e-11, abs=1e-12)


@pytest.mark.parametrize("error", [NoRoom("no space left"), FedskewError("the same everywhere")])
def test_a_worker_that_alone_cannot_go_on_ends(error: FedskewError, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the others would wait for it; what all processes meet, the first one tells."""
    experiment = quick()
    texts, x0 = [experiment.toml(), ""], assemble(experiment, experiment.dataset.load()).x0
    trees: list[Any] = [{"round": torch.tensor(0), "x": x0}, {}]

    class Told:
        rank, size = 1, 2

        def share_text(self) -> str:
            return texts.pop(0)

        def share_tree(self) -> Any:
            return trees.pop(0)

    def failing(*_: object) -> None:
        raise error

    monkeypatch.setattr(processes, "take_part", failing)
    group: Any = Told()
    if isinstance(error, NoRoom):
        with pytest.raises(SystemExit, match="fedskew: no space left"):
            processes.follow(group)
    else:
        processes.follow(group)
        assert not texts


def test_runs_side_by_side_have_no_workers(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="2 runs side by side with 2 workers each: choose one"):
        compare(quick(), ["fedavg", "scaffold"], seeds=1, folder=tmp_path, jobs=2)


@pytest.mark.parametrize(("workers", "jobs"), [(99999, 1), (1, 99999)])
def test_processes_far_beyond_the_cores_are_refused_before_any_starts(tmp_path: Path, workers: int, jobs: int) -> None:
    """Each loads PyTorch: of a typing error's many, memory would run out."""
    with pytest.raises(BadInput, match="99999 processes side by side are too many here; take at most"):
        compare(quick(workers=workers), ["fedavg"], seeds=1, folder=tmp_path, jobs=jobs)
    assert not multiprocessing.active_children()


def test_torchrun_starts_the_same_command_in_every_process(tmp_path: Path, alone: Numbers) -> None:
    toml = tmp_path / "mine.toml"
    toml.write_text(quick(workers=1).toml())
    words = ["--standalone", "--nproc-per-node", "2", "-m", "fedskew", "run", str(toml), "--runs", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    store = RunStore(tmp_path)
    assert [r.status for r in store.runs()] == ["finished"]
    assert numbers(store, 1) == pytest.approx(alone, rel=1e-11, abs=1e-12)
