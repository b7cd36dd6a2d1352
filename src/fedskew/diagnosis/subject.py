"""The subject of a diagnosis: clients' rows, from files or from a data set under skews."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.core.component import build, compact, label, with_options
from fedskew.core.errors import BadInput, require
from fedskew.core.limits import NonNegativeInt, PositiveInt
from fedskew.core.text import count
from fedskew.data.dataset import Dataset
from fedskew.data.datasets.images import Digits
from fedskew.data.datasets.table import check_roles, client_roles, names_of
from fedskew.data.preprocessing import TEXT_WIDTH
from fedskew.data.tables import survey
from fedskew.data.tables.files import files_of, format_of, stem
from fedskew.data.tables.guard import summary
from fedskew.data.tables.mapping import mapping_path
from fedskew.data.tables.schema import merged
from fedskew.data.tables.summaries import text_encoder
from fedskew.data.targets import Rows
from fedskew.diagnosis.facts import of_inputs
from fedskew.diagnosis.questions import CLASSES, FEWEST
from fedskew.execution.deal import client_data
from fedskew.experiment.settings import KNOWN_DATA, Clients, Dealing, default_skew
from fedskew.measure.heterogeneity.columns import Fact, WordFact, copied
from fedskew.measure.heterogeneity.faces import MOST_ROWS
from fedskew.measure.heterogeneity.rows import Floats, Ints, flat, standardised
from fedskew.measure.heterogeneity.symbols import counts_of
from fedskew.skew.compose import KNOWN as KNOWN_SKEWS, skews_of
from fedskew.skew.values import quantile_bins

OnProgress = Callable[[str, float], None]

FIFTHS = 5
"""Number of groups of survival times."""


@dataclass(frozen=True, kw_only=True)
class DiagnosisOptions:
    """What to diagnose: the files at ``paths``, or else ``dataset`` under ``skew``, dealt to ``clients`` clients.

    ``label`` names a column of classes, or ``target`` a column of numbers. ``client`` names the column of clients; without it each
    file is a client; ``client_from`` groups the values of a column, as in `TableData`. Columns in ``drop`` are left out. ``person``
    names a column of persons: the first row of each person at a client counts. If ``federated``, rows are not pooled, and each
    count that leaves a client is 0 or at least ``fewest``, by default `FEWEST`.

    Raises `BadInput` for options that do not fit together.
    """

    paths: Sequence[Path] = ()
    label: str = ""
    client: str = ""
    client_from: str = ""
    target: str = ""
    person: str = ""
    drop: str | tuple[str, ...] = ()
    dataset: object = None
    skew: object = None
    clients: int | None = None
    partition_seed: int | None = None
    seed: NonNegativeInt = 0
    federated: bool = False
    fewest: PositiveInt | None = None

    def __post_init__(self) -> None:
        if self.fewest is not None and not self.federated:
            raise BadInput("fewest has an effect only with federated; add federated, or leave out fewest")
        if bool(self.paths) == (self.dataset is not None):
            raise BadInput("give files with label and client, or dataset with skew (one of the two)")
        require(
            bool(self.paths) or not (self.column or self.client or self.client_from or self.person or self.drop),
            "label, target, client, client_from, person and drop are for files; leave them out: a named data set has its own",
        )
        if not self.paths:
            return
        require(
            bool(self.label) != bool(self.target),
            "name the column of classes by label, or the column of numbers by target"
            + (", not both" if self.label else ""),
        )
        if self.skew is not None or self.clients is not None:
            raise BadInput("skew and clients are for dataset; for files, name the column of the clients with client")
        kind = "label" if self.label else "target"
        roles = [(kind, self.column), ("client", self.roles.client), ("person", self.person)]
        check_roles([*roles, *(("column to drop", name) for name in self.roles.drop)])

    @property
    def column(self) -> str:
        """The column of the targets."""
        return self.label or self.target

    @property
    def smallest_count(self) -> int:
        """The smallest number of rows in a count that is not 0."""
        return FEWEST if self.fewest is None else self.fewest

    @property
    def roles(self) -> survey.Roles:
        """The columns that are no inputs."""
        clients, dropped = client_roles(self.client, self.client_from), names_of(self.drop)
        return survey.Roles(self.column, *clients, dropped, person=self.person, numeric=bool(self.target), once=True)

    def source(self, names: Sequence[str], rows: int = 0, **facts: Any) -> Source:
        """Return where the rows of clients with these names come from. ``facts`` are further fields of `Source`."""
        by_file = {stem(path): mapping_path(path).name for path in files_of(self.paths)}
        common = "" if self.client_from or len(by_file) > 1 else min(by_file.values())
        mappings = dict.fromkeys(names, common) if self.roles.client else by_file
        facts |= {"mappings": mappings, "column": self.client, "label": self.column}
        title = ", ".join(path.name for path in self.paths)
        return Source(title, arguments=self.compare_arguments(rows), **facts)

    def compare_arguments(self, rows: int = 0) -> str:
        """The arguments of `fedskew compare` for a file, a folder, or all files of a folder.

        Empty for any other list of files, which the command does not take.
        """
        folder, paths = self.paths[0].parent, {*self.paths}
        several = len(self.paths) > 1
        whole = several and paths == {path for path in folder.iterdir() if path.is_file() and format_of(path)}
        if several and not whole:
            return ""
        options = ("label", "target", "client", "client_from", "person", "drop")
        spec = f"table:path={compact(str(folder if whole else self.paths[0]))}"
        spec += "".join(f",{option}={compact(value)}" for option in options if (value := getattr(self, option)))
        return shlex.join(["--dataset", f"{spec},rows={rows}" if rows else spec, "--skew", "natural"])


@dataclass(frozen=True, eq=False)
class Source:
    """Where the rows of a diagnosis come from."""

    title: str
    name: str = ""  # the data set's name, if it has one
    mappings: Mapping[str, str] = field(default_factory=dict)  # TOML file of each client's rows, if it is known
    column: str = ""  # the column of clients, if one file has all of them
    arguments: str = ""  # arguments of `fedskew compare` that name these data
    notes: tuple[str, ...] = ()
    column_notes: tuple[str, ...] = ()  # how columns became numbers; less important than notes
    label: str = ""  # the column of targets, if its name is known
    clients: tuple[str, ...] = ()
    inputs: int = 0  # number of inputs, if they are not made of the columns
    classes: tuple[str, ...] = ()  # in their order, if it is known
    computed: frozenset[str] = frozenset()  # columns of numbers that are computed from rows, and have no unit


@dataclass(frozen=True, eq=False)
class ClientRows:
    """Rows of the clients in ``source``, or a sample of them. ``counts`` (clients, classes) still covers all rows.

    ``x`` (n, d) are standardised inputs, or symbols. ``y`` (n,) are the rows' classes, and ``client`` (n,) their clients.
    If the targets are not classes, ``targets`` (n, ...) holds them, and ``y`` and ``classes`` their strata and the strata's
    names; numbers have none. ``response`` (n,) is one number for each target.
    """

    source: Source
    x: NDArray[Any]
    y: Ints
    client: Ints
    counts: Ints
    classes: tuple[str, ...]
    facts: tuple[Fact | WordFact, ...] = ()  # about the columns, in their own units
    kind: str = CLASSES  # the kind of target
    targets: NDArray[Any] | None = None
    response: Floats | None = None
    categories: tuple[str, ...] = ()  # names of labels or symbols, for these kinds of target

    @property
    def sizes(self) -> Ints:
        """The number of rows of each client (clients,)."""
        return np.asarray(self.counts.sum(1))

    @property
    def rows_of_targets(self) -> NDArray[Any]:
        """The targets (n, ...)."""
        return self.y if self.targets is None else self.targets

    @property
    def names(self) -> tuple[str, ...]:
        """The names of classes, labels or symbols."""
        if self.kind == "symbols" and not self.categories:
            return tuple(f"symbol {at}" for at in range(int(self.rows_of_targets.max()) + 1))
        return self.categories or self.classes


def client_rows(options: DiagnosisOptions, on_progress: OnProgress = lambda stage, fraction: None) -> ClientRows:
    """Return the clients' rows, pooled."""
    if options.paths:
        return from_files(options, on_progress)
    data = options.dataset if isinstance(options.dataset, Dataset) else None
    source = Digits() if data else build("dataset", KNOWN_DATA, options.dataset)
    skew = options.skew
    if skew is None and data:
        skew = "iid" if data.groups is None else "natural"
    settings = {"number": options.clients, "partition_seed": options.partition_seed}
    clients = with_options(Clients(), {name: value for name, value in settings.items() if value is not None}, "clients")
    dealing = Dealing(dataset=source, skew=skews_of(default_skew(source) if skew is None else skew), clients=clients)
    name = data.name if data else label(source, KNOWN_DATA)
    return from_experiment(dealing, f"{name}, {' + '.join(label(part, KNOWN_SKEWS) for part in dealing.skew)}", data)


