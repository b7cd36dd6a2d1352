"""The benchmark's result as a table, a page and a picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedskew.report.style import SERIES, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = ("work", "side", "ms a round", "times our best")


def rows(works: Sequence[dict[str, Any]]) -> list[tuple[str, str, str, str]]:
    """Rows for each side of each work, fastest first: median, and ratio to the fastest time of fedskew."""
    made = []
    for work in works:
        medians, best = medians_of(work), best_of(work)
        for i, (name, m) in enumerate(sorted(medians.items(), key=lambda item: item[1])):
            made.append((work["work"] if i == 0 else "", name, f"{1000 * m:.1f}", f"{m / best:.2f}"))
    return made


def medians_of(work: dict[str, Any]) -> dict[str, float]:
    """Median seconds of every side."""
    return {name: statistics.median(taken) for name, taken in work["seconds"].items()}


def best_of(work: dict[str, Any]) -> float:
    """Median seconds of the fastest side of fedskew."""
    return min(m for name, m in medians_of(work).items() if name.startswith("fedskew"))


def verdicts(works: Sequence[dict[str, Any]]) -> list[str]:
    """One line for each work: the ratio, its target, and the largest difference of the models."""
    return [
        f"{w['work']} ({w['engine']}): {w['ratio']:.2f} times as fast as the best other side, wanted {w['wanted']:g}; "
        f"models equal to {w['largest_difference']:.0e}"
        for w in works
    ]


def short(number: float) -> str:
    """The number with three significant digits; whole numbers above 999 keep all digits."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def distances(works: Sequence[dict[str, Any]]) -> list[str]:
    """One line for each work: the fastest time of fedskew against the machine's limit."""
    lines = []
    for work in works:
        needed, best = work["limit"], best_of(work)
        lines.append(
            f"{work['work']}: arithmetic and memory take at least {short(1000 * needed['seconds'])} ms a round, our best "
            f"{short(best / needed['seconds'])} times that, {short(1e6 * best / needed['steps'])} µs a client's step"
        )
    return lines


def limits(result: dict[str, Any]) -> list[str]:
    """The page's section on the machine's limit."""
    single, half, memory = (f"{result['rates'][kind] / 1e9:.0f}" for kind in ("float32", "bf16", "memory"))
    table = []
    for work in result["works"]:
        needed, best = work["limit"], best_of(work)
        table.append(
            f"| {work['work']} | {short(needed['operations'] / 1e9)} | {short(needed['bytes'] / 1e6)} | "
            f"{short(1000 * needed['seconds'])} | {short(1000 * best)} | {short(best / needed['seconds'])} | "
            f"{short(1e6 * best / needed['steps'])} |"
        )
    return [
        "## Distance to the machine's limit",
        "",
        "The operations are the matrix products and convolutions of all steps, forward and backward. The bytes are every row once,",
        "every client's model once, and its upload twice. The limit is the longer time of the two, at the rates of all cores in",
        f"the same run: {single} billion operations a second in a large matrix product of float32, {half} of bfloat16, and",
        f"{memory} GB a second, read and written, in a large copy.",
        "For a small model, function calls take longer than arithmetic. The last column then says more: the time of a client step.",
        "",
        "| work | billion operations | MB | limit, ms | our best, ms | times the limit | µs a client's step |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        *table,
        "",
    ]


def markdown(result: dict[str, Any]) -> str:
    """The page of the documentation."""
    works, repeats = result["works"], len(next(iter(result["works"][0]["seconds"].values())))
    table = [f"| {' | '.join(COLUMNS)} |", "| --- | --- | ---: | ---: |"]
    table += [f"| {' | '.join(row)} |" for row in rows(works)]
    return "\n".join(
        [
            "# Performance",
            "",
            f"Made by `python docs/generate.py` from `python -m benchmarks.rounds{options(result)} --repeats {repeats} --json`",
            f"(`performance.json`, torch {result['torch']}, {result['cores']} cores). Medians of {repeats} interleaved rounds.",
            "All sides do the same work, and the benchmark compares the trained models.",
            "Quote the ratios, not the times: machines are noisy, and all sides share the noise.",
            *(PEERS if options(result).startswith(" --peers") else ()),
            "",
            "![milliseconds a round of every side](performance.svg)",
            "",
            *table,
            "",
            *(f"- {line}" for line in verdicts(works)),
            "",
            *limits(result),
        ]
    )


PEERS = (
    "",
    "*Flower* is its simulation on Ray with one client on each core: its FedAvg strategy and messages around the plain loop.",
    "*pfl* is pfl-research's FedAvg on its simulated backend. Each has its own environment in the user's cache folder, installed",
    "from the package index, with fedskew's PyTorch. All get the same rows, batches and initial model. Only rounds are timed.",
)
"""The page's text about the other simulators."""


def options(result: dict[str, Any]) -> str:
    """Options of the command that measured this."""
    works = result["works"]
    peers = any(name.startswith(("Flower", "pfl")) for work in works for name in work["seconds"])
    full = any("x 5000," in work["work"] for work in works)
    return f"{' --peers' * peers}{' --full' * full} --processes {result['processes']}"


def draw(works: Sequence[dict[str, Any]]) -> Figure:
    """Bars: the median seconds a round of every side, ours in the first colour."""
    from matplotlib.figure import Figure

    with styled():
        bars = [len(work["seconds"]) for work in works]
        figure = Figure(figsize=(7, 0.8 * len(works) + 0.25 * sum(bars)), layout="constrained")
        places = figure.subplots(len(works), squeeze=False, height_ratios=bars)
        for axes, work in zip(places[:, 0], works, strict=True):
            medians = {name: 1000 * m for name, m in medians_of(work).items()}
            names = sorted(medians, key=lambda name: -medians[name])
            colours = [SERIES[0] if name.startswith("fedskew") else SERIES[1] for name in names]
            axes.barh(names, [medians[name] for name in names], color=colours)
            axes.set_title(work["work"], loc="left")
        axes.set_xlabel("milliseconds a round")
    return figure
