"""Short names of settings for the command line and Python: ``--partition-seed 3`` is ``partition_seed=3``.

This file imports no large library, so that the command line starts fast.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TypedDict

from fedskew.core.errors import BadInput, suggestion


@dataclass(frozen=True)
class Keyword:
    """A short name for a component ("solver") or a setting ("solver.lr") of an experiment."""

    name: str
    metavar: str
    help: str
    sets: str = ""  # "solver" or "solver.lr"; empty if it sets no single option
    kind: type[str | int | float] = str
    repeated: bool = False


DATA = (
    Keyword("dataset", "D", "digits, cifar-10, uci-har:form=features, ... (`fedskew list datasets`)", "dataset"),
    Keyword(
        "skew",
        "S",
        "how clients differ: label-dirichlet:alpha=0.1, iid, natural, ...; repeat to combine",
        "skew",
        repeated=True,
    ),
    Keyword("clients", "K", "number of clients (natural skews bring their own)", "clients.number", int),
    Keyword("partition_seed", "N", "random seed of the partition", "clients.partition_seed", int),
    Keyword(
        "held_out", "F", "share of each client's rows held out to measure on (default: 0.2)", "clients.held_out", float
    ),
    Keyword(
        "unseen",
        "F",
        "share of the clients that take no part in training and measure the model",
        "clients.unseen",
        float,
    ),
    Keyword("server_data", "F", "share of the training rows kept by the server", "server_data.share", float),
)

METHOD = (
    Keyword("task", "T", "what is learnt: classification, regression:huber, ... (default: the data's)", "task"),
    Keyword("model", "M", "softmax, mlp:hidden=[64,64], cnn, hf:NAME, ... (`fedskew list models`)", "model"),
    Keyword("solver", "S", "local solver: sgd or adamw, with options", "solver"),
    Keyword("lr", "F", "learning rate of the local solver", "solver.lr", float),
    Keyword("momentum", "F", "momentum of the local solver", "solver.momentum", float),
    Keyword("server", "S", "server optimiser: sgd:lr=1, momentum, adagrad, adam, yogi", "server"),
    Keyword("selection", "S", "which clients take part in a round: everyone, uniform:fraction=0.1", "selection"),
    Keyword("refine", "R", "training on the server's rows after each round: none, distillation:steps=100", "refine"),
    Keyword("sharing", "P", "shared part of the model: all, personal:head=1, norm", "sharing"),
    Keyword("cohort", "M", "number of clients a round, chosen at random (default: all)", kind=int),
    Keyword("codec", "C", "compression of updates: none, top-k:share=0.01, qsgd:levels=15, int8, clip", "codec"),
    Keyword("augment", "A", "random changes of training images: none, crop-flip:padding=4", "augment"),
    Keyword("epochs", "E", "local epochs a round", "local.epochs", int),
    Keyword("steps", "T", "local steps a round, instead of epochs", "local.steps", int),
    Keyword("batch_size", "B", "rows a batch, or all", "local.batch_size"),
)

FAILURES = (
    Keyword(
        "system",
        "O=V,...",
        "stragglers=0.5 (probability of fewer epochs), drop_stragglers=true, dropout=0.1 (probability), "
        "epochs=1-5 or batch_sizes=[8,32] (each client has its own)",
    ),
    Keyword("availability", "A", "always, random:p=0.8, day-night:period=24, blocks:rounds=10", "availability"),
)

COMPUTE = (
    Keyword("metric", "M", "metric of your own, ./mine.py::Gini; may be repeated", "metric", repeated=True),
    Keyword("rounds", "R", "number of rounds", "training.rounds", int),
    Keyword(
        "margin", "M", "smaller differences do not matter, in points or the metric's unit", "evaluation.margin", float
    ),
    Keyword("engine", "E", "auto (a short trial decides), sequential, stacked:width=64", "engine"),
    Keyword("dtype", "T", "float32 or float64", "training.dtype"),
    Keyword("device", "D", "cpu, cuda, cuda:1, or auto (a GPU if there is one)", "training.device"),
    Keyword("precision", "P", "full, or bf16 (PyTorch's autocast to bfloat16)", "training.precision"),
)

ONE_RUN = (
    Keyword("algorithm", "A", "method: fedprox:mu=0.1, ./mine.py::Mine, ... (`fedskew list algorithms`)", "algorithm"),
    Keyword("seed", "N", "random seed of the training", "training.seed", int),
    Keyword("name", "NAME", "name of the run in tables", "name"),
)

KEYWORDS = {one.name: one for one in (*DATA, *METHOD, *FAILURES, *COMPUTE, *ONE_RUN)}

DEFAULT_METHODS = ["fedavg", "fedprox:mu=0.1", "scaffold"]
"""The methods that `compare` runs if none are named."""

OTHER_NAMES = {
    **dict.fromkeys(("method", "methods", "strategy"), ("algorithms", "algorithm")),
    "optimizer": ("solver",),
    "learning_rate": ("lr",),
    **dict.fromkeys(("alpha", "partition"), ("skew",)),
    **dict.fromkeys(("fraction", "participation"), ("cohort",)),
    **dict.fromkeys(("gpu", "cuda"), ("device",)),
    **dict.fromkeys(("out", "output", "store", "folder"), ("runs",)),
}
"""Names in other tools, and our names for the same. A command or function has at most one of ours."""

OF_FUNCTIONS = ("algorithms", "seeds", "folds", "baselines", "data", "runs", "jobs", "progress")
"""Keywords of `fedskew.run` and `fedskew.compare` that are no setting of an experiment."""


class Settings(TypedDict, total=False):
    """Keywords of an experiment. A component is a name with options, a table, or an object."""

    dataset: object
    skew: object | Sequence[object]
    clients: object  # a number, or the whole section
    partition_seed: int
    held_out: float
    unseen: float
    server_data: object  # a share, or the whole section
    task: object
    model: object
    solver: object
    lr: float
    momentum: float
    server: object
    selection: object
    refine: object
    sharing: object
    cohort: int
    codec: object
    augment: object
    epochs: int
    steps: int
    batch_size: int | str
    system: object  # "dropout=0.1", or the whole section
    availability: object
    metric: object | Sequence[object]
    rounds: int
    margin: float
    engine: object
    dtype: str
    device: str
    precision: str
    algorithm: object
    seed: int
    name: str
    # whole sections
    shared_data: object
    local: object
    faults: object
    training: object
    evaluation: object
    checkpoint: object
    # every option of the sections of plain settings
    clients__number: int
    clients__partition_seed: int
    clients__held_out: float
    clients__unseen: float
    server_data__share: float
    server_data__warm_up: int
    shared_data__beta: float
    shared_data__alpha: float
    local__epochs: int
    local__steps: int | None
    local__batch_size: int | str
    local__batches: str
    system__stragglers: float
    system__drop_stragglers: bool
    system__dropout: float
    system__epochs: object
    system__batch_sizes: object
    faults__share: float
    faults__kinds: Sequence[str]
    faults__attackers: float
    faults__attack: str
    faults__strength: float
    faults__longest: float
    faults__longest_ratio: float
    faults__fewest: float
    faults__attempts: int
    training__rounds: int
    training__seed: int
    training__dtype: str
    training__precision: str
    training__device: str
    training__threads: int
    training__states: str
    evaluation__every: int | str
    evaluation__max_clients: int
    evaluation__local_models: bool
    evaluation__adapt_steps: int
    evaluation__adapt_lr: float | None
    evaluation__inexactness: bool
    evaluation__layers: bool
    evaluation__classes: bool
    evaluation__margin: float | None
    checkpoint__every: int
    # options of components that are often set alone; others go into "NAME:OPTION=VALUE"
    solver__lr: float
    solver__momentum: float
    solver__weight_decay: float
    server__lr: float


def divided(
    keywords: Mapping[str, object], sections: Collection[str], plain: Mapping[str, Collection[str]]
) -> tuple[dict[str, object], dict[str, dict[str, object]]]:
    """Divide keywords into whole sections, and single options by section.

    ``sections`` are the names of all sections. ``plain`` has the options of sections that hold settings, not a component.
    Raises `BadInput` for an unknown keyword.
    """
    whole: dict[str, object] = {}
    options: dict[str, dict[str, object]] = {}
    for key, value in keywords.items():
        section, inner, option = key.partition("__")
        sets = KEYWORDS[key].sets if key in KEYWORDS else ""
        if inner and section in sections and section != "name":
            options.setdefault(section, {})[option] = value
        elif key == "cohort":
            whole["selection"] = {"name": "uniform", "clients": value}
        elif key in plain and isinstance(value, str):
            from fedskew.core.component import parse

            options.setdefault(key, {}).update(parse(f"{key}:{value}", key)[1])
        elif "." in sets and (key not in sections or isinstance(value, int | float)):
            section, _, option = sets.partition(".")
            options.setdefault(section, {})[option] = value
        elif key in sections:
            whole[key] = value
        else:
            raise BadInput(unknown(key, sections, plain))
    return whole, options


def unknown(key: str, sections: Collection[str], plain: Mapping[str, Collection[str]]) -> str:
    """Return the error message for an unknown keyword. It names the most similar known keyword."""
    section, inner, _ = key.partition("__")
    if inner:
        return f"{key}: unknown section {section!r}; {suggestion(section, sections)}"
    longer: dict[str, str] = {}
    for name, held in plain.items():
        longer.update({option: f"{name}__{option}" for option in held if option not in (*longer, *KEYWORDS)})
    if key in longer:
        return f"unknown keyword {key!r}; write {longer[key]}="
    if key in OF_FUNCTIONS:
        return f"unknown keyword {key!r}: only other functions have it, such as fs.compare([METHOD], seeds=5)"
    found = OTHER_NAMES[key][-1] if key in OTHER_NAMES else nearest(key, [*longer, *sections, *KEYWORDS, *OF_FUNCTIONS])
    hint = f"did you mean {longer.get(found, found)!r}?" if found else "help(fedskew.run) lists the keywords"
    return f"unknown keyword {key!r}; {hint}"


def nearest(wrong: str, known: Collection[str]) -> str:
    return next(iter(get_close_matches(wrong.lower(), known, n=1, cutoff=0.6)), "")
