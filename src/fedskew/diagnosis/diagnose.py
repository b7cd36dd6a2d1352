"""Diagnose how clients differ: in files, or in a data set under skews. The result is plain values."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from fedskew.core.component import shown
from fedskew.core.errors import require
from fedskew.core.text import count
from fedskew.data.dataset import Dataset
from fedskew.data.preprocessing import TEXT_WIDTH
from fedskew.data.tables.files import format_of
from fedskew.data.tables.guard import summary
from fedskew.data.tables.schema import merged
from fedskew.data.tables.summaries import text_encoder
from fedskew.data.tables.survey import MOST_BYTES, Roles, Survey, like_persons, many_numbers, round_down, survey
from fedskew.diagnosis.facts import of_inputs, of_symbols
from fedskew.diagnosis.pool import pooled
from fedskew.diagnosis.subject import Facts, Subject, sizes_of, values_of
from fedskew.diagnosis.targets import CLASSES, TargetTable, holdings, strata_of
from fedskew.experiment.keywords import Settings
from fedskew.experiment.settings import Clients
from fedskew.measure.heterogeneity.columns import Fact, Held, Tested, centred, copied, listed, tests
from fedskew.measure.heterogeneity.details import details, of_counts
from fedskew.measure.heterogeneity.diagnose import MOST_ROWS, Diagnosis
from fedskew.measure.heterogeneity.rows import Floats, flat, standardised, sums_by, table
from fedskew.measure.heterogeneity.symbols import counts_of, diagnose_symbols

if TYPE_CHECKING:
    from fedskew.experiment.config import Experiment


Ints = NDArray[np.int64]
OnProgress = Callable[[str, float], None]


def from_files(
    paths: Sequence[Path],
    label: str = "",
    client: str = "",
    seed: int = 0,
    on_progress: OnProgress = lambda stage, fraction: None,
    target: str = "",
    person: str = "",
) -> Subject:
    """Read clients' rows from CSV, JSON lines, Parquet or Arrow files. Memory use does not grow with the files.

    ``label`` names a column of classes, or ``target`` a column of numbers. ``client`` names the column of clients,
    ``person`` a column of persons: the first row of each person at a client counts.
    """
    column = label or target
    require(
        column != client, f"diagnose: {column!r} cannot be both the {'label' if label else 'target'} and the client"
    )
    require(
        not person or person not in (column, client),
        f"diagnose: {person!r} cannot be both the person and the label or client",
    )
    found = survey(
        paths,
        Roles(column, client, person=person, numeric=bool(target), once=True),
        most=MOST_ROWS,
        seed=seed,
        on_progress=lambda share, rows: on_progress(f"reading, {rows:,} rows", share),
    )
    require(
        not target or bool(np.ptp(found.y) > 0),
        f"diagnose: all targets in {column!r} are {found.y[0]:g}; name a column whose values differ",
    )
    encode = merged({str(paths[0]): summary(found.table)})
    x, numeric = encode(found.table), found.y.astype(np.float64) if target else None
    return Subject(
        title=", ".join(path.name for path in paths),
        x=x,
        y=found.y,
        client=found.client,
        counts=found.counts,
        classes=found.classes,
        clients=found.clients,
        notes=(*found.notes, *many_numbers(found, label), *like_persons(found)),
        column_notes=encode.notes,
        facts=(*encode.features(found.table), copied(x)),
        arguments=table_arguments(paths, label, client, fitting(found), target, person),
        kind="number" if target else CLASSES,
        targets=numeric,
        response=numeric,
    )


def fitting(found: Survey) -> int:
    """Return how many rows fit into a run's memory; 0 if all fit."""
    rows = int(found.counts.sum())
    return round_down(max(1, rows * MOST_BYTES // found.bytes)) if found.bytes > MOST_BYTES else 0


def table_arguments(
    paths: Sequence[Path], label: str, client: str, rows: int = 0, target: str = "", person: str = ""
) -> str:
    """The arguments of `fedskew compare` for a file, a folder, or all files of one; empty for others, which it does not take."""
    folder = paths[0].parent
    whole = len(paths) > 1 and {*paths} == {path for path in folder.iterdir() if path.is_file() and format_of(path)}
    if len(paths) > 1 and not whole:
        return ""
    spec = (
        f"table:path={shown(str(folder if whole else paths[0]))},{f'label={shown(label)}' if label else f'target={shown(target)}'}"
        + (f",client={shown(client)}" if client else "")
        + (f",person={shown(person)}" if person else "")
        + (f",rows={rows}" if rows else "")
    )
    return shlex.join(["--dataset", spec, "--skew", "natural"])


def subject_of(
    paths: Sequence[Path],
    label: str,
    client: str,
    dataset: object,
    skew: object,
    clients: int | None,
    partition_seed: int | None,
    seed: int,
    on_progress: OnProgress,
    target: str = "",
    person: str = "",
) -> Subject:
    """Make the subject of a diagnosis from either files or a data set under a skew. Raises `BadInput` for both or neither."""
    require(seed >= 0, f"diagnose: seed must be at least 0, got {seed}")
    require(
        bool(paths) != (dataset is not None),
        "diagnose: give files with label and client, or dataset with skew (one of the two)",
    )
    if paths:
        require(
            bool(label) != bool(target),
            "diagnose: name the column of classes by label, or the column of numbers by target"
            + (", not both" if label else ""),
        )
        require(
            skew is None and clients is None,
            "diagnose: skew and clients need dataset; for files, name the column of the clients by client",
        )
        return from_files(paths, label, client, seed, on_progress, target, person)
    require(
        not (label or client or target or person),
        "diagnose: label, target, client and person need files; a named data set has its own",
    )
    # imported here because it loads PyTorch, which files do not need
    from fedskew.experiment.config import Experiment

    data = dataset if isinstance(dataset, Dataset) else None
    given = {"skew": skew, "clients": clients, "partition_seed": partition_seed, "dataset": None if data else dataset}
    made = {key: value for key, value in given.items() if value is not None}
    if data and skew is None:
        made["skew"] = "iid" if data.groups is None else "natural"
    experiment = Experiment(**cast(Settings, made))
    name = data.name if data else experiment.labels("dataset")[0]
    return from_experiment(experiment, f"{name}, {' + '.join(experiment.labels('skew'))}", data)


def from_experiment(experiment: Experiment, title: str, data: Dataset | None = None) -> Subject:
    """Make the subject from the clients' training rows of an experiment before round 1. ``data`` replaces its data set."""
    from fedskew.execution.deal import client_data

    own, data = data is not None, data or experiment.dataset.load()
    held = client_data(experiment.replace(clients__held_out=0.0), data)
    kind, partition = data.target, held.partition
    y = held.labels.at(0) if kind == CLASSES else data.y
    rows, client = partition.indices, np.repeat(np.arange(len(partition)), partition.sizes)
    notes = [partition.note] if partition.note else []
    if data.persons is not None:
        first = np.sort(np.unique(np.stack([client, data.persons[0][rows]]), axis=1, return_index=True)[1])
        notes += [f"each person counts once at a client: {count(len(rows) - len(first), 'row')} not used"]
        rows, client = rows[first], client[first]
    notes += ["concepts change over the rounds; measured as in the first one"] if held.labels.change else []
    x, texts = held.x[rows], None
    if held.dataset.texts is not None:
        texts = [held.dataset.texts[0][row] for row in rows]
        x = text_encoder(texts).encode(np.array(texts, dtype=object))
        notes += [f"texts: hashed words in {TEXT_WIDTH} random directions"]
    found = strata_of(kind, y, data)
    strata = found.strata[rows]
    facts = (*of_inputs(data, x, texts), copied(x))
    return Subject(
        title=title,
        x=x if kind == "symbols" else standardised(flat(x)),
        y=strata,
        client=client,
        counts=counts_of(strata[:, None], client, len(partition), len(found.names)),
        classes=found.names,
        clients=partition.names,
        kind=kind,
        categories=data.classes if kind in ("labels", "symbols") else (),
        targets=y[rows],
        response=None if found.response is None else found.response[rows],
        notes=(*notes, *([data.notes] if data.notes else [])),
        facts=facts,
        name=data.name,
        arguments="" if own else arguments_of(experiment),
    )


def arguments_of(experiment: Experiment) -> str:
    """Return the arguments of `fedskew compare` for the experiment's data set, skews and number of clients."""
    number = experiment.clients.number
    words = ["--dataset", *experiment.labels("dataset")]
    words += [word for skew in experiment.labels("skew") for word in ("--skew", skew)]
    return shlex.join([*words, *(["--clients", str(number)] if number != Clients().number else [])])


def diagnosis(
    subject: Subject,
    seed: int = 0,
    on_progress: OnProgress = lambda stage, fraction: None,
    runs: Path | None = None,
) -> dict[str, Any]:
    """Return the complete diagnosis as plain values, for ``--json``, the page and the terminal.

    ``runs`` is a folder with the user's own evidence, which the advice uses, too.
    """
    # The matrices are small. On a busy machine several threads would wait minutes for each other.
    with threadpool_limits(1):
        return measured(subject, seed, on_progress, runs)


def measured(subject: Subject, seed: int, on_progress: OnProgress, runs: Path | None) -> dict[str, Any]:
    kind, sizes, targets = subject.kind, sizes_of(subject), rows_of(subject)
    facts, tested = [*subject.facts], list[Tested]()
    if kind == "symbols":
        names = classes = symbols_of(subject)
        found = faces_of(subject, seed, lambda share: on_progress("measuring against chance", share))
        more = of_counts(found.counts, sizes)
        facts += of_symbols(targets, names)
    else:
        names, classes = subject.categories or subject.classes, subject.classes
        pool = pooled(subject, seed, lambda step: on_progress(f"measuring {step}", 0.0))
        found, z = pool.faces()
        on_progress("further measures", 1.0)
        more = details(z, pool.y, pool.client, found.counts, seed)
    if kind in (CLASSES, "number"):
        tested, shown = pool.targets.tested(), replace(pool.targets.table(), sizes=sizes)
    else:
        held = holdings(kind, targets, subject.client, found.counts, names)
        shown = TargetTable(kind, classes, names, sizes, held)
    tested = [*(part for fact in facts for part in compared(fact, subject, len(sizes))), *tested]
    about = Facts(
        subject.title,
        subject.name,
        subject.arguments,
        subject.notes,
        clients=subject.clients,
        column_notes=subject.column_notes,
    )
    return values_of(about, shown, found, more, listed(tested, subject.clients), runs)


def compared(fact: Fact | Held, subject: Subject, clients: int) -> list[Tested]:
    """Compare the clients' rows in a fact, and rows of the same class. Sites do not count copied rows by class."""
    parts, shape = tests(fact, subject.client, clients), (clients, len(subject.classes))
    if subject.kind != CLASSES or fact[1] == "copied":
        return parts

    def by_class(part: Tested) -> tuple[Floats, Floats]:
        values = fact[3][:, [fact[2].index(part.word)]].toarray()[:, 0] if fact[1] == "word" else fact[3]
        away = centred(np.abs(values - part.origin) if part.kind == "spread" else values, part.centre)
        sums = sums_by(subject.client * shape[1] + subject.y, shape[0] * shape[1], away[:, None])
        return sums.reshape(shape), table(subject.client, subject.y, shape)

    return [part._replace(by_class=partial(by_class, part)) for part in parts]


def rows_of(subject: Subject) -> NDArray[Any]:
    """Return the targets (n, ...)."""
    return subject.y if subject.targets is None else subject.targets


def symbols_of(subject: Subject) -> tuple[str, ...]:
    """Return the names of symbols."""
    return subject.categories or tuple(f"symbol {at}" for at in range(int(rows_of(subject).max()) + 1))


def faces_of(subject: Subject, seed: int = 0, on_share: Callable[[float], None] = lambda _: None) -> Diagnosis:
    """Measure the four faces and compare each with chance."""
    if subject.kind != "symbols":
        return pooled(subject, seed).faces()[0]
    targets, number = rows_of(subject), len(symbols_of(subject))
    return diagnose_symbols(targets, subject.client, sizes_of(subject), number, seed=seed, on_progress=on_share)
