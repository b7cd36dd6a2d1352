"""Runs on the ranks of `torchrun`: the numbers of one process, a stop, a rank that is killed, and a wrong environment."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedskew.api.functions import run
from fedskew.core.errors import BadInput, FedskewError
from fedskew.engine.group import Lost
from fedskew.execution import plan
from fedskew.execution.run import register
from fedskew.execution.torchrun import in_step
from fedskew.experiment.config import Experiment, from_toml
from fedskew.store.runs import RunStore
from fedskew.studies import runner
from tests import stored
from tests.commands import error_of
from tests.waiting import wait_until

SECONDS = 100
"""How long the ranks of a test may take."""


def quick(**training: object) -> Experiment:
    """Return a short run of SCAFFOLD with personal models and inexactness. Both use the engine."""
    return Experiment(
        algorithm="scaffold",
        selection="uniform:clients=5",
        local={"epochs": 1, "batch_size": 16},
        engine="sequential",
        training={"rounds": 3, "threads": 1, "dtype": "float64"} | training,
        evaluation={"adapt_steps": 1, "inexactness": True},
        checkpoint={"every": 2},
    )


def long(states: str = "auto") -> Experiment:
    """Return a run with many rounds and few measurements, so that a signal arrives while it is training."""
    return quick(rounds=150, states=states).replace(evaluation={"every": 50, "adapt_steps": 1})


def numbers(store: RunStore, number: int) -> dict[tuple, float]:
    return {row[:-1]: row[-1] for row in stored.numbers(store, number)}


class Ranks:
    """Runs the same command on two ranks, started in the same way as by `torchrun`."""

    def __init__(self, folder: Path, *words: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
        self.files = [folder / f"rank {rank}.txt" for rank in range(2)]
        self.processes = []
        for rank, file in enumerate(self.files):
            with file.open("w") as output:
                command = [sys.executable, "-m", "fedskew", *words, "--runs", str(folder)]
                environment = os.environ | place | {"RANK": str(rank)}
                self.processes.append(
                    subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
                )

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait(timeout=10)

    def codes(self) -> list[int]:
        """Return the exit codes. If the ranks take too long, fail with their output."""
        try:
            return [process.wait(timeout=SECONDS) for process in self.processes]
        except subprocess.TimeoutExpired:
            raise AssertionError(self.printed()) from None

    def printed(self, rank: int | None = None) -> str:
        files = self.files if rank is None else [self.files[rank]]
        return "\n".join(f"{file.name}:\n{file.read_text()}" for file in files)

    def wait_for_round(self, store: RunStore, number: int, round_: int) -> None:
        def reached() -> bool:
            assert self.processes[0].poll() is None, self.printed()
            return bool(store.runs()) and store.run(number).rounds_done >= round_

        wait_until(reached, SECONDS, self.printed)


@pytest.fixture
def toml(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "mine.toml"
    path.write_text(quick().toml())
    return path


def test_two_ranks_give_the_numbers_of_one_process(tmp_path: Path, toml: Path) -> None:
    with Ranks(tmp_path, "run", str(toml)) as ranks:
        alone = run(quick(), runs=tmp_path / "alone")
        assert ranks.codes() == [0, 0], ranks.printed()
    assert numbers(RunStore(tmp_path), 1) == pytest.approx(numbers(alone.store, alone.ids[0]), rel=1e-11, abs=1e-12)


def test_two_ranks_stop_early_and_go_on_after_a_round_like_one_process(tmp_path: Path) -> None:
    experiment = quick(rounds=9, patience=2).replace(lr=3.0, evaluation={"adapt_steps": 1}, checkpoint__every=1)
    one = run(experiment, runs=tmp_path / "one")
    assert one.records[0].rounds_done < 9
    toml = tmp_path / "early.toml"
    toml.write_text(one.records[0].experiment)
    longer = quick(rounds=one.records[0].rounds_done + 2, init=f"1:{one.records[0].rounds_done}")
    longer = longer.replace(lr=3.0, evaluation={"adapt_steps": 1})
    run(longer, runs=tmp_path / "one")
    with Ranks(tmp_path, "run", str(toml)) as ranks:
        assert ranks.codes() == [0, 0], ranks.printed()
    store = RunStore(tmp_path)
    assert store.run(1).facts["best_round"] == one.records[0].facts["best_round"]
    assert numbers(store, 1) == pytest.approx(numbers(one.store, 1), rel=1e-9)
    toml.write_text(RunStore(tmp_path / "one").run(2).experiment)
    with Ranks(tmp_path, "run", str(toml)) as ranks:
        assert ranks.codes() == [0, 0], ranks.printed()
    assert numbers(store, 2) == pytest.approx(numbers(one.store, 2), rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("states", ["memory", "disk"])
def test_a_run_survives_a_killed_rank_and_a_stop(tmp_path: Path, states: str) -> None:
    """Apart from torch's own reports: each rank ends, rank 0 with a one-line message, and `resume` continues."""
    alone = run(long(), runs=tmp_path / "alone")
    store = RunStore(tmp_path)
    number = register(store, long(states))
    with Ranks(tmp_path, "resume", str(number)) as ranks:
        ranks.wait_for_round(store, number, 3)
        ranks.processes[1].kill()
        assert ranks.codes() == [1, -signal.SIGKILL], ranks.printed()
        assert "another rank has ended or does not answer" in ranks.printed(0).replace("\n", " ")
        assert not {"Traceback", "terminate"} & set(ranks.printed().split()), ranks.printed()
    assert store.run(number).status == "failed"
    begun = store.run(number).rounds_done
    with Ranks(tmp_path, "resume", str(number)) as ranks:
        ranks.wait_for_round(store, number, begun + 3)
        for process in ranks.processes:
            process.send_signal(signal.SIGTERM)
        assert ranks.codes() == [130, 0], ranks.printed()
    assert store.run(number).status == "interrupted"
    with Ranks(tmp_path, "resume", str(number)) as ranks:
        assert ranks.codes() == [0, 0], ranks.printed()
    assert numbers(store, number) == pytest.approx(numbers(alone.store, alone.ids[0]), rel=1e-11, abs=1e-12)


