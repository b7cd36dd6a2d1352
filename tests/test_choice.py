"""``engine = "auto"``: processes are started only where they pay, and what was measured is remembered."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedskew.algorithms import ALGORITHMS
from fedskew.cli.train import told as printed
from fedskew.core.component import build
from fedskew.core.records import Plan
from fedskew.engine.choose import Option, next_work
from fedskew.engine.group import Lost
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked
from fedskew.experiment import choice, rehearsal, remembered
from fedskew.experiment.build import assemble
from fedskew.experiment.choice import Limits, among_processes, chosen, settled
from fedskew.experiment.compare import prepare
from fedskew.experiment.rehearsal import of_experiment, rehearsed, steps_of
from fedskew.loop.plan import Local
from fedskew.loop.round import start
from tests.small import X0, ragged
from tests.test_experiment import DATA, small

torch.set_num_threads(1)

FED = ragged(
    build("algorithm", ALGORITHMS, "fedavg")
)  # 7 clients of 5, 17, 40, 3, 1, 9, 24 rows, two epochs in batches of 7
LENGTHS = [2, 6, 12, 2, 2, 4, 8]
TWO = Option(Stacked(), workers=2)


def work_of(fed=FED):
    work = next_work(fed, start(fed, X0), measure_local=False)
    assert work is not None
    return work


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("FEDSKEW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "engines.json"


# processes


@pytest.fixture
def played(monkeypatch) -> list:
    """A machine on which two processes take 0.6 of one's time for whole rounds of 2 s, and start within 10 s."""
    calls = []

    def rehearse(recipe, options, limit):
        calls.append([option.label for option in options])
        return [2.0, 1.2], 10.0

    monkeypatch.setattr(choice, "rehearsed", rehearse)
    return calls


def among(rounds: int, seconds: dict[str, float], workers: int = 2) -> tuple[Option, list[str]]:
    notes: list[str] = []
    limits = Limits(1, workers)
    return among_processes(Option(Stacked()), work_of(), rounds, limits, lambda: (FED, X0), seconds, notes), notes


def test_a_run_of_some_seconds_never_starts_processes(played) -> None:
    assert among(5, {"stacked": 1.0})[0] == Option(Stacked())
    assert among(500, {"stacked": 0.02})[0] == Option(Stacked())
    assert played == []


def test_a_long_run_is_shared_where_that_pays(played) -> None:
    """What is saved of a whole round, 0.8 s, is taken from the 1.5 s of training that were measured before."""
    seconds = {"stacked": 1.5}
    assert among(1000, seconds)[0] == TWO
    assert seconds == {"stacked": 1.5, "stacked 2 processes": pytest.approx(0.75), "start of 2 processes": 10.0}
    assert played == [["stacked", "stacked 2 processes"]]


@pytest.mark.parametrize(("rounds", "pays"), [(22, False), (23, True)])
def test_the_start_of_processes_counts(played, rounds: int, pays: bool) -> None:
    """10 + 0.5 R < 0.95 R from R = 22.2 rounds on."""
    known = {"stacked": 1.0, "stacked 2 processes": 0.5, "start of 2 processes": 10.0}
    assert (among(rounds, known)[0] == TWO) == pays
    assert played == []


def test_more_processes_are_tried_as_long_as_they_gain(played) -> None:
    known = {"stacked": 1.0, "stacked 2 processes": 0.5, "stacked 4 processes": 0.49, "stacked 8 processes": 0.1}
    assert among(10**6, known, workers=8)[0] == TWO
    assert among(10**6, known | {"stacked 4 processes": 0.3}, workers=4)[0].workers == 4


def test_processes_that_cannot_start_are_told_and_not_tried_again(monkeypatch) -> None:
    def lost(*_):
        raise Lost("a worker process did not start")

    monkeypatch.setattr(choice, "rehearsed", lost)
    seconds = {"stacked": 1.5}
    assert among(1000, seconds) == (
        Option(Stacked()),
        ["2 processes could not be tried: a worker process did not start"],
    )
    monkeypatch.setattr(choice, "rehearsed", None)
    assert among(1000, seconds) == (Option(Stacked()), [])


