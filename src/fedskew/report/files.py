"""Figures and tables of stored runs as files for a paper: PDF, SVG and PNG; CSV, LaTeX and Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.files import replacing, write_whole
from fedskew.core.text import capital, count, listed
from fedskew.measure.registry import Measure
from fedskew.report import words
from fedskew.report.experiments import client_rows, escaped, in_formula, kinds_of_rows
from fedskew.report.plots import pictures
from fedskew.report.series import Results, by_site
from fedskew.report.style import styled
from fedskew.report.tables import covers, filled, verdict_rule

if TYPE_CHECKING:
    import pandas as pd

FORMATS = ("pdf", "svg", "png")
SAVING = {"pdf.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "fedskew"}
"""matplotlib settings: fonts that publishers accept, and a fixed salt, so that equal figures give equal files."""

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters of a spreadsheet formula, or white space that a spreadsheet skips before a formula."""

UNDATED = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}


def write_figures(results: Results, folder: Path) -> list[Path]:
    """Write each figure that these runs have measurements for, as PDF, SVG and PNG. Return the paths.

    Raises `FedskewError` if a file cannot be written.
    """
    written = []
    with writable(folder):
        for what, picture in pictures(results.titled).items():
            figure = picture.draw(picture.label)
            with styled(SAVING):
                for form in FORMATS:
                    written.append(folder / f"{what}.{form}")
                    with replacing(written[-1]) as partial:
                        figure.savefig(partial, dpi=200, metadata=UNDATED[form])
                    figure.set_layout_engine("none")  # the layout of the first format stays
    return written


def write_tables(results: Results, folder: Path) -> list[Path]:
    """Write the files of `texts_of`; return their paths. Raises `FedskewError` if a file cannot be written."""
    return [write_whole(folder / name, text, "table") for name, text in texts_of(results).items()]


def texts_of(results: Results) -> dict[str, str]:
    """Return the text of each file by its name: tables of methods, a table of seeds, and the numbers of each figure of lines.

    CSV files have all digits, and the methods' names in the store. Markdown and LaTeX (booktabs) have rounded numbers.
    """
    rows_of_clients = {record.name: client_rows(record) for record in results.records}
    seeds = results.seeds.reset_index()
    seeds = seeds.sort_values("method", key=lambda names: names.map(results.methods.index), kind="stable")
    texts = {
        "methods.csv": csv(numbers(results)),
        "seeds.csv": csv(filled(seeds)),
        "methods.tex": latex(results),
        "methods.md": markdown(readable(results)),
    }
    if len(of_sites := by_site(results)):
        texts["sites.csv"] = csv(of_sites)
    of_clients = {measure.figure for measure in results.all_measures if measure.of_clients} | {"clients"}
    for what, picture in pictures(results).items():
        if (table := picture.table) is not None:
            more = {"client_rows": table["method"].map(rows_of_clients)} if what in of_clients else {}
            texts[f"{what}.csv"] = csv(table.assign(**more))
    return texts


def readable(results: Results) -> pd.DataFrame:
    """Format the summary for readers: one row for each method, with the columns of the layout."""
    import pandas as pd

    layout, measure, summary = results.layout, results.measure, results.summary
    rows, measures = words.rows_of(summary), results.columns("table")
    table: dict[str, object] = {"method": [str(results.names[row["method"]]) for row in rows]}
    table |= {words.heading(m): [words.cell_text(m, row, layout.spread) for row in rows] for m in measures}
    if any(m.of_clients for m in measures):
        table["clients' rows"] = summary["client_rows"]
    if layout.has("seeds"):
        table["seeds"] = summary["seeds"]
    if summary["unfinished"].any() and layout.has("finished"):
        table["finished"] = [f"{row['finished']} of {row['runs']}" for row in rows]
    if len(summary) > 1 and layout.has("difference"):
        table[against(results)] = ["", *(words.difference(measure, row, spread=layout.spread) for row in rows[1:])]
    if len(summary) > 1 and layout.has("verdict"):
        table["verdict"] = summary["verdict"]
    return pd.DataFrame(table)


def against(results: Results) -> str:
    """Return the heading of the differences: ``vs FedAvg``."""
    return f"vs {results.names[results.methods[0]].method}"


