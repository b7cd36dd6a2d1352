"""Diagnose files, or an experiment's data set under its skews; the result is plain values."""

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from fedskew.advice.advise import advise
from fedskew.core.component import shown
from fedskew.core.counting import count
from fedskew.core.errors import require
from fedskew.data import columns
from fedskew.data.columns import Fact
from fedskew.data.dataset import Dataset
from fedskew.data.tables import FEW_LABELS, MOST_BYTES, Survey, round_down, survey
from fedskew.experiment.config import Experiment
from fedskew.experiment.deal import client_data
from fedskew.experiment.keywords import Settings
from fedskew.experiment.settings import Clients
from fedskew.measure.heterogeneity.columns import differences
from fedskew.measure.heterogeneity.details import details
from fedskew.measure.heterogeneity.diagnose import MEANINGS, MOST_ROWS, Diagnosis, diagnose

Ints = NDArray[np.int64]
OnProgress = Callable[[str, float], None]


@dataclass(frozen=True, eq=False)
class Subject:
    """Clients' rows, or a sample of them with the ``counts`` (clients, classes) of all rows."""

    title: str
    x: NDArray[Any]
    y: Ints
    client: Ints
    counts: Ints
    classes: tuple[str, ...]
    clients: tuple[str, ...]
    notes: tuple[str, ...] = ()
    column_notes: tuple[str, ...] = ()  # routine: how columns became numbers
    facts: tuple[Fact, ...] = ()  # about the columns, in their own units
    name: str = ""  # of the data set, if it has one
    arguments: str = ""  # of `fedskew compare`, that name these data


def from_files(
    paths: Sequence[Path],
    label: str,
    client: str = "",
    seed: int = 0,
    on_progress: OnProgress = lambda stage, fraction: None,
) -> Subject:
    """Read clients' rows from CSV, JSON lines, Parquet or Arrow; memory use does not grow with the files."""
    require(label != client, f"diagnose: {label!r} cannot be both the label and the client")
    found = survey(
        paths,
        label,
        client,
        most=MOST_ROWS,
        seed=seed,
        on_progress=lambda share, rows: on_progress(f"reading, {rows:,} rows", share),
    )
    encode = columns.fit(found.table, str(paths[0]))
    return Subject(
        title=", ".join(path.name for path in paths),
        x=encode(found.table),
        y=found.y,
        client=found.client,
        counts=found.counts,
        classes=found.classes,
        clients=found.clients,
        notes=(*found.notes, *many_numbers(found, label)),
        column_notes=encode.notes,
        facts=tuple(encode.features(found.table)),
        arguments=table_arguments(paths, label, client, fitting(found)),
    )


def many_numbers(found: Survey, label: str) -> list[str]:
    """A warning if the labels look like measured numbers."""
    if len(found.classes) <= FEW_LABELS or not all(re.fullmatch(r"[-+]?\d+(\.\d+)?", word) for word in found.classes):
        return []
    return [
        f"{label!r} has {len(found.classes)} different numbers, and each one is a class of its own; if they are amounts, put them "
        "into a few bins and name that column"
    ]


