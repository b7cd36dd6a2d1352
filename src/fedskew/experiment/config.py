"""An experiment: its components and settings, and its TOML."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, ClassVar, Protocol, Unpack, cast

import tomli_w
import torch
from torch import nn

from fedskew import slots
from fedskew.algorithms import ALGORITHMS
from fedskew.core import contract
from fedskew.core.algorithm import Algorithm
from fedskew.core.component import Catalogue, build, from_table, label, plain, to_table, with_options
from fedskew.core.errors import BadInput, require, require_storable, suggestion
from fedskew.core.files import file_text, toml_table
from fedskew.core.metrics import METRICS
from fedskew.core.privacy import check_part
from fedskew.core.task import TaskKind
from fedskew.core.user_code import MARK, asking
from fedskew.engine import ENGINES, Sequential, Stacked
from fedskew.experiment import settings
from fedskew.experiment.keywords import Settings, divided
from fedskew.loop.faults import Faults
from fedskew.loop.plan import Local, System
from fedskew.measure.privacy import check_installed
from fedskew.measure.registry import DECLARED, MEASURES, PLACES, Measure, Measures, measures_of
from fedskew.models import MODELS
from fedskew.models.own import adapted
from fedskew.skew.compose import KNOWN as KNOWN_SKEWS, skews_of
from fedskew.tasks import TASKS

KNOWN_METRICS = Catalogue("metrics", {}, contract.Metric, optional=tuple(DECLARED))

SPLITS = ("test", "clients", "personal", "round")
"""Splits on which a user's metric may be measured."""


def metrics_of(spec: object) -> tuple[contract.Metric, ...]:
    """Build metrics from a compact string, a table, a class, an object, or a list of these."""
    specs = spec if isinstance(spec, list | tuple) else [spec]
    metrics: tuple[contract.Metric, ...] = tuple(build("metric", KNOWN_METRICS, part) for part in specs)
    names = [str(row_of(metric)["name"]) for metric in metrics]
    for name in names:
        require(names.count(name) == 1, f"metric: {name} is given twice")
        require(
            name not in {m.key for m in MEASURES},
            f"metric: {name} is a measure of fedskew; give the class another name",
        )
    return metrics


def row_of(metric: contract.Metric) -> dict[str, str | float]:
    """Return the metric's fields for `fedskew.measure.registry.Measure`. ``Gini:weight=2`` gets the name ``gini_weight_2``."""
    short = label(metric, KNOWN_METRICS).rpartition(MARK)[2]
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", re.sub(r"\W+", "_", short)).strip("_").lower()
    attributes = {key: kind(getattr(metric, key)) for key, kind in DECLARED.items() if hasattr(metric, key)}
    row = {"split": metric.split, "name": words, "note": getattr(metric, "idea", "") or words.replace("_", " ")}
    row |= {"reduce": "mean" if metric.split == "round" else "last", **attributes}
    for key, values in (("split", SPLITS), ("reduce", PLACES), ("better", ("", "higher", "lower"))):
        value = str(row.get(key, next(iter(values))))
        require(value in values, f"metric {short}: {key} cannot be {value!r}; {suggestion(value, values)}")
    return row


def decisions_of(decides: Mapping[str, str], method: str) -> list[dict[str, object]]:
    """Return the measures that a method declares in ``decides``, as a run stores them; errors name the method.

    Raises `BadInput` for a key of another form, and for a name that every run stores.
    """
    rows: list[dict[str, object]] = []
    reserved = {(m.split, m.name) for m in MEASURES} | {("round", m.key) for m in MEASURES}
    for key, note in decides.items():
        split, _, name = key.partition("/")
        what = f"algorithm {method}: decides has {key!r}"
        require(
            bool(re.fullmatch("(client|round)/[a-z][a-z0-9_]*", key)), f"{what}; write 'client/NAME' or 'round/NAME'"
        )
        require((split, name) not in reserved, f"{what}, which every run stores; give it another name")
        rows.append({"split": split, "name": name, "note": note, "views": ["curve"] if split == "round" else []})
    return rows


SETTINGS: dict[str, type] = {
    "clients": settings.Clients,
    "server_data": settings.ServerData,
    "shared_data": settings.SharedData,
    "training": settings.Training,
    "evaluation": settings.Evaluation,
    "checkpoint": settings.Checkpoint,
    "local": Local,
    "system": System,
    "faults": Faults,
}
"""Sections that hold plain settings."""


