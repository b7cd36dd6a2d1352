"""The evidence behind `fedskew diagnose`: which method gained over FedAvg under which measured skew.

`python experiments/evidence.py` goes through `CASES`; `--cases`, `--methods` and `--seeds` take fewer. In a case every method
sees the same partitions, batches and rounds, each at the learning rate out of a grid at which the clients' held-out rows (a
fifth of each client's) come out best on a tuning seed. A gain is the paired difference from FedAvg after the last round over
the seeds, with its 95 % interval (Student's t); a run that diverges counts with an accuracy of 0.1. There are two gains:

- ``test``: the one global model on the test set; not for methods that give each client a model of its own;
- ``own``: on each client's held-out rows, the mean over the clients: the client's own model where the method has one, else the
  global one, against FedAvg's global model on the same rows.

The file holds no verdicts: `fedskew.advice.evidence` makes them when it reads the file, by the paired t test at 5 % after Holm's
correction for all gains of the table.

The faces' strengths are those that `diagnose` measures, averaged over the partitions of the first seeds.

Runs are kept in a store: a second call goes on where the first stopped. The table goes to src/fedskew/advice/evidence.json, where
cases that were not asked for stay.
"""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedskew import Experiment
from fedskew.experiment.combinations import with_method
from fedskew.experiment.compare import execute_all, register_all
from fedskew.experiment.diagnose import from_experiment
from fedskew.experiment.plan import prepare
from fedskew.measure.heterogeneity.diagnose import MEANINGS, diagnose
from fedskew.measure.intervals import mean_interval
from fedskew.store.runs import RunRecord, RunStore

HERE = Path(__file__).parents[1]
TABLE = HERE / "src" / "fedskew" / "advice" / "evidence.json"

RATES = (0.05, 0.15, 0.5)
TUNING_SEED = 100
MEASURED_SEEDS = 3
GUESSING = 0.1

GLOBAL = ("fedprox:mu=0.1", "scaffold", "feddyn:alpha=0.1", "fedavgm:beta=0.7", "fednova", "fedlc", "fedsmoo")
OWN = ("ditto", "fedper", "local-only")


@dataclass(frozen=True)
class Case:
    """A skew on a data set, the methods beside FedAvg, and what the experiment has in common."""

    dataset: str
    skew: tuple[str, ...]
    methods: tuple[str, ...]
    model: str = "mlp"
    epochs: int = 5

    @property
    def title(self) -> str:
        return f"{self.dataset}, {' + '.join(self.skew)}"

    def experiment(self) -> Experiment:
        return Experiment(
            dataset=self.dataset,
            skew=list(self.skew),
            model=self.model,
            clients={"number": 10, "held_out": 0.2},
            local={"epochs": self.epochs, "batch_size": 32},
            training={"rounds": 20},
            evaluation={"every": 20, "local_models": False},
        )


ALL = (
    Case("digits", ("label-dirichlet:alpha=0.1",), (*GLOBAL, *OWN)),
    Case("digits", ("concept-swap:clusters=2",), ("scaffold", "ifca", *OWN)),
    Case("digits", ("feature-affine",), ("scaffold", "fedbn", *OWN), "mlp:norm=group"),
    Case("digits", ("quantity-lognormal:sigma=1.2",), ("scaffold", "fedavgm:beta=0.7", "fednova")),
    Case("digits", ("feature-noise",), ("scaffold", "fedbn", *OWN), "mlp:norm=group"),
    Case("digits", ("label-dirichlet:alpha=0.5",), ("scaffold", "feddyn:alpha=0.1", "fedavgm:beta=0.7", "fedsmoo")),
    Case("digits", ("label-dirichlet:alpha=0.5", "concept-swap:clusters=2"), ("ifca", *OWN)),
    Case("uci-har:form=features", ("natural",), ("fedbn", *OWN), "mlp:norm=group", epochs=1),
    Case("digits", ("label-classes:k=2",), ("scaffold", "feddyn:alpha=0.1", "fedavgm:beta=0.7", "fedsmoo")),
)
CASES = {case.title: case for case in ALL}


def planned(case: Case, method: str, rates: Sequence[float], seeds: Sequence[int]) -> list[Experiment]:
    experiment = with_method(case.experiment(), method)
    return [
        experiment.replace(name=named(case, method, rate), solver__lr=rate, training__seed=s, clients__partition_seed=s)
        for rate in rates
        for s in seeds
    ]


def named(case: Case, method: str, rate: float) -> str:
    return f"{case.title}: {method} @ {rate:g}"


def records(
    store: RunStore, case: Case, method: str, rates: Sequence[float], seeds: Sequence[int], jobs: int
) -> list[RunRecord]:
    """The runs, rate by rate; carried out if the store does not have them yet."""
    known = {(r.name, r.seed): r for r in store.runs() if r.status in ("finished", "diverged")}
    wanted = planned(case, method, rates, seeds)
    missing = [e for e in wanted if (e.name, e.training.seed) not in known]
    if missing:
        plans, data = prepare(missing, None, jobs)
        runs = register_all(store, plans, f"{case.title}: {method}")
        execute_all(store, runs, data, jobs, lambda _: None, lambda _: None, lambda: False)
        known |= {(r.name, r.seed): r for r in map(store.run, runs)}
    return [known[e.name, e.training.seed] for e in wanted]


