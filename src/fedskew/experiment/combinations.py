"""Experiments from a method's name and keywords. Named combinations are published methods that only need certain settings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from fedskew.core.algorithm import Algorithm
from fedskew.core.component import build, canonical, from_table, parse
from fedskew.core.errors import BadInput, require, suggestion
from fedskew.core.limits import PositiveInt, PositiveShare, Share
from fedskew.core.user_code import MARK
from fedskew.data.dataset import Dataset
from fedskew.data.targets import TARGETS
from fedskew.experiment.config import COMPONENTS, Experiment
from fedskew.experiment.keywords import Settings
from fedskew.experiment.settings import Evaluation, SharedData
from fedskew.skew import Natural, Pooled
from fedskew.skew.concept import Concept
from fedskew.skew.feature import FeatureSkew
from fedskew.slots import Adagrad, Adam, All, Distillation, Everyone, Momentum, Norm, Personal, Yogi


@dataclass(frozen=True)
class Combination:
    """A named change to an experiment. ``apply(experiment, options)`` makes it; ``options`` is the class of its options."""

    idea: str
    changes: str
    options: type
    apply: Callable[[Experiment, Any], Experiment]
    cites: tuple[str, ...] = ()  # keys of its BibTeX entries


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """For combinations without options."""


@dataclass(frozen=True, kw_only=True)
class Steps:
    """``steps`` is the number of local steps between two averages."""

    steps: PositiveInt = 10


@dataclass(frozen=True, kw_only=True)
class FreshGradient:
    """``beta`` (0..1) is the weight of the gradient in a local step; the previous round's mean direction has 1 - beta."""

    beta: PositiveShare = 0.1


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """``steps`` is the number of local steps from the global model to a client's own model."""

    steps: PositiveInt = 10


@dataclass(frozen=True, kw_only=True)
class Head:
    """``head`` is the number of last layers that each client keeps."""

    head: PositiveInt = 1


@dataclass(frozen=True, kw_only=True)
class DataSharing(SharedData):
    """`SharedData` with the paper's relative size as default."""

    beta: Share = 0.05


def with_server(experiment: Experiment, server: object) -> Experiment:
    return experiment.replace(algorithm="fedavg", server=server)


def with_distillation(experiment: Experiment, refine: Distillation) -> Experiment:
    return experiment.replace(algorithm="fedavg", refine=refine)


def with_sharing(experiment: Experiment, options: DataSharing) -> Experiment:
    return experiment.replace(algorithm="fedavg", shared_data=SharedData(beta=options.beta, alpha=options.alpha))


def centralised(experiment: Experiment, _: NoOptions) -> Experiment:
    own = tuple(skew for skew in experiment.skew if not isinstance(skew, Pooled))
    changed = any(isinstance(skew, FeatureSkew | Concept) for skew in own)
    return experiment.replace(algorithm="fedavg", skew=(*own, Pooled()) if changed else Pooled(), selection=Everyone())


def local_sgd(experiment: Experiment, options: Steps | NoOptions) -> Experiment:
    steps = getattr(options, "steps", 1)
    return experiment.replace(
        algorithm="fedavg:weighting=uniform", selection=Everyone(), local__steps=steps, local__batches="independent"
    )


def fedcm(experiment: Experiment, options: FreshGradient) -> Experiment:
    return experiment.replace(algorithm={"name": "mofedsam", "rho": 0.0, "beta": options.beta})


def fedper(experiment: Experiment, options: Head) -> Experiment:
    return experiment.replace(algorithm="fedavg", sharing=Personal(head=options.head))


def fedbn(experiment: Experiment, _: NoOptions) -> Experiment:
    return experiment.replace(algorithm="fedavg", sharing=Norm())


def fine_tuned(experiment: Experiment, options: FineTuning) -> Experiment:
    return experiment.replace(algorithm="fedavg", sharing="all", evaluation__adapt_steps=options.steps)


def local_only(experiment: Experiment, _: NoOptions) -> Experiment:
    return experiment.replace(algorithm="fedavg", sharing=Personal(layers=("*",)))


def server_combination(idea: str, optimiser: type[Momentum | Adagrad | Adam | Yogi]) -> Combination:
    return Combination(idea, "update path", optimiser, with_server, optimiser.cites)


