"""Files in a run's folder: its experiment, and what a prediction needs besides the weights, such as the preprocessing."""

from __future__ import annotations

import hashlib
import json
from math import isfinite, prod
from typing import TYPE_CHECKING, Any, Self

import msgspec
import numpy as np

from fedskew.core.component import plain
from fedskew.core.errors import BadInput, require
from fedskew.core.files import numbers_in, read_small, require_regular, toml_table, write_whole
from fedskew.core.sites import Floats, OutputHarmonisation, SiteMaps
from fedskew.data.datasets.table import TableData
from fedskew.data.preprocessing import Array, Preprocessing, Tabular
from fedskew.execution.build import Assembly
from fedskew.execution.deal import ClientData, client_column
from fedskew.execution.prepare import fitted
from fedskew.experiment.config import Experiment
from fedskew.slots import Unharmonised
from fedskew.store.records import Json
from fedskew.store.runs import RunStore

if TYPE_CHECKING:
    from fedskew.data.tables.mapping import Mappings

FILE = "preprocessing.json"
VERSION = 1
CHECKSUM = "prediction"
"""The key of `checksum` in the facts of a checkpoint. Older checkpoints have none."""
MOST_BYTES, MOST_VALUES = 1 << 30, 10**8
"""Largest size of the file `FILE`, and largest number of values of a row or of categories."""


