"""Attacks against robust aggregation: `python experiments/attacks.py` writes docs/results/attacks.md.

Softmax regression on digits has ten clients with similar labels (Dirichlet 1). Two of them attack in every round. There are 20
rounds of two local epochs, with batches of 16 and learning rate 0.1. The table shows test accuracy in % after the last round:
the mean over three seeds of partition and training, and the half-width of its 95 % interval (Student's t).
"""

import tempfile
from pathlib import Path

from fedskew import Experiment
from fedskew.api.functions import run
from fedskew.core.errors import Diverged
from fedskew.measure.statistics import mean_interval
from fedskew.report.words import interval

DOCS = Path(__file__).parents[1] / "docs" / "results"

ATTACKS = ("none", "label-flip", "sign-flip", "scaled", "gaussian")
DEFENCES = {
    "fedavg": {"algorithm": "fedavg"},
    "fedavg, updates clipped to 1": {"algorithm": "fedavg", "codec": "clip:norm=1"},
    "median": {"algorithm": "median"},
    "trimmed-mean:beta=0.2": {"algorithm": "trimmed-mean:beta=0.2"},
    "krum:f=2,c=5": {"algorithm": "krum:f=2,c=5"},
}
NOTE = """[The settings](../../src/fedskew/experiment/settings.py) describe the attacks under `[faults]`.
"scaled" sends ten times the update. "gaussian" sends noise with ten times the norm of the update.
"label-flip" changes label y to 9 - y."""
SEEDS, ROUNDS, ATTACKERS, GUESSING = (0, 1, 2), 20, 0.2, 0.1


def accuracy(defence: str, attack: str, seed: int) -> float:
    """The accuracy after the last round; if the run diverged, the accuracy of guessing."""
    experiment = Experiment(
        dataset="digits",
        skew="label-dirichlet:alpha=1,remainder=drop",
        model="softmax",
        solver="sgd:lr=0.1",
        local={"epochs": 2, "batch_size": 16},
        training={"rounds": ROUNDS, "seed": seed, "threads": 1},
        clients={"number": 10, "partition_seed": seed, "held_out": 0.0},
        evaluation={"local_models": False, "every": ROUNDS},
        faults={"attackers": 0.0 if attack == "none" else ATTACKERS, "attack": attack},
        engine="stacked",
        **DEFENCES[defence],
    )
    with tempfile.TemporaryDirectory() as folder:
        try:
            frame = run(experiment, runs=folder).measurements()
        except Diverged:
            return GUESSING
    told = frame[(frame["split"] == "test") & (frame["name"] == "accuracy")].sort_values("round")
    return float(told["value"].iloc[-1])


def cell(defence: str, attack: str) -> str:
    return interval(*mean_interval([accuracy(defence, attack, seed) for seed in SEEDS]))


def main() -> None:
    lines = [f"| aggregation | {' | '.join(ATTACKS)} |", "|---|" + "---|" * len(ATTACKS)]
    lines += [f"| {d} | {' | '.join(cell(d, attack) for attack in ATTACKS)} |" for d in DEFENCES]
    parts = ["# Attacks against robust aggregation", *(__doc__ or "").split("\n\n", 1), "\n".join(lines)]
    text = "\n\n".join(part.strip() for part in (*parts, NOTE))
    (DOCS / "attacks.md").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
