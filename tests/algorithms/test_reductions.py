"""Methods that become simpler ones, beside those that they declare (see tests/conformance/test_methods.py)."""

from functools import cache

import pytest
import torch

from fedskew.loop.plan import Local
from fedskew.slots import Adam, Everyone, Momentum, ServerSgd, Uniform
from tests.methods import ROUNDS, Record, federation, run
from tests.small import RAGGED

EPOCHS = Local(epochs=2, batch_size=8)
THREE_STEPS = Local(steps=3, batch_size=8)

REDUCTIONS = [  # method, the method that it becomes, local work, solver
    ("fednova:mu=0.3", "fedprox:mu=0.3", THREE_STEPS, "sgd"),
    *((f"fednova:weighting={w}", f"fedavg:weighting={w}", THREE_STEPS, "sgd") for w in ("uniform", "unbiased", "own")),
    ("fedlc:tau=0,n_min=1.0,weighting=uniform", "fedavg:weighting=uniform", EPOCHS, "adamw"),
    ("fedpa:burn_in_rounds=4", "fedavg", EPOCHS, "momentum"),
    ("fedpa:rho=0.5,burn_in_rounds=4", "fedavg", EPOCHS, "adamw"),
    ("fedpa:rho=5.0,samples=3,burn_in=0.5", "fedavg", Local(steps=1, batch_size=7), "sgd"),
    ("fedpa:samples=1,rho=0.5", "fedpa:samples=1,rho=0", EPOCHS, "sgd"),
    ("fedsam:rho=0,weighting=samples", "fedavg", EPOCHS, "adamw"),
    ("fedsol:rho=0,proximal=l2,scale=fixed", "fedavg", EPOCHS, "adamw"),
    ("trimmed-mean:beta=0.4", "median", EPOCHS, "sgd"),
    ("krum:f=0,c=4", "fedavg:weighting=uniform", EPOCHS, "sgd"),
    ("fedsmoo:rho=0,beta=2,weighting=samples", "feddyn:alpha=0.5,weighting=samples", EPOCHS, "adamw"),
    ("qfedavg:q=0,weighting=samples", "fedavg", EPOCHS, "adamw"),
    ("qfedavg:q=0,weighting=unbiased", "fedavg:weighting=unbiased", EPOCHS, "momentum"),
    ("fedpbs:mu=0.3,batch_threshold=0,variance_threshold=inf", "fedavg:weighting=uniform", EPOCHS, "momentum"),
    ("fedpbs:mu=0.3,variance_threshold=-inf", "fedprox:mu=0.3,weighting=uniform", EPOCHS, "adamw"),
    ("fedpbs:mu=0.3,batch_threshold=1.0", "fedprox:mu=0.3,weighting=uniform", EPOCHS, "momentum"),
    ("fedpbs:mu=0.3,batch_threshold=1.0,weighting=samples", "fedprox:mu=0.3", EPOCHS, "adamw"),
    ("fedbs:cohort=1.0,tau=1e15", "fedavg:weighting=uniform", EPOCHS, "sgd"),
    ("ditto:lam=8.0", "fedavg", EPOCHS, "adamw"),
    ("per-fedavg:alpha=0,form=hessian-free,batches=same", "fedavg:weighting=uniform", EPOCHS, "momentum"),
    ("dualmetric:mu=0.4,mu_min=0.4,mu_max=0.4,weighting=uniform", "fedprox:mu=0.4,weighting=uniform", EPOCHS, "adamw"),
]
EQUAL_SIZES = [
    ("fedavg:weighting=uniform", "fedavg"),
    ("fedavg:weighting=unbiased", "fedavg"),
    ("feddyn:alpha=0.3,weighting=samples", "feddyn:alpha=0.3"),
    ("scaffold:weighting=samples", "scaffold"),
]


@cache
def played(spec: str, solver: str, **options) -> Record:
    """The run of a method, once for all methods that become it."""
    return run(federation(spec, solver, **options))


def assert_same_steps(method: str, other: str, solver: str, **options) -> None:
    ours, theirs = (played(spec, solver, **options) for spec in (method, other))
    for round_ in range(1, ROUNDS + 1):
        for name in ("x", "uploads/delta", "scores/loss", "measures/drift", "clients"):
            key = f"{round_}/{name}"
            torch.testing.assert_close(ours[key], theirs[key], rtol=1e-12, atol=1e-12)


@pytest.mark.first
@pytest.mark.parametrize(("method", "other", "local", "solver"), REDUCTIONS)
def test_a_method_becomes_a_simpler_one(method: str, other: str, local: Local, solver: str) -> None:
    assert_same_steps(method, other, solver, local=local, sizes=tuple(RAGGED), selection=Uniform(clients=4))


@pytest.mark.parametrize(("method", "other"), EQUAL_SIZES)
def test_weightings_are_equal_for_equal_sizes(method: str, other: str) -> None:
    assert_same_steps(method, other, "sgd", local=EPOCHS, sizes=(8, 8, 8), selection=Everyone())


ALONE = [
    *("fedavg:weighting=uniform", "fedavg:weighting=unbiased", "fedprox:mu=0", "moon:mu=0", "fednova", "fedbs"),
    *("scaffold", "scaffold:option=I", "scaffold:weighting=samples", "afl:gamma=0.5", "drfa:gamma=0.5"),
    *("fedga", "fedga-generalisation"),
]


@pytest.mark.parametrize(
    ("method", "other"), [*((spec, "fedavg") for spec in ALONE), ("fednova:mu=0.5", "fedprox:mu=0.5")]
)
@pytest.mark.parametrize("server", [ServerSgd(lr=0.4), Momentum(beta=0.5), Adam(lr=0.1)], ids=repr)
def test_one_client_trains_as_under_fedavg(method: str, other: str, server) -> None:
    ours, theirs = (
        played(spec, "momentum", server=server, sizes=(13,), selection=Everyone()) for spec in (method, other)
    )
    for round_ in range(1, ROUNDS + 1):
        torch.testing.assert_close(ours[f"{round_}/x"], theirs[f"{round_}/x"], rtol=1e-12, atol=1e-12)
