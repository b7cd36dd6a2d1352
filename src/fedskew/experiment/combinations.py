"""Experiments from a method's name and keywords. Named combinations are published methods that only need certain settings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from fedskew import slots
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
from fedskew.skew.compose import Skew
from fedskew.skew.concept import Concept
from fedskew.skew.feature import FeatureSkew


@dataclass(frozen=True)
class Combination:
    """A named change to an experiment. ``settings(experiment, options)`` returns the keywords that change."""

    idea: str
    changes: str
    options: type
    settings: Callable[[Experiment, Any], Mapping[str, object]]
    cites: tuple[str, ...] = ()  # keys of its BibTeX entries

    def apply(self, experiment: Experiment, options: object) -> Experiment:
        """Change the experiment. The method is FedAvg, unless the settings have another one."""
        return experiment.replace(**cast(Settings, {"algorithm": "fedavg", **self.settings(experiment, options)}))


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """For combinations without options."""


@dataclass(frozen=True, kw_only=True)
class LocalSteps:
    """``steps`` is the number of local steps between two averages."""

    steps: PositiveInt = 10


@dataclass(frozen=True, kw_only=True)
class FreshGradient:
    """``beta`` (0..1) is the weight of the gradient in a local step; the previous round's mean direction has 1 - beta."""

    beta: PositiveShare = 0.1


@dataclass(frozen=True, kw_only=True)
class AdaptationSteps:
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


def in_one_place(experiment: Experiment) -> tuple[Skew, ...]:
    """Return the skew of data in one place: one client has all rows. Changes of rows stay, as they are part of the task."""
    others = tuple(skew for skew in experiment.skew if not isinstance(skew, Pooled))
    changed = any(isinstance(skew, FeatureSkew | Concept) for skew in others)
    return (*others, Pooled()) if changed else (Pooled(),)


def steps_between_averages(steps: int) -> dict[str, object]:
    """Return the settings of local SGD: a number of steps on independent batches, then a uniform average of all clients."""
    return {
        "algorithm": "fedavg:weighting=uniform",
        "selection": slots.Everyone(),
        "local__steps": steps,
        "local__batches": "independent",
    }


def server_combination(
    idea: str, optimiser: type[slots.Momentum | slots.Adagrad | slots.Adam | slots.Yogi]
) -> Combination:
    return Combination(idea, "update path", optimiser, lambda _, server: {"server": server}, optimiser.cites)


def site_combination(harmonisation: type[slots.SiteScale | slots.Combat | slots.SiteBias | slots.Prior]) -> Combination:
    idea, cites = f"FedAvg, and {harmonisation.idea}", getattr(harmonisation, "cites", ("fedavg",))
    return Combination(idea, "data", harmonisation, lambda _, options: {"harmonisation": options}, cites)


COMBINATIONS: Mapping[str, Combination] = {
    "fedavgm": server_combination("FedAvg with momentum on the server", slots.Momentum),
    "fedadagrad": server_combination("FedAvg with Adagrad on the server", slots.Adagrad),
    "fedadam": server_combination("FedAvg with Adam on the server", slots.Adam),
    "fedyogi": server_combination("FedAvg with Yogi on the server", slots.Yogi),
    "fedcm": Combination(
        "local steps mix the fresh gradient with the previous round's mean direction",
        "update path",
        FreshGradient,
        lambda _, options: {"algorithm": {"name": "mofedsam", "rho": 0.0, "beta": options.beta}},
        ("fedcm",),
    ),
    "feddf": Combination(
        "FedAvg, then ensemble distillation on the server's rows",
        "aggregation",
        slots.Distillation,
        lambda _, refine: {"refine": refine},
        slots.Distillation.cites,
    ),
    "data-sharing": Combination(
        "FedAvg where every client also holds part of a public, class-balanced share of the rows",
        "data",
        DataSharing,
        lambda _, options: {"shared_data": SharedData(beta=options.beta, alpha=options.alpha)},
        ("data-sharing",),
    ),
    "fedavg-site-scale": site_combination(slots.SiteScale),
    "fedavg-combat": site_combination(slots.Combat),
    "fedavg-site-bias": site_combination(slots.SiteBias),
    "fedavg-prior": site_combination(slots.Prior),
    "centralised": Combination(
        "all rows in one place: the bound without federation",
        "nothing (a baseline)",
        NoOptions,
        lambda experiment, _: {"skew": in_one_place(experiment), "selection": slots.Everyone()},
        ("sgd",),
    ),
    "parallel-sgd": Combination(
        "one batch a client, averaged after every step",
        "nothing (a baseline)",
        NoOptions,
        lambda *_: steps_between_averages(1),
        ("parallel-sgd",),
    ),
    "local-sgd": Combination(
        "a fixed number of steps between uniform averages",
        "nothing (a baseline)",
        LocalSteps,
        lambda _, options: steps_between_averages(options.steps),
        ("local-sgd",),
    ),
    "fedper": Combination(
        "each client keeps the last layers to itself",
        "personalisation",
        Head,
        lambda _, options: {"sharing": slots.Personal(head=options.head)},
        ("fedper",),
    ),
    "fedbn": Combination(
        "each client keeps its normalisation layers to itself",
        "personalisation",
        NoOptions,
        lambda *_: {"sharing": slots.Norm()},
        ("fedbn",),
    ),
    "fedavg-ft": Combination(
        "FedAvg, whose global model each client fine-tunes on its own rows",
        "personalisation",
        AdaptationSteps,
        lambda _, options: {"sharing": "all", "evaluation__adapt_steps": options.steps},
        ("fedavg-ft",),
    ),
    "local-only": Combination(
        "every client trains alone and nothing is sent: the bound without cooperation",
        "nothing (a baseline)",
        NoOptions,
        lambda *_: {"sharing": slots.Personal(layers=("*",))},
        ("fedavg",),
    ),
}


