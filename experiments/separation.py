"""Every method under equal conditions on real data: `python experiments/separation.py digits` (or `uci-har`).

Ten clients have Dirichlet label skew 0.1, and all take part in every round. All methods have the same partitions, batches and
rounds. The server keeps a twentieth of the training rows, even if a method does not use them.

- Learning rate: from a small grid, with the best accuracy on the clients' held-out rows (a fifth of each client's rows),
  as a mean over the tuning seeds (two for digits, five for uci-har).
- The table is made on five other seeds. Other options of a method are its defaults, unless its name shows them.
- Nothing is chosen on the test set. A run that diverges stands in the table as diverged.
- Test accuracy belongs to the server's model. It means little if clients have their own models, which have a column here.
- All runs are tested on the same rows, so the 95 % intervals cover the seeds only. Intervals of percentages end at 0 and 100.

A verdict compares a method with FedAvg by a paired t test over the five seeds, at 5 %. Its p is corrected by Holm's method for
all differences in the table. A comparison of fewer methods may decide a difference that is undecided here.

The runs are kept in a store, and a second call continues them. The table is written to docs/results/separation-DATASET.md.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedskew import Experiment
from fedskew.core.errors import FedskewError
from fedskew.experiment.combinations import with_method
from fedskew.experiment.compare import execute_all, register_all
from fedskew.experiment.plan import prepare
from fedskew.experiment.search import Search
from fedskew.experiment.tune import tune
from fedskew.measure.intervals import mean_interval
from fedskew.measure.statistics import decided, holm, paired_p
from fedskew.report.words import MISSING, interval
from fedskew.store.runs import RunRecord, RunStore

DOCS = Path(__file__).parents[1] / "docs" / "results"

RATES = {"digits": (0.1, 0.3, 1.0), "uci-har": (0.03, 0.1, 0.3)}
TUNING_SEEDS = {"digits": (100, 101), "uci-har": (100, 101, 102, 103, 104)}
SEEDS = (0, 1, 2, 3, 4)

SETTINGS: dict[str, dict[str, Any]] = {
    "digits": {"dataset": "digits", "local": {"epochs": 5, "batch_size": 16}, "training": {"rounds": 30}},
    "uci-har": {
        "dataset": "uci-har",
        "model": "mlp:hidden=[64]",
        "local": {"epochs": 1, "batch_size": 32},
        "training": {"rounds": 20},
    },
}

NOTES = {
    "uci-har": "Taken while other work ran on the machine, `mofedsam` and `fedavgm` most: the seconds do not compare."
}
"""What a reader of a page must know."""

PLAIN = (
    *(
        "fedavg",
        "fedprox:mu=0.1",
        "scaffold",
        "fednova",
        "feddyn:alpha=0.1",
        "moon",
        "fedntd",
        "fedlc",
        "fedproc",
        "fedpa",
    ),
    *("fedsam", "mofedsam", "fedcm", "fedsol", "fedsmoo", "fedavgm:beta=0.7", "fedadagrad:lr=0.03", "fedadam:lr=0.01"),
    *(
        "fedyogi:lr=0.01",
        "qfedavg:q=1",
        "afl",
        "drfa",
        "fedbs",
        "fedpbs",
        "dualmetric",
        "fedga",
        "fedga-generalisation",
    ),
    *(
        "fedga-alignment",
        "median",
        "trimmed-mean",
        "krum",
        "feddf",
        "data-sharing",
        "ditto",
        "per-fedavg",
        "ifca",
        "fedper",
    ),
    *("local-only", "fedmd", "local-sgd:steps=50", "centralised"),
)
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    **{spec: (spec, {}) for spec in PLAIN},
    "fedavg, top-k 10 %": ("fedavg", {"codec": "top-k:share=0.1"}),
    "fedavg, qsgd": ("fedavg", {"codec": "qsgd"}),
    "fedavg, int8": ("fedavg", {"codec": "int8"}),
    "fedavg, half are stragglers": ("fedavg", {"system": {"stragglers": 0.5}}),
    "fedprox:mu=0.1, half are stragglers": ("fedprox:mu=0.1", {"system": {"stragglers": 0.5}}),
    "fednova, half are stragglers": ("fednova", {"system": {"stragglers": 0.5}}),
    "dp-fedavg, noise 1": (
        "dp-fedavg:q=0.5,noise=1.0,clip=1.0,delta=0.05",
        {"selection": "poisson:rate=0.5"},
    ),
}
"""What a line of the table is called, its method, and the sections in which it differs from the others."""


def base(dataset: str) -> Experiment:
    """What is common to all runs."""
    return Experiment(
        skew="label-dirichlet:alpha=0.1",
        clients={"number": 10, "held_out": 0.2},
        evaluation={"local_models": False},
        server_data={"share": 0.05},
        **SETTINGS[dataset],
    )


def planned(dataset: str, method: str, rate: float, seeds: Sequence[int]) -> list[Experiment]:
    spec, changes = METHODS[method]
    experiment = with_method(base(dataset), spec).replace(**changes)
    return [
        experiment.replace(name=f"{method} @ {rate:g}", solver__lr=rate, training__seed=s, clients__partition_seed=s)
        for s in seeds
    ]


def records(
    store: RunStore, dataset: str, method: str, rate: float, seeds: Sequence[int], jobs: int
) -> list[RunRecord]:
    """The runs of a method at a rate, carried out if the store does not have them yet."""
    name = f"{method} @ {rate:g}"
    known = {r.seed: r for r in store.runs() if r.name == name and r.status in ("finished", "diverged")}
    missing = [s for s in seeds if s not in known]
    if missing:
        plans, data = prepare(planned(dataset, method, rate, missing), None, jobs)
        runs = register_all(store, plans, name)
        execute_all(store, runs, data, jobs, lambda _: None, lambda _: None, lambda: False)
        known |= {r.seed: r for r in map(store.run, runs)}
    return [known[s] for s in seeds]


def value(store: RunStore, record: RunRecord, split: str, name: str, how: str = "last") -> float:
    """One number of a run: of its last round, its largest, or its sum over the rounds; NaN if it diverged or has none."""
    if record.status != "finished":
        return math.nan
    frame = store.measurements([record.id], per_client=False)
    values = frame[(frame["split"] == split) & (frame["name"] == name)].sort_values("round")["value"]
    if values.empty:
        return math.nan
    return float({"last": values.iloc[-1], "largest": values.max(), "sum": values.sum()}[how])


def tuned(store: RunStore, dataset: str, method: str, jobs: int) -> float:
    """The rate with the best accuracy on the clients' held-out rows; one at which a seed diverges does not count."""
    spec, changes = METHODS[method]
    search = Search(space={"solver.lr": RATES[dataset]}, seeds=TUNING_SEEDS[dataset])
    found = tune(store, base(dataset).replace(**changes), spec, search, jobs=jobs)
    return float(found.best.setting["solver.lr"])