def last(store: RunStore, record: RunRecord, split: str, name: str) -> float:
    """A measurement of the last round; NaN if there is none, or the run diverged."""
    frame = store.measurements([record.id], per_client=False)
    values = frame[(frame["split"] == split) & (frame["name"] == name)].sort_values("round")["value"]
    return float(values.iloc[-1]) if record.status == "finished" and len(values) else math.nan


def own_accuracy(store: RunStore, record: RunRecord) -> float:
    """The mean over the clients of the accuracy on their held-out rows, each with the model that it would use."""
    personal = last(store, record, "personal", "accuracy_mean")
    return last(store, record, "clients", "accuracy_mean") if math.isnan(personal) else personal


def tuned(store: RunStore, case: Case, method: str, jobs: int) -> float:
    """The rate with the best accuracy on the clients' held-out rows; one that diverges does not count."""
    scores = [own_accuracy(store, r) for r in records(store, case, method, RATES, [TUNING_SEED], jobs)]
    return max(zip(RATES, scores, strict=True), key=lambda told: -math.inf if math.isnan(told[1]) else told[1])[0]


def measured(case: Case, seeds: Sequence[int]) -> tuple[str, dict[str, float]]:
    """The face that dominates on most seeds, and the mean strengths."""
    found = []
    for experiment in planned(case, "fedavg", RATES[:1], seeds):
        subject = from_experiment(experiment, case.title)
        found.append(diagnose(subject.x, subject.y, subject.client, counts=subject.counts, permutations=99))
    names = [d.dominant for d in found]
    strengths = {
        name: float(np.mean([f.strength if f.real else 0.0 for f in (d.face(name) for d in found)]))
        for name in MEANINGS
    }
    return max(sorted(set(names)), key=names.count), {name: round(value, 4) for name, value in strengths.items()}


def accuracies(store: RunStore, runs: Sequence[RunRecord]) -> dict[str, list[float]]:
    """``own`` and, where no client has a model of its own, ``test``."""
    personal = any(not math.isnan(last(store, r, "personal", "accuracy_mean")) for r in runs)
    told = {"own": [own_accuracy(store, r) for r in runs]}
    if not personal:
        told["test"] = [last(store, r, "test", "accuracy") for r in runs]
    return {name: [GUESSING if math.isnan(v) else v for v in values] for name, values in told.items()}


def evidence(store: RunStore, case: Case, methods: Sequence[str], seeds: Sequence[int], jobs: int) -> dict[str, Any]:
    """One case of the table."""
    found: dict[str, dict[str, list[float]]] = {}
    rates: dict[str, float] = {}
    for method in ("fedavg", *methods):
        rates[method] = tuned(store, case, method, jobs)
        found[method] = accuracies(store, records(store, case, method, [rates[method]], seeds, jobs))
        told = ", ".join(f"{name} {np.mean(values):.3f}" for name, values in found[method].items())
        print(f"{named(case, method, rates[method])}: {told}", flush=True)
    dominant, strengths = measured(case, seeds[:MEASURED_SEEDS])
    return {
        "data": case.dataset,
        "skew": " + ".join(case.skew),
        "model": case.model,
        "dominant": dominant,
        "strengths": strengths,
        "fedavg": {name: round(float(np.mean(values)), 5) for name, values in found["fedavg"].items()},
        "methods": [
            {"method": method, "lr": rates[method], "measure": name, **gain(values, found["fedavg"][name])}
            for method in methods
            for name, values in found[method].items()
        ],
    }


def gain(values: Sequence[float], base: Sequence[float]) -> dict[str, Any]:
    differences = [a - b for a, b in zip(values, base, strict=True)]
    mean, half = mean_interval(differences)
    return {"gain": round(mean, 5), "half": round(half, 5), "seeds": len(differences)}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES), metavar="CASE")
    parser.add_argument("--methods", nargs="+", metavar="METHOD", help="beside FedAvg; by default each case's own")
    parser.add_argument("--seeds", type=int, default=5, metavar="N")
    parser.add_argument("--runs", type=Path, default=Path("runs/evidence"))
    parser.add_argument("--jobs", type=int, default=1)
    parsed = parser.parse_args(words)
    store = RunStore(parsed.runs)
    for title in parsed.cases:
        case = CASES[title]
        made = evidence(store, case, parsed.methods or case.methods, range(parsed.seeds), parsed.jobs)
        table = json.loads(TABLE.read_text(encoding="utf-8"))
        others = [c for c in table["cases"] if (c["data"], c["skew"]) != (made["data"], made["skew"])]
        TABLE.write_text(json.dumps({**table, "cases": [*others, made]}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