def from_files(options: DiagnosisOptions, on_progress: OnProgress = lambda stage, fraction: None) -> ClientRows:
    """Read clients' rows from CSV, JSON lines, Parquet or Arrow files. Memory use does not grow with the files."""

    def on_rows(share: float, number: int) -> None:
        on_progress(f"reading, {number:,} rows", share)

    rows = survey.survey(options.paths, options.roles, most=MOST_ROWS, seed=options.seed, on_progress=on_rows)
    survey.check_dropped(options.roles.drop, [rows])
    require(
        not options.target or bool(np.ptp(rows.y) > 0),
        f"diagnose: all targets in {options.target!r} are {rows.y[0]:g}; name a column whose values differ",
    )
    encode = merged({str(options.paths[0]): summary(rows.table)})
    x, response = encode(rows.table), rows.y.astype(np.float64) if options.target else None
    names, notes = rows.clients, tuple(survey.all_notes(rows, options.label))
    source = options.source(names, fitting_rows(rows), notes=notes, column_notes=encode.notes, clients=names)
    facts, kind = (*encode.features(rows.table), copied(x)), "number" if options.target else CLASSES
    return ClientRows(source, x, rows.y, rows.client, rows.counts, rows.classes, facts, kind, response, response)


def fitting_rows(rows: survey.Survey) -> int:
    """Return how many rows fit into a run's memory; 0 if all fit."""
    number = int(rows.counts.sum())
    return survey.round_down(max(1, number * survey.MOST_BYTES // rows.bytes)) if rows.bytes > survey.MOST_BYTES else 0


def from_experiment(experiment: Dealing, title: str, own_data: Dataset | None = None) -> ClientRows:
    """Return the clients' training rows of an experiment before round 1. ``own_data`` replaces its data set."""
    data = own_data or experiment.dataset.load()
    all_rows = Dealing(
        dataset=experiment.dataset,
        skew=experiment.skew,
        clients=replace(experiment.clients, held_out=0.0),
        server_data=experiment.server_data,
        shared_data=experiment.shared_data,
    )
    dealt = client_data(all_rows, data)
    kind, partition = data.target, dealt.partition
    y = dealt.labels.at(0) if kind == CLASSES else data.y
    rows, client = partition.indices, np.repeat(np.arange(len(partition)), partition.sizes)
    notes = [partition.note] if partition.note else []
    if data.persons is not None:
        first = np.sort(np.unique(np.stack([client, data.persons[0][rows]]), axis=1, return_index=True)[1])
        later = count(len(rows) - len(first), "row")
        notes += [f"differences count each person once at a client: {later} not used for them"]
        rows, client = rows[first], client[first]
    notes += ["concepts change over the rounds; measured as in the first one"] if dealt.labels.change else []
    x, texts = dealt.x[rows], None
    if dealt.dataset.texts is not None:
        texts = [dealt.dataset.texts[0][row] for row in rows]
        x = text_encoder(texts).encode(np.array(texts, dtype=object))
        notes += [f"texts: hashed words in {TEXT_WIDTH} random directions"]
    stratum, names, response = strata_of(kind, y, data)
    notes += [data.notes] if data.notes else []
    arguments = "" if own_data else arguments_of(experiment)
    source = Source(title, data.name, arguments=arguments, notes=tuple(notes), clients=partition.names)
    counts = counts_of(stratum[rows][:, None], client, len(partition), len(names))
    facts, inputs = (*of_inputs(data, x, texts), copied(x)), x if kind == "symbols" else standardised(flat(x))
    response = None if response is None else response[rows]
    categories = data.classes if kind in ("labels", "symbols") else ()
    return ClientRows(source, inputs, stratum[rows], client, counts, names, facts, kind, y[rows], response, categories)


def arguments_of(experiment: Dealing) -> str:
    """Return the arguments of `fedskew compare` for the experiment's data set, skews and number of clients."""
    number = experiment.clients.number
    words = ["--dataset", label(experiment.dataset, KNOWN_DATA)]
    words += [word for skew in experiment.skew for word in ("--skew", label(skew, KNOWN_SKEWS))]
    return shlex.join([*words, *(["--clients", str(number)] if number != Clients().number else [])])


def strata_of(kind: str, y: Rows, dataset: Dataset) -> tuple[Ints, tuple[str, ...], Floats | None]:
    """Divide the targets ``y`` (n, ...) of a data set's training rows into strata. ``kind`` is the kind of target.

    Return the stratum (n,) of each row, the strata's names, and a number (n,) for each target, if the kind has one.
    """
    if kind == CLASSES:
        return y, dataset.classes, None
    if kind == "survival":
        return *events_and_times(y), log_rank(y)
    if kind == "number":
        return np.zeros(len(y), dtype=np.int64), ("",), y.astype(np.float64)
    return *dataset.strata, None


def events_and_times(y: Floats) -> tuple[Ints, tuple[str, ...]]:
    """Divide survival targets (n, 2) into groups by the fifth of the times and by event; return groups (n,) and names."""
    fifth = quantile_bins(y[:, 0], FIFTHS)
    codes, group = np.unique(fifth + FIFTHS * y[:, 1].astype(np.int64), return_inverse=True)
    ends = [f"{y[fifth == at, 0].max():.4g}" for at in range(fifth.max() + 1)]
    events = [(ends[code % FIFTHS], "event" if code >= FIFTHS else "no event") for code in codes.tolist()]
    return group.astype(np.int64), tuple(f"{event}, time up to {end}" for end, event in events)


def log_rank(y: Floats) -> Floats:
    """Return log-rank scores (n,): each row's event minus the cumulative hazard of all rows at its time (Nelson, Aalen).

    The scores sum to 0.
    """
    place = np.unique(y[:, 0], return_inverse=True)[1]
    ending = np.bincount(place)
    at_risk = len(y) - np.cumsum(ending) + ending
    hazard = np.cumsum(np.bincount(place, weights=y[:, 1]) / at_risk)
    return np.asarray(y[:, 1] - hazard[place])