COLUMNS = {
    "final accuracy %": ("test", "accuracy", "last", 100),
    "best round %": ("test", "accuracy", "largest", 100),
    "worst tenth of clients %": ("clients", "accuracy_worst_decile", "last", 100),
    "clients' own models %": ("personal", "accuracy_mean", "last", 100),
    "drift": ("round", "drift", "last", 1),
    "MB": ("round", "bytes", "sum", 1e-6),
    "s": ("round", "seconds", "sum", 1),
}


def column(store: RunStore, record: RunRecord, title: str) -> float:
    split, name, how, scale = COLUMNS[title]
    if name == "bytes":
        return sum(value(store, record, split, f"bytes_{way}", how) for way in ("down", "up")) * scale
    return value(store, record, split, name, how) * scale


@dataclass(frozen=True)
class Line:
    """One line of the table: the shown columns, and the differences in final accuracy from the first line, seed by seed."""

    method: str
    rate: str
    cells: tuple[str, ...]
    differences: tuple[float, ...] = ()
    ended: str = ""


def line_of(
    store: RunStore, dataset: str, method: str, reference: list[RunRecord] | None, jobs: int
) -> tuple[Line, list[RunRecord]]:
    """A line of the table, and its runs."""
    try:
        rate = tuned(store, dataset, method, jobs)
        runs = records(store, dataset, method, rate, SEEDS, jobs)
    except FedskewError as error:
        return Line(method, "–", (f"not run: {error}", *[""] * (len(COLUMNS) - 1))), []
    ended = [r.status for r in runs if r.status != "finished"]
    differences: tuple[float, ...] = ()
    if reference and not ended:
        ours, theirs = ([column(store, r, "final accuracy %") for r in part] for part in (runs, reference))
        differences = tuple(a - b for a, b in zip(ours, theirs, strict=True))
    how = f"{len(ended)} of {len(runs)} {' or '.join(sorted(set(ended)))}" if ended else ""
    cells = tuple(shown(title, [column(store, r, title) for r in runs]) for title in COLUMNS)
    return Line(method, f"{rate:g}", cells, differences, how), runs


def shown(title: str, values: Sequence[float]) -> str:
    """The mean of the numbers that exist; of percentages with the interval."""
    finite = [v for v in values if not math.isnan(v)]
    if not finite:
        return MISSING
    mean, half = mean_interval(finite)
    return interval(mean, half, "{:.1f}".format, high=100.0) if title.endswith("%") else f"{mean:.3g}"


def table(lines: Sequence[Line]) -> str:
    """In Markdown; the verdicts hold for all lines at once, so each new line may change those before it."""
    corrected = holm([paired_p(line.differences) for line in lines])
    title, *others = COLUMNS
    head = ["method", "lr", title, "against FedAvg", *others]
    rows = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for line, p in zip(lines, corrected, strict=True):
        against = verdict_cell(*mean_interval(line.differences), p) if line.differences else line.ended
        first, *rest = line.cells
        rows.append(f"| `{line.method}` | {line.rate} | " + " | ".join([first, against, *rest]) + " |")
    return "\n".join(rows)


def verdict_cell(mean: float, half: float, p: float) -> str:
    """``+2.6 ± 2.2 undecided, p 1``: p after the correction."""
    return f"{mean:+.1f} ± {half:.1f} {decided(p, mean)}, p {p:.2g}"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=SETTINGS)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), metavar="LINE")
    parser.add_argument("--runs", type=Path, default=Path("runs/separation"))
    parser.add_argument("--jobs", type=int, default=2)
    parsed = parser.parse_args(words)
    store = RunStore(parsed.runs / parsed.dataset)
    lines: list[Line] = []
    reference: list[RunRecord] | None = None
    for method in parsed.methods:
        line, runs = line_of(store, parsed.dataset, method, reference, parsed.jobs)
        reference = reference or runs
        lines.append(line)
        print(line, flush=True)
        write(parsed.dataset, lines, [m for m in METHODS if m not in parsed.methods])


def write(dataset: str, lines: Sequence[Line], left_out: Sequence[str]) -> None:
    """The page, after every line, so that an interrupted table is there too."""
    missing = "\n\nNot run on these data: " + ", ".join(f"`{m}`" for m in left_out) + "." if left_out else ""
    missing += f"\n\n{NOTES[dataset]}" if dataset in NOTES else ""
    text = f"# Measured separation on {dataset}\n\n{(__doc__ or '').strip()}\n\n{table(lines)}{missing}\n"
    (DOCS / f"separation-{dataset}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
