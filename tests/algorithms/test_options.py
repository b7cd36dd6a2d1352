"""Options that a method refuses: the message names the option."""

import pytest

from fedskew.algorithms import ALGORITHMS
from fedskew.core.component import build
from fedskew.core.errors import BadInput
from fedskew.slots import Poisson

REFUSED = {
    "afl": {"gamma=-0.1": "gamma must be", "gamma=inf": "gamma must be", "gamma=nan": "gamma must be"},
    "drfa": {"gamma=-0.1": "gamma must be", "gamma=inf": "gamma must be", "gamma=nan": "gamma must be"},
    "ditto": {"lam=-0.1": "lam", "lam=nan": "lam", "lam=inf": "lam"},
    "dp-fedavg": {
        "clip=0.0": "clip must be above 0",
        "clip=inf": "finite clip",
        "noise=-1.0": "noise must be",
        "noise=nan": "noise must be",
        "q=0.0": "q is a probability",
        "q=1.1": "q is a probability",
        "delta=0.0": "delta must be",
        "weighting=samples": "weighting must be uniform",
    },
    "dualmetric": dict.fromkeys(["mu=-0.1", "mu=nan", "mu=0.2", "mu_min=0.02", "mu_min=-1.0", "mu_max=0.001"], "mu"),
    "fairfed": {"beta=-1": "beta", "beta=nan": "beta"},
    "fedbs": {"cohort=0.0": "cohort ", "cohort=1.1": "cohort ", "tau=-1.0": "tau ", "tau=nan": "tau "},
    "fedga": {"eps=-1.0": "eps", "eps=nan": "eps", "weighting=unbiased": "weighting"},
    "fedga-generalisation": {"d=-0.1": "d ", "d=1.5": "d ", "d=nan": "d ", "weighting=unbiased": "weighting"},
    "fedlc": {"tau=-1.0": "tau", "tau=inf": "tau", "n_min=0.0": "n_min"},
    "fedmd": {"rows=0": "rows", "steps=-1": "steps", "batch_size=0": "batch_size", "weighting=unbiased": "weighting"},
    "fedntd": {"beta=-1.0": "beta", "beta=inf": "beta", "tau=0.0": "tau"},
    "fedpa": {
        "rho=-1.0": "rho",
        "rho=inf": "rho",
        "samples=0": "samples",
        "burn_in=1.0": "burn_in",
        "burn_in=-0.1": "burn_in",
        "burn_in_rounds=-1": "burn_in_rounds",
    },
    "fedpbs": {
        "mu=-0.1": "mu",
        "mu=inf": "mu",
        "batch_threshold=-1.0": "batch_threshold",
        "cohort=0.0": "cohort",
        "tau=-1.0": "tau",
        "variance_threshold=nan": "variance_threshold",
    },
    "fedsam": {"rho=-0.1": "rho must be a finite number, at least 0, got -0.1"},
    "mofedsam": {
        "rho=inf": "rho must be",
        "beta=0": "above 0 and at most 1, got 0",
        "beta=1.1": "above 0 and at most 1, got 1.1",
    },
    "fedsmoo": {
        "rho=-1.0": "rho must be a finite number, at least 0, got -1.0",
        "beta=0.0": "beta must be a finite number above 0, got 0.0",
        "beta=inf": "beta must be a finite number above 0, got inf",
    },
    "fedsol": {
        "rho=-1.0": "rho must be a finite number, at least 0, got -1.0",
        "temperature=0.0": "temperature must be above 0, got 0.0",
    },
    "ifca": {"k=0": "k", "spread=-1.0": "spread", "weighting=unbiased": "weighting"},
    "per-fedavg": {"alpha=-0.1": "alpha", "alpha=inf": "alpha", "delta=0.0": "delta"},
    "qfedavg": {"q=-0.1": "q must be", "q=inf": "q must be", "q=nan": "q must be"},
    "trimmed-mean": {
        "beta=0.5": "beta is the share cut on either side, at least 0 and below 0.5, got 0.5",
        "beta=-0.1": "got -0.1",
    },
    "krum": {
        "f=-1": "f is the number of clients that may be broken, at least 0, got -1",
        "c=0": "c is the number of averaged updates, at least 1, got 0",
    },
    "median": {"weighting=samples": "median: weighting must be uniform, got 'samples'"},
}
"""Method -> options -> words of the message."""


@pytest.mark.parametrize(
    ("spec", "words"), [(f"{name}:{options}", words) for name, own in REFUSED.items() for options, words in own.items()]
)
def test_wrong_options_are_refused(spec: str, words: str) -> None:
    with pytest.raises(BadInput) as error:
        build("algorithm", ALGORITHMS, spec)
    name = spec.partition(":")[0]
    assert words in str(error.value).replace(f"algorithm {name}", name, 1)


@pytest.mark.parametrize("rate", [0.0, 1.5])
def test_the_rate_of_poisson_sampling_is_a_probability(rate: float) -> None:
    with pytest.raises(BadInput, match="rate is a probability"):
        Poisson(rate=rate)
