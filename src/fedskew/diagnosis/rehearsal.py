"""A federated diagnosis on one machine. Each site is a separate object that exchanges only encoded messages."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedskew.core.errors import BadInput, require
from fedskew.data.tables.files import files_of, stem
from fedskew.data.tables.survey import Kinds, Roles, survey
from fedskew.diagnosis.diagnose import OnProgress, table_arguments
from fedskew.diagnosis.questions import Answer, Question
from fedskew.diagnosis.server import Ask, federated
from fedskew.diagnosis.site import FEWEST, Site, targets_in
from fedskew.diagnosis.subject import Facts, Subject
from fedskew.diagnosis.targets import CLASSES


def without_pooling(
    paths: Sequence[Path],
    label: str,
    target: str,
    client: str,
    named: Callable[[], Subject],
    fewest: int,
    seed: int,
    on_progress: OnProgress,
    person: str = "",
) -> dict[str, Any]:
    """Diagnose files with classes or numbers, or else the data set that ``named()`` returns, without pooling rows."""
    sites, facts = (
        sites_of_files(paths, label, client, fewest, target, person) if paths else sites_of_subject(named(), fewest)
    )
    return rehearse(sites, facts, seed, on_progress)


def rehearse(
    sites: Mapping[str, Site],
    facts: Facts,
    seed: int = 0,
    on_progress: OnProgress = lambda stage, fraction: None,
) -> dict[str, Any]:
    """Diagnose the sites. Each site receives and sends only encoded messages."""
    kinds = Kinds()
    for name, site in sites.items():
        kinds.add(name, site.table)
    misfits = list(kinds.notes())
    try:
        found = federated(list(sites), by_bytes(sites), facts, seed, on_progress)
    except BadInput as error:
        # on one machine the line can show a cell, which the server does not see
        line = str(error).partition(", but at other sites")[0]
        raise BadInput(next((note for note in misfits if note.startswith(f"{line}, such as")), str(error))) from None
    kept = [f"{name}: {note}" for name, site in sites.items() for note in site.notes]
    return {**found, "notes": [*found["notes"], *misfits], "column_notes": [*found["column_notes"], *kept]}


def by_bytes(sites: Mapping[str, Site]) -> Ask:
    """Return a function that sends questions to the sites and returns their answers, both encoded as between machines."""

    def ask(questions: Mapping[str, Question]) -> dict[str, Answer]:
        return {
            name: msgspec.msgpack.decode(sites[name].reply(msgspec.msgpack.encode(question)), type=Answer)
            for name, question in questions.items()
        }

    return ask


def sites_of_files(
    paths: Sequence[Path], label: str, client: str = "", fewest: int = FEWEST, target: str = "", person: str = ""
) -> tuple[dict[str, Site], Facts]:
    """Make one site for each value of the column ``client``. Without this column, make one for each file.

    With ``person``, only the first row of each person at a site counts, so counts and noise are about persons.
    """
    require(
        bool(label) != bool(target),
        "diagnose --federated: name the column of classes by --label, or the column of numbers by --target"
        + (", not both" if label else ""),
    )
    column, numeric = label or target, bool(target)
    if client:
        found = survey(paths, Roles(column, client, person=person, numeric=numeric, once=True))
        sites = {
            name: Site(found.table.filter(pa.array(found.client == at)), targets_in(found)[found.client == at], fewest)
            for at, name in enumerate(found.clients)
        }
        notes = list(found.notes)
    else:
        sites, notes = {}, []
        for path in files_of(paths):
            found = survey([path], Roles(column, person=person, numeric=numeric, once=True), fair=False)
            sites[stem(path)] = Site(found.table, targets_in(found), fewest)
            notes += [f"{stem(path)}: {note}" for note in found.notes]
    title = ", ".join(path.name for path in paths)
    arguments = table_arguments(paths, label, client, target=target, person=person)
    return sites, Facts(title, arguments=arguments, notes=tuple(notes), label=label)


def sites_of_subject(subject: Subject, fewest: int = FEWEST) -> tuple[dict[str, Site], Facts]:
    """Make one site for each client of a named data set."""
    require(
        subject.kind in (CLASSES, "number"),
        f"diagnose --federated: {subject.name} has neither classes nor numbers; other targets need pooled rows",
    )
    y = np.array(subject.classes)[subject.y] if subject.response is None else subject.response
    columns, sites = columns_of(subject), {}
    for at, name in enumerate(subject.clients):
        mine = subject.client == at
        sites[name] = Site(columns.filter(pa.array(mine)), y[mine], fewest, inputs=subject.x[mine])
    facts = Facts(
        subject.title,
        subject.name,
        subject.arguments,
        subject.notes,
        inputs=subject.x.shape[1],
        classes=subject.classes,
        computed=frozenset(fact[0] for fact in subject.facts if fact[1] == "content"),
    )
    return sites, facts


def columns_of(subject: Subject) -> pa.Table:
    """The columns that are compared, in their own units; the inputs, if they have no others."""
    columns: dict[str, NDArray[Any]] = {}
    for fact in subject.facts:
        if fact[1] == "word":
            continue
        column, kind, word, values = fact
        if kind in ("mean", "content"):
            columns[column] = values
        elif kind == "share":
            columns.setdefault(column, np.full(len(subject.x), None, dtype=object))[values == 1] = word
    columns = columns or {f"input {at + 1}": values for at, values in enumerate(subject.x.T)}
    return pa.table({name: pa.array(cells, from_pandas=True) for name, cells in columns.items()})
