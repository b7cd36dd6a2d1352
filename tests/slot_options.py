"""Every slot with every option of its catalogue, for tests of combinations: what is not listed is taken as it is by default.

A slot or an option that is new in the code is in these tests without a line here.
"""

import dataclasses
from functools import cache
from typing import Any

import numpy as np

from fedskew.core.errors import BadInput
from fedskew.data.dataset import Dataset
from fedskew.execution.build import Assembly, assemble, check_needs
from fedskew.experiment.combinations import with_method
from fedskew.experiment.config import COMPONENTS, SETTINGS, Experiment
from fedskew.experiment.settings import GIVEN

ELSEWHERE = {"algorithm", "engine", "checkpoint", "training", "clients", "metric", "task"}
"""Not slots: the method, the task, metrics of one's own, and what says how long, where and how often."""

INSTEAD: dict[tuple[str, str], list[str]] = {
    ("solver", "sgd"): ["sgd:lr=0.1", "sgd:lr=0.05,momentum=0.9,weight_decay=0.01,lr_decay=0.9"],
    ("solver", "adamw"): ["adamw:lr=0.01"],
    ("server", "momentum"): ["momentum:beta=0.5"],
    ("availability", "day-night"): ["day-night:period=3", "day-night:period=3,phase=label"],
    ("availability", "blocks"): ["blocks:rounds=1", "blocks:rounds=1,phase=label"],
    ("refine", "distillation"): ["distillation:steps=2"],
    ("selection", "uniform"): ["uniform:clients=5"],
    ("selection", "poisson"): ["poisson:rate=0.7"],
    ("codec", "top-k"): ["top-k:share=0.4", "top-k:share=0.4,error_feedback=false"],
    ("codec", "qsgd"): ["qsgd", "qsgd:error_feedback=true"],
    ("codec", "clip"): ["clip:norm=0.05"],
}
"""Options of a catalogue that need others than their defaults, or more than one of them."""

SET: dict[str, dict[str, list[dict[str, Any]]]] = {
    "system": {
        "stragglers": [{"stragglers": 0.5}],
        "drop_stragglers": [{"stragglers": 0.5, "drop_stragglers": True}],
        "dropout": [{"dropout": 0.4}],
        "epochs": [{"epochs": [1, 2, 3]}],
        "batch_sizes": [{"batch_sizes": "2-6"}],
        "resources": [{"resources": [0.5, 1.0]}],
        "variance": [{"variance": "loss"}, {"variance": "gradient", "resources": [0.5, 1.0]}],
    },
    "faults": {
        "share": [{"share": 0.3, "kinds": ["missing"], "attempts": 3, "fewest": 0.01}],
        "kinds": [
            {"share": 0.3, "kinds": ["not_finite", "wrong_shape", "too_long"], "longest": 1000.0, "fewest": 0.01}
        ],
        "longest": [],
        "attackers": [],
        "attack": [{"attackers": 0.3, "attack": a} for a in ("label-flip", "sign-flip", "gaussian")],
        "strength": [{"attackers": 0.3, "attack": "scaled", "strength": 30.0}],
        "longest_ratio": [{"attackers": 0.3, "attack": "scaled", "longest_ratio": 2.0}],
        "fewest": [],
        "attempts": [],
    },
    "evaluation": {
        "every": [{"every": 2, "max_clients": 3, "local_models": False}],
        "max_clients": [],
        "local_models": [],
        "adapt_steps": [{"adapt_steps": 2, "adapt_lr": 0.01}],
        "adapt_lr": [],
        "inexactness": [{"inexactness": True}],
        "layers": [{"layers": True, "classes": True}],
        "classes": [],
        "margin": [],
    },
    "local": {
        "epochs": [],
        "steps": [{"steps": 3, "batch_size": 4}],
        "batch_size": [{"epochs": 2, "batch_size": "all"}],
        "batches": [{"epochs": 2, "batch_size": 4, "batches": "independent"}],
    },
    "server_data": {"share": [], "warm_up": [{"share": 0.2, "warm_up": 2}]},
    "shared_data": {"beta": [{"beta": 0.2}], "alpha": [{"beta": 0.2, "alpha": 0.5}]},
}
"""The values of each setting that are tried, by the option; an empty list: tried with another option."""

FIRST: dict[str, Any] = {
    "solver": "sgd:lr=0.1",
    "local": {"epochs": 2, "batch_size": 12},
    "server_data": {"share": 0.2},
}
"""What stands in a slot beside what is tried in others, where that is not the default."""


def options() -> dict[str, dict[str, Any]]:
    """Of each slot the options by what they are called, the first of them harmless beside all others."""
    found: dict[str, dict[str, Any]] = {}
    for field in dataclasses.fields(Experiment):
        if field.metadata == GIVEN or field.name in ELSEWHERE:
            continue
        first = FIRST.get(field.name, default(field.name))
        tried = [first]
        if field.name in COMPONENTS:
            for name in COMPONENTS[field.name]:
                tried += INSTEAD.get((field.name, name), [name])
        else:
            for option in dataclasses.fields(SETTINGS[field.name]):
                tried += SET[field.name][option.name]
        found[field.name] = {str(one): one for one in tried}
    return found


def default(slot: str) -> Any:
    """The default of a slot in words."""
    return Experiment().labels(slot)[0] if slot in COMPONENTS else {}


def people() -> Dataset:
    """Sixty rows of two classes: two numbers, and one of two groups of people."""
    rng = np.random.default_rng(1)
    means, y = 2 * rng.standard_normal((2, 2)), np.arange(60) % 2
    x = np.column_stack([means[y] + rng.standard_normal((60, 2)), rng.integers(0, 2, 60)]).astype(np.float32)
    return Dataset(
        x=x,
        y=y,
        x_test=x[:12],
        y_test=y[:12],
        classes=("a", "b"),
        groups=np.arange(60) % 7,
        name="people",
        sensitive="group",
    )


PEOPLE = people()
BASE = Experiment(
    model="mlp:hidden=[4],norm=group",
    skew=["label-dirichlet:alpha=1.0", "quantity-lognormal:sigma=0.5"],
    clients={"number": 5, "held_out": 0.2},
    training={"rounds": 4, "threads": 1, "dtype": "float64", "seed": 3},
    engine="sequential",
    **FIRST,
)


@cache
def method_of(spec: str) -> Experiment:
    """The base experiment with a method, and under the sampling that the method asks for."""
    experiment = with_method(BASE, spec)
    privacy = experiment.algorithm.contract().privacy
    return experiment.replace(selection=f"poisson:rate={privacy.q}") if privacy else experiment


def fits(spec: str, **slots: Any) -> bool:
    """Whether a method and these slots go together, as far as that shows without data."""
    try:
        check_needs(method_of(spec).replace(**slots))
    except BadInput:
        return False
    return True


def made(spec: str, **slots: Any) -> Assembly | str:
    """A method with some slots, put together; or why it is refused."""
    try:
        return assemble(method_of(spec).replace(**slots), PEOPLE)
    except BadInput as error:
        return str(error)
