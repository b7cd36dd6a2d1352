"""A run store of any size with made-up numbers: python -m tests.synthetic FOLDER [RUNS ROUNDS CLIENTS]."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedskew.experiment.config import Experiment
from fedskew.store.runs import Row, RunStore

METHODS = (
    "fedavg", "fedprox:mu=0.1", "scaffold", "feddyn:alpha=0.1", "fednova", "moon:mu=1.0,temperature=0.5",
    "fedlc", "fedntd", "fedsam", "ditto", "qfedavg:q=0.1", "fedpbs:local=fedga,batch=adaptive,name=a-very-long-one",
)  # fmt: skip
LABELS = 10


def synthetic_store(folder: Path, runs: int = 60, rounds: int = 200, clients: int = 30) -> RunStore:
    """``runs`` finished runs over `METHODS` and seeds, with every kind of number that a plain run stores."""
    store = RunStore(folder)
    comparison = store.add_comparison("a synthetic comparison")
    for number in range(runs):
        seed, method = divmod(number, min(len(METHODS), runs))
        name = METHODS[method]
        experiment = Experiment(name=name, training={"rounds": rounds, "seed": seed}, clients={"number": clients})
        run = store.add_run(
            name=name, experiment=experiment.toml(), experiment_hash=experiment.hash(), seed=seed, partition_seed=seed,
            rounds=rounds, comparison=comparison,
        )  # fmt: skip
        random = np.random.default_rng((seed, method))
        counts = random.integers(0, 40, (clients, LABELS))
        store.set_partition(
            run, [(k, f"client {k}", str(c), int(counts[k, c])) for k in range(clients) for c in range(LABELS)]
        )
        facts = {"clients": clients, "empty": 0, "rows": int(counts.sum()), "label_distance": 0.61}
        warning = {"kind": "oscillating", "line": "round 9: accuracy rises and falls by 12 points; try a smaller lr"}
        profile = {"forward and backward": 8.0, "evaluation": 0.4, "measures": 0.2}
        store.add_facts(run, {"partition": facts, "warnings": [warning], "profile": profile})
        with store.transaction():
            store.db.executemany(
                f"INSERT INTO measurements VALUES ({run}, ?, ?, ?, ?, ?)",
                ((t, *row) for t in range(rounds + 1) for row in round_of(random, t, method, clients)),
            )
            store.db.execute("UPDATE runs SET rounds_done=?, status='finished' WHERE id=?", (rounds, run))
    return store


def round_of(random: np.random.Generator, t: int, method: int, clients: int) -> Iterator[Row]:
    """The rows of one round, those before training for round 0."""
    accuracy = 0.9 - 0.8 * np.exp(-(t + 1) / (20 + 4 * method)) + 0.01 * random.standard_normal()
    own = np.clip(accuracy + 0.1 * random.standard_normal(clients), 0, 1)
    yield None, "test", "accuracy", accuracy
    yield None, "test", "loss", 2.3 - 2 * accuracy
    yield None, "clients", "accuracy_worst", own.min()
    yield None, "clients", "accuracy_mean", own.mean()
    yield from ((k, "global-model", "accuracy", float(own[k])) for k in range(clients))
    yield from ((k, "global-model", "loss", 2.3 - 2 * float(own[k])) for k in range(clients))
    if t:
        drift = 3 * (1 + method) / (t + 5)
        values = {"drift": drift, "divergence": 1.1 * drift, "bytes_up": 1e6, "bytes_down": 1e6, "seconds": 0.05}
        yield from ((None, "round", name, value) for name, value in values.items())
        for name in ("steps", "distance", "update_norm"):
            yield from ((k, "client", name, drift + k) for k in range(clients))
        for name in ("accuracy", "loss"):
            yield from ((k, "local-model", name, 0.5) for k in range(clients))


if __name__ == "__main__":
    print(synthetic_store(Path(sys.argv[1]), *map(int, sys.argv[2:5])).folder)
