"""Stores and reports that the tests of this folder share."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from fedskew.core.metrics import METRICS
from fedskew.diagnosis.diagnose import diagnosis
from fedskew.diagnosis.subject import ClientRows, Source
from fedskew.measure.registry import Measures
from fedskew.report import plots
from fedskew.report.html import write_report
from fedskew.report.series import Results
from fedskew.store.runs import Row, RunStore

OTHERS = [metric.name.replace("_", "-") for metric in METRICS if metric.name != "accuracy"]
OF_ONE_DATA_SET = [
    what
    for what in (
        *(measure.figure for measure in Measures().shown("curve")),
        "differences",
        *plots.PARTS,
        "clients",
        "partition",
    )
    if not any(f"-{name}-" in f"-{what}-" for name in OTHERS)
]


def toml(name: str, seed: int, partition_seed: int, rounds: int, **more: Any) -> str:
    settings = {"lr": 0.1, "held_out": 0.0} | more
    return (
        f'name = "{name}"\n\n[dataset]\nname = "digits"\n\n[skew]\nname = "label-dirichlet"\nalpha = 0.1\n\n'
        f"[clients]\nnumber = 3\npartition_seed = {partition_seed}\nheld_out = {settings['held_out']}\n\n"
        f'[model]\nname = "mlp"\nhidden = [64]\n\n[algorithm]\nname = "{name}"\n\n[solver]\nname = "sgd"\n'
        f"lr = {settings['lr']}\n\n[training]\nrounds = {rounds}\nseed = {seed}\n"
    )


def measured(round_: int, accuracy: float, clients: Sequence[float]) -> list[Row]:
    """Return the measurements of a round. Before training, the clients have half of their final accuracy."""
    clients = [value if round_ else value / 2 for value in clients]
    rows: list[Row] = [(None, "test", "accuracy", accuracy), (None, "test", "loss", 1 - accuracy)]
    if clients:
        rows.append((None, "clients", "accuracy_worst", min(clients)))
        rows += [(k, "global-model", "accuracy", value) for k, value in enumerate(clients)]
        rows += [
            (None, "personal", f"accuracy_{name}", of(clients) + 0.05) for name, of in (("mean", mean), ("worst", min))
        ]
    rows += [(None, "test", name, 0.1 * accuracy) for name in ("forgetting", "opportunity", "parity", "odds")]
    rows += [(k, "class", name, accuracy - 0.02 * k) for k in range(2) for name in ("accuracy", "f1")]
    if round_:
        rows += [(k, "layer", "cosine", 0.2 * (k + round_)) for k in range(2)]
        rows += [(k, "adaptation", "accuracy", accuracy * (k + 4) / 9) for k in range(6)]
        values = {
            "drift": 2.0 * round_,
            "divergence": 3.0 * round_,
            "cosine": 0.5,
            "inexactness": 0.25,
            "bytes_up": 1e6,
            "bytes_down": 5e5,
            "seconds": 0.25,
        }
        rows += [(None, "round", name, value) for name, value in values.items()]
    return rows


def add(
    store: RunStore,
    name: str,
    seed: int,
    accuracies: Sequence[float],
    *,
    partition_seed: int = 0,
    status: str = "finished",
    message: str = "",
    rounds: int | None = None,
    clients: Sequence[float] = (0.5, 0.9, 0.7),
    comparison: int | None = None,
    experiment: str | None = None,
    **more: Any,
) -> int:
    """Add a run with given test accuracies after round 0, 1, ..."""
    rounds = len(accuracies) - 1 if rounds is None else rounds
    text = toml(name, seed, partition_seed, rounds, **more) if experiment is None else experiment
    run = store.add_run(
        name=name,
        experiment=text,
        experiment_hash="0",
        seed=seed,
        partition_seed=partition_seed,
        rounds=rounds,
        comparison=comparison,
    )
    for round_, accuracy in enumerate(accuracies):
        store.write_round(run, round_, measured(round_, accuracy, clients))
    store.update(run, status=status, message=message)
    return run


def mixed_store(folder: Path) -> RunStore:
    """Return a store with three methods and seeds in mixed order. One run diverged, one was interrupted."""
    made = RunStore(folder)
    comparison = made.add_comparison("Which method?")
    add(made, "fedavg", 2, [0.1, 0.9, 0.84], comparison=comparison)
    add(made, "fedprox:mu=0.1", 1, [0.1, 0.5, 0.86], comparison=comparison)
    add(made, "fedavg", 0, [0.1, 0.6, 0.80], comparison=comparison)
    add(
        made, "fedprox:mu=0.1", 3, [0.1, 0.2], comparison=comparison,
        status="diverged", message="round 2, client 1: the loss is no longer finite", rounds=2,
    )  # fmt: skip
    add(made, "fedprox:mu=0.1", 2, [0.1, 0.5, 0.85], comparison=comparison)
    add(made, "fedavg", 3, [0.1, 0.6, 0.78], comparison=comparison)
    add(made, "fedprox:mu=0.1", 0, [0.1, 0.5, 0.83], comparison=comparison)
    add(made, "fedavg", 1, [0.1, 0.6, 0.82], comparison=comparison)
    add(made, "scaffold", 0, [0.1], comparison=comparison, status="interrupted", rounds=2)
    for run in made.runs():
        made.add_facts(run.id, {"layers": ["hidden", "out"], "classes": ["cat", "dog"]})
    first = made.runs()[0].id
    made.set_partition(first, [(0, "0", "7", 30), (0, "0", "10", 2), (1, "1", "9", 5)])
    made.add_facts(
        first,
        {
            "partition": {"clients": 3, "empty": 1, "rows": 1437, "label_distance": 0.6134},
            "engine": {"name": "stacked", "estimated_seconds_a_round": {"sequential": 0.5, "stacked": 0.01}},
            "versions": {"torch": "2.9.0"},
            "data": {"name": "digits", "source": "https://example.org/digits", "fingerprint": "abc123"},
        },
    )
    return made


def compared(tmp_path: Path, methods: Mapping[str, Mapping[int, float]]) -> RunStore:
    """A store of finished one-round runs: method -> seed -> last accuracy."""
    store = RunStore(tmp_path / "compared")
    for name, runs in methods.items():
        for seed, accuracy in runs.items():
            add(store, name, seed, [0.1, accuracy])
    return store


def diagnosed() -> dict[str, Any]:
    """Return the diagnosis of four clients with different labels, sizes and first columns."""
    random = np.random.default_rng(0)
    client = np.repeat(np.arange(4), (40, 60, 80, 120))
    y = np.where(random.random(len(client)) < 0.7, client % 2, random.integers(0, 3, len(client)))
    x = random.standard_normal((len(client), 5)).astype(np.float32)
    x[:, 0] += 3 * (client == 3)
    counts = np.array([np.bincount(y[client == k], minlength=3) for k in range(4)])
    names = ("north", "east", "south", "a hospital with a rather long name")
    facts = tuple((f"column {c}", "mean", "", x[:, c].astype(float)) for c in range(5))
    classes = ("no", "yes", "perhaps")
    source = Source("visits.csv", notes=("one note",), clients=names)
    return diagnosis(ClientRows(source, x, y, client, counts, classes, facts))


def report(store: RunStore, tmp_path: Path) -> str:
    return write_report(Results(store, store.runs()), tmp_path / "out" / "report.html").read_text(encoding="utf-8")
