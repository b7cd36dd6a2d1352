"""An experiment: a frozen tree of components and settings, read from and written to TOML."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from fedskew.algorithms import ALGORITHMS
from fedskew.core.component import build, from_table, label, plain, to_table
from fedskew.core.errors import BadInput, require_storable, suggestion
from fedskew.core.own import Methods
from fedskew.core.places import read_small
from fedskew.core.toml import toml_table
from fedskew.core.trust import asking
from fedskew.data import DATASETS
from fedskew.data.datasets.digits import Digits
from fedskew.engine import ENGINES
from fedskew.experiment.settings import Auto, Checkpoint, Clients, Evaluation, ServerData, SharedData, Training
from fedskew.loop.faults import Faults
from fedskew.loop.plan import Local
from fedskew.loop.system import System
from fedskew.models import MODELS
from fedskew.skew import SKEWS, LabelDirichlet
from fedskew.skew.compose import skews_of
from fedskew.slots import (
    AUGMENTATIONS,
    AVAILABILITIES,
    CODECS,
    REFINES,
    SELECTIONS,
    SERVER_OPTIMISERS,
    SHARINGS,
    SOLVERS,
    All,
    Always,
    Everyone,
    ServerSgd,
    Sgd,
    Unaugmented,
    Uncompressed,
    Unrefined,
)

COMPONENTS: dict[str, Mapping[str, Any]] = {
    "dataset": DATASETS,
    "skew": SKEWS,
    "model": MODELS,
    "algorithm": Methods(ALGORITHMS),
    "solver": SOLVERS,
    "server": SERVER_OPTIMISERS,
    "augment": AUGMENTATIONS,
    "availability": AVAILABILITIES,
    "refine": REFINES,
    "selection": SELECTIONS,
    "sharing": SHARINGS,
    "codec": CODECS,
    "engine": {"auto": Auto, **ENGINES},
}
"""Sections that hold a component chosen by name."""

SETTINGS: dict[str, type] = {
    "clients": Clients,
    "server_data": ServerData,
    "shared_data": SharedData,
    "local": Local,
    "system": System,
    "faults": Faults,
    "training": Training,
    "evaluation": Evaluation,
    "checkpoint": Checkpoint,
}
"""Sections that hold plain settings."""


GIVEN = {"private": "given"}
"""Marks fields of `Experiment` that are fixed before round 0. A privacy loss covers the rounds only."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that determines a run. Each component may be given as an object, a compact string or a table.

    ``skew`` may be a list: at most one skew deals the rows, one sets the sizes, and any number change features and concepts.
    ``name`` is the run's name in tables; by default the compact form of the algorithm. ``model`` defaults to the data set's.
    Raises `BadInput` that names the section and the option.
    """

    name: str = field(default="", metadata=GIVEN)
    dataset: Any = field(default_factory=Digits, metadata=GIVEN)
    skew: Any = field(default_factory=lambda: (LabelDirichlet(alpha=0.1),), metadata=GIVEN)
    clients: Clients = field(default_factory=Clients)
    server_data: ServerData = field(default_factory=ServerData)
    shared_data: SharedData = field(default_factory=SharedData)
    model: Any = field(default=None, metadata=GIVEN)
    algorithm: Any = "fedavg"
    solver: Any = field(default_factory=Sgd)
    server: Any = field(default_factory=ServerSgd)
    augment: Any = field(default_factory=Unaugmented)
    availability: Any = field(default_factory=Always)
    refine: Any = field(default_factory=Unrefined)
    selection: Any = field(default_factory=Everyone)
    sharing: Any = field(default_factory=All)
    codec: Any = field(default_factory=Uncompressed)
    local: Local = field(default_factory=Local)
    system: System = field(default_factory=System)
    faults: Faults = field(default_factory=Faults)
    training: Training = field(default_factory=Training)
    evaluation: Evaluation = field(default_factory=Evaluation)
    engine: Any = field(default_factory=Auto)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)

    def __post_init__(self) -> None:
        for section, catalogue in COMPONENTS.items():
            spec = getattr(self, section)
            if section == "model" and spec is None:
                spec = self.dataset.model
            made = skews_of(spec) if section == "skew" else build(section, catalogue, spec)
            object.__setattr__(self, section, made)
        for section, cls in SETTINGS.items():
            if isinstance(getattr(self, section), Mapping):
                object.__setattr__(self, section, from_table(cls, getattr(self, section), section))
        if not self.name:
            object.__setattr__(self, "name", label(self.algorithm, COMPONENTS["algorithm"]))
        require_storable("name", self.name)

    def replace(self, **sections: Any) -> Experiment:
        """A copy with some sections changed. ``training__seed=3`` changes one setting of a section.

        A default name follows the algorithm.
        """
        inner: dict[str, dict[str, Any]] = {}
        for key in [k for k in sections if "__" in k]:
            section, _, option = key.partition("__")
            inner.setdefault(section, {})[option] = sections.pop(key)
        for section, options in inner.items():
            sections[section] = dataclasses.replace(sections.get(section, getattr(self, section)), **options)
        if "algorithm" in sections and self.unnamed:
            sections.setdefault("name", "")
        return dataclasses.replace(self, **sections)

    @property
    def unnamed(self) -> bool:
        """Whether the name is only a compact form of the algorithm, so that it changes with the algorithm."""
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
        """The experiment as nested plain values, complete."""
        result: dict[str, Any] = {"name": self.name}
        for f in dataclasses.fields(self):
            if f.name == "skew":
                tables = [to_table(skew, SKEWS) for skew in self.skew]
                result["skew"] = tables[0] if len(tables) == 1 else tables
            elif f.name in COMPONENTS:
                result[f.name] = to_table(getattr(self, f.name), COMPONENTS[f.name])
            elif f.name in SETTINGS:
                result[f.name] = plain(getattr(self, f.name))
        return result

    def labels(self, section: str, with_first: bool = False) -> list[str]:
        """The compact forms of a section's components; several only of ``skew``."""
        held = getattr(self, section)
        return [label(c, COMPONENTS[section], with_first) for c in (held if section == "skew" else [held])]

    def toml(self) -> str:
        """The experiment as TOML; `from_toml` reads it back to an equal object."""
        return tomli_w.dumps(self.table())

    def hash(self) -> str:
        """Sixteen hex digits of the complete TOML."""
        return hashlib.sha256(self.toml().encode()).hexdigest()[:16]


