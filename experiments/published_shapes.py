"""Published shapes at a small scale: `python experiments/published_shapes.py` writes docs/results/published-shapes.md.

Softmax regression on digits has ten clients, all in every round, batches of 16 and learning rate 0.1. The table shows the rounds
until test accuracy first reaches 85 %: the mean over two seeds, or 51 if 50 rounds do not reach it. At "0 %" the rows are sorted by
label and cut into one piece for each client. At "100 %" each client gets a random share. These are the ends of the SCAFFOLD
paper's scale of similarity. E is the number of local epochs.
"""

import tempfile
from pathlib import Path
from statistics import mean

from fedskew import Experiment
from fedskew.api.functions import run

DOCS = Path(__file__).parents[1] / "docs" / "results"
TARGET, ROUNDS, SEEDS, EPOCHS = 0.85, 50, (0, 1), (1, 5)
SIMILARITY = {"0 %": "label-sorted", "100 %": "iid"}

PUBLISHED = """The paper (Karimireddy et al. 2020) counts rounds to 50 % accuracy of logistic regression on EMNIST at 0 %
similarity, with 1, 5, 10 and 20 epochs: FedAvg 258, 428, 711, more than 1000; SCAFFOLD 77, 152, 286, 266.
Its shape against ours at 0 %:"""

NOT_CHECKED = """Not checked: FedPBS against FedAvg and FedProx on UCI-HAR at Dirichlet 0.2 (20 epochs, 100 rounds, five seeds), the
gap between even and skewed clients by local epochs on CIFAR-10 (NIID-Bench), and everything else that the methods' papers
measure on images or text."""


def rounds_to_target(method: str, skew: str, epochs: int, seed: int) -> int:
    """The first round after which test accuracy is at the target; one more than the rounds played if none is."""
    experiment = Experiment(
        dataset="digits",
        skew=skew,
        model="softmax",
        algorithm=method,
        solver="sgd:lr=0.1",
        local={"epochs": epochs, "batch_size": 16},
        training={"rounds": ROUNDS, "seed": seed},
        clients={"number": 10, "partition_seed": seed, "held_out": 0.0},
        evaluation={"local_models": False},
        engine="stacked",
    )
    with tempfile.TemporaryDirectory() as folder:
        frame = run(experiment, runs=folder).measurements()
    told = frame[(frame["split"] == "test") & (frame["name"] == "accuracy") & (frame["value"] >= TARGET)]
    return int(told["round"].min()) if len(told) else ROUNDS + 1


def main() -> None:
    found = {
        (method, alike, epochs): mean(rounds_to_target(method, skew, epochs, seed) for seed in SEEDS)
        for alike, skew in SIMILARITY.items()
        for method in ("fedavg", "scaffold")
        for epochs in EPOCHS
    }

    def shown(method: str, alike: str) -> str:
        return " | ".join(f"{found[method, alike, e]:.1f}" for e in EPOCHS)

    def said(holds: bool) -> str:
        return "the same" if holds else "not so"

    fedavg, scaffold = ([found[m, "0 %", e] for e in EPOCHS] for m in ("fedavg", "scaffold"))
    fewer = all(one < other for one, other in zip(scaffold, fedavg, strict=True))
    shapes = [
        f"- SCAFFOLD needs fewer rounds than FedAvg, for every number of epochs: {said(fewer)}.",
        f"- More local epochs make FedAvg need more rounds: {said(fedavg == sorted(fedavg))}.",
        f"- Of all pairs the slowest is FedAvg with the most epochs: {said(fedavg[-1] == max(fedavg + scaffold))}.",
    ]
    rows = [f"| `{m}` | {alike} | {shown(m, alike)} |" for alike in SIMILARITY for m in ("fedavg", "scaffold")]
    head = [
        "| method | similarity | " + " | ".join(f"E = {e}" for e in EPOCHS) + " |",
        "| --- " * (2 + len(EPOCHS)) + "|",
    ]
    text = [
        "# Published shapes",
        (__doc__ or "").strip(),
        "\n".join([*head, *rows]),
        PUBLISHED,
        "\n".join(shapes),
        NOT_CHECKED,
    ]
    (DOCS / "published-shapes.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
