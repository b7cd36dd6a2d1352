"""A federated diagnosis on one machine. Each site is a separate object that exchanges only encoded messages."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedskew.core.errors import BadInput, require
from fedskew.data.tables.files import files_of, stem
from fedskew.data.tables.survey import Kinds, Survey, check_dropped, survey
from fedskew.diagnosis.questions import CLASSES, FEWEST, Answer, Question
from fedskew.diagnosis.server import Ask, federated
from fedskew.diagnosis.site import AnsweringSite, targets_in
from fedskew.diagnosis.subject import ClientRows, DiagnosisOptions, OnProgress, Source

Sites = Mapping[str, AnsweringSite]


def rehearse(
    sites: Sites,
    source: Source,
    seed: int = 0,
    on_progress: OnProgress = lambda stage, fraction: None,
    runs: Path | None = None,
) -> dict[str, Any]:
    """Diagnose the sites. Each site receives and sends only encoded messages."""
    kinds = Kinds()
    for name, site in sites.items():
        kinds.add(name, site.table)
    misfits = list(kinds.notes())
    try:
        values = federated(list(sites), by_bytes(sites), source, seed, on_progress, runs)
    except BadInput as error:
        # on one machine the line can show a cell, which the server does not see
        line = str(error).partition(", but at other sites")[0]
        raise BadInput(next((note for note in misfits if note.startswith(f"{line}, such as")), str(error))) from None
    of_sites = [f"{name}: {note}" for name, site in sites.items() for note in site.notes]
    return {**values, "notes": [*values["notes"], *misfits], "column_notes": [*values["column_notes"], *of_sites]}


def by_bytes(sites: Sites) -> Ask:
    """Return a function that sends questions to the sites and returns their answers, both encoded as between machines."""

    def ask(questions: Mapping[str, Question]) -> dict[str, Answer]:
        return {
            name: msgspec.msgpack.decode(sites[name].reply(msgspec.msgpack.encode(question)), type=Answer)
            for name, question in questions.items()
        }

    return ask


def sites_of_files(options: DiagnosisOptions) -> tuple[dict[str, AnsweringSite], Source]:
    """Make one site for each value of the column ``client``. Without this column, make one for each file."""
    fewest = options.smallest_count
    sites, notes, surveys = dict[str, AnsweringSite](), list[str](), list[Survey]()
    if options.roles.client:
        rows = survey(options.paths, options.roles)
        surveys.append(rows)
        notes += rows.notes
        for at, name in enumerate(rows.clients):
            mine = rows.client == at
            sites[name] = AnsweringSite(rows.table.filter(pa.array(mine)), targets_in(rows)[mine], fewest)
    else:
        for path in files_of(options.paths):
            rows = survey([path], options.roles, fair=False)
            surveys.append(rows)
            sites[stem(path)] = AnsweringSite(rows.table, targets_in(rows), fewest)
            notes += [f"{stem(path)}: {note}" for note in rows.notes]
    check_dropped(options.roles.drop, surveys)
    return sites, options.source([*sites], notes=tuple(notes))


def sites_of_rows(rows: ClientRows, fewest: int = FEWEST) -> tuple[dict[str, AnsweringSite], Source]:
    """Make one site for each client of a named data set."""
    require(
        rows.kind in (CLASSES, "number"),
        f"diagnose --federated: {rows.source.name} has neither classes nor numbers; other targets need pooled rows",
    )
    y = np.array(rows.classes)[rows.y] if rows.response is None else rows.response
    columns, sites = columns_of(rows), {}
    for at, name in enumerate(rows.source.clients):
        mine = rows.client == at
        sites[name] = AnsweringSite(columns.filter(pa.array(mine)), y[mine], fewest, inputs=rows.x[mine])
    computed = frozenset(fact[0] for fact in rows.facts if fact[1] == "content")
    source = replace(rows.source, inputs=rows.x.shape[1], classes=rows.classes, computed=computed)
    return sites, source


def columns_of(rows: ClientRows) -> pa.Table:
    """The columns that are compared, in their own units; the inputs, if they have no others."""
    columns: dict[str, NDArray[Any]] = {}
    for fact in rows.facts:
        if fact[1] == "word":
            continue
        column, kind, word, values = fact
        if kind in ("mean", "content"):
            columns[column] = values
        elif kind == "share":
            columns.setdefault(column, np.full(len(rows.x), None, dtype=object))[values == 1] = word
    columns = columns or {f"input {at + 1}": values for at, values in enumerate(rows.x.T)}
    return pa.table({name: pa.array(cells, from_pandas=True) for name, cells in columns.items()})