def from_table_of_sections(table: Mapping[str, Any], where: str = "experiment") -> Experiment:
    """Build an experiment from nested plain values; missing sections have their defaults."""
    known = [f.name for f in dataclasses.fields(Experiment)]
    sections: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise BadInput(f"{where}: unknown section {key!r}; {suggestion(key, known)}")
        if key in SETTINGS and not isinstance(value, Mapping):
            raise BadInput(f"{where}: {key} must be a table, [{key}], got {value!r}")
        if key == "name" and not isinstance(value, str):
            raise BadInput(f"{where}: name must be a string, got {value!r}")
        sections[key] = value
    if "training" in sections:
        # a former option: today every run behaves as with 0 and 1
        sections["training"] = {**sections["training"]}
        if sections["training"].pop("workers", 0) not in (0, 1):
            raise BadInput(
                f"{where}: training.workers is gone: use --jobs for several runs, torchrun for one large run"
            )
    try:
        return Experiment(**sections)
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None


def from_toml(text: str, where: str = "experiment", trusted: bool = False) -> Experiment:
    """Read an experiment; errors name ``where``, the section and the option.

    Code that it names runs only if this person has run or confirmed it before. ``trusted`` confirms it.
    """
    table = toml_table(text, where)
    with nullcontext() if trusted else asking():
        return from_table_of_sections(table, where)


def read(path: Path) -> Experiment:
    """Read an experiment file."""
    try:
        text = read_small(path).decode()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BadInput(f"experiment file {path}: cannot be read: {reason}") from None
    return from_toml(text, str(path), trusted=True)
