"""The wide picture of README: python docs/builder/overview.py writes docs/overview.svg from a real comparison."""

import tempfile
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

import fedskew as fs
from fedskew.report.style import INK, MUTED, SERIES, STYLE

METHODS = {"fedavg": "FedAvg", "fedprox:mu=0.1": "FedProx", "scaffold": "SCAFFOLD"}
SEEDS, ROUNDS = 5, 30


def main() -> None:
    data = fs.load("heart")
    with tempfile.TemporaryDirectory() as folder:
        runs = fs.compare(
            list(METHODS), dataset="heart", seeds=SEEDS, rounds=ROUNDS, evaluation__every=1, runs=folder, jobs=1
        )
        table, values = runs.table(full=True).set_index("method"), runs.measurements()
    number = {record.id: record.name for record in runs.records}
    with mpl.rc_context(
        {**STYLE, "font.size": 9, "axes.labelsize": 9, "svg.fonttype": "path", "svg.hashsalt": "fedskew"}
    ):
        figure = Figure(figsize=(11, 3.1), layout="constrained")
        who, curves, pairs = figure.subplots(1, 3, width_ratios=(1, 1.15, 1.15))
        hold(who, data)
        follow(curves, values, number)
        differ(pairs, table)
        place = Path(__file__).parents[1] / "overview.svg"
        figure.savefig(place, format="svg", metadata={"Date": None}, facecolor="white")


def heading(panel, text: str) -> None:
    panel.set_title(text, loc="left", fontsize=10, color=INK, fontweight="bold", pad=14)


def hold(panel, data: fs.Dataset) -> None:
    """Who holds what."""
    heading(panel, "1. Four hospitals differ")
    names = [str(name).title() for name in data.group_names]
    healthy, ill = (np.bincount(data.groups[data.y == label], minlength=len(names)) for label in (0, 1))
    at = np.arange(len(names))
    panel.barh(at, healthy, color=SERIES[5], height=0.6)
    panel.barh(at, ill, left=healthy, color=SERIES[1], height=0.6)
    panel.set(yticks=at, yticklabels=names, xlabel="patients to train on")
    panel.invert_yaxis()
    panel.text(2, -0.42, "healthy", color=SERIES[5], va="bottom", fontsize=9)
    panel.text(healthy[0] + 2, -0.42, "heart disease", color=SERIES[1], va="bottom", fontsize=9)


def follow(panel, values, number: dict[int, str]) -> None:
    """The accuracy of each method, mean over the seeds and their range."""
    heading(panel, "2. Methods train on the same seeds")
    test = values[(values["split"] == "test") & (values["name"] == "accuracy")]
    for (name, title), colour in zip(METHODS.items(), SERIES, strict=False):
        own = test[test["run"].map(number) == name].pivot_table(index="round", columns="run", values="value") * 100
        panel.plot(own.index, own.mean(axis=1), color=colour, label=title)
        panel.fill_between(own.index, own.min(axis=1), own.max(axis=1), color=colour, alpha=0.15, linewidth=0)
    panel.set(xlabel="round", ylabel="accuracy %", xlim=(1, ROUNDS), ylim=(78, 84))
    panel.legend(loc="lower right", ncols=3, fontsize=8)


def differ(panel, table) -> None:
    """The paired differences from FedAvg with their verdicts."""
    heading(panel, "3. Paired differences, with a verdict")
    panel.axvline(0, color=MUTED, linewidth=0.8)
    others = [name for name in table.index if table.loc[name, "verdict"] in ("higher", "lower", "undecided")]
    for at, (name, colour) in enumerate(zip(others, SERIES[1:], strict=False)):
        row = table.loc[name]
        mean, half = 100 * row["difference"], 100 * row["difference_half"]
        panel.errorbar(mean, at, xerr=half, fmt="o", color=colour, capsize=3)
        panel.text(mean, at - 0.16, f"{mean:+.1f} ± {half:.1f}, {row['verdict']}", ha="center", va="bottom", fontsize=9)
    panel.set(yticks=range(len(others)), yticklabels=[METHODS[name] for name in others], ylim=(len(others) - 0.5, -0.7))
    panel.set_xlabel(f"points of accuracy above FedAvg, {SEEDS} seeds, 95 %")


if __name__ == "__main__":
    main()
