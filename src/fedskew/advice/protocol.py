"""The fixed protocol behind the packaged evidence: data sets, skews, methods, learning rates and seeds.

In a case all methods have the same partitions, batches and rounds. A method's learning rate is the value in `RATES` with the best
result on the clients' held-out rows, for `TUNING_SEED`. Then `SEEDS` are measured in two passes over all cases, so that the
first pass alone is useful.
"""

from dataclasses import dataclass
from typing import Any

RATES = (0.05, 0.15, 0.5)
TUNING_SEED = 100
SEEDS = (0, 1, 2, 3, 4)
PASSES = ((0, 1, 2), (3, 4))
"""Seeds of each pass over all cases."""

ROUNDS = 10
HELD_OUT = 0.2
"""Share of each client's training rows that tune the method and judge personal models."""

SERVER_SHARE = 0.05
"""Share of the training rows that only the server has. Most methods do not use these rows."""

REFERENCE = "fedavg"
"""Gains are differences from this method. Its learning rate is tuned in the same way."""

ADAPTED = "fedavg-ft"
"""FedAvg whose model each client fine-tunes. A model for each client must beat it, as in a comparison."""

BOUNDS = ("centralised", "local-only", "parallel-sgd")
"""Methods that are measured but never advised: they are not federated, or send a model after every step."""

PUBLISHED = ("data-sharing",)
"""Methods that are never advised because clients would have to publish rows."""

SERVER_ROWS = f"--server-data {SERVER_SHARE}"
NEEDS = {
    "fedbn": "--model mlp:norm=group",
    **dict.fromkeys(
        ("feddf", "fedga", "fedga-generalisation", "dualmetric", "fedmd", "f3", "f3-gradient"), SERVER_ROWS
    ),
}
"""Method -> options that the method needs in a comparison."""

METHODS = (
    REFERENCE,
    # local training
    *(
        "fedprox:mu=0.1",
        "scaffold",
        "fednova",
        "feddyn:alpha=0.1",
        "moon",
        "fedntd",
        "fedlc",
        "fedproc",
        "fedga-alignment",
    ),
    *("fedsam", "mofedsam", "fedsol", "fedpa", "fedsmoo", "fedcm", "local-sgd"),
    # the server
    *("fedavgm:beta=0.7", "fedadagrad:lr=0.1", "fedadam:lr=0.03", "fedyogi:lr=0.03", "feddf:steps=20", *PUBLISHED),
    # aggregation and selection
    *("fedbs:variance=loss", "fedpbs:variance=loss", "fedga", "fedga-generalisation", "dualmetric"),
    *("median", "trimmed-mean", "krum"),
    # fairness
    *("qfedavg", "afl", "drfa", "fairfed", "f3", "f3-gradient"),
    # models of the clients' own
    *(ADAPTED, "ditto", "per-fedavg", "ifca", "fedmd:steps=5,batch_size=64", "fedper", "fedbn"),
    *BOUNDS,
)

EPOCHS = {"epochs": 2, "batch_size": 32}
STEPS = {"steps": 10, "batch_size": 32}


@dataclass(frozen=True)
class Planned:
    """A case of the protocol: a data set, a skew, and the local work in a round."""

    data: str
    skew: tuple[str, ...]
    local: tuple[tuple[str, int], ...] = tuple(EPOCHS.items())
    model: str = "mlp:norm=group"

    @property
    def title(self) -> str:
        return f"{self.data}, {' + '.join(self.skew)}"

    def settings(self) -> dict[str, Any]:
        """Return the settings that are equal for all methods, as keywords of `Experiment`."""
        return {
            "dataset": self.data,
            "skew": list(self.skew),
            "model": self.model,
            "clients": {"number": 10, "held_out": HELD_OUT},
            "server_data": {"share": SERVER_SHARE},
            "local": dict(self.local),
            "training": {"rounds": ROUNDS, "threads": 1},
            "evaluation": {"every": ROUNDS, "local_models": False},
            "checkpoint": {"every": ROUNDS},
            "engine": "stacked",
        }


def steps(data: str, *skew: str, model: str = "mlp:norm=group") -> Planned:
    """Return a case with 10 local steps a round, for data sets with many rows or with clients of very different sizes."""
    return Planned(data, skew, tuple(STEPS.items()), model)


HEART = "heart:redraw=false"
SOFTMAX = "synthetic-softmax:rows=2000"
TEXT = "ag-news:train_rows=2000,test_rows=1000,vocabulary=2000,length=32"
TEXT_CNN = "text-cnn:embedding=16,filters=16,widths=[3]"

CASES = (
    Planned("digits", ("label-dirichlet:alpha=0.1,remainder=drop",)),
    Planned(HEART, ("natural",)),
    steps("adult:groups=education", "natural"),
    Planned(SOFTMAX, ("concept-swap:clusters=2",)),
    steps("synthetic:max_rows=500", "natural"),
    Planned("digits", ("feature-affine",)),
    Planned("digits", ("quantity-lognormal:sigma=1.2",)),
    steps("uci-har:form=features", "natural"),
    Planned("digits", ("concept-swap:clusters=2",)),
    Planned("tcga-brca", ("natural",)),
    steps("parkinsons", "natural"),
    Planned(SOFTMAX, ("label-dirichlet:alpha=0.1,remainder=drop",)),
    Planned("digits", ("label-dirichlet:alpha=0.05,remainder=drop",)),
    Planned(HEART, ("label-dirichlet:alpha=0.3,remainder=drop",)),
    Planned("digits", ("feature-noise",)),
    steps("synthetic:max_rows=500,beta=0", "natural"),
    Planned("digits", ("label-classes:k=2",)),
    Planned("digits", ("iid",)),
    Planned(SOFTMAX, ("quantity-lognormal:sigma=1.2",)),
    Planned("digits", ("label-dirichlet:alpha=0.3,remainder=drop",)),
    Planned(HEART, ("natural", "concept-swap:clusters=2")),
    Planned("digits", ("label-dirichlet:alpha=0.5,remainder=drop", "concept-swap:clusters=2")),
    Planned(SOFTMAX, ("feature-affine",)),
    steps("parkinsons", "quantile-dirichlet:alpha=0.3"),
    Planned("digits", ("concept-flip",)),
    Planned("digits", ("quantity-lognormal:sigma=2",)),
    Planned("digits", ("label-dirichlet:alpha=1,remainder=drop",)),
    Planned(SOFTMAX, ("label-dirichlet:alpha=0.5,remainder=drop",)),
    Planned("digits", ("label-dirichlet:alpha=0.3,remainder=drop", "feature-affine")),
    Planned(HEART, ("iid",)),
    steps("adult:groups=people", "natural"),
    steps("adult:groups=workclass", "natural"),
    steps("adult", "label-dirichlet:alpha=0.3,remainder=drop"),
    steps("uci-har:form=features", "label-dirichlet:alpha=0.1,remainder=drop"),
    steps("beijing-air:rows=3000", "natural"),
    steps(TEXT, "label-dirichlet:alpha=0.1,remainder=drop", model=TEXT_CNN),
)
"""The cases in the order of their runs: first cases with different data sets and faces, then the cheaper ones."""
