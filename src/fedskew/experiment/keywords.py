"""Short names of settings for the command line and Python: ``--partition-seed 3`` is ``partition_seed=3``.

This file imports no large library, so that the command line starts fast.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypedDict, get_args, get_origin, get_type_hints

from fedskew.core.errors import BadInput, require, suggestion


@dataclass(frozen=True)
class Keyword:
    """The declaration of an option: the command line, the keywords of Python and the reference page are made from it."""

    metavar: str
    help: str
    sets: str | None = ""  # the option that it sets, such as "solver.lr"; empty: what has its name; None: no single one
    kind: type | None = None  # the type of a word of the command line; None: the type of the keyword, or else str
    repeated: bool = False  # the command line takes it several times
    several: bool = False  # the command line takes several words
    choices: tuple[str, ...] = ()
    name: str = ""


def declared(options: type) -> dict[str, Keyword]:
    """Return the declarations in a `TypedDict`, by name."""
    keywords = {}
    for name, hint in get_type_hints(options, include_extras=True).items():
        if get_origin(hint) is Annotated:
            kind, keyword = get_args(hint)
            choices = get_args(kind) if get_origin(kind) is Literal else ()
            plain = keyword.kind or (kind if kind in (bool, int, float) else str)
            keywords[name] = replace(keyword, name=name, kind=plain, choices=choices)
    return keywords


def take(keywords: dict[str, Any], options: type) -> dict[str, Any]:
    """Remove the keywords that a `TypedDict` has from ``keywords``, and return them."""
    return {name: keywords.pop(name) for name in [*keywords] if name in options.__annotations__}


class DataSettings(TypedDict, total=False):
    """Data and clients."""

    dataset: Annotated[object, Keyword("D", "digits, cifar-10, uci-har:form=features, ... (`fedskew list datasets`)")]
    skew: Annotated[
        object | Sequence[object],
        Keyword(
            "S", "how clients differ: label-dirichlet:alpha=0.1, iid, natural, ...; repeat to combine", repeated=True
        ),
    ]
    # a number, or the whole section
    clients: Annotated[object, Keyword("K", "number of clients (natural skews bring their own)", "clients.number", int)]
    partition_seed: Annotated[int, Keyword("N", "random seed of the partition", "clients.partition_seed")]
    held_out: Annotated[
        float, Keyword("F", "share of each client's rows held out to measure on (default: 0.2)", "clients.held_out")
    ]
    unseen: Annotated[
        float,
        Keyword("F", "share of the clients that take no part in training and measure the model", "clients.unseen"),
    ]
    # a share, or the whole section
    server_data: Annotated[
        object, Keyword("F", "share of the training rows kept by the server", "server_data.share", float)
    ]


class MethodSettings(TypedDict, total=False):
    """Method and local work."""

    task: Annotated[object, Keyword("T", "what is learnt: classification, regression:huber, ... (default: the data's)")]
    model: Annotated[object, Keyword("M", "softmax, mlp:hidden=[64,64], cnn, hf:NAME, ... (`fedskew list models`)")]
    solver: Annotated[object, Keyword("S", "local solver: sgd or adamw, with options")]
    lr: Annotated[float, Keyword("F", "learning rate of the local solver", "solver.lr")]
    lr_decay: Annotated[float | str, Keyword("D", "rate by round: 0.99, cosine, step:30, warm-up:5", "solver.lr_decay")]
    momentum: Annotated[float, Keyword("F", "momentum of the local solver", "solver.momentum")]
    server: Annotated[object, Keyword("S", "server optimiser: sgd:lr=1, momentum, adagrad, adam, yogi")]
    selection: Annotated[object, Keyword("S", "which clients take part in a round: everyone, uniform:fraction=0.1")]
    refine: Annotated[
        object, Keyword("R", "training on the server's rows after each round: none, distillation:steps=100")
    ]
    sharing: Annotated[object, Keyword("P", "shared part of the model: all, personal:head=1, norm")]
    harmonisation: Annotated[
        object, Keyword("H", "between sites: none, site-scale, combat:protected=[age], site-bias, prior")
    ]
    cohort: Annotated[int, Keyword("M", "number of clients a round, chosen at random (default: all)", None)]
    codec: Annotated[object, Keyword("C", "compression of updates: none, top-k:share=0.01, qsgd:levels=15, int8, clip")]
    augment: Annotated[object, Keyword("A", "random changes of training images: none, crop-flip:padding=4")]
    epochs: Annotated[float | str, Keyword("E", "local epochs a round, also parts such as 0.25", "local.epochs")]
    steps: Annotated[int, Keyword("T", "local steps a round, instead of epochs", "local.steps")]
    batch_size: Annotated[int | str, Keyword("B", "rows a batch, or all", "local.batch_size")]


class FailureSettings(TypedDict, total=False):
    """Clients that are slow, fail or are unavailable."""

    system: Annotated[  # options as text, or the whole section
        object,
        Keyword(
            "O=V,...",
            "stragglers=0.5 (probability of fewer epochs), drop_stragglers=true, dropout=0.1 (probability), "
            "epochs=1-5 or batch_sizes=[8,32] (each client has its own)",
            None,
        ),
    ]
    availability: Annotated[object, Keyword("A", "always, random:p=0.8, day-night:period=24, blocks:rounds=10")]


class ComputeSettings(TypedDict, total=False):
    """Rounds and computation."""

    metric: Annotated[
        object | Sequence[object], Keyword("M", "metric of your own, ./mine.py::Gini; may be repeated", repeated=True)
    ]
    rounds: Annotated[int, Keyword("R", "number of rounds", "training.rounds")]
    init: Annotated[str, Keyword("M", "start from run 7, go on after its round 20 (7:20), or a file", "training.init")]
    patience: Annotated[int, Keyword("N", "use the best round; stop N measured rounds after it", "training.patience")]
    margin: Annotated[
        float, Keyword("M", "smaller differences do not matter, in points or the metric's unit", "evaluation.margin")
    ]
    engine: Annotated[object, Keyword("E", "auto (a short trial decides), sequential, stacked:width=64")]
    dtype: Annotated[str, Keyword("T", "float32 or float64", "training.dtype")]
    device: Annotated[str, Keyword("D", "cpu, cuda, cuda:1, or auto (a GPU if there is one)", "training.device")]
    precision: Annotated[str, Keyword("P", "full, or bf16 (PyTorch's autocast to bfloat16)", "training.precision")]


class RunSettings(TypedDict, total=False):
    """Settings in which the runs of a comparison differ."""

    algorithm: Annotated[
        object, Keyword("A", "method: fedprox:mu=0.1, ./mine.py::Mine, ... (`fedskew list algorithms`)")
    ]
    seed: Annotated[int, Keyword("N", "random seed of the training", "training.seed")]
    name: Annotated[str, Keyword("NAME", "name of the run in tables")]


class Settings(DataSettings, MethodSettings, FailureSettings, ComputeSettings, RunSettings, total=False):
    """Keywords of an experiment. A component is a name with options, a table, or an object."""

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
    clients__own: Sequence[str] | None
    server_data__share: float
    server_data__warm_up: int
    shared_data__beta: float
    shared_data__alpha: float
    local__epochs: float
    local__steps: int | None
    local__batch_size: int | str
    local__batches: str
    system__stragglers: float
    system__drop_stragglers: bool
    system__dropout: float
    system__epochs: object
    system__batch_sizes: object
    system__resources: object
    system__variance: object
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
    training__patience: int | None
    training__least_gain: float | None
    training__init: str | None
    training__init_hash: str | None
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


class TuningOptions(TypedDict, total=False):
    """How methods are tuned."""

    grid: Annotated[
        Mapping[str, Sequence[object]],
        Keyword(
            "KEY=V,V",
            "values of SECTION.OPTION for all methods, or of METHOD.OPTION (Mine.mu); may be repeated "
            "(default: 0.3, 1 and 3 times the learning rate)",
            repeated=True,
        ),
    ]
    trials: Annotated[
        int, Keyword("N", "try N settings chosen by Optuna instead of the whole grid; bad trials end early")
    ]
    tuning_seeds: Annotated[Sequence[int], Keyword("N", "seeds (default: 1000 1001)", kind=int, several=True)]
    by: Annotated[
        Literal["clients", "personal"],
        Keyword(
            "MODEL",
            "which models count on held-out rows: clients (the global model) or personal (their own models); default: personal for "
            "methods that train them",
        ),
    ]


class ComparisonOptions(TypedDict, total=False):
    """What a comparison runs beside its methods."""

    seeds: Annotated[
        int | Sequence[int] | None,
        Keyword("N", "number of seeds, or a list of seeds (default: 5)", kind=int, several=True),
    ]
    partitions: Annotated[
        int | Sequence[int] | None,
        Keyword(
            "N",
            "number of partitions, or a list of their seeds; each of --seeds then trains on every partition (default: each seed "
            "has its own partition)",
            kind=int,
            several=True,
        ),
    ]
    folds: Annotated[
        int | str,
        Keyword(
            "K",
            "cross-validation: each seed tests one of K folds of the rows (K:clients: of whole clients); --seeds is then the "
            "number of repetitions (default: 1)",
        ),
    ]
    tuned: Annotated[
        bool, Keyword("", "tune every method first as `fedskew tune` does, then compare the best settings")
    ]
    baselines: bool  # False: add no baselines beside methods with a model for each client


class CompareKeywords(Settings, TuningOptions, ComparisonOptions, total=False):
    """Keywords of `fedskew.compare`."""


class TuneKeywords(Settings, TuningOptions, total=False):
    """Keywords of `fedskew.tune`."""


class TableColumns(TypedDict, total=False):
    """What the columns of a user's file are."""

    label: Annotated[str, Keyword("COLUMN", "column with the classes")]
    target: Annotated[str, Keyword("COLUMN", "or the column with the numbers to predict")]
    client: Annotated[str, Keyword("COLUMN", "column with the client of each row (default: one file a client)")]
    client_from: Annotated[
        str, Keyword("COLUMN:FILE", "groups of a column's values as clients: a CSV with the columns value and client")
    ]
    person: Annotated[
        str,
        Keyword("COLUMN", "column with the person of each row, whose rows stay together; differences count each once"),
    ]
    drop: Annotated[str | Sequence[str], Keyword("COLUMN", "column to leave out; may be repeated", repeated=True)]


