"""Figures and tables of stored runs as files for a paper: PDF, SVG and PNG; CSV, LaTeX and Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedskew.core.errors import BadInput, FedskewError
from fedskew.core.files import replacing, write_whole
from fedskew.core.text import count
from fedskew.measure import registry
from fedskew.measure.registry import Measure, by_primary_metric
from fedskew.report import experiments, plots, series, tables, words
from fedskew.report.experiments import Name, escaped, name_of, names
from fedskew.report.series import Budget, read_after
from fedskew.report.style import styled
from fedskew.store.runs import RunRecord, RunStore

if TYPE_CHECKING:
    import pandas as pd

FORMATS = ("pdf", "svg", "png")
SAVING = {"pdf.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "fedskew"}
"""matplotlib settings: fonts that publishers accept, and a fixed salt, so that equal figures give equal files."""


@dataclass(frozen=True)
class Layout:
    """The layout of a table: its columns (empty: all columns with values), and the spread, a key of `words.SPREADS`."""

    columns: tuple[str, ...] = ()
    spread: str = "ci95"

    def has(self, column: str) -> bool:
        """True if the layout shows this column, one of `tables.OTHER_COLUMNS`."""
        return not self.columns or column in self.columns


PLAIN = Layout()

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters of a spreadsheet formula, or white space that a spreadsheet skips before a formula."""

UNDATED = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}


def write_figures(
    store: RunStore, records: Sequence[RunRecord], folder: Path, budget: Budget | None = None, layout: Layout = PLAIN
) -> list[Path]:
    """Write each figure that these runs have measurements for, as PDF, SVG and PNG. Return the paths.

    Raises `FedskewError` if a file cannot be written.
    """
    written = []
    with writable(folder):
        for what in plots.pictures():
            if what == "clients" and series.per_client(store, records, budget).empty:
                continue
            try:
                figure = plots.plot(store, records, what, budget, layout.spread)
            except BadInput:  # these runs have no values for this figure
                continue
            with styled(SAVING):
                for form in FORMATS:
                    written.append(folder / f"{what}.{form}")
                    with replacing(written[-1]) as partial:
                        figure.savefig(partial, dpi=200, metadata=UNDATED[form])
                    figure.set_layout_engine("none")  # the layout of the first format stays
    return written


@by_primary_metric
def write_tables(
    store: RunStore, records: Sequence[RunRecord], folder: Path, budget: Budget | None = None, layout: Layout = PLAIN
) -> list[Path]:
    """Write the files of `texts_of`; return their paths. Raises `FedskewError` if a file cannot be written."""
    texts = texts_of(store, records, budget, layout)
    return [write_whole(folder / name, text, "table") for name, text in texts.items()]


@by_primary_metric
def texts_of(
    store: RunStore, records: Sequence[RunRecord], budget: Budget | None = None, layout: Layout = PLAIN
) -> dict[str, str]:
    """Return the text of each file by its name: tables of methods, a table of seeds, and the numbers of each figure.

    CSV files have all digits. Markdown and LaTeX (booktabs) have rounded numbers.
    """
    spelled = names(records)
    records = experiments.distinct(records)
    frame = series.read(store, records, budget, layout.columns)
    chosen = tables.named(frame, layout.columns)
    summary = tables.summarise(frame, records, tables.rows_within(store, records, budget), chosen)
    client_rows = dict(zip(summary["method"], summary["client_rows"], strict=True))
    spelling = {record.name: name for record, name in zip(records, spelled, strict=True)}
    seeds = series.per_seed(frame, list(dict.fromkeys([*registry.shown(), *chosen]))).reset_index()
    seeds = seeds.sort_values("method", key=lambda names: names.map(list(summary["method"]).index), kind="stable")
    shown = readable(summary, layout, chosen, spelled[0].method)
    texts = {
        "methods.csv": csv(numbers(summary, layout, chosen)),
        "seeds.csv": csv(tables.filled(seeds)),
        "methods.tex": latex(summary, [spelling[method] for method in summary["method"]], budget, layout, chosen),
        "methods.md": markdown(shown.assign(method=[str(spelling[method]) for method in shown["method"]])),
    }
    for key, measure in plots.curves().items():
        curves = series.curves_of(frame, records, measure, layout.spread)
        if measure.of_clients:
            curves["client_rows"] = curves["method"].map(client_rows)
        if len(curves):
            texts[f"{key}.csv"] = csv(curves)
    clients = series.per_client(store, records, budget)
    if len(clients):
        texts["clients.csv"] = csv(clients.assign(client_rows=clients["method"].map(client_rows)))
    return texts


def readable(
    summary: pd.DataFrame, layout: Layout = PLAIN, chosen: Sequence[Measure] = (), first: str = ""
) -> pd.DataFrame:
    """Format the summary for readers, one row a method. ``chosen`` are the measures of ``layout.columns``.

    ``first`` is the first method's name in the heading of the differences.
    """
    import pandas as pd

    rows = words.rows_of(summary)
    measures = chosen if layout.columns else tables.columns(summary, "table")
    table: dict[str, object] = {"method": summary["method"]}
    table |= {words.heading(m): [words.shown(m, row, layout.spread) for row in rows] for m in measures}
    if any(m.of_clients for m in measures):
        table["clients' rows"] = summary["client_rows"]
    if layout.has("seeds"):
        table["seeds"] = summary["seeds"]
    if len(summary) > 1 and layout.has("difference"):
        against = first or name_of(str(summary["method"].iloc[0])).method
        table[f"vs {against}"] = [
            "",
            *(words.difference(row, spread=layout.spread) for row in rows[1:]),
        ]
    if len(summary) > 1 and layout.has("verdict"):
        table["verdict"] = summary["verdict"]
    return pd.DataFrame(table)