def fitting(found: Survey) -> int:
    """The maximum number of rows that a run can load; 0 for all."""
    rows = int(found.counts.sum())
    return round_down(max(1, rows * MOST_BYTES // found.bytes)) if found.bytes > MOST_BYTES else 0


def table_arguments(paths: Sequence[Path], label: str, client: str, rows: int = 0) -> str:
    """The arguments of `fedskew compare` for one file or folder; empty for several, which it does not take."""
    if len(paths) != 1:
        return ""
    spec = (
        f"table:path={shown(str(paths[0]))},label={shown(label)}"
        + (f",client={shown(client)}" if client else "")
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
) -> Subject:
    """The files, or a data set under a skew; one of the two."""
    require(seed >= 0, f"diagnose: seed must be at least 0, got {seed}")
    require(
        bool(paths) != (dataset is not None),
        "diagnose: give files with label and client, or dataset with skew (one of the two)",
    )
    if paths:
        require(bool(label), "diagnose: name the column with the labels by label")
        require(
            skew is None and clients is None,
            "diagnose: skew and clients need dataset; for files, name the column of the clients by client",
        )
        return from_files(paths, label, client, seed, on_progress)
    require(not (label or client), "diagnose: label and client need files; a named data set has its own")
    data = dataset if isinstance(dataset, Dataset) else None
    given = {"skew": skew, "clients": clients, "partition_seed": partition_seed, "dataset": None if data else dataset}
    made = {key: value for key, value in given.items() if value is not None}
    if data and skew is None:
        made["skew"] = "iid" if data.groups is None else "natural"
    experiment = Experiment(**cast(Settings, made))
    name = data.name if data else experiment.labels("dataset")[0]
    return from_experiment(experiment, f"{name}, {' + '.join(experiment.labels('skew'))}", data)


def from_experiment(experiment: Experiment, title: str, data: Dataset | None = None) -> Subject:
    """The clients' training rows of an experiment in the first round. ``data`` replaces its data set."""
    own, data = data is not None, data or experiment.dataset.load()
    held = client_data(experiment, data)
    partition, y = held.partition, held.labels.at(0) if data.classes else data.strata[0]
    client = np.repeat(np.arange(len(partition)), partition.sizes)
    notes = [f"{count(partition.unassigned, 'row')} that no client got"] if partition.unassigned else []
    notes += [f"{count(partition.empty, 'client')} without rows left out"] if partition.empty else []
    notes += [] if data.classes else ["labels are the tenths of the target"]
    notes += ["concepts change over the rounds; measured as in the first one"] if held.labels.change else []
    x = held.x[partition.indices]
    if held.dataset.texts is not None:
        texts = pd.Series([held.dataset.texts[0][row] for row in partition.indices])
        x = columns.fit_texts(texts).encode(texts.to_numpy())
        notes += [f"texts: hashed words in {columns.TEXT_WIDTH} random directions"]
    return Subject(
        title=title,
        x=x,
        y=y[partition.indices],
        client=client,
        counts=held.label_counts(),
        classes=data.strata[1],
        clients=partition.names,
        notes=(*notes, *([data.notes] if data.notes else [])),
        facts=tuple((name, "mean", "", x[:, at].astype(np.float64)) for at, name in enumerate(data.columns)),
        name=data.name,
        arguments="" if own else arguments_of(experiment),
    )


def arguments_of(experiment: Experiment) -> str:
    """The arguments of `fedskew compare` for the data set, the skews and the number of clients."""
    number = experiment.clients.number
    words = ["--dataset", *experiment.labels("dataset")]
    words += [word for skew in experiment.labels("skew") for word in ("--skew", skew)]
    return shlex.join([*words, *(["--clients", str(number)] if number != Clients().number else [])])


def diagnosis(
    subject: Subject, seed: int = 0, on_progress: OnProgress = lambda stage, fraction: None
) -> dict[str, Any]:
    """The whole diagnosis as plain values, for ``--json``, the page and the terminal."""
    # the matrices are small: more threads wait for each other, for minutes on a busy machine
    with threadpool_limits(1):
        return measured(subject, seed, on_progress)


def measured(subject: Subject, seed: int, on_progress: OnProgress) -> dict[str, Any]:
    found = diagnose(
        subject.x,
        subject.y,
        subject.client,
        counts=subject.counts,
        seed=seed,
        on_progress=lambda fraction: on_progress("measuring against chance", fraction),
    )
    on_progress("further measures", 1.0)
    more = details(subject.x, subject.y, subject.client, subject.counts, seed)
    strengths = {face.name: face.strength if face.real else 0.0 for face in found.faces}
    sizes = subject.counts.sum(1)
    return {
        "data": subject.title,
        "clients": len(sizes),
        "rows": int(sizes.sum()),
        "measured_rows": found.measured_rows,
        "rows_of_a_class_held_by_one_client": found.alone,
        "classes": list(subject.classes),
        "smallest": int(sizes.min()),
        "median": float(np.median(sizes)),
        "largest": int(sizes.max()),
        "dominant": found.dominant or None,
        "faces": [face_of(found, name, subject.clients) for name in MEANINGS],
        "measures": more,
        "columns": [{**asdict(d), "text": d.text} for d in differences(subject.facts, subject.client, subject.clients)],
        "notes": list(subject.notes),
        "column_notes": list(subject.column_notes),
        "advice": advise(found.dominant, strengths, subject.arguments, subject.name),
        "client_names": list(subject.clients),
        "label_counts": subject.counts.tolist(),
    }


def face_of(found: Diagnosis, name: str, clients: Sequence[str]) -> dict[str, Any]:
    face = found.face(name)
    return {
        "face": name,
        "meaning": MEANINGS[name],
        "value": face.value,
        "low": face.low,
        "high": face.high,
        "chance": face.chance,
        "p": face.p,
        "strength": face.strength,
        "verdict": face.verdict,
        "farthest_client": clients[int(np.argmax(face.each))],
        "each": [float(v) for v in face.each],
    }
