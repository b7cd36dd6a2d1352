"""The report and the evidence as HTML pages: one file each that needs no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedskew.core.files import write_whole
from fedskew.core.text import count
from fedskew.measure.registry import by_primary_metric, primary
from fedskew.report import answer as profile
from fedskew.report import experiments, plots, series, tables, words
from fedskew.report import plots as parts
from fedskew.report import plots as slices
from fedskew.report import style as tips
from fedskew.report.answer import answer, notices, remarks
from fedskew.report.comparisons import compared, draw_differences, draw_ranks, of_differences, ranking
from fedskew.report.experiments import comparison_title, titled
from fedskew.report.files import PLAIN, Layout
from fedskew.report.series import Budget, read_after
from fedskew.report.style import LINE, MARKERS, SERIES, dashes, inline, marker, rendered
from fedskew.store.runs import RunRecord, RunStore

if TYPE_CHECKING:
    import pandas as pd
    from markupsafe import Markup
    from matplotlib.figure import Figure


FILTERS = (
    ("data", "data"),
    ("dominant", "strongest face"),
    ("method", "method"),
    ("measured_on", "measured on"),
    ("verdict", "verdict"),
)


def evidence_page(cells: Sequence[Mapping[str, Any]], about: str) -> str:
    """Return the page as HTML text. Each of ``cells`` has the keys of `fedskew.advice.evidence.Cell`."""
    choices = [
        (name, title, sorted({str(cell["title" if name == "method" else name]) for cell in cells}))
        for name, title in FILTERS
    ]
    return rendered(
        "evidence.html", {}, "evidence.js", cells=cells, about=about, filters=choices, faces=list(cells[0]["strengths"])
    )


PARTITION_NUMBERS = (
    ("skews", "how clients differ"),
    ("clients", "clients with rows"),
    ("empty", "clients left without rows"),
    ("rows", "rows dealt to train on"),
    ("held_out", "rows held out to measure clients"),
    ("unmeasured", "clients without held-out rows, not measured"),
    ("unseen", "clients that take no part in training"),
    ("server_rows", "rows of the server"),
    ("shared_rows", "rows of the public share"),
    ("shared_rows_each", "rows of the public share that each client gets"),
    ("shared_bytes", "bytes that these rows cost, sent once"),
    ("unassigned", "rows that no client got"),
    ("smallest", "smallest client, rows"),
    ("median", "median client, rows"),
    ("largest", "largest client, rows"),
    ("size_variation", "variation of sizes, standard deviation over mean"),
    ("label_distance", "label distance, 0 (alike) to 1"),
    ("label_distance_by_chance", "label distance by chance alone"),
    ("label_shift", "label distance from the requested skew"),
    ("changed_labels", "share of labels changed at the start"),
    ("changed_labels_at_the_end", "share of labels changed at the end"),
    ("test_set", "test set"),
)

MOST_POINTS = 5_000
"""Maximum number of points on the lines of a figure. A page of 50 methods and 1,000 rounds stays below 5 MB."""

LANDSCAPES = 3
"""Maximum number of runs whose loss landscapes are shown."""


def write_report(
    store: RunStore,
    records: Sequence[RunRecord],
    path: str | Path,
    budget: Budget | None = None,
    layout: Layout = PLAIN,
    live: bool = False,
) -> Path:
    """Write the report on ``records`` to ``path``; an earlier report is replaced in one step.

    If ``path`` is a link, its target is replaced. A device or pipe receives the text. Raises `BadInput` without records, and
    `FedskewError` if the file cannot be written.
    """
    return write_whole(path, page(store, records, budget, layout, live), "report")


@by_primary_metric
def page(
    store: RunStore,
    records: Sequence[RunRecord],
    budget: Budget | None = None,
    layout: Layout = PLAIN,
    live: bool = False,
) -> str:
    """Return the report as HTML text. With a budget, each run counts up to its last round within the budget.

    A ``live`` page reloads itself every few seconds.
    """
    stored, records = records, titled(records)
    frame = series.read(store, records, budget, layout.columns)
    chosen = tables.named(frame, layout.columns)
    summary = tables.summarise(frame, records, tables.rows_within(store, records, budget), chosen)
    methods, profiles = series.methods(records), profile.profiles(records)
    columns = list(dict.fromkeys([primary(), *chosen])) if chosen else tables.columns(summary, "page")
    landscapes = landscape_figures(store, records)
    filters = (words.share, words.figures, words.ranges, count, words.breakable, in_grey)
    unbroken = partial(words.unbroken, names=series.methods(records))
    return rendered(
        "page.html",
        {"unbroken": unbroken} | {filter_.__name__: filter_ for filter_ in filters},
        title=comparison_title(store, records),
        live=live,
        records=records,
        answer=answer(summary),
        settings=experiments.settings(records),
        tuning=experiments.tuning(records),
        value=words.value,
        warnings=notices(records),
        notes=notices(records, of_partition=True),
        summary=summary.to_dict("records"),
        budget=budget,
        read_after=read_after(summary, budget),
        covered=words.covered(summary),
        margin=words.within(summary["margin"].iloc[0]) if summary["margin"].notna().any() else "",
        primary=primary(),
        columns=columns,
        remarks=list(dict.fromkeys(m.remark for m in columns if m.remark)) + remarks(records),
        spread=words.SPREADS[layout.spread].title,
        shown=partial(words.shown, spread=layout.spread),
        difference=partial(words.difference, show=words.points, spread=layout.spread),
        client_rows=experiments.kinds_of_rows(records),
        unfinished=tables.unfinished(records).to_dict("records"),
        legend=legend(methods),
        differences=difference_figure(summary, layout.spread),
        figures=rank_figure(store, stored, budget)
        + curve_figures(frame, records, layout.spread)
        + part_figures(store, records, budget, layout.spread)
        + client_figure(store, records, budget)
        + landscapes,
        landscapes=bool(landscapes),
        partition=partition(store, records),
        profiles=profiles,
        measuring=profile.measuring(records),
        parts=list(dict.fromkeys(part for own in profiles.values() for part in own)),
        measured_rows=experiments.measured_rows(records),
        provenance=experiments.provenance(records),
        recipes=experiments.recipes(records),
        drawn=next((record.id for record in records if record.status == "finished"), 0),
    )


def in_grey(text: str) -> Markup:
    """Format ``92.5 ± 1.2`` as HTML, with everything after the mean in grey."""
    from markupsafe import Markup

    first, _, rest = text.partition(" ")
    return Markup('{} <span class="half">{}</span>' if rest else "{}").format(first, rest)


def legend(methods: Sequence[str]) -> list[dict[str, str]]:
    """Return name, colour, dashes and marker of each method; empty for a single method."""
    if len(methods) < 2:
        return []
    return [
        {
            "method": method,
            "colour": f"var(--series-{index % len(SERIES) + 1})",
            "dashes": " ".join(f"{LINE * d:g}" for d in dashes(index)),
            "marker": MARKERS[marker(index)],
        }
        for index, method in enumerate(methods)
    ]


def figure(
    key: str, heading: str, label: str, drawn: Figure, caption: str, values: tips.Tips | None = None
) -> dict[str, str]:
    """Return a figure's parts for the page's template. ``label`` describes it to screen readers; ``values`` are its tips."""
    from markupsafe import Markup

    svg = Markup(inline(drawn, f"figure-{key}", label))
    shown = Markup(tips.attribute(drawn, values)) if values and values.tips else ""
    return {"key": key, "heading": heading, "label": label, "svg": svg, "caption": caption, "tips": shown}


def difference_figure(summary: pd.DataFrame, spread: str) -> dict[str, str] | None:
    """The figure of paired differences from the first method; None if there are no differences."""
    if not compared(summary):
        return None
    heading = f"difference from {summary['method'].iloc[0]}"
    over = words.covers(summary) if spread == "ci95" else words.SEEDS
    before, after = (
        (", before Holm’s correction", " after it") if spread == "ci95" else ("", " after Holm’s correction")
    )
    margin = " Dashed: the margin of equivalence." if summary["margin"].notna().any() else ""
    caption = (
        f"Dot: mean paired difference in last-round {primary().label}. Line: its {words.SPREADS[spread].unbroken} "
        f"over {over}{before}.{margin} The verdict is{after}.{''.join(f' {line}.' for line in tables.on_verdicts(summary))}"
    )
    drawn, values = draw_differences(summary, spread), of_differences(summary, spread)
    return figure("differences", heading, heading, drawn, caption, values)


def curve_figures(frame: pd.DataFrame, records: Sequence[RunRecord], spread: str) -> list[dict[str, str]]:
    """One figure of values over rounds for each measure that has any."""
    methods, made = series.methods(records), []
    for key, measure in plots.curves().items():
        table = series.curves_of(frame, records, measure, spread)
        if len(table):
            rows = f" Measured on each client’s {experiments.measured_rows(records)}." if measure.of_clients else ""
            table, thinner = thinned(table, "round", methods)
            caption = f"{words.note(measure)}.{rows}{thinner}"
            drawn, values = plots.draw_curves(table, measure, methods), tips.of_curves(table, measure, methods)
            made.append(figure(key, measure.label, f"{measure.label} over rounds", drawn, caption, values))
    return made


def thinned(table: pd.DataFrame, along: str, methods: Sequence[str]) -> tuple[pd.DataFrame, str]:
    """Return at most `MOST_POINTS` points of the methods' lines, and a sentence if there are fewer than in ``table``.

    They are evenly spaced in the column ``along``. Points at which a run stopped early stay, too.
    """
    places = sorted(table[along].unique())
    shown = tips.evenly(places, max(2, MOST_POINTS // len(methods)))
    if len(shown) == len(places):
        return table, ""
    stays = table[along].isin(shown) | (table["stopped"] > 0 if "stopped" in table else False)
    return table[stays], f" The lines show {len(shown):,} of {len(places):,} {along}s, evenly spaced."


def part_figures(
    store: RunStore, records: Sequence[RunRecord], budget: Budget | None, spread: str
) -> list[dict[str, str]]:
    """The figures of layers, classes, labels and adaptation, for those that the runs have measured."""
    order, made = series.methods(records), []
    last = "after the last measured round"
    captions = {"layers": "mean over the rounds", "classes": last, "labels": last, "adaptation": "after the last round"}
    for what in parts.MEASURES:
        table = parts.by_part(store, records, what, budget, spread)
        if len(table):
            measure = parts.measure_of(what)
            caption = f"{words.note(measure)}; {captions[what]}."
            drawn, values = parts.draw_parts(table, what, order), parts.of_parts(table, what, order)
            made.append(figure(what, measure.label, measure.label, drawn, caption, values))
    return made


def rank_figure(store: RunStore, records: Sequence[RunRecord], budget: Budget | None) -> list[dict[str, str]]:
    """The figure of the methods' ranks; an empty list unless the runs are on several data sets."""
    if ranking(store, records, budget) is None:
        return []
    heading = "ranks over the data sets"
    caption = (
        f"Methods ranked by mean {primary().label} within each data set and its skew. A thick bar joins methods whose mean ranks "
        "differ by less than Nemenyi’s critical difference (Demšar 2006)."
    )
    return [figure("ranks", heading, heading, draw_ranks(store, records, budget), caption)]