def test_runs_side_by_side_and_parts_of_a_group_have_no_processes_of_their_own(monkeypatch, cache) -> None:
    def as_many_as_may_be(best, work, rounds, limits, *_):
        asked.append(limits)
        return replace(best, workers=limits.workers)

    monkeypatch.setattr(choice, "among_processes", as_many_as_may_be)
    monkeypatch.setattr(choice, "cores", lambda: 8)
    experiment, asked = small(rounds=1).replace(engine="auto", training__threads=0), []
    for jobs, threads in ((1, torch.get_num_threads()), (2, 4)):
        (made,), _, _ = prepare([experiment], DATA, jobs)
        assert asked[-1] == Limits(threads, 8 if jobs == 1 else 1)
        assert 1 <= made.training.threads <= threads
        assert made.training.workers == asked[-1].workers
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    settled(experiment, DATA)
    assert asked[-1].workers == 1
    assert settled(experiment.replace(training__workers=2), DATA)[0].training.workers == 2
    assert settled(experiment.replace(engine="stacked"), DATA)[0].training.workers == 1


def test_limits_count_up_in_powers_of_two() -> None:
    assert [Limits(n).counts for n in (1, 2, 4, 6)] == [[1], [1, 2], [1, 2, 4], [1, 2, 4, 6]]
    assert Limits(6, given=True).counts == [6]


# the rehearsal


def test_steps_of_the_busiest_process_by_hand() -> None:
    """Rows in batches are 10, 42, 84, 6, 2, 28, 56: clients 2, 5, 4 have 12 + 4 + 2 steps, the others 8 + 6 + 2 + 2."""
    work = work_of()
    assert [len(plan.index) for plan in work.plans] == LENGTHS
    assert steps_of(Option(Sequential()), work, 99) == sum(LENGTHS)
    assert steps_of(Option(Sequential(), workers=2), work, 99) == 18
    assert steps_of(Option(Stacked(width=2)), work, 99) == 12 + 6 + 2 + 2
    assert steps_of(Option(Stacked(width=2), workers=2), work, 99) == 12 + 2
    assert steps_of(Option(Stacked(width=2)), work, 3) == 3 + 3 + 2 + 2
    # as many rows each, in six steps or one, of clients 0, 2, 1, 3: with states each is trained at home
    plans = [Plan(np.zeros(shape, int), np.ones(shape)) for shape in ((6, 1), (6, 1), (1, 6), (1, 6))]
    few = work._replace(clients=np.array([0, 2, 1, 3]), plans=plans)
    stateful = few._replace(view=work.view._replace(state={"c": torch.zeros(4)}))
    assert [steps_of(Option(Sequential(), workers=2), some, 99) for some in (few, stateful)] == [6 + 1, 6 + 6]


@pytest.mark.parametrize(("rounds", "a_round", "limit"), [(1000, 1.6, 10), (10, 1.6, 2), (1, 0.2, 10), (300, 1.0, 6)])
def test_a_long_run_rehearses_more_of_a_round(rounds: int, a_round: float, limit: int) -> None:
    """Whole rounds of 10 steps up to 0.3 s and a five hundredth of the run; of longer ones as many steps as that allows."""
    work: Any = SimpleNamespace(plans=[SimpleNamespace(index=range(10)), SimpleNamespace(index=range(3))])
    assert choice.extent(work, rounds, a_round)[0] == limit


@pytest.mark.parametrize("limit", [3, 12, 99])
def test_a_rehearsal_tells_a_whole_round_from_brief_ones(monkeypatch, limit: int) -> None:
    """On a machine where a round takes half a second beside its steps, and each of these a quarter."""
    option, work = Option(Sequential()), work_of()

    class Alone:
        rank = 0

        def agree(self, wanted):
            return wanted

    monkeypatch.setattr(
        rehearsal, "timed", lambda fed, engine, server, states, few: 0.5 + steps_of(option, work, few) / 4
    )
    assert rehearsal.a_round(FED, X0, option, Alone(), limit) == pytest.approx(0.5 + sum(LENGTHS) / 4)


def test_processes_are_really_started_and_end() -> None:
    recipe = partial(of_experiment, small("scaffold").replace(engine="auto").toml(), DATA)
    times, starting = rehearsed(recipe, [Option(Stacked()), TWO], limit=2)
    assert all(0 < seconds < 60 for seconds in [*times, starting])
    assert not multiprocessing.active_children()


def test_a_script_needs_no_guard(tmp_path) -> None:
    """The processes do not read it: else they would run it, too, and end."""
    script = tmp_path / "mine.py"
    script.write_text(
        "import fedskew\n"
        "training = {'rounds': 1, 'threads': 1, 'workers': 2}\n"
        "made = fedskew.run(fedskew.Experiment(training=training, engine='stacked', local={'steps': 1}))\n"
        "print(made.records[0].status)\n"
    )
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "finished\n", done.stderr