class StudyOptions(TableColumns, total=False):
    """What a study asks beside its experiment."""

    minutes: Annotated[float, Keyword("M", "time for everything (default: 2, or the shortest plan up to 10)")]
    by: Annotated[str | Sequence[str], Keyword("COLUMN,...", "also compare groups of rows by these columns: sex,age")]
    final: Annotated[bool, Keyword("", "then train the decided method on all rows, for `predict` and `export`")]


class StudyKeywords(Settings, StudyOptions, total=False):
    """Keywords of `fedskew.study`."""


class DiagnoseKeywords(TableColumns, total=False):
    """Keywords of `fedskew.diagnose`."""

    dataset: Annotated[object, Keyword("D", "a named data set instead of files")]
    skew: Annotated[
        object,
        Keyword("S", "how its rows are dealt and changed; repeat to combine (`fedskew list skews`)", repeated=True),
    ]
    clients: Annotated[int | None, Keyword("K", "number of clients", kind=int)]
    partition_seed: Annotated[int | None, Keyword("N", "random seed of the partition", kind=int)]
    seed: Annotated[int, Keyword("N", "random seed of sampling and permutations (default: 0)")]
    federated: Annotated[bool, Keyword("", "pool no rows: only counts and sums leave a client")]
    fewest: Annotated[int, Keyword("K", "with --federated: fewest rows of a count that leaves a client (default: 5)")]


