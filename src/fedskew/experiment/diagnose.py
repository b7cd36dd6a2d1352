"""Diagnose how clients differ: in files, or in a data set under skews. The result is plain values."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from fedskew.core.component import shown
from fedskew.core.counting import count
from fedskew.core.errors import require
from fedskew.data import schema
from fedskew.data.dataset import Dataset
from fedskew.data.files import format_of
from fedskew.data.preprocessing import TEXT_WIDTH
from fedskew.data.tables import MOST_BYTES, Survey, like_persons, many_numbers, round_down, survey
from fedskew.data.targets import tenths
from fedskew.experiment.facts import of_inputs
from fedskew.experiment.holdings import CLASSES, targets_of
from fedskew.experiment.keywords import Settings
from fedskew.experiment.settings import Clients
from fedskew.experiment.subject import Subject, names_of, sizes_of, values_of
from fedskew.measure.heterogeneity.columns import Fact, Held, copied, explained
from fedskew.measure.heterogeneity.content import of_symbols
from fedskew.measure.heterogeneity.details import details, of_counts
from fedskew.measure.heterogeneity.diagnose import MOST_ROWS, Diagnosis, diagnose
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
        column,
        client,
        person=person,
        once=True,
        numeric=bool(target),
        most=MOST_ROWS,
        seed=seed,
        on_progress=lambda share, rows: on_progress(f"reading, {rows:,} rows", share),
    )
    require(
        not target or bool(np.ptp(found.y) > 0),
        f"diagnose: all targets in {column!r} are {found.y[0]:g}; name a column whose values differ",
    )
    encode = schema.fit(found.table, str(paths[0]))
    subject = Subject(
        title=", ".join(path.name for path in paths),
        x=encode(found.table),
        y=found.y,
        client=found.client,
        counts=found.counts,
        classes=found.classes,
        clients=found.clients,
        notes=(*found.notes, *many_numbers(found, label), *like_persons(found)),
        column_notes=encode.notes,
        facts=tuple(encode.features(found.table)),
        arguments=table_arguments(paths, label, client, fitting(found), target, person),
    )
    return of_numbers(subject, found.y.astype(np.float64)) if target else subject


def of_numbers(subject: Subject, y: NDArray[np.float64]) -> Subject:
    """The subject with the targets ``y`` (n,). Strata are the tenths of all targets in which each lies."""
    strata, names = tenths(y)
    counts = counts_of(strata[:, None], subject.client, len(subject.clients), len(names))
    return replace(
        subject,
        y=strata,
        classes=names,
        counts=counts,
        sizes=subject.counts.sum(1),
        kind="number",
        targets=y,
        response=y,
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
    from fedskew.experiment.deal import client_data

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
        x = schema.encoder_of(pd.Series(texts)).encode(np.array(texts, dtype=object))
        notes += [f"texts: hashed words in {TEXT_WIDTH} random directions"]
    found = targets_of(kind, y, data)
    strata = found.strata[rows]
    return Subject(
        title=title,
        x=x,
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
        facts=tuple(of_inputs(data, x, texts)),
        inputs=data.columns,
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
    found = faces_of(subject, seed, None, lambda fraction: on_progress("measuring against chance", fraction))
    if subject.kind == "symbols":
        more = of_counts(found.counts, sizes_of(subject))
    else:
        on_progress("further measures", 1.0)
        more = details(subject.x, subject.y, subject.client, subject.counts, seed)
    differences = explained(facts_of(subject, names_of(subject, found)), subject.client, subject.clients)
    return values_of(subject, found, more, differences, runs)


def faces_of(
    subject: Subject, seed: int = 0, permutations: int | None = None, on_share: Callable[[float], None] = lambda _: None
) -> Diagnosis:
    """Measure the four faces and compare each with chance."""
    if subject.kind == "symbols":
        targets = subject.y if subject.targets is None else subject.targets
        symbols = max(len(subject.categories), int(targets.max()) + 1)
        sizes = sizes_of(subject)
        return diagnose_symbols(
            targets, subject.client, sizes, symbols, seed=seed, permutations=permutations, on_progress=on_share
        )
    return diagnose(
        subject.x,
        subject.y,
        subject.client,
        counts=subject.counts,
        response=subject.response,
        sizes=sizes_of(subject),
        seed=seed,
        permutations=permutations,
        on_progress=on_share,
    )


def facts_of(subject: Subject, names: Sequence[str]) -> list[Fact | Held]:
    """Collect the facts that are compared between clients: inputs, classes, symbols or numbers, and copied rows."""
    facts: list[Fact | Held] = [*subject.facts]
    if subject.kind == CLASSES:
        facts += [
            ("label", "share", word, (subject.y == at).astype(np.float64)) for at, word in enumerate(subject.classes)
        ]
    if subject.kind == "symbols" and subject.targets is not None:
        facts += of_symbols(subject.targets, names)
    if subject.kind == "number" and subject.response is not None:
        facts.append(("target", "mean", "", subject.response))
    return [*facts, copied(subject.x)]
