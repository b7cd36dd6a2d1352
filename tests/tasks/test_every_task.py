"""What holds for every task: its promises, gradient descent on pooled rows, every method that needs no classes."""

import re
from dataclasses import replace

import pytest
import torch

from fedskew.algorithms import ALGORITHMS, FedAvg
from fedskew.conformance.miniature import federation, play, slots_of, start_of
from fedskew.conformance.promises import PROMISES, Subject, examined, hides_each_client, is_a_value, says_what_it_is
from fedskew.core.algorithm import local_loss
from fedskew.core.task import Batch
from fedskew.engine import Sequential
from fedskew.execution.build import setup_of
from fedskew.experiment.components import check
from fedskew.experiment.config import Experiment
from fedskew.loop.plan import Local, SeededPlanner
from fedskew.slots import Everyone, ServerSgd
from fedskew.tasks import TASKS
from tests.methods import first

SPECS = [*TASKS, "regression:error=absolute", "regression:error=huber", "regression:error=quantile"]
WITH_DATA = [promise for promise in PROMISES if promise not in (hides_each_client, is_a_value, says_what_it_is)]
"""The promises that depend on the task."""


def kind(spec: str):
    return Experiment(task=spec).task


def class_free(spec: str) -> list[str]:
    """The methods that take this task's targets."""
    setup = replace(setup_of(Experiment(task=spec)), server_rows=True, groups=False)
    return [name for name in ALGORITHMS if not first(name).accepts(setup)]


PAIRS = [(name, spec) for spec in TASKS if kind(spec).target != "classes" for name in class_free(spec)]


@pytest.mark.parametrize("spec", TASKS)
def test_fedskew_check_passes(spec: str) -> None:
    assert [f"{v.promise}: {v.reason}" for v in check(spec)[1] if not v.kept] == []


@pytest.mark.slow
@pytest.mark.parametrize(("name", "spec"), PAIRS)
def test_every_method_without_classes_keeps_its_promises_on_every_task(name: str, spec: str) -> None:
    subject = Subject(first(name), ServerSgd(), ALGORITHMS, slots_of(kind(spec)))
    for promise in WITH_DATA:
        verdict = examined(promise.__doc__ or "", promise, subject)
        assert verdict.kept, f"{verdict.promise}: {verdict.reason}"


@pytest.mark.parametrize("spec", SPECS)
def test_one_full_batch_step_of_all_clients_is_gradient_descent(spec: str) -> None:
    """On the sum of the clients' mean losses, weighted by their rows: the pooled rows' loss if a row's loss depends on it alone."""
    planner = SeededPlanner(Local(epochs=1, batch_size="all"), seed=7)
    fed = replace(federation(FedAvg(), selection=Everyone(), planner=planner), **slots_of(kind(spec)))
    parts = [torch.as_tensor(fed.partition.rows(k)) for k in fed.clients]
    parts = parts if getattr(kind(spec), "joint", False) else [torch.arange(len(fed.y))]
    batches = [Batch(fed.x[r], fed.y[r], torch.ones(len(r), dtype=torch.float64)) for r in parts]
    w = start_of(fed)
    for outcome in play(fed, Sequential(), 3):
        slope = torch.func.grad(lambda v: sum(len(b.y) / len(fed.y) * local_loss(fed.task, v, b) for b in batches))
        w = w - 0.1 * slope(w)
        torch.testing.assert_close(outcome.server.x, w, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("spec", [spec for spec in TASKS if kind(spec).target != "classes"])
def test_methods_that_need_classes_are_refused(spec: str) -> None:
    free = class_free(spec)
    assert {"fedlc", "fedntd", "fedproc", "fedga-alignment", "fedsol", "dualmetric", "fairfed"}.isdisjoint(free)
    assert {"fedavg", "scaffold", "fedprox", "ditto", "ifca", "qfedavg", "krum"} <= set(free)
    setup = replace(setup_of(Experiment(task=spec)), server_rows=True)
    for name in ("fedlc", "fedntd", "fedproc"):
        instead = first(name).accepts(setup).partition("works on classes, but these targets are no classes; use ")[2]
        assert set(re.findall(r"[a-z]+", instead)) & set(free) == {"fedprox", "moon"}