def numbers(results: Results) -> pd.DataFrame:
    """Return the summary with all digits: the layout's columns, each with its spread, or else all columns with values."""
    layout, summary = results.layout, results.summary
    if not layout.columns:
        return filled(summary)
    keys = [m.key for m in results.named_measures] + ["difference"] * layout.has("difference")
    endings = ("", f"_{words.SPREADS[layout.spread].column}", "_never")
    names = ["method", *(f"{key}{ending}" for key in keys for ending in endings)]
    names += [column for column in ("verdict", "seeds") if layout.has(column)]
    return summary[[name for name in dict.fromkeys(names) if name in summary]]


LATEX = r"""\begin{table}
\centering
\caption{%s}
\label{tab:methods}
\begin{tabular}{l%s}
\toprule
%s
\midrule
%s
\bottomrule
\end{tabular}
\end{table}
"""


def latex(results: Results) -> str:
    """Return the table of methods in LaTeX (booktabs) with a caption. The best mean of each column is bold."""
    summary, names = results.summary, [results.names[method] for method in results.methods]
    dropped = ["clients' rows", *(["seeds"] if summary["seeds"].nunique() == 1 else [])]
    table = readable(results).drop(columns=dropped, errors="ignore")
    measures = {words.heading(m): m for m in results.columns("table")}
    columns, bold = [[name.latex for name in names]], False
    for title in map(str, table.columns[1:]):
        measure, cells = measures.get(title), list(map(str, table[title]))
        if measure is None and title != against(results):
            columns.append(list(map(escaped, cells)))
            continue
        top = best_mean(summary[measure.key], measure, cells) if measure else ""
        bold = bold or bool(top)
        columns.append([formula_of(cell, bold=bool(top) and cell.partition(" ")[0] == top) for cell in cells])
    head, *lines = (" & ".join(row) + r" \\" for row in [map(escaped, table.columns), *zip(*columns, strict=True)])
    about = caption(results, [measures[title] for title in table if title in measures])
    about += " The best mean of a column is bold." * bold
    return LATEX % (about, "r" * (len(columns) - 1), head, "\n".join(lines))


def best_mean(means: pd.Series[float], measure: Measure, cells: Sequence[str]) -> str:
    """Return the text of the best mean. Empty for a single method, and if neither high nor low values are better."""
    if not measure.better or means.count() < 2:
        return ""
    finite = means.where(np.isfinite(means))
    return cells[int((measure.sign * finite).argmax())].partition(" ")[0]


def formula_of(cell: str, bold: bool = False) -> str:
    """Format ``92.5 ± 1.2`` as a LaTeX formula."""
    mean, _, rest = cell.replace("\u202f", r"\,").replace("−", "-").partition(" ")
    if mean in ("", words.MISSING):
        return "--" * bool(mean)
    if mean == "never":
        return escaped(cell)
    number = f"\\mathbf{{{in_formula(mean)}}}" if bold else in_formula(mean)
    return f"${number} \\pm {in_formula(rest[2:])}$" if rest.startswith("± ") else f"${number}$ {escaped(rest)}".strip()


def caption(results: Results, measures: Sequence[Measure]) -> str:
    """Write the caption of a LaTeX table: what its numbers are, and how the verdicts are decided."""
    summary, layout = results.summary, results.layout
    fewest, most = int(summary["seeds"].min()), int(summary["seeds"].max())
    noun = summary["observed"].iloc[0]
    over = count(most, noun) if fewest == most else f"{fewest} to {most} {noun}s"
    means = f"mean and {words.SPREADS[layout.spread].title} over {over}" if most > 1 else over
    read = {"last": results.read_after(), "mean": "mean over the rounds", "sum": "of a whole run", "max": ""}
    groups = {of: [m.title for m in measures if m.reduce == of] for of in read}
    text = "; ".join(f"{listed(titles)} {read[of]}".strip() for of, titles in groups.items() if titles)
    lines = [f"{capital(text)}; {means}."]
    if of_clients := [m.title for m in measures if m.of_clients]:
        lines.append(f"{listed(of_clients).capitalize()}: on each client's {kinds_of_rows(results.records)} rows.")
    if len(summary) > 1 and layout.has("verdict"):
        over = f" over {covers(summary, results.measure)}"
        lines.append(f"Verdicts: {verdict_rule(summary, results.measure, over)}.")
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
