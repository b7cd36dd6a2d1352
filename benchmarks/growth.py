"""Growth of a round's time and of peak memory with cohort, model and clients, a million clients, and a store of 5,000 runs.

Each point is a process of its own (benchmarks/population.py and stores.py). Measures what is asked, keeps the rest of
docs/growth.json, and writes the tables and pictures of docs/how-to/large.md.

python -m benchmarks.growth [store] [cohort] [model] [clients] [population] [million]   (by default the first four: minutes)
python -m benchmarks.growth --write                                                      (only the page, from docs/growth.json)
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from fedskew.report.style import SERIES, styled

DOCS = Path(__file__).parents[1] / "docs"
BEGIN, END = "<!-- made by benchmarks/growth.py -->\n", "<!-- until here -->"

Point = dict[str, Any]

SHORT = {"rounds": 5, "clients": 10_000, "cohort": 100}
LONG = {"cohort": 1000, "engine": "stacked"}
CURVES: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "cohort": ("cohort", SHORT, (10, 32, 100, 316, 1000, 3160)),
    "model": ("hidden", SHORT, (8, 32, 128, 512, 2048)),
    "clients": ("clients", SHORT, (1000, 10_000, 100_000)),
    "population": ("clients", LONG | {"rounds": 20}, (10_000, 100_000)),
    "million": ("clients", LONG | {"rounds": 100}, (1_000_000,)),
}
"""By name: the option that grows, the other options, its values."""

GROWTH = ("cohort", "model", "clients")
STORE = "store"


def measured(curve: str) -> list[Point]:
    """Measure each point in its own process, with one thread for each core."""
    option, fixed, values = CURVES[curve]
    points = []
    for value in values:
        words = [f"--{name}={number}" for name, number in (fixed | {option: value}).items()]
        command = [sys.executable, str(Path(__file__).with_name("population.py")), *words, "--json"]
        print(" ".join(command[1:]), file=sys.stderr)
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        points.append({"value": value, **json.loads(done.stdout)})
    return points


def measured_store() -> list[Point]:
    """Measure each command in a store of 5,000 runs."""
    command = [sys.executable, str(Path(__file__).with_name("stores.py")), "--json"]
    print(" ".join(command[1:]), file=sys.stderr)
    points: list[Point] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    return points


def parameters(hidden: int) -> int:
    """Parameters of the network 30-hidden-10."""
    return 31 * hidden + 10 * (hidden + 1)


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(head)} |", "|" + " ---: |" * len(head), *(f"| {' | '.join(row)} |" for row in rows)]


def growth(points: dict[str, list[Point]]) -> list[str]:
    rows = [
        [f"{curve} {p['value']:,}", f"{1000 * p['round']:.0f}", f"{1024 * (p['peak'] - p['data']):.0f}"]
        for curve in GROWTH
        for p in points.get(curve, [])
    ]
    return table(["quantity", "ms a round", "MiB without the rows"], rows)


def population(points: list[Point]) -> list[str]:
    rows = [
        [
            f"{p['value']:,}",
            f"{max(map(int, p['accuracy']))}",
            f"{p['start']:.1f}",
            f"{p['start_processor']:.1f}",
            f"{1000 * p['round']:.0f}",
            f"{p['all_rounds']:.0f}",
            f"{p['peak']:.2f}",
            f"{p['data']:.2f}",
            f"{100 * list(p['accuracy'].values())[-1]:.1f} %",
        ]
        for p in points
    ]
    head = [
        "clients",
        "rounds",
        "start-up s",
        "start-up s of processor",
        "ms a round",
        "all rounds s",
        "peak GiB",
        "GiB of the rows",
        "accuracy",
    ]
    return table(head, rows)


def stored(points: list[Point]) -> list[str]:
    rows = [
        [
            f"`fedskew {p['command']}`",
            f"{p['seconds']:.1f}",
            f"{p['processor']:.1f}",
            f"{p['peak']:.0f}",
            f"{p['page']:.1f}" if p["page"] else "",
        ]
        for p in points
    ]
    return table(["command", "s", "s of the processor", "peak MB", "MB of the page"], rows)


def page(found: dict[str, Any]) -> str:
    """The generated part of docs/how-to/large.md."""
    points = found["points"]
    many = points.get("population", []) + points.get("million", [])
    where = f"torch {found['torch']}, {found['cores']} cores"
    parts = [
        "## Growth",
        f"`python benchmarks/growth.py` ({where}): SCAFFOLD with states on disk, clients of 20 rows, the network 30-32-10,",
        "batches of 10, five epochs. By default there are 10,000 clients and a cohort of 100; one quantity grows at a time.",
        f"*model* is the size of the hidden layer, from {parameters(8):,} to {parameters(2048):,} parameters. Medians of rounds",
        "without evaluation. Memory is the peak of the first process without the rows.",
        "",
        "![time of a round and memory against cohort, model and clients](../growth.svg)",
        "",
        *growth(points),
        "",
        "## A million clients",
        f"`python benchmarks/growth.py population million` ({where}): the same with a cohort of 1,000. Start-up is from the",
        "finished data to the first round.",
        "",
        "![accuracy over the rounds, and time of a round against the number of clients](../population.svg)",
        "",
        *population(many),
        "",
        "## Thousands of runs",
        f"`python -m benchmarks.growth store` ({where}): 5,000 runs of 20 rounds and 10 clients, in five comparisons of 50 methods",
        "and 20 seeds. The page's figures show at most 5,000 points each; their captions say how many rounds that is.",
        "",
        *stored(points.get(STORE, [])),
        "",
    ]
    return "\n".join(parts)


def logarithmic(axis: Any) -> None:
    """A log scale with numbers at powers of ten, or at every tick within one power."""
    low, high = axis.get_data_interval()
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axis.set_minor_formatter(lambda value, _: f"{value:,.0f}" if high < 10 * low else "")


def draw_growth(points: dict[str, list[Point]], place: Path) -> None:
    from matplotlib.figure import Figure

    names = [name for name in GROWTH if name in points]
    if not names:
        return
    with styled():
        figure = Figure(figsize=(9, 4.5), layout="constrained")
        grid = figure.subplots(2, len(names), squeeze=False, sharey="row", sharex="col")
        for (above, below), name in zip(grid.T, names, strict=True):
            values = [p["value"] if name != "model" else parameters(p["value"]) for p in points[name]]
            above.plot(values, [1000 * p["round"] for p in points[name]], marker="o", color=SERIES[0])
            below.plot(values, [1024 * (p["peak"] - p["data"]) for p in points[name]], marker="o", color=SERIES[1])
            logarithmic(below.xaxis)
            below.set_xlabel("parameters" if name == "model" else name)
            below.tick_params(axis="x", which="both", labelrotation=45)
        for axes, label in zip(grid[:, 0], ("ms a round", "MiB beside the rows"), strict=True):
            logarithmic(axes.yaxis)
            axes.set_ylabel(label)
        figure.savefig(place)


def draw_population(points: list[Point], place: Path) -> None:
    from matplotlib.figure import Figure

    with styled():
        figure = Figure(figsize=(8, 2.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        for colour, p in zip(SERIES, points, strict=False):
            rounds = {int(r): 100 * a for r, a in p["accuracy"].items()}
            left.plot(list(rounds), list(rounds.values()), color=colour, label=f"{p['value']:,} clients")
        left.set(xlabel="round", ylabel="accuracy, %")
        left.legend()
        right.plot([p["value"] for p in points], [1000 * p["round"] for p in points], marker="o", color=SERIES[0])
        logarithmic(right.xaxis)
        right.set(xlabel="clients", ylabel="ms a round", ylim=(0, None))
        figure.savefig(place)


def write(found: dict[str, Any]) -> None:
    """Write the pictures and the generated part of the page."""
    draw_growth(found["points"], DOCS / "growth.svg")
    many = found["points"].get("population", []) + found["points"].get("million", [])
    draw_population(many, DOCS / "population.svg")
    before, _, rest = (DOCS / "how-to" / "large.md").read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    (DOCS / "how-to" / "large.md").write_text(f"{before}{BEGIN}\n{page(found)}\n{END}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("curves", nargs="*", choices=[STORE, *CURVES, []], help="which to measure")
    parser.add_argument("--write", action="store_true", help="only write the page from what was measured before")
    parsed = parser.parse_args()
    place = DOCS / "growth.json"
    found = json.loads(place.read_text(encoding="utf-8")) if place.is_file() else {"points": {}}
    if not parsed.write:
        found |= {"torch": torch.__version__, "cores": os.cpu_count()}
        for curve in parsed.curves or (STORE, *GROWTH):
            found["points"][curve] = measured_store() if curve == STORE else measured(curve)
        place.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    write(found)


if __name__ == "__main__":
    main()