class Sites(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between the sites that trained, for new rows. Entries are by site; the last one is for unknown sites.

    ``factor``, ``offset``, ``effect`` and ``protected`` change preprocessed rows, see `SiteMaps`; ``intercept`` is added to the
    outputs. Each is empty if there is none. ``column`` of a table names each row's site; empty if no column does. ``unknown`` says
    what happens to rows of unknown sites; it is empty if that is the same as at all sites.
    """

    names: tuple[str, ...] = ()
    unknown: str = ""
    column: str = ""
    factor: tuple[tuple[float, ...], ...] = ()
    offset: tuple[tuple[float, ...], ...] = ()
    effect: tuple[tuple[tuple[float, ...], ...], ...] = ()
    protected: tuple[int, ...] = ()
    intercept: tuple[tuple[float, ...], ...] = ()

    @property
    def maps(self) -> SiteMaps | None:
        """The change of rows; None if they stay."""
        factor, offset, effect = map(np.array, (self.factor, self.offset, self.effect))
        return SiteMaps(factor, offset, effect, np.array(self.protected, np.int64)) if self.factor else None

    def only(self, client: int) -> Self:
        """Return what holds at one site, for all rows. Its model has its intercept already."""
        at = client if client < len(self.names) else -1
        parts: dict[str, Any] = {name: getattr(self, name)[at:][:1] for name in ("factor", "offset", "effect")}
        return type(self)(**parts, protected=self.protected)

    def check(self) -> None:
        """Raise `BadInput` unless a part is empty or has an entry of one length for each site, and one for unknown sites."""
        for part in (self.factor, self.offset, self.effect, self.intercept):
            sizes = [len(each) for each in part]
            wrong = f"it has {len(sizes)} entries and needs {len(self.names) + 1} of one length: by site, and for unknown sites"
            require(sizes == sizes[:1] * (len(self.names) + 1), wrong)


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that turns new rows into predictions, except the weights.

    ``preprocessing`` is None if unknown; ``shape`` is the shape of one preprocessed row. ``categories`` is the number of classes,
    labels or symbols. ``task`` and ``model`` are options of these components, as fitted to the training rows.
    """

    preprocessing: Preprocessing | None
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    categories: int
    task: dict[str, Any]
    model: dict[str, Any]
    sites: Sites | msgspec.UnsetType = msgspec.UNSET  # set if the run has a harmonisation
    mapped: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET  # ``mappings`` as plain values, if these change cells
    version: int = VERSION

    @property
    def by_site(self) -> Sites:
        """``sites``; without a harmonisation nothing differs between them."""
        return self.sites or Sites()

    @property
    def mappings(self) -> Mappings:
        """How TOML files changed the cells of training."""
        # imported here, because arrays need no PyArrow
        from fedskew.data.tables.mapping import Mappings

        return msgspec.convert(self.mapped or {}, Mappings)

    @property
    def agreed(self) -> str:
        """Says which cells an export takes in another form than training did; empty if it takes all as they are."""
        changed, spelt = self.mappings.brief, ", ".join(getattr(self.preprocessing, "spellings", ()))
        mapped = f"rows must have the agreed units and words; for training NAME.columns.toml changed {changed}"
        plain_cells = f"cells of {spelt} must be plain, such as 1200.5 or 2020-01-31"
        return "; ".join([mapped] * bool(changed) + [plain_cells] * bool(spelt))

    def check(self) -> None:
        """Raise `BadInput` if its parts do not fit each other, or if numbers are not finite or sizes are too large."""
        require(self.shape != () and all(size > 0 for size in self.shape), f"shape {self.shape}: sizes must be above 0")
        require(
            prod(self.shape) <= MOST_VALUES and 0 <= self.categories <= MOST_VALUES,
            f"shape {self.shape} with {self.categories} categories is larger than any row that fedskew trains on",
        )
        require(len(self.classes) in (0, self.categories), f"it names {len(self.classes)} classes of {self.categories}")
        if self.sites:
            self.sites.check()
        if self.mapped:
            _ = self.mappings
        preprocessing = self.preprocessing
        for name, value in numbers_in(msgspec.to_builtins([preprocessing, self.sites or None, self.mapped or None])):
            require(isfinite(value) and (name not in ("scale", "divisor") or value > 0), f"{name} cannot be {value}")
        if isinstance(preprocessing, Array | Tabular):
            with np.errstate(all="ignore"):
                fits = not isinstance(preprocessing, Array) or preprocessing.shape == self.shape
                rows = preprocessing.on_zeros() if fits else np.zeros((1, 0))
            require(
                rows.shape[1:] == self.shape,
                f"its preprocessing gives rows of shape {rows.shape[1:]}, not {self.shape}",
            )


def learned_of(experiment: Experiment, data: ClientData) -> Learned:
    """Return the `Learned` of an experiment and its rows."""
    model, x, _ = fitted(experiment.model, data.dataset, data.x, data.x_test)
    return Learned(
        preprocessing=data.preprocessing,
        shape=tuple(x.shape[1:]),
        classes=data.dataset.classes,
        categories=data.dataset.num_categories,
        task=plain(experiment.task.fitted(data.dataset.y)),
        model=plain(model),
        sites=msgspec.UNSET if isinstance(experiment.harmonisation, Unharmonised) else sites_of(experiment, data),
        mapped=mapped_in(experiment, data) or msgspec.UNSET,
    )


def mapped_in(experiment: Experiment, data: ClientData) -> dict[str, Any]:
    """Return how TOML files changed the cells of the user's files; empty if they changed none."""
    table = experiment.dataset
    mappings = table.mappings(data.dataset.group_names) if isinstance(table, TableData) else None
    return msgspec.to_builtins(mappings) if mappings and mappings.brief else {}


def sites_of(experiment: Experiment, data: ClientData) -> Sites:
    """Return what the harmonisation does at each site, without trained intercepts."""
    harmonisation, counts, intercept = experiment.harmonisation, data.label_counts().astype(np.float64), None
    if isinstance(harmonisation, OutputHarmonisation):
        intercept = harmonisation.intercept(counts, counts.sum(0))
    on_nodes, sites = not len(data.x), data.partition if data.maps is None else data.sites
    of_server = on_nodes and data.maps is not None and len(data.maps.factor) == 1
    # trained intercepts, and means that a node's own rows give, stay there
    private = on_nodes and intercept is None and (data.maps is None or of_server)
    return Sites(
        names=() if private else sites.names,
        unknown=harmonisation.unknown + (" (the server's own rows stand for them)" if of_server else ""),
        column=client_column(experiment, sites=data.maps is not None),
        intercept=() if intercept is None else with_zeros(intercept),
        **({} if data.maps is None else {name: values.tolist() for name, values in data.maps._asdict().items()}),
    )


def with_zeros(intercept: Floats) -> tuple[tuple[float, ...], ...]:
    """Return the intercepts (K, C) of sites, and zeros for rows of other sites."""
    return tuple(map(tuple, [*intercept.tolist(), [0.0] * intercept.shape[1]]))


def keep(store: RunStore, run: int, assembly: Assembly) -> None:
    """Write the file `FILE` into the run's folder."""
    learned = msgspec.json.encode(learned_of(assembly.experiment, assembly.data))
    write_whole(store.run_folder(run) / FILE, learned, f"run {run}:")


def kept(store: RunStore, run: int, facts: Json | None = None) -> Learned | None:
    """Read the file `FILE`; None if it is missing. ``facts`` are from the checkpoint that it belongs to.

    Raises `BadInput` if it is damaged, from another version, or not as it was when the checkpoint was written.
    """
    path = store.run_folder(run) / FILE
    try:
        require_regular(path)
        learned = msgspec.json.decode(data := read_small(path, MOST_BYTES), type=Learned)
        require(learned.version == VERSION, f"it has version {learned.version}, and this fedskew reads {VERSION}")
        same = (facts or {}).get(CHECKSUM, "") in ("", checksum(store, run, data))
        require(same, "its checksum, over the file and the run's settings, differs from the checkpoint's")
        learned.check()
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, RecursionError, BadInput) as error:
        raise BadInput(f"run {run}: cannot read {path}, it is damaged or of another version: {error}") from None
    return learned


def checksum(store: RunStore, run: int, learned: bytes | None = None) -> str:
    """Return the SHA-256 of what a prediction needs besides the weights: the file `FILE` and the settings of the model."""
    table, path = toml_table(store.run(run).experiment, f"run {run}"), store.run_folder(run) / FILE
    sections = ("task", "model", "sharing", *(["harmonisation"] if "harmonisation" in table else []))
    settings = json.dumps([table.get(section) for section in sections], sort_keys=True, default=str)
    training = table.get("training")
    types = [training.get(key) for key in ("dtype", "precision")] if isinstance(training, dict) else []
    contents = (path.read_bytes() if path.is_file() else b"") if learned is None else learned
    return hashlib.sha256(f"{settings} {types} ".encode() + contents).hexdigest()


def write_toml(store: RunStore, run: int, experiment: Experiment) -> None:
    write_whole(store.run_folder(run) / "experiment.toml", experiment.toml(), f"run {run}:")