COMBINATIONS: Mapping[str, Combination] = {
    "fedavgm": server_combination("FedAvg with momentum on the server", Momentum),
    "fedadagrad": server_combination("FedAvg with Adagrad on the server", Adagrad),
    "fedadam": server_combination("FedAvg with Adam on the server", Adam),
    "fedyogi": server_combination("FedAvg with Yogi on the server", Yogi),
    "fedcm": Combination(
        "local steps mix the fresh gradient with the previous round's mean direction",
        "update path",
        FreshGradient,
        fedcm,
        ("fedcm",),
    ),
    "feddf": Combination(
        "FedAvg, then ensemble distillation on the server's rows",
        "aggregation",
        Distillation,
        with_distillation,
        Distillation.cites,
    ),
    "data-sharing": Combination(
        "FedAvg where every client also holds part of a public, class-balanced share of the rows",
        "data",
        DataSharing,
        with_sharing,
        ("data-sharing",),
    ),
    "centralised": Combination(
        "all rows in one place: the bound without federation",
        "nothing (a baseline)",
        NoOptions,
        centralised,
        ("sgd",),
    ),
    "parallel-sgd": Combination(
        "one batch a client, averaged after every step",
        "nothing (a baseline)",
        NoOptions,
        local_sgd,
        ("parallel-sgd",),
    ),
    "local-sgd": Combination(
        "a fixed number of steps between uniform averages",
        "nothing (a baseline)",
        Steps,
        local_sgd,
        ("local-sgd",),
    ),
    "fedper": Combination(
        "each client keeps the last layers to itself",
        "personalisation",
        Head,
        fedper,
        ("fedper",),
    ),
    "fedbn": Combination(
        "each client keeps its normalisation layers to itself",
        "personalisation",
        NoOptions,
        fedbn,
        ("fedbn",),
    ),
    "fedavg-ft": Combination(
        "FedAvg, whose global model each client fine-tunes on its own rows",
        "personalisation",
        FineTuning,
        fine_tuned,
        ("fedavg-ft",),
    ),
    "local-only": Combination(
        "every client trains alone and nothing is sent: the bound without cooperation",
        "nothing (a baseline)",
        NoOptions,
        local_only,
        ("fedavg",),
    ),
}


def has_own_models(experiment: Experiment) -> bool:
    """True if the method itself gives each client its own model. Fine-tuning does not count."""
    return type(experiment.algorithm).personal is not Algorithm.personal or not isinstance(experiment.sharing, All)


def with_method(experiment: Experiment, spec: object) -> Experiment:
    """Return the experiment with another method.

    ``spec`` is an algorithm or a combination with options, such as ``fedprox:mu=0.1``; this text becomes the run's name. It
    may also be an `Algorithm` object.
    """
    if not isinstance(spec, str):
        return experiment.replace(algorithm=spec, name="")
    methods = COMPONENTS["algorithm"]
    given, options = parse(spec, "algorithm")
    name = canonical(given, [*methods, *COMBINATIONS])
    spec = spec.replace(given, name, 1)
    if name in COMBINATIONS:
        combination = COMBINATIONS[name]
        made = combination.apply(experiment, from_table(combination.options, options, f"algorithm {name}"))
        return made.replace(name=spec)
    if name not in methods and MARK not in name:
        raise BadInput(f"algorithm: unknown algorithm {name!r}; {suggestion(name, [*methods, *COMBINATIONS])}")
    return experiment.replace(name=spec, algorithm=build("algorithm", methods, spec))


def suited(experiment: Experiment, dataset: Dataset) -> Experiment:
    """Return the experiment; if no task was given, with the default task for the data's targets."""
    if not experiment.default_task or experiment.task.target == dataset.target:
        return experiment
    return experiment.replace(task=TARGETS[dataset.target].task)


def experiment_from(base: Experiment | None, keywords: Mapping[str, object]) -> Experiment:
    """Apply the keywords to ``base``, or to the defaults of `fedskew run`. The method is applied last."""
    last = {key: value for key, value in keywords.items() if key.startswith("algorithm__")}
    given = {key: value for key, value in keywords.items() if key not in ("algorithm", "name", *last)}
    if base is None:
        made = Experiment(**cast(Settings, {"evaluation": Evaluation(every="auto"), **given}))
        require(
            "skew" in given or not isinstance(given.get("clients"), int) or not isinstance(made.skew[0], Natural),
            f"clients {given.get('clients')}: {made.labels('dataset')[0]} has natural clients; leave the number out, or "
            "add the skew label-dirichlet:alpha=0.1 or another one to deal its rows anew",
        )
    else:
        made = base.replace(**cast(Settings, given))
    if "algorithm" in keywords:
        made = with_method(made, keywords["algorithm"])
    made = made.replace(**cast(Settings, last)) if last else made
    return made.replace(name=str(keywords["name"])) if keywords.get("name") else made
