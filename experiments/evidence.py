"""The evidence behind `fedskew diagnose`: which method gained over FedAvg under which measured skew.

`python experiments/evidence.py` goes through `CASES`; `--cases`, `--methods` and `--seeds` take fewer. For each, ten clients, the
same partitions, batches and rounds for every method, each at the learning rate out of a grid at which the clients' held-out rows
(a fifth of each client's) come out best on two tuning seeds. The gain is the paired difference from FedAvg in test accuracy after
the last round over the seeds, with its 95 % interval (Student's t); a run that diverges counts with an accuracy of 0.1. The faces'
strengths are those that `diagnose` measures, averaged over the seeds' partitions.

Runs are kept in a store: a second call goes on where the first stopped. The table goes to src/fedskew/advice/evidence.json, where
cases that were not asked for stay.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedskew import Experiment
from fedskew.experiment.combinations import with_method
from fedskew.experiment.compare import execute_all, prepare, register_all
from fedskew.experiment.diagnose import from_experiment
from fedskew.measure.heterogeneity.diagnose import MEANINGS, diagnose
from fedskew.measure.intervals import mean_interval, verdict
from fedskew.store.runs import RunRecord, RunStore

HERE = Path(__file__).parents[1]
TABLE = HERE / "src" / "fedskew" / "advice" / "evidence.json"

DIGITS: dict[str, Any] = {
    "dataset": "digits",
    "local": {"epochs": 5, "batch_size": 16},
    "training": {"rounds": 20},
    "evaluation": {"every": 5, "local_models": False},
}
CASES: dict[str, dict[str, Any]] = {
    f"digits, {skew}": {**DIGITS, "skew": skew}
    for skew in ("label-dirichlet:alpha=0.1", "label-dirichlet:alpha=0.5", "iid")
}
"""Every case is the sections of an experiment; a skew of any kind goes into its ``skew``."""

METHODS = (
    "fedavg",
    "fedprox:mu=0.1",
    "scaffold",
    "feddyn:alpha=0.1",
    "fedavgm:beta=0.7",
    "fednova",
    "fedlc",
    "fedsmoo",
)
RATES = (0.1, 0.3, 1.0)
TUNING_SEEDS = (100, 101)
GUESSING = 0.1


def planned(case: str, method: str, rate: float, seeds: Sequence[int]) -> list[Experiment]:
    experiment = with_method(Experiment(clients={"number": 10, "held_out": 0.2}, **CASES[case]), method)
    return [
        experiment.replace(
            name=f"{case}: {method} @ {rate:g}", solver__lr=rate, training__seed=s, clients__partition_seed=s
        )
        for s in seeds
    ]


def records(store: RunStore, case: str, method: str, rate: float, seeds: Sequence[int], jobs: int) -> list[RunRecord]:
    """The runs, carried out if the store does not have them yet."""
    name = f"{case}: {method} @ {rate:g}"
    known = {r.seed: r for r in store.runs() if r.name == name and r.status in ("finished", "diverged")}
    missing = [s for s in seeds if s not in known]
    if missing:
        experiments, data, engines = prepare(planned(case, method, rate, missing), None, jobs)
        runs = register_all(store, experiments, engines, name)
        execute_all(store, runs, data, jobs, lambda _: None, lambda _: None, lambda: False)
        known |= {r.seed: r for r in map(store.run, runs)}
    return [known[s] for s in seeds]


def last(store: RunStore, record: RunRecord, split: str, name: str) -> float:
    """A measurement of the last round; NaN if the run diverged."""
    frame = store.measurements([record.id], per_client=False)
    values = frame[(frame["split"] == split) & (frame["name"] == name)].sort_values("round")["value"]
    return float(values.iloc[-1]) if record.status == "finished" and len(values) else math.nan


def tuned(store: RunStore, case: str, method: str, jobs: int) -> float:
    """The rate with the best accuracy on the clients' held-out rows; one at which a seed diverges does not count."""

    def score(rate: float) -> float:
        told = [
            last(store, r, "clients", "accuracy_mean") for r in records(store, case, method, rate, TUNING_SEEDS, jobs)
        ]
        return -math.inf if any(map(math.isnan, told)) else sum(told)

    return max(RATES, key=score)


def measured(case: str, seeds: Sequence[int]) -> tuple[str, dict[str, float]]:
    """The face that dominates on most seeds, and the mean strengths."""
    found = []
    for experiment in (planned(case, "fedavg", 0.1, [s])[0] for s in seeds):
        subject = from_experiment(experiment, case)
        found.append(diagnose(subject.x, subject.y, subject.client, counts=subject.counts, permutations=99))
    names = [d.dominant for d in found]
    strengths = {
        name: float(np.mean([f.strength if f.real else 0.0 for f in (d.face(name) for d in found)]))
        for name in MEANINGS
    }
    return max(sorted(set(names)), key=names.count), {name: round(value, 4) for name, value in strengths.items()}


def evidence(store: RunStore, case: str, methods: Sequence[str], seeds: Sequence[int], jobs: int) -> dict[str, Any]:
    """One case of the table."""
    dominant, strengths = measured(case, seeds)
    accuracies: dict[str, list[float]] = {}
    rates: dict[str, float] = {}
    for method in methods:
        rates[method] = tuned(store, case, method, jobs)
        runs = records(store, case, method, rates[method], seeds, jobs)
        accuracies[method] = [
            GUESSING if math.isnan(v) else v for v in (last(store, r, "test", "accuracy") for r in runs)
        ]
        print(f"{case}: {method} @ {rates[method]:g}: {np.mean(accuracies[method]):.3f}", flush=True)
    lines = []
    for method in methods[1:]:
        gains = [a - b for a, b in zip(accuracies[method], accuracies[methods[0]], strict=True)]
        mean, half = mean_interval(gains)
        lines.append(
            {
                "method": method,
                "gain": round(mean, 5),
                "half": round(half, 5),
                "verdict": verdict(gains),
                "seeds": len(seeds),
                "lr": rates[method],
            }
        )
    return {
        "data": CASES[case]["dataset"],
        "skew": CASES[case]["skew"],
        "dominant": dominant,
        "strengths": strengths,
        "fedavg": round(float(np.mean(accuracies[methods[0]])), 5),
        "methods": lines,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES), metavar="CASE")
    parser.add_argument(
        "--methods", nargs="+", default=list(METHODS), metavar="METHOD", help="FedAvg is always the first"
    )
    parser.add_argument("--seeds", type=int, default=5, metavar="N")
    parser.add_argument("--runs", type=Path, default=Path("runs/evidence"))
    parser.add_argument("--jobs", type=int, default=2)
    parsed = parser.parse_args()
    store = RunStore(parsed.runs)
    methods = ["fedavg", *(m for m in parsed.methods if m != "fedavg")]
    for case in parsed.cases:
        made = evidence(store, case, methods, range(parsed.seeds), parsed.jobs)
        table = json.loads(TABLE.read_text(encoding="utf-8"))
        others = [c for c in table["cases"] if (c["data"], c["skew"]) != (made["data"], made["skew"])]
        TABLE.write_text(json.dumps({**table, "cases": [*others, made]}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