def client_figure(store: RunStore, records: Sequence[RunRecord], budget: Budget | None) -> list[dict[str, str]]:
    """The figure of the primary measure by client; an empty list if it was not measured."""
    table = series.per_client(store, records, budget)
    if table.empty:
        return []
    methods = series.methods(records)
    table, thinner = thinned(table, "rank", methods)
    heading, within = f"{primary().title} by client", " within the budget" if budget else ""
    several = " within each run, and each rank is averaged over the runs" if len(records) > 1 else ""
    others = (
        ""
        if all(map(experiments.own_clients, records)) or not several
        else ": another partition seed gives other clients"
    )
    caption = (
        f"{primary().title.capitalize()} of the global model on each client’s {experiments.measured_rows(records)}, at the last "
        f"measured round of the finished runs{within}. Clients are ranked from worst to best{several}{others}.{thinner}"
    )
    drawn = plots.draw_clients(table, methods)
    return [figure("clients", heading, heading, drawn, caption, tips.of_clients(table, methods))]


def landscape_figures(store: RunStore, records: Sequence[RunRecord]) -> list[dict[str, str]]:
    """Figures of the loss landscapes that `fedskew landscape` stored, for at most `LANDSCAPES` of the runs."""
    made: list[dict[str, str]] = []
    having = [(record, found) for record in records if (found := slices.kept(store.run_folder(record.id)))]
    for record, found in having[:LANDSCAPES]:
        for numbers in found:
            for sheet in numbers["losses"]:
                heading = f"loss landscape of {record.name}, {sheet}"
                where = "the test set" if sheet == "test set" else f"the rows of {sheet}"
                path = [
                    tips.Tip(a, b, f"after round {t}" if t else "start")
                    for t, (a, b) in enumerate(numbers.get("path", []))
                ]
                line = " The line is the global model from its start to its last round." if path else ""
                caption = (
                    f"Loss on {where} around the model of run {record.id}; axes: {slices.AXES[numbers['kind']]}.{line}"
                )
                drawn, key = slices.draw_kept(numbers, sheet), f"landscape-{len(made)}"
                made.append(figure(key, heading, heading, drawn, caption, tips.Tips("xy", path)))
    return made


