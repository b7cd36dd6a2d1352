"""Refinement on the server: ensemble distillation (FedDF)."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedskew.algorithms import FedAvg, Scaffold
from fedskew.api.functions import run
from fedskew.core.errors import BadInput, Diverged
from fedskew.core.records import Batch, Cohort, Upload
from fedskew.core.seeding import torch_stream
from fedskew.execution.build import check_needs
from fedskew.experiment.combinations import with_method
from fedskew.experiment.config import Experiment
from fedskew.loop.round import start
from fedskew.slots import Distillation, Momentum, Uniform, Unrefined
from tests.blobs import DATA, numbers, small
from tests.reference import apart, assert_close, f64, local_models, trajectory
from tests.small import TASK, X0, play, ragged


class FreeLogits:
    """A task with two classes. The parameters are the logits of each row."""

    num_classes = 2

    def logits(self, w: Tensor, x: Tensor) -> Tensor:
        return w.expand(len(x), 2)


def two_clients(refinement, x, **changes) -> Tensor:
    """Return one row and two models, (log 4, 0) and (log 9, log 9). The mean logits give q = softmax(log 6, log 3) = (2/3, 1/3)."""
    fed = ragged(FedAvg())
    server = fed.view(start(fed, X0))
    data = Batch(f64([[0.0]]), torch.zeros(1, dtype=torch.long), f64([1.0]))
    server = server._replace(x=f64([1.0, -2.0]), task=FreeLogits(), data=data, **changes)
    models = f64([[math.log(4), 0.0], [math.log(9), math.log(9)]])
    return refinement.refine(server, f64(x), Cohort(None, Upload(models - server.x, {}, {})))


def test_golden_sgd_steps() -> None:
    # from p = (1/2, 1/2): p - q = (-1/6, 1/6);  0.6 / 6 = 0.1
    one = Distillation(steps=1, lr=0.6, optimiser="sgd")
    assert_close(two_clients(one, [0.0, 0.0]), [0.1, -0.1])
    # the second step has p_1 = 1 / (1 + e^-0.2) and, along the cosine, half the rate
    p = 1 / (1 + math.exp(-0.2))
    two = replace(one, steps=2)
    assert_close(two_clients(two, [0.0, 0.0]), [0.1 + 0.3 * (2 / 3 - p), -0.1 - 0.3 * (2 / 3 - p)])
    constant = replace(two, schedule="constant")
    assert_close(two_clients(constant, [0.0, 0.0]), [0.1 + 0.6 * (2 / 3 - p), -0.1 - 0.6 * (2 / 3 - p)])


def plain_distillation(fed, outcome, averaged: Tensor, options: Distillation) -> Tensor:
    """Distil with torch's optimiser and schedule."""
    data, t = fed.server_data.x, outcome.server.round - 1
    with torch.no_grad():
        logits = torch.stack([TASK.logits(w, data) for w in local_models(outcome)]).mean(0)
    w = averaged.clone().requires_grad_()
    optimiser = torch.optim.Adam([w], lr=options.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, options.steps)
    generator = torch_stream(fed.seed, "refine", t)
    for _ in range(options.steps):
        rows = torch.randperm(len(data), generator=generator)[: options.batch_size]
        optimiser.zero_grad()
        log_p = F.log_softmax(TASK.logits(w, data[rows]), -1)
        F.kl_div(log_p, logits[rows].log_softmax(-1), reduction="batchmean", log_target=True).backward()
        optimiser.step()
        schedule.step()
    return w.detach()


@pytest.mark.parametrize("batch_size", [8, 500])
def test_against_torch_in_every_round(batch_size: int) -> None:
    options = Distillation(steps=12, lr=0.01, batch_size=batch_size)
    fed = replace(ragged(FedAvg(), selection=Uniform(clients=4)), refinement=options)
    for outcome in play(fed, X0, 3):
        n = outcome.work.view.info.num_examples
        averaged = outcome.work.view.x + (n / n.sum()) @ outcome.done.uploads.delta
        assert apart(outcome.server.x, averaged, 1e-3)
        assert_close(outcome.server.x, plain_distillation(fed, outcome, averaged, options), 1e-9)


def test_distillation_without_steps_is_fedavg() -> None:
    for refinement in (Unrefined(), Distillation(steps=0)):
        ours = trajectory(play(replace(ragged(FedAvg()), refinement=refinement), X0, 3))
        assert torch.equal(ours, trajectory(play(ragged(FedAvg()), X0, 3)))


# identical clients


def agreeing(dtype: torch.dtype):
    """Return three clients with equal updates, and the model that averages them."""
    fed = ragged(FedAvg())
    server = fed.view(start(fed, X0.to(dtype)))
    server = server._replace(data=server.data._replace(x=server.data.x.to(dtype)))
    delta = torch.full_like(server.x, 0.1) * torch.sin(torch.arange(len(X0))).to(dtype)
    deltas = delta.expand(3, -1)
    x = server.x + (f64([1 / 3] * 3) @ deltas.double()).to(dtype)
    return server, x, Cohort(None, Upload(deltas, {}, {}))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_identical_clients_have_nothing_to_teach(dtype: torch.dtype, optimiser: str) -> None:
    server, x, cohort = agreeing(dtype)
    assert torch.equal(Distillation(optimiser=optimiser).refine(server, x, cohort), x)


# where it stands in the round


@pytest.mark.parametrize("algorithm", [FedAvg(), Scaffold()])
def test_refinement_starts_after_the_server_optimiser_and_keeps_its_state(algorithm) -> None:
    plain = ragged(algorithm, server=Momentum(beta=0.5))
    options = Distillation(steps=7, lr=0.01)
    fed = replace(plain, refinement=options)
    one, two = (play(f, X0, 1)[0] for f in (plain, fed))
    cohort = Cohort(two.work.view.info, two.done.uploads)
    assert_close(two.server.x, options.refine(fed.view(start(fed, X0)), one.server.x, cohort))
    assert_close(two.server.opt["v"], one.server.opt["v"])


def test_a_refinement_that_explodes_is_named() -> None:
    fed = replace(ragged(FedAvg()), refinement=Distillation(steps=40, lr=1e308, optimiser="sgd", schedule="constant"))
    with pytest.raises(Diverged, match=r"refinement; lower refine\.lr"):
        play(fed, X0, 2)


# from the experiment


def test_feddf_runs_from_a_description_and_repeats_itself(tmp_path) -> None:
    experiment = small("feddf:steps=5,lr=0.01", rounds=2, server_data={"share": 0.2})
    assert experiment.refine == Distillation(steps=5, lr=0.01)
    runs = [run(experiment, data=DATA, runs=tmp_path / str(i)) for i in range(2)]
    plain = run(small(rounds=2, server_data={"share": 0.2}), data=DATA, runs=tmp_path / "plain")
    assert numbers(runs[0]) == numbers(runs[1])
    assert numbers(runs[0]) != numbers(plain)

    def sent(r) -> np.ndarray:
        return r.measurements().query("name == 'bytes_up'")["value"].to_numpy()

    assert (sent(runs[0]) == sent(plain)).all(), "nothing more is sent"


def test_refinement_is_refused_without_server_rows() -> None:
    with pytest.raises(BadInput, match=r"refine distillation needs rows on the server.*--server-data 0\.02"):
        check_needs(with_method(Experiment(), "feddf"))
    check_needs(with_method(Experiment(server_data={"share": 0.02}), "feddf"))
