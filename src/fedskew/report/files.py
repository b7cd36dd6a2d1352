"""Figures and tables of stored runs as files for a paper: PDF, SVG and PNG; CSV, LaTeX and Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fedskew.core.errors import BadInput, FedskewError
from fedskew.report import experiments, plots, series, tables, words
from fedskew.report.budget import Budget
from fedskew.report.names import Name, escaped, names
from fedskew.report.style import styled
from fedskew.store.runs import RunRecord, RunStore

if TYPE_CHECKING:
    import pandas as pd

FORMATS = ("pdf", "svg", "png")
SAVING = {"pdf.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "fedskew"}
"""Fonts that publishers accept. The same numbers give the same bytes."""

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Characters that start a formula in a spreadsheet, or that it skips before one."""

UNDATED = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}


def write_figures(
    store: RunStore, records: Sequence[RunRecord], folder: Path, budget: Budget | None = None
) -> list[Path]:
    """Write every figure that these runs have measurements for as PDF, SVG and PNG; return the files.

    Raises `FedskewError` if a file cannot be written.
    """
    written = []
    with writable(folder):
        for what in plots.pictures():
            if what == "clients" and series.per_client(store, records, budget).empty:
                continue
            try:
                figure = plots.plot(store, records, what, budget)
            except BadInput:  # not measured, or not what these runs can show
                continue
            with styled(SAVING):
                for form in FORMATS:
                    written.append(folder / f"{what}.{form}")
                    figure.savefig(written[-1], dpi=200, metadata=UNDATED[form])
                    figure.set_layout_engine("none")  # laid out once, alike in every form
    return written


def write_tables(
    store: RunStore, records: Sequence[RunRecord], folder: Path, budget: Budget | None = None
) -> list[Path]:
    """Write the texts of `texts_of`; return the files. Raises `FedskewError` if a file cannot be written."""
    texts = texts_of(store, records, budget)
    with writable(folder):
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def texts_of(store: RunStore, records: Sequence[RunRecord], budget: Budget | None = None) -> dict[str, str]:
    """The table of methods as CSV (all digits), LaTeX and Markdown, and the numbers of each figure as CSV, by file name."""
    spelled = names(records)
    records = experiments.distinct(records)
    frame = tables.read(store, records, budget)
    summary = tables.summarise(frame, records)
    shown, client_rows = readable(summary), dict(zip(summary["method"], summary["client_rows"], strict=True))
    spelling = {record.name: name for record, name in zip(records, spelled, strict=True)}
    texts = {
        "methods.csv": csv(summary),
        "methods.tex": latex(shown, spelling),
        "methods.md": markdown(shown.assign(method=[str(spelling[method]) for method in shown["method"]])),
    }
    for key, measure in plots.curves().items():
        curves = series.curves_of(frame, records, measure)
        if measure.of_clients:
            curves["client_rows"] = curves["method"].map(client_rows)
        if len(curves):
            texts[f"{key}.csv"] = csv(curves)
    clients = series.per_client(store, records, budget)
    if len(clients):
        texts["clients.csv"] = csv(clients.assign(client_rows=clients["method"].map(client_rows)))
    return texts


def readable(summary: pd.DataFrame) -> pd.DataFrame:
    """The table of methods as text: means with half-widths, columns that hold something."""
    import pandas as pd

    rows, measures = words.rows_of(summary), tables.columns(summary, "table")
    table: dict[str, object] = {"method": summary["method"]}
    table |= {words.heading(m): [words.shown(m, row) for row in rows] for m in measures}
    if any(m.of_clients for m in measures):
        table["clients' rows"] = summary["client_rows"]
    table["seeds"] = summary["seeds"]
    if len(summary) > 1:
        table["against the first"] = ["", *(words.difference(row) for row in rows[1:])]
        table["verdict"] = summary["verdict"]
    return pd.DataFrame(table)


def latex(shown: pd.DataFrame, spelling: Mapping[str, Name]) -> str:
    """The table of methods in LaTeX, with the methods' names as formulas."""
    cells = shown.astype(str).map(escaped).assign(method=[spelling[method].latex for method in shown["method"]])
    cells.columns = cells.columns.map(escaped)
    return cells.to_latex(index=False, escape=False, column_format="l" + "r" * (len(shown.columns) - 1))


def csv(table: pd.DataFrame) -> str:
    """The table as CSV. A text that a spreadsheet would read as a formula gets a single quote in front."""
    return table.map(without_formula).to_csv(index=False, lineterminator="\n")


def without_formula(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell


def markdown(table: pd.DataFrame) -> str:
    """A Markdown table; numbers to the right."""
    lines = ["| " + " | ".join(map(str, table.columns)) + " |", "| --- |" + " ---: |" * (len(table.columns) - 1)]
    rows = [[str(cell).replace("|", "\\|") for cell in row] for row in table.itertuples(index=False)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


@contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Create the folder; raises `FedskewError` if it or a file in it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise FedskewError(f"{folder}: cannot be written: {error.strerror}") from None