def partition(store: RunStore, records: Sequence[RunRecord]) -> dict[str, object]:
    """Describe the partition of the first run that stored one: its figure, its numbers, and whether other runs differ."""
    record = next((r for r in records if isinstance(r.facts.get("partition"), dict)), records[0])
    facts = record.facts.get("partition")
    known = facts if isinstance(facts, dict) else {}
    rows = store.partition(record.id)
    return {
        "run": record,
        "seed": "" if experiments.own_clients(record) else f", partition seed {record.partition_seed}",
        "figure": partition_figure(rows, plots.known_clients(record)) if len(rows) else None,
        "numbers": [(text, readable(known[key])) for key, text in PARTITION_NUMBERS if known.get(key)],
        "others": any(
            r.facts.get("partition", known) != known
            or (r.partition_seed != record.partition_seed and not experiments.own_clients(r))
            for r in records
        ),
    }


def partition_figure(rows: pd.DataFrame, clients: int) -> dict[str, str]:
    """The figure of each client's rows by label. ``rows`` comes from `RunStore.partition`."""
    label = "rows of each client by label"
    return figure("partition", "", label, plots.draw_partition(rows, clients), "", tips.of_partition(rows))


def readable(value: object) -> str:
    """Format a value for readers; an integer gets thousands separators."""
    if value is None:
        return words.MISSING
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}".replace(",", "\u202f") if isinstance(value, int) else words.figures(value)
    return str(value)
