"""What `fedskew bench` measured, as a table, a page and a picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedskew.report.plots import SERIES, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = ("work", "side", "ms a round", "times our best")


def rows(works: Sequence[dict[str, Any]]) -> list[tuple[str, str, str, str]]:
    """One for each side of each work, the fastest first: medians, and how many times the fastest of fedskew."""
    made = []
    for work in works:
        medians = {name: statistics.median(taken) for name, taken in work["seconds"].items()}
        best = min(m for name, m in medians.items() if name.startswith("fedskew"))
        for i, (name, m) in enumerate(sorted(medians.items(), key=lambda item: item[1])):
            made.append((work["work"] if i == 0 else "", name, f"{1000 * m:.1f}", f"{m / best:.2f}"))
    return made


def verdicts(works: Sequence[dict[str, Any]]) -> list[str]:
    """A line a work: the ratio, what is wanted of it, and that the results are the same."""
    return [
        f"{w['work']} ({w['engine']}): {w['ratio']:.2f} times as fast as the best other side, wanted {w['wanted']:g}; "
        f"models equal to {w['largest_difference']:.0e}"
        for w in works
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
            f"Made by `python docs/generate.py` from `fedskew bench{options(result)} --repeats {repeats} --json`",
            f"(`performance.json`, torch {result['torch']}, {result['cores']} cores). Medians of {repeats} interleaved rounds.",
            "All sides do the same work, and the models that come out are compared.",
            "Quote the ratios: machines are noisy, and all sides share the noise.",
            *(PEERS if options(result).startswith(" --peers") else ()),
            "",
            "![milliseconds a round of every side](performance.svg)",
            "",
            *table,
            "",
            *(f"- {line}" for line in verdicts(works)),
            "",
        ]
    )


PEERS = (
    "",
    "Flower is its simulation on Ray, one client a core: its FedAvg strategy and messages around the plain loop. pfl is",
    "pfl-research's FedAvg on its simulated backend. Both come from the package index into an environment of their own in the",
    "user's cache folder, with fedskew's PyTorch; they get the same rows, batches and initial model, and only rounds are timed.",
)
"""What the page says of the other simulators."""


def options(result: dict[str, Any]) -> str:
    """Of the command that measured this."""
    works = result["works"]
    peers = any(name.startswith(("Flower", "pfl")) for work in works for name in work["seconds"])
    full = any("x 5000," in work["work"] for work in works)
    return f"{' --peers' * peers}{' --full' * full} --processes {result['processes']}"


def draw(works: Sequence[dict[str, Any]]) -> Figure:
    """Bars: the median seconds a round of every side, ours in the first colour."""
    from matplotlib.figure import Figure

    with styled():
        figure = Figure(figsize=(7, 1 + 1.2 * len(works)), layout="constrained")
        for axes, work in zip(figure.subplots(len(works), squeeze=False)[:, 0], works, strict=True):
            medians = {name: 1000 * statistics.median(taken) for name, taken in work["seconds"].items()}
            names = sorted(medians, key=lambda name: -medians[name])
            colours = [SERIES[0] if name.startswith("fedskew") else SERIES[1] for name in names]
            axes.barh(names, [medians[name] for name in names], color=colours)
            axes.set_title(work["work"], loc="left")
        axes.set_xlabel("milliseconds a round")
    return figure
