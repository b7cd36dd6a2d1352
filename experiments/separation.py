"""Every method under equal conditions on real data: `python experiments/separation.py digits` (or `uci-har`).

Ten clients have Dirichlet label skew 0.1, and all take part in every round. All methods have the same partitions, batches and
rounds. The server keeps a twentieth of the training rows, even if a method does not use them.

- Learning rate: from a small grid, with the best accuracy on the clients' held-out rows (a fifth of each client's rows),
  as a mean over the tuning seeds (two for digits, five for uci-har).
- The table is made on five other seeds. Other options of a method are its defaults, unless its name shows them.
- Nothing is chosen on the test set. A run that diverges stands in the table as diverged.
- Test accuracy belongs to the server's model. It means little if clients have their own models, which have a column here.
- Worst client and own models are measured on the held-out rows.

The line below the table names the tests. Holm's method corrects for all differences in the table. A comparison of fewer methods
may decide a difference that is undecided here.

The runs are kept in a store, and a second call continues them. The table is written to docs/results/separation-DATASET.md.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedskew import Experiment
from fedskew.api.caller import Caller
from fedskew.api.execute import complete
from fedskew.core.errors import FedskewError
from fedskew.experiment.combinations import with_method
from fedskew.measure.registry import Measure
from fedskew.report import words
from fedskew.report.series import Results
from fedskew.report.tables import covered, verdict_rule
from fedskew.store.runs import RunRecord, RunStore
from fedskew.studies.runner import Executor, stored_runs
from fedskew.studies.tune import Search, tune

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
        skew="label-dirichlet:alpha=0.1,remainder=drop",
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
    experiments = planned(dataset, method, rate, seeds)
    complete(store, experiments, f"{method} @ {rate:g}", jobs, Caller())
    stored = stored_runs(store, experiments)
    return [stored[experiment.hash()] for experiment in experiments]


def tuned(store: RunStore, dataset: str, method: str, jobs: int) -> float:
    """The rate with the best accuracy on the clients' held-out rows; one at which a seed diverges does not count."""
    spec, changes = METHODS[method]
    search = Search(by="clients", space={"solver.lr": RATES[dataset]}, seeds=TUNING_SEEDS[dataset])
    found = tune(Executor(store, jobs=jobs), base(dataset).replace(**changes), spec, search)
    return float(found.best.setting["solver.lr"])


COLUMNS = {
    "final accuracy %": "accuracy",
    "best round %": "best_accuracy",
    "worst client %": "worst_client",
    "clients' own models %": "personal",
    "drift": "drift",
    "MB": "megabytes",
}
"""Headings, and the keys of their measures. The verdict stands behind the first."""


def runs_of(store: RunStore, dataset: str, method: str, jobs: int) -> list[RunRecord] | FedskewError:
    """The runs of a method at its tuned rate, or why they cannot be made."""
    try:
        return records(store, dataset, method, tuned(store, dataset, method, jobs), SEEDS, jobs)
    except FedskewError as error:
        return error


def table(store: RunStore, made: Mapping[str, list[RunRecord] | FedskewError]) -> str:
    """In Markdown; the verdicts hold for all lines at once, so each new line may change those before it."""
    records = [record for runs in made.values() if isinstance(runs, list) for record in runs]
    results = Results(store, records)
    rows = {row["method"]: row for row in words.rows_of(results.summary)}
    measures = {m.key: m for m in results.measures.shown()}
    title, *others = COLUMNS
    head = ["method", "lr", title, "against FedAvg", *others]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for method, runs in made.items():
        if isinstance(runs, list):
            first, *rest = (words.cell_text(measures[key], rows[runs[0].name]) for key in COLUMNS.values())
            cells = [runs[0].name.split(" @ ")[1], first, against(results.measure, rows[runs[0].name]), *rest]
        else:
            cells = [words.MISSING, f"not run: {runs}", *[""] * len(COLUMNS)]
        lines.append(f"| `{method}` | " + " | ".join(cells) + " |")
    cover = covered(results.summary, results.measure)
    rule = f"Verdicts: {verdict_rule(results.summary, results.measure)}. {cover[:1].upper()}{cover[1:]}."
    return "\n".join([*lines, "", rule])


def against(measure: Measure, row: words.Row) -> str:
    """``+2.6 ± 2.2 undecided, p 1``: p after the correction; or how many runs did not finish."""
    if row["unfinished"]:
        return f"{row['unfinished']} of {row['runs']} diverged"
    return f"{words.difference(measure, row)} {row['verdict']}, p {row['p']:.2g}" if row["verdict"] else ""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=SETTINGS)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), metavar="LINE")
    parser.add_argument("--runs", type=Path, default=Path("runs/separation"))
    parser.add_argument("--jobs", type=int, default=2)
    parsed = parser.parse_args(arguments)
    store = RunStore(parsed.runs / parsed.dataset)
    made: dict[str, list[RunRecord] | FedskewError] = {}
    for method in parsed.methods:
        made[method] = runs_of(store, parsed.dataset, method, parsed.jobs)
        print(method, flush=True)
        write(parsed.dataset, table(store, made), [m for m in METHODS if m not in parsed.methods])


def write(dataset: str, table: str, left_out: Sequence[str]) -> None:
    """The page, after every line, so that an interrupted table is there too."""
    missing = "\n\nNot run on these data: " + ", ".join(f"`{m}`" for m in left_out) + "." if left_out else ""
    text = f"# Measured separation on {dataset}\n\n{(__doc__ or '').strip()}\n\n{table}{missing}\n"
    (DOCS / f"separation-{dataset}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