class Architecture(Protocol):
    """A model by name and options."""

    def __hash__(self) -> int: ...

    @property
    def has_features(self) -> bool:
        """True if the module returns the features of its last hidden layer, too."""

    def build(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> nn.Module:
        """Build a module for rows of this shape; draw its initial parameters from the generator."""


COMPONENTS: dict[str, Catalogue] = {
    "dataset": settings.KNOWN_DATA,
    "skew": KNOWN_SKEWS,
    "task": Catalogue("tasks", TASKS, TaskKind),
    "model": Catalogue("models", MODELS, Architecture, adapt=adapted),
    "algorithm": Catalogue("algorithms", ALGORITHMS, Algorithm),
    "solver": Catalogue("solvers", slots.SOLVERS, contract.Solver, optional=("unit_response", "respond")),
    "server": Catalogue("servers", slots.SERVER_OPTIMISERS, contract.ServerOptimiser),
    "augment": Catalogue("augmentations", slots.AUGMENTATIONS, contract.Augmentation),
    "availability": Catalogue("availabilities", slots.AVAILABILITIES, contract.Availability),
    "refine": Catalogue("refines", slots.REFINES, contract.Refinement),
    "selection": Catalogue("selections", slots.SELECTIONS, contract.Selection),
    "sharing": Catalogue("sharings", slots.SHARINGS, contract.Sharing),
    "codec": Catalogue("codecs", slots.CODECS, contract.Codec),
    "harmonisation": Catalogue(
        "harmonisations", slots.HARMONISATIONS, contract.RowHarmonisation, contract.OutputHarmonisation
    ),
    "metric": KNOWN_METRICS,
    "engine": Catalogue("engines", {"auto": settings.Auto, **ENGINES}),
}
"""Sections that hold a component chosen by name."""


SEVERAL: dict[str, Callable[[object], tuple[object, ...]]] = {"skew": skews_of, "metric": metrics_of}
"""Sections that hold several components."""


ABSENT: Mapping[str, type] = {"harmonisation": slots.Unharmonised}
"""Sections that TOML leaves out while they hold this component: runs of earlier versions keep their hash."""


@dataclass(frozen=True, kw_only=True, init=False)
class Experiment(settings.Dealing):
    """Everything that determines a run. A component is an object, a compact string or a table.

    Keywords are the options of the command line: ``Experiment(dataset="digits", clients=20, rounds=5, lr=0.1)``. Any other
    setting is ``section__option``, as in ``evaluation__every=1``.
    ``skew`` may be a list: at most one skew deals the rows, at most one sets the sizes, and any number change features and
    concepts. ``metric`` may be a list of your own classes.
    ``name`` is the run's name in tables; by default the compact form of the algorithm. ``task`` and ``model`` come from the
    data set by default. If the data set names no task, its targets decide the task. ``skew`` is ``natural`` by default for a
    data set with natural clients, and ``label-dirichlet:alpha=0.1`` for any other.
    Raises `BadInput`, which names the section and the option.
    """

    name: str = field(default="", metadata=settings.GIVEN)
    task: TaskKind = field(default=cast(TaskKind, None), metadata=settings.GIVEN)
    model: Architecture = field(default=cast(Architecture, None), metadata=settings.GIVEN)
    algorithm: Algorithm = field(default=cast(Algorithm, "fedavg"))
    solver: contract.Solver = field(default_factory=slots.Sgd)
    server: contract.ServerOptimiser = field(default_factory=slots.ServerSgd)
    augment: contract.Augmentation = field(default_factory=slots.Unaugmented)
    availability: contract.Availability = field(default_factory=slots.Always)
    refine: contract.Refinement = field(default_factory=slots.Unrefined)
    selection: contract.Selection = field(default_factory=slots.Everyone)
    sharing: contract.Sharing = field(default_factory=slots.All)
    codec: contract.Codec = field(default_factory=slots.Uncompressed)
    harmonisation: contract.Harmonisation = field(default_factory=slots.Unharmonised)
    local: Local = field(default_factory=Local)
    system: System = field(default_factory=System)
    faults: Faults = field(default_factory=Faults)
    training: settings.Training = field(default_factory=settings.Training)
    evaluation: settings.Evaluation = field(default_factory=settings.Evaluation)
    metric: tuple[contract.Metric, ...] = ()
    engine: settings.Auto | Sequential | Stacked = field(default_factory=settings.Auto)
    checkpoint: settings.Checkpoint = field(default_factory=settings.Checkpoint)

    default_task: ClassVar[bool]
    """True if no task was given. Then the data set or its targets decide the task (`suited`)."""

    def __init__(self, **keywords: Unpack[Settings]) -> None:
        whole, options = divided(keywords, SECTIONS, OPTIONS)
        for f in dataclasses.fields(self):
            default = f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
            object.__setattr__(self, f.name, whole.get(f.name, default))
        for section, catalogue in COMPONENTS.items():
            spec = getattr(self, section)
            if section == "task":
                object.__setattr__(self, "default_task", spec is None)
            if section in ("task", "model") and spec is None:
                spec = getattr(self.dataset, section, "classification")
            if section == "skew" and spec is None:
                spec = settings.default_skew(self.dataset)
            value = SEVERAL[section](spec) if section in SEVERAL else build(section, catalogue, spec)
            object.__setattr__(self, section, value)
        for section, cls in SETTINGS.items():
            value = getattr(self, section)
            if not isinstance(value, Mapping):
                require(isinstance(value, cls), f"{section}: expected a table of options, got {value!r}")
                value = plain(value)
            object.__setattr__(self, section, from_table(cls, value, section))
        for section, changes in options.items():
            object.__setattr__(self, section, changed(section, getattr(self, section), changes))
        if not self.name:
            object.__setattr__(self, "name", label(self.algorithm, COMPONENTS["algorithm"]))
        require_storable("name", self.name)

    def replace(self, **keywords: Unpack[Settings]) -> Experiment:
        """Return a copy with some settings changed; keywords are as in `Experiment`: ``lr=0.3``, ``training__seed=3``.

        A new algorithm also changes the name, if the name is the default one.
        """
        whole, options = divided(keywords, SECTIONS, OPTIONS)
        values = {name: getattr(self, name) for name in SECTIONS}
        if "name" not in whole and "algorithm" in {*whole, *options} and self.unnamed:
            values["name"] = ""
        if self.default_task:
            values["task"] = None
        single = {f"{section}__{option}": value for section, all in options.items() for option, value in all.items()}
        return type(self)(**cast(Settings, {**values, **whole, **single}))

    @property
    def unnamed(self) -> bool:
        """True if the name is the algorithm's compact form. Such a name changes with the algorithm."""
        methods = COMPONENTS["algorithm"]
        try:
            with asking():
                return (
                    label(self.algorithm, methods) == self.name
                    or build("algorithm", methods, self.name) == self.algorithm
                )
        except BadInput:
            return False

    def table(self) -> dict[str, Any]:
        """Return the complete experiment as nested plain values."""
        result: dict[str, object] = {"name": self.name}
        for f in dataclasses.fields(self):
            if f.name in SEVERAL:
                tables = [to_table(part, COMPONENTS[f.name]) for part in self.parts(f.name)]
                result |= {f.name: tables[0] if len(tables) == 1 else tables} if tables else {}
            elif f.name in COMPONENTS and type(getattr(self, f.name)) is not ABSENT.get(f.name):
                result[f.name] = to_table(getattr(self, f.name), COMPONENTS[f.name])
            elif f.name in SETTINGS:
                result[f.name] = plain(getattr(self, f.name))
        return result

    @property
    def declared(self) -> dict[str, object]:
        """What a run stores about the user's own measures, and the metrics of a task of the user's.

        The primary metric is never ``aside``, so that it is measured on clients, too.
        """
        metrics = (replace(m, aside=m.aside and m.name != self.task.primary) for m in self.task.metrics)
        return {
            "measures": [
                *map(row_of, self.metric),
                *decisions_of({**self.system.decides, **type(self.algorithm).decides}, type(self.algorithm).__name__),
            ],
            "metrics": [metric.given() for metric in metrics if metric not in METRICS],
        }

    @cached_property
    def measures(self) -> Measures:
        """The measures that runs of this experiment may store."""
        return measures_of([self.declared])

    @property
    def measure(self) -> Measure:
        """The primary measure, by which methods are compared."""
        return self.measures.primary(self.task.primary)

    def parts(self, section: str) -> tuple[Any, ...]:
        """Return the contents of a section. Only ``skew`` and ``metric`` may have more or less than one."""
        value = getattr(self, section)
        return value if isinstance(value, tuple) else (value,)

    def components(self) -> list[object]:
        """Return all components in one list."""
        return [part for section in COMPONENTS for part in self.parts(section)]

    def _repr_html_(self) -> str:
        """Show data, skew, model, method, and all settings that differ from their defaults, in a notebook."""
        default = type(self)(dataset=self.dataset).table()
        always = ("dataset", "skew", "model", "algorithm")
        texts = {section: " + ".join(self.labels(section, True)) for section in always}
        for section, table in self.table().items():
            if section in SETTINGS:
                changed = [f"{key}={value}" for key, value in table.items() if value != default[section].get(key)]
                texts |= {section: ", ".join(changed)} if changed else {}
            elif section not in (*always, "name") and table != default.get(section):
                texts[section] = " + ".join(self.labels(section, True))
        rows = "".join(f"<tr><td>{name}</td><td>{escape(text)}</td></tr>" for name, text in texts.items())
        return f"<p>{escape(self.name)}</p><table>{rows}</table>"

    def labels(self, section: str, with_first: bool = False) -> list[str]:
        """Return the compact form of each component in a section."""
        return [label(part, COMPONENTS[section], with_first) for part in self.parts(section)]

    def toml(self) -> str:
        """Return the experiment as TOML. `from_toml` makes an equal object from it."""
        return tomli_w.dumps(self.table())

    def hash(self) -> str:
        """Return the first sixteen hex digits of the SHA-256 of the complete TOML."""
        return hashlib.sha256(self.toml().encode()).hexdigest()[:16]


SECTIONS = [f.name for f in dataclasses.fields(Experiment)]
OPTIONS = {section: [f.name for f in dataclasses.fields(cls)] for section, cls in SETTINGS.items()}


def changed(section: str, value: object, changes: Mapping[str, object]) -> object:
    """Return a section with some options changed. If ``changes`` has another component's ``name``, build that component."""
    if isinstance(value, tuple):
        require(
            len(value) == 1,
            f"{section}.{next(iter(changes))}: needs exactly one {section}, got {len(value)}; write options as NAME:OPTION=VALUE",
        )
        return (changed(section, value[0], changes),)
    place, catalogue = section, COMPONENTS.get(section)
    if catalogue:
        name = to_table(value, catalogue)["name"]
        if changes.get("name", name) != name:
            return build(section, catalogue, changes)
        place, changes = f"{section} {name}", {key: value for key, value in changes.items() if key != "name"}
    return with_options(value, changes, place)


def from_table_of_sections(table: Mapping[str, object], where: str = "experiment", trusted: bool = False) -> Experiment:
    """Build an experiment from nested plain values. Missing sections have their defaults.

    Code that they name runs only if this user has run or confirmed it before. ``trusted`` confirms it.
    """
    sections: dict[str, object] = {}
    for key, value in table.items():
        if key not in SECTIONS:
            raise BadInput(f"{where}: unknown section {key!r}; {suggestion(key, SECTIONS)}")
        if key in SETTINGS and not isinstance(value, Mapping):
            raise BadInput(f"{where}: {key} must be a table, [{key}], got {value!r}")
        if key == "name" and not isinstance(value, str):
            raise BadInput(f"{where}: name must be a string, got {value!r}")
        sections[key] = value
    training = sections.get("training")
    if isinstance(training, Mapping):
        # earlier versions had this option; 0 and 1 mean what every run does now
        sections["training"] = {option: value for option, value in training.items() if option != "workers"}
        if training.get("workers", 0) not in (0, 1):
            raise BadInput(
                f"{where}: training.workers no longer exists: use --jobs for several runs, torchrun for one large run"
            )
    try:
        with nullcontext() if trusted else asking():
            return Experiment(**cast(Settings, sections))
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None


def from_toml(text: str, where: str = "experiment", trusted: bool = False) -> Experiment:
    """Read an experiment from TOML. Errors name ``where``, the section and the option.

    Code files that it names run only if this user has run or confirmed them before. ``trusted`` confirms them.
    """
    return from_table_of_sections(toml_table(text, where), where, trusted)


def read(path: Path) -> Experiment:
    """Read an experiment from a TOML file. Code files that it names are trusted."""
    return from_toml(file_text(path), str(path), trusted=True)


def check_private(experiment: Experiment, method: str) -> None:
    """Raise `BadInput` if the method bounds its privacy loss, and a part of the experiment breaks the bound or does not say.

    The parts are all fields of `Experiment` except the algorithm and fields marked `GIVEN`.
    """
    algorithm = experiment.algorithm
    privacy = algorithm.contract().privacy
    if privacy is None:
        return
    kind = type(algorithm).__name__
    require(
        privacy.by is type(algorithm),
        f"{method} inherits its privacy loss; give {kind} a method `contract` of its own, with privacy by={kind} if its hooks "
        "keep the guarantee, else without privacy",
    )
    for section in dataclasses.fields(experiment):
        if section.name == "algorithm" or section.metadata == settings.GIVEN:
            continue
        for part in experiment.parts(section.name):
            check_part(method, section.name, part, privacy)
    if privacy.noise:
        check_installed()
