"""Planning: a run is dealt and assembled once, ``engine = "auto"`` is settled, and the plan is what executes."""

from inspect import signature
from pathlib import Path

import pytest
import torch

from fedskew.api.execute import start
from fedskew.api.functions import compare, resume, run, tune
from fedskew.api.study import study
from fedskew.cli.train import trial_times
from fedskew.core import machine
from fedskew.engine.choose import EngineChoice
from fedskew.engine.stacked import Stacked
from fedskew.execution import build, deal, plan
from fedskew.execution.build import assemble
from fedskew.execution.plan import Plan, Trial, remarks_on, settle
from fedskew.experiment.combinations import with_method
from fedskew.experiment.config import Experiment
from fedskew.studies.compare import cross
from tests.blobs import DATA, numbers, small

AUTO = small(rounds=1).replace(engine="auto", training__threads=0)


def settled(experiment: Experiment, jobs: int = 1) -> tuple[Experiment, Trial | None]:
    assembly, trial = settle(assemble(experiment, DATA), jobs)
    return assembly.experiment, trial


def counted(monkeypatch: pytest.MonkeyPatch, module: object, name: str) -> list[object]:
    """Return a list. Each call of the function appends its first argument."""
    calls, real = [], getattr(module, name)

    def call(first, *rest, **named):
        calls.append(first)
        return real(first, *rest, **named)

    monkeypatch.setattr(module, name, call)
    return calls


def test_a_run_is_dealt_and_assembled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assembled, dealt = counted(monkeypatch, plan, "assemble"), counted(monkeypatch, plan, "dealt_rows")
    again = counted(monkeypatch, deal, "dealt_rows")
    run(small(rounds=1).replace(engine="auto"), data=DATA, runs=tmp_path)
    assert (len(assembled), len(dealt), len(again)) == (1, 1, 0)


def test_a_comparison_deals_once_for_each_seed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    dealt, again = counted(monkeypatch, plan, "dealt_rows"), counted(monkeypatch, deal, "dealt_rows")
    compare(small(rounds=1), ["fedavg", "scaffold"], seeds=2, data=DATA, runs=tmp_path)
    assert [e.clients.partition_seed for e in dealt] == [0, 1]
    assert again == []


def test_the_warm_up_runs_on_the_threads_of_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Sums over the server's rows depend on the number of threads, and a repeated run must have the same bits."""
    threads = []
    real = build.warmed_up
    monkeypatch.setattr(build, "warmed_up", lambda *of: threads.append(torch.get_num_threads()) or real(*of))
    given = small(rounds=1).replace(server_data={"share": 0.2, "warm_up": 2}, training__threads=2)
    first = run(given, data=DATA, runs=tmp_path / "a")
    assert numbers(first) == numbers(run(given, data=DATA, runs=tmp_path / "b"))
    assert set(threads) == {2}


@pytest.fixture
def thread_choices(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Return the numbers of threads that the trials were offered. The fake trial takes the largest."""
    seen: list[list[int]] = []

    def choose(fed, work, threads):
        seen.append(threads)
        option = EngineChoice(Stacked(), threads[-1])
        return option, {"sequential": 0.123456, option.label: 0.01}

    monkeypatch.setattr(plan, "choose", choose)
    monkeypatch.setattr(plan, "cores", lambda: 8)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    return seen


@pytest.mark.parametrize(
    ("jobs", "given", "threads"), [(1, 0, [1, 6]), (2, 0, [1, 4]), (8, 0, [1]), (99, 0, [1]), (2, 3, [3])]
)
def test_threads_to_choose_from(thread_choices: list[list[int]], jobs: int, given: int, threads: list[int]) -> None:
    """The choices are one thread or all of PyTorch's, a share of the cores for parallel runs, or the user's number."""
    made, facts = settled(AUTO.replace(training__threads=given), jobs)
    assert thread_choices == [threads]
    assert made.engine == Stacked()
    assert made.training.threads == threads[-1]
    label = EngineChoice(Stacked(), threads[-1]).label
    expected = {"sequential": 0.1235, label: 0.01}
    assert facts == {"name": "stacked", "choice": label, "estimated_seconds_a_round": expected}


def test_a_named_engine_is_not_tried(thread_choices: list[list[int]]) -> None:
    made, facts = settled(AUTO.replace(engine="sequential"), jobs=2)
    assert (made.training.threads, facts, thread_choices) == (4, None, [])


def test_the_head_of_a_run_shows_the_trial() -> None:
    trials = [
        {"estimated_seconds_a_round": {"sequential": 0.5, "stacked": 0.28}},
        {"estimated_seconds_a_round": {"sequential": 0.5, "stacked": 0.343}},
    ]
    assert trial_times(trials) == "trial, s a round: sequential 0.5, stacked 0.28 to 0.34"


def test_a_processor_that_is_slower_in_half_precision_is_named(monkeypatch, tmp_path: Path, capsys) -> None:
    half = small(rounds=1).replace(training__precision="bf16", training__dtype="float32")
    for slower, experiment, lines in ((1e6, half, 0), (1e-6, half, 1), (1e-6, small(rounds=1), 0)):
        machine.slow_bf16.cache_clear()
        monkeypatch.setattr(machine, "SLOWER", slower)
        run(experiment, data=DATA, runs=tmp_path)
        assert capsys.readouterr().err.count("precision bf16: slower on this processor, ") == lines
    machine.slow_bf16.cache_clear()


def test_runs_go_side_by_side_on_all_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    planned = cross(small(rounds=1), ["fedavg", "fedprox"], [0])
    monkeypatch.setattr(plan, "cores", lambda: 3)
    assert plan.processes(None) == 3
    assert start(planned, DATA, tmp_path).jobs == 2  # no more than runs
    assert start(planned, DATA, tmp_path, jobs=1).jobs == 1
    assert [signature(verb).parameters["jobs"].default for verb in (compare, resume, tune, study)] == [None] * 4


@pytest.mark.parametrize(
    ("option", "line", "cure"),
    [
        ({"faults__attempts": 3}, "faults.attempts has no effect", {"faults__share": 0.1, "faults__longest": 1.0}),
        ({"faults__longest_ratio": 3.0}, "faults.longest_ratio has no effect without", {"faults__longest": 1.0}),
        ({"evaluation__adapt_lr": 0.1}, "evaluation.adapt_lr has no effect without", {"evaluation__adapt_steps": 2}),
        ({"epochs": 3, "steps": 4}, "local.epochs has no effect in training beside local.steps", {"steps": None}),
        ({"system__drop_stragglers": True}, "system.drop_stragglers has no effect", {"system__stragglers": 0.5}),
    ],
)  # fmt: skip
def test_an_option_without_effect_in_all_runs_has_a_line(option: dict, line: str, cure: dict) -> None:
    """Only the run's numbers could tell that the option was idle."""
    idle, active = Plan(small().replace(**option)), Plan(small().replace(**option | cure))
    assert [text for text in remarks_on([idle, idle]) if text.startswith(line)]
    assert remarks_on([active]) == remarks_on([idle, active]) == []


def test_a_component_that_a_method_replaces_has_a_line() -> None:
    """The command named a cohort, and the method calls everyone."""
    lines: list[str] = []
    with_method(small(), "fedadam", lines.append)  # replaces a default
    with_method(small(), "local-sgd", lines.append)
    with_method(small().replace(selection="everyone", server="momentum"), "local-sgd", lines.append)
    with_method(small().replace(server="momentum"), "fedadam", lines.append)
    assert lines == ["local-sgd has selection everyone, not uniform:clients=4", "fedadam has server adam, not momentum"]