Kind = Literal["plane", "path", "surface", "line"]
Format = Literal["folder", "safetensors", "torchscript", "onnx"]


class LandscapeKeywords(TypedDict, total=False):
    """Keywords of `fedskew.landscape`."""

    kind: Annotated[
        Kind,
        Keyword(
            "KIND",
            "plane (three models, default), path (global model, repeats the run), surface or line (random directions)",
        ),
    ]
    clients: Annotated[
        Sequence[int], Keyword("K", "clients whose loss is drawn (default: 0 1)", kind=int, several=True)
    ]
    points: Annotated[int, Keyword("N", "points on each axis (default: 25)")]
    reach: Annotated[float, Keyword("A", "length of random directions (default: 1)")]


KEYWORDS = declared(Settings)
"""The short names of an experiment's settings."""

OF_FUNCTIONS = (
    *("algorithms", "data", "runs", "jobs", "progress"),
    *(name for name in get_type_hints(CompareKeywords) if name not in get_type_hints(Settings)),
)
"""Keywords of the functions that are no setting of an experiment."""

DEFAULT_METHODS = ["fedavg", "fedprox:mu=0.1", "scaffold"]
"""The methods that `compare` runs if none are named."""

OTHER_NAMES = {
    **dict.fromkeys(("method", "methods", "strategy"), ("algorithms", "algorithm")),
    "optimizer": ("solver",),
    "learning_rate": ("lr",),
    **dict.fromkeys(("alpha", "partition"), ("skew",)),
    **dict.fromkeys(("fraction", "participation"), ("cohort",)),
    **dict.fromkeys(("gpu", "cuda"), ("device",)),
    **dict.fromkeys(("label", "client", "person", "data"), ("dataset",)),
    **dict.fromkeys(("out", "output", "store", "folder"), ("runs",)),
}
"""Names in other tools, and our names for the same. A command or function has at most one of ours."""


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
        sets = KEYWORDS[key].sets if key in KEYWORDS else None
        if inner and section in sections and section != "name":
            options.setdefault(section, {})[option] = value
        elif key == "cohort":
            require("selection" not in keywords, "cohort and selection both choose who takes part; leave one out")
            whole["selection"] = {"name": "uniform", "clients": value}
        elif key in plain and isinstance(value, str):
            from fedskew.core.component import parse

            options.setdefault(key, {}).update(parse(f"{key}:{value}", key)[1])
        elif sets and (key not in sections or isinstance(value, int | float)):
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
    for name, options in plain.items():
        longer.update({option: f"{name}__{option}" for option in options if option not in (*longer, *KEYWORDS)})
    if key in longer:
        return f"unknown keyword {key!r}; write {longer[key]}="
    if key in OF_FUNCTIONS:
        return f"unknown keyword {key!r}: only other functions have it, such as fs.compare([METHOD], seeds=5)"
    names = [*longer, *sections, *KEYWORDS, *OF_FUNCTIONS]
    near = OTHER_NAMES[key][-1:] if key in OTHER_NAMES else get_close_matches(key.lower(), names, n=1)
    hint = f"did you mean {longer.get(near[0], near[0])!r}?" if near else "help(fedskew.run) lists the keywords"
    return f"unknown keyword {key!r}; {hint}"