@pytest.mark.slow
def test_without_rank_0_the_others_end_in_one_line(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    number = register(store, long())
    with Ranks(tmp_path, "resume", str(number)) as ranks:
        ranks.wait_for_round(store, number, 1)
        ranks.processes[0].kill()
        assert ranks.codes() == [-signal.SIGKILL, 1], ranks.printed()
        assert "fedskew: rank 1: another rank has ended or does not answer" in ranks.printed(1)
        assert "Traceback" not in ranks.printed(), ranks.printed()


@pytest.mark.slow
def test_torchrun_starts_the_same_command_in_every_process(tmp_path: Path, toml: Path) -> None:
    """One run of the comparison diverges. All ranks continue with the next run."""
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "fedskew", "compare"]
    options = ["--seeds", "1", "--algorithms", "fedprox:mu=1e30", "scaffold"]
    done = subprocess.run(
        [sys.executable, *words, str(toml), *options, "--runs", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    store = RunStore(tmp_path)
    assert [r.status for r in store.runs()] == ["diverged", "finished"], done.stderr
    alone = run(quick(), runs=tmp_path / "alone")
    assert numbers(store, 2) == pytest.approx(numbers(alone.store, alone.ids[0]), rel=1e-11, abs=1e-12)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "abc"}, "RANK=abc, WORLD_SIZE=1: whole numbers are needed"),
        ({"RANK": "0", "WORLD_SIZE": "-2"}, "RANK=0, WORLD_SIZE=-2: whole numbers are needed"),
        ({"RANK": "1"}, "RANK=1, WORLD_SIZE=1: ranks go from 0 to WORLD_SIZE - 1"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "RANK=0, WORLD_SIZE=2, but MASTER_ADDR and MASTER_PORT not set"),
    ],
)
def test_a_wrong_environment_gives_a_one_line_error(
    environment: dict[str, str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (line,) = error_of("run", "--runs", tmp_path).splitlines()
    assert line.startswith(f"fedskew: {message}; start the same command on every machine with `torchrun")


def test_a_script_under_torchrun_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the refusal, each rank would play each run."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BadInput, match="torchrun shares the runs of `fedskew"):
        run(quick(), runs=tmp_path)


class BroadcastRecorder:
    """A group that records its broadcast flags."""

    def __init__(self) -> None:
        self.flags = list[bool]()

    def broadcast_flag(self, flag: bool) -> None:
        self.flags.append(flag)


def test_other_ranks_leave_a_run_when_rank_0_does() -> None:
    whole, broken = BroadcastRecorder(), BroadcastRecorder()
    assert list(in_step(whole, iter("abc"))) == ["a", "b", "c"]  # type: ignore[arg-type]
    assert whole.flags == [False, False, False]
    rounds = in_step(broken, iter("abc"))  # type: ignore[arg-type]
    next(rounds)
    next(rounds)
    rounds.close()
    assert broken.flags == [False, True]


def test_an_error_in_the_rounds_is_the_same_on_every_rank() -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise FedskewError("everywhere")

    group = BroadcastRecorder()
    with pytest.raises(FedskewError, match="everywhere"):
        list(in_step(group, failing()))  # type: ignore[arg-type]
    assert group.flags == [False]


def test_after_a_lost_rank_no_other_run_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RunStore(tmp_path)
    ids = [register(store, quick(seed=seed)) for seed in range(3)]

    def lose(_: object, number: int, *__: object) -> None:
        raise Lost(f"run {number}")

    monkeypatch.setattr(runner, "execute", lose)
    results = runner.Executor(store).execute(dict.fromkeys(ids))
    assert [str(ended.error) for ended in results] == ["run 1"]


def test_jobs_and_torchrun_exclude_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "launcher", lambda: (0, 2))
    err = error_of("compare", "--jobs", "2", "--runs", tmp_path)
    assert "fedskew: jobs: under torchrun runs go one after the other; leave it out" in err


@pytest.mark.parametrize("workers", [0, 1])
def test_an_old_file_with_one_worker_is_read(workers: int) -> None:
    text = quick().toml().replace("[training]\n", f"[training]\nworkers = {workers}\n")
    assert "workers" in text
    assert from_toml(text) == quick()