def has_own_models(experiment: Experiment) -> bool:
    """True if the method itself gives each client its own model. Fine-tuning does not count."""
    return type(experiment.algorithm).personal is not Algorithm.personal or not isinstance(
        experiment.sharing, slots.All
    )


Warn = Callable[[str], None]


def with_method(experiment: Experiment, spec: object, warn: Warn = lambda _: None) -> Experiment:
    """Return the experiment with another method. ``warn`` gets a line on each component, no default, that the method replaces.

    ``spec`` is an algorithm or a combination with options, such as ``fedprox:mu=0.1``; this text becomes the run's name. It
    may also be an `Algorithm` object.
    """
    if not isinstance(spec, str):
        return experiment.replace(algorithm=spec, name="")
    methods = COMPONENTS["algorithm"]
    word, options = parse(spec, "algorithm")
    name = canonical(word, [*methods, *COMBINATIONS])
    spec = spec.replace(word, name, 1)
    if name in COMBINATIONS:
        combination = COMBINATIONS[name]
        built: object = from_table(combination.options, options, f"algorithm {name}")
        result, usual = combination.apply(experiment, built).replace(name=spec), Experiment(dataset=experiment.dataset)
        for section in ("selection", "server", "sharing", "refine", "harmonisation"):
            [[before], [after], [default]] = (e.labels(section) for e in (experiment, result, usual))
            if before not in (after, default):
                warn(f"{name} has {section} {after}, not {before}")
        return result
    if name not in methods and MARK not in name:
        raise BadInput(f"algorithm: unknown algorithm {name!r}; {suggestion(name, [*methods, *COMBINATIONS])}")
    return experiment.replace(name=spec, algorithm=build("algorithm", methods, spec))


def suited(experiment: Experiment, dataset: Dataset) -> Experiment:
    """Return the experiment; if no task was given, with the default task for the data's targets."""
    if not experiment.default_task or experiment.task.target == dataset.target:
        return experiment
    return experiment.replace(task=TARGETS[dataset.target].task)


def experiment_from(base: Experiment | None, keywords: Mapping[str, object], warn: Warn = lambda _: None) -> Experiment:
    """Apply the keywords to ``base``, or to the defaults of `fedskew run`. The method is applied last, with `with_method`."""
    of_method = {key: value for key, value in keywords.items() if key.startswith("algorithm__")}
    settings = {key: value for key, value in keywords.items() if key not in ("algorithm", "name", *of_method)}
    if settings.keys() & {"init", "training__init"}:
        settings = {"training__init_hash": None, **settings}  # the hash of an earlier file
    if base is None:
        experiment = Experiment(**cast(Settings, {"evaluation": Evaluation(every="auto"), **settings}))
        clients, natural = settings.get("clients"), isinstance(experiment.skew[0], Natural)
        require(
            "skew" in settings or not isinstance(clients, int) or not natural,
            f"clients {clients}: {experiment.labels('dataset')[0]} has natural clients; leave the number out, or "
            "add the skew label-dirichlet:alpha=0.1 or another one to deal its rows anew",
        )
    else:
        experiment = base.replace(**cast(Settings, settings))
    if "algorithm" in keywords:
        experiment = with_method(experiment, keywords["algorithm"], warn)
    if keywords.get("name"):
        of_method["name"] = str(keywords["name"])
    return experiment.replace(**cast(Settings, of_method)) if of_method else experiment