def numbers(summary: pd.DataFrame, layout: Layout, chosen: Sequence[Measure]) -> pd.DataFrame:
    """Return the summary with all digits: the layout's columns, each with its spread, or else all columns with values."""
    if not layout.columns:
        return tables.filled(summary)
    wanted = [m.key for m in chosen] + ["difference"] * layout.has("difference")
    around = words.SPREADS[layout.spread].column
    names = ["method", *(name for key in wanted for name in (key, f"{key}_{around}"))]
    names += [column for column in ("verdict", "seeds") if layout.has(column)]
    return summary[[name for name in dict.fromkeys(names) if name in summary]]


def latex(
    summary: pd.DataFrame, spelled: Sequence[Name], budget: Budget | None, layout: Layout, chosen: Sequence[Measure]
) -> str:
    """Return the table of methods in LaTeX (booktabs) with a caption. The best mean of each column is bold."""
    shown = readable(summary, layout, chosen, spelled[0].method)
    measures = {words.heading(m): m for m in chosen or tables.columns(summary, "table")}
    shown = shown.drop(
        columns=["clients' rows", *(["seeds"] if summary["seeds"].nunique() == 1 else [])], errors="ignore"
    )
    cells, best = [[name.latex for name in spelled]], False
    for title in map(str, shown.columns[1:]):
        measure, column = measures.get(title), list(map(str, shown[title]))
        if measure is None and title != f"vs {spelled[0].method}":
            cells.append(list(map(escaped, column)))
            continue
        top = best_mean(summary[measure.key], measure, column) if measure else ""
        best = best or bool(top)
        cells.append([formula_of(cell, bold=bool(top) and cell.partition(" ")[0] == top) for cell in column])
    lines = [" & ".join(row) + r" \\" for row in zip(*cells, strict=True)]
    head = " & ".join(map(escaped, map(str, shown.columns))) + r" \\"
    about = caption(summary, [m for title in shown if (m := measures.get(str(title)))], budget, layout)
    about += " The best mean of a column is bold." * best
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            f"\\caption{{{about}}}",
            r"\label{tab:methods}",
            f"\\begin{{tabular}}{{l{'r' * (len(cells) - 1)}}}",
            r"\toprule",
            head,
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def best_mean(means: pd.Series[float], measure: Measure, cells: Sequence[str]) -> str:
    """Return the text of the best mean. Empty for a single method, and if neither high nor low values are better."""
    if not measure.better or means.count() < 2:
        return ""
    values = [float(mean) for mean in means]
    finite = [value for value in values if math.isfinite(value)]
    best = max(finite) if measure.better == "higher" else min(finite)
    return cells[values.index(best)].partition(" ")[0]


def formula_of(cell: str, bold: bool = False) -> str:
    """Format ``92.5 ± 1.2`` as a LaTeX formula."""
    mean, _, rest = cell.replace("\u202f", r"\,").replace("−", "-").partition(" ")
    if mean in ("", words.MISSING):
        return "--" * bool(mean)
    number = f"\\mathbf{{{mean}}}" if bold else mean
    return f"${number} \\pm {rest[2:]}$" if rest.startswith("± ") else f"${number}$ {escaped(rest)}".strip()


def caption(summary: pd.DataFrame, measures: Sequence[Measure], budget: Budget | None, layout: Layout) -> str:
    """Write the caption of a LaTeX table: what its numbers are, and how the verdicts are decided."""
    fewest, most = int(summary["seeds"].min()), int(summary["seeds"].max())
    over = count(most, "seed") if fewest == most else f"{fewest} to {most} seeds"
    means = f"mean and {words.SPREADS[layout.spread].title} over {over}" if most > 1 else over
    read = {"last": read_after(summary, budget), "mean": "mean over the rounds", "sum": "of a whole run"}
    groups = {of: [m.title for m in measures if m.reduce == of] for of in (*read, "max")}
    parts = [f"{words.listed(titles)} {read.get(of, '')}".strip() for of, titles in groups.items() if titles]
    text = "; ".join(parts)
    lines = [f"{text[:1].upper()}{text[1:]}; {means}."]
    if of_clients := [m.title for m in measures if m.of_clients]:
        rows = " or ".join(sorted(set(summary["client_rows"])))
        lines.append(f"{words.listed(of_clients).capitalize()}: on each client's {rows} rows.")
    if len(summary) > 1 and layout.has("verdict"):
        lines.append(f"Verdicts: {words.verdict_rule(summary, ' over ' + words.covers(summary))}.")
    return escaped(" ".join(lines))


def csv(table: pd.DataFrame) -> str:
    """Return the table as CSV. A single quote is put before text that a spreadsheet would read as a formula."""
    return table.map(without_formula).to_csv(index=False, lineterminator="\n")


def without_formula(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell


def markdown(table: pd.DataFrame) -> str:
    """Return the table as Markdown; all columns but the first are right-aligned."""
    lines = ["| " + " | ".join(map(str, table.columns)) + " |", "| --- |" + " ---: |" * (len(table.columns) - 1)]
    rows = [[str(cell).replace("|", "\\|") for cell in row] for row in table.itertuples(index=False)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


@contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Create the folder. Raises `FedskewError` if it, or a file that the block writes, cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise FedskewError(f"{folder}: cannot be written: {error.strerror}") from None
