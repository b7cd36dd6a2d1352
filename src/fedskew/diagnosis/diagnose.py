"""Diagnose how clients differ: in files, or in a data set under skews. The result is plain values.

Rows in one place are the sites of one process: each client is a site, which computes what a site of a deployment would send.
`rehearse` is a federated diagnosis on one machine: each site is a separate object that exchanges only encoded messages.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from fedskew.core.errors import BadInput, require
from fedskew.core.seeding import stream
from fedskew.data.tables.files import files_of, stem
from fedskew.data.tables.survey import Kinds, Survey, check_dropped, survey
from fedskew.diagnosis.facts import of_symbols
from fedskew.diagnosis.questions import CLASSES, FEWEST, Answer, Numbers, Question
from fedskew.diagnosis.result import values_of
from fedskew.diagnosis.server import Ask, Inquiry, faces_from, frame_of
from fedskew.diagnosis.site import AnsweringSite, targets_in
from fedskew.diagnosis.subject import ClientRows, DiagnosisOptions, OnProgress, Source, client_rows
from fedskew.diagnosis.targets import NumberTargets, SurvivalTargets, Targets, TargetTable, holdings
from fedskew.measure.heterogeneity.columns import BINS, Fact, Tested, WordFact, centred, edges, moments, tests
from fedskew.measure.heterogeneity.details import details, of_counts
from fedskew.measure.heterogeneity.faces import FEWEST_ROWS, Diagnosis, check, sample
from fedskew.measure.heterogeneity.rows import MANY, MOST_INPUTS, Floats, Ints, sums_by, table
from fedskew.measure.heterogeneity.sites import coordinates, sums
from fedskew.measure.heterogeneity.symbols import diagnose_symbols


def diagnose(
    options: DiagnosisOptions, on_progress: OnProgress = lambda stage, fraction: None, runs: Path | None = None
) -> dict[str, Any]:
    """Return the complete diagnosis as plain values, for ``--json``, the page and the terminal.

    ``runs`` is a folder with the user's own evidence, which the advice uses, too.
    """
    if not options.federated:
        return diagnosis(client_rows(options, on_progress), options.seed, on_progress, runs)
    if options.paths:
        sites, source = sites_of_files(options)
    else:
        sites, source = sites_of_rows(client_rows(options, on_progress), options.smallest_count)
    return rehearse(sites, source, options.seed, on_progress, runs)


def diagnosis(
    rows: ClientRows, seed: int = 0, on_progress: OnProgress = lambda stage, fraction: None, runs: Path | None = None
) -> dict[str, Any]:
    """Diagnose rows in one place; return the values that `diagnose` returns."""
    # The matrices are small. On a busy machine several threads would wait minutes for each other.
    with threadpool_limits(1):
        return diagnose_rows(rows, seed, on_progress, runs)


def diagnose_rows(rows: ClientRows, seed: int, on_progress: OnProgress, runs: Path | None) -> dict[str, Any]:
    facts, names = [*rows.facts], rows.names
    tested, targets = list[Tested](), rows.rows_of_targets
    if rows.kind == "symbols":
        faces = faces_of(rows, seed, lambda share: on_progress("measuring against chance", share))
        measures = of_counts(faces.counts, rows.sizes)
        facts += of_symbols(targets, names)
    else:
        pool = pooled(rows, seed, lambda step: on_progress(f"measuring {step}", 0.0))
        faces, z = pool.faces()
        on_progress("further measures", 1.0)
        measures = details(z, pool.y, pool.client, faces.counts, seed)
    if rows.kind in (CLASSES, "number"):
        tested = pool.targets.tested(rows.source.label)
        table_of_targets = replace(pool.targets.table(), sizes=rows.sizes)
    else:
        classes = names if rows.kind == "symbols" else rows.classes
        shares = holdings(rows.kind, targets, rows.client, faces.counts, names)
        table_of_targets = TargetTable(rows.kind, classes, names, rows.sizes, shares)
    of_facts = [part for fact in facts for part in compared(fact, rows)]
    return values_of(rows.source, table_of_targets, faces, measures, [*of_facts, *tested], runs)


def compared(fact: Fact | WordFact, rows: ClientRows) -> list[Tested]:
    """Compare a fact between the clients: over all rows, and over the rows of each class.

    Copied rows are not compared by class.
    """
    shape = len(rows.source.clients), len(rows.classes)
    parts = tests(fact, rows.client, shape[0])
    if rows.kind != CLASSES or fact[1] == "copied":
        return parts

    def by_class(part: Tested) -> tuple[Floats, Floats]:
        values = fact[3][:, [fact[2].index(part.word)]].toarray()[:, 0] if fact[1] == "word" else fact[3]
        away = centred(np.abs(values - part.origin) if part.kind == "spread" else values, part.centre)
        totals = sums_by(rows.client * shape[1] + rows.y, shape[0] * shape[1], away[:, None])
        return totals.reshape(shape), table(rows.client, rows.y, shape)

    return [part._replace(by_class=partial(by_class, part)) for part in parts]


def faces_of(rows: ClientRows, seed: int = 0, on_share: Callable[[float], None] = lambda _: None) -> Diagnosis:
    """Measure the four faces and compare each with chance."""
    if rows.kind != "symbols":
        return pooled(rows, seed).faces()[0]
    number = len(rows.names)
    return diagnose_symbols(rows.rows_of_targets, rows.client, rows.sizes, number, seed=seed, on_progress=on_share)


@dataclass(eq=False)
class Pool:
    """Inputs ``x`` (n, d), strata ``y`` (n,) and clients (n,) of rows, and the targets of all clients.

    ``response`` (n,) has the standardised targets if they are numbers. ``sizes`` (clients,) are the clients' numbers of all rows.
    """

    x: NDArray[Any]
    y: Ints
    client: Ints
    targets: Targets
    response: Floats | None
    sizes: Ints
    seed: int = 0
    on_step: Callable[[str], None] = lambda step: None
    sites: list[Ints] = field(init=False)
    """The rows of each client, in their order."""

    def __post_init__(self) -> None:
        ends = np.cumsum(np.bincount(self.client, minlength=len(self.sizes)))
        self.sites = np.split(np.argsort(self.client, kind="stable"), ends[:-1])

    def faces(self) -> tuple[Diagnosis, Floats]:
        """Return the faces, and the columns (n, at most `rows.WIDTH` + 1) in which rows are compared."""
        frame = frame_of(self.compute, self.compute("scale", {}, {}), len(self.x))
        faces = faces_from(self.compute, frame, self.targets, self.sizes, self.seed)
        z = np.concatenate([coordinates(self.x[rows], frame) for rows in self.sites])
        return faces, z[np.argsort(np.concatenate(self.sites))]

    def compute(self, step: str, shapes: Mapping[str, tuple[int, ...]], *parameters: Numbers) -> Iterator[Numbers]:
        """Yield the numbers of each site in a step."""
        self.on_step(step)
        for at, rows in enumerate(self.sites):
            question = parameters[at if len(parameters) > 1 else 0]
            response = None if self.response is None else self.response[rows]
            yield sums(step, coordinates(self.x[rows], question), question, self.y[rows], self.targets.strata, response)


def pooled(rows: ClientRows, seed: int = 0, on_step: Callable[[str], None] = lambda step: None) -> Pool:
    """Make the pool of at most `faces.MOST_ROWS` of the rows.

    Raises `BadInput` for one client, clients without rows, one class, or fewer than 30 rows.
    """
    check(rows.sizes)
    number = len(rows.client)
    require(number >= FEWEST_ROWS, f"diagnose: {number} rows are too few; give at least {FEWEST_ROWS}")
    targets, y = targets_and_strata(rows)
    drawn = np.sort(sample(rows.client, stream(seed, "diagnose")))
    x, response = rows.x[drawn], rows.response
    if x.shape[1] > MOST_INPUTS:
        from sklearn.random_projection import SparseRandomProjection

        x = SparseRandomProjection(MANY, random_state=0).fit_transform(x)
    if response is not None:
        response = ((response - response.mean()) / response.std())[drawn]
    return Pool(x, y[drawn], rows.client[drawn], targets, response, rows.sizes, seed, on_step)


def targets_and_strata(rows: ClientRows) -> tuple[Targets, Ints]:
    """Return the targets of all clients, and the stratum (n,) of each row."""
    clients = len(rows.source.clients)
    fewest = np.ones(clients, dtype=np.int64)
    if rows.response is None:
        several = (rows.counts.sum(0) > 0).sum() >= 2
        require(bool(several), "diagnose: all rows have the same label; choose another label column")
        return Targets(counts=rows.counts, fewest=fewest, names=rows.classes), rows.y
    of_clients = moments(rows.response, rows.client, clients)
    if rows.kind == "survival":
        return SurvivalTargets(counts=rows.counts, fewest=fewest, moments=of_clients, inner=np.zeros(0)), rows.y
    inner = edges(of_clients)
    at = np.searchsorted(inner, rows.response)
    counts = table(rows.client, at, (clients, BINS)).astype(np.int64)
    targets = NumberTargets(counts=counts, fewest=fewest, moments=of_clients, inner=inner)
    return targets, targets.stratum_of[at]


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
        values = Inquiry(tuple(sites), by_bytes(sites), seed, on_progress).result(source, runs)
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