# what is remembered


def again_measured(*_):
    raise AssertionError("measured again")


def test_what_was_measured_is_remembered_and_printed(cache, monkeypatch) -> None:
    monkeypatch.setattr(choice, "busy", lambda: False)
    option, facts = chosen(FED, X0, True, Limits(1), lambda: (FED, X0))
    assert facts["remembered"] is False
    assert list(json.loads(cache.read_text()).values()) == [facts["estimated_seconds_a_round"]]
    monkeypatch.setattr(choice, "measured", again_measured)
    again, known = chosen(FED, X0, True, Limits(1), lambda: (FED, X0))
    assert (again, known) == (option, facts | {"remembered": True})
    assert printed([known]).startswith(f"remembered in {cache}, s a round: sequential ")
    assert printed([facts]).startswith("trial, s a round: sequential ")
    cache.unlink()
    with pytest.raises(AssertionError, match="measured again"):
        chosen(FED, X0, True, Limits(1), lambda: (FED, X0))


def test_nothing_measured_on_a_busy_machine_is_remembered(cache, monkeypatch) -> None:
    monkeypatch.setattr(choice, "busy", lambda: True)
    chosen(FED, X0, False, Limits(1), lambda: (FED, X0))
    assert not cache.exists()


DAMAGED = [b"", b"{", b"[]", b'{"a": 1}', b'{"a": {"b": "c"}}', b"\xff\xfe", b'{"a": {"b": 1e999}}', b"[" * 10**5]


@pytest.mark.parametrize("content", DAMAGED, ids=lambda content: repr(content[:12]))
def test_a_damaged_file_is_none(cache, content: bytes) -> None:
    cache.parent.mkdir()
    cache.write_bytes(content)
    assert remembered.recall("a") == {}
    remembered.remember("a", {"stacked": 0.123456})
    assert remembered.recall("a") == {"stacked": 0.1235}


def test_seconds_that_cannot_be_are_left_out(cache) -> None:
    cache.parent.mkdir()
    cache.write_text('{"a": {"stacked": -1, "sequential": 0, "stacked 2 threads": 2}}')
    assert remembered.recall("a") == {"stacked 2 threads": 2}


def test_a_file_that_cannot_be_written_is_none(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FEDSKEW_CACHE", str(tmp_path / "file"))
    (tmp_path / "file").write_text("not a folder")
    remembered.remember("a", {"stacked": 1.0})
    assert remembered.recall("a") == {}


def test_the_file_stays_small_and_whole(cache, monkeypatch) -> None:
    monkeypatch.setattr(remembered, "MOST", 2)
    for key in ("a", "b", "a", "c"):
        remembered.remember(key, {"stacked": 1.0})
    assert list(remembered.entries()) == ["a", "c"]
    assert list(cache.parent.iterdir()) == [cache]


def test_a_key_tells_what_time_depends_on(monkeypatch) -> None:
    def key(**changes) -> str:
        experiment = small("fedprox:mu=0.1").replace(**changes)
        made = assemble(experiment, DATA)
        work = next_work(made.federation, start(made.federation, made.x0), measure_local=False)
        assert work is not None
        return remembered.key_of(made.federation, work)

    same = [
        {"training__seed": 5, "skew": "iid"},
        {"solver": "sgd:lr=0.5"},
        {"algorithm": "fedprox:mu=0.7"},
        {"name": "mine"},
    ]
    other = [
        {"solver": "sgd:momentum=0.9"},
        {"algorithm": "fedprox:mu=0"},
        {"algorithm": "scaffold"},
        {"model": "mlp:hidden=[7]"},
        {"selection": "everyone"},
        {"local": Local(epochs=2, batch_size=4)},
        {"local": Local(epochs=9, batch_size=8)},
        {"training__dtype": "float64"},
        {"codec": "int8"},
    ]
    iid = key(skew="iid")
    assert {key(**{"skew": "iid"} | changes) for changes in same} == {iid}
    assert len({iid, *(key(**{"skew": "iid"} | changes) for changes in other)}) == len(other) + 1
    monkeypatch.setattr(torch, "__version__", "another")
    assert key(skew="iid") != iid


def test_a_round_that_takes_a_little_longer_is_the_same_workload() -> None:
    assert remembered.about(1000) == remembered.about(1040)
    assert remembered.about(1000) != remembered.about(1500)
    fed = replace(FED, rounds=50)
    assert remembered.key_of(fed, work_of(fed)) == remembered.key_of(FED, work_of())
