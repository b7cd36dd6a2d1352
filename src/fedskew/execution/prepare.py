"""Prepare a data set for a model before training: token ids of texts, and activations of frozen layers. Both are cached.

Engines get rows and a module. With cached activations, the rows are activations, and the module is the encoder without its
frozen layers. Only this file knows this.
"""

import hashlib
import warnings
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedskew.core.errors import BadInput, require
from fedskew.core.records import rows_of
from fedskew.core.seeding import torch_stream
from fedskew.core.sites import Harmonisation, OutputHarmonisation
from fedskew.core.task import Task, TaskKind
from fedskew.core.trees import ParameterSpace
from fedskew.data.dataset import Dataset
from fedskew.data.find import kept
from fedskew.experiment.config import Architecture, Experiment
from fedskew.experiment.settings import Training
from fedskew.models import Mixed
from fedskew.models.encoder import Encoder, EncoderNet, activations, key, prefix, real, suffix
from fedskew.models.intercept import with_intercept
from fedskew.models.mixed import MixedNet
from fedskew.models.own import OwnModel
from fedskew.models.sequences import TextModel
from fedskew.report.progress import Board, Lines, Part

if TYPE_CHECKING:
    from transformers import PretrainedConfig


Rows = NDArray[np.generic]
"""Rows of a data set (n, ...): numbers or token ids."""


DTYPES = {"float32": torch.float32, "float64": torch.float64}


def device_of(name: str) -> torch.device:
    """Return the device of this name; ``auto`` takes a GPU if there is one. Raises `BadInput` if it is not available."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            device = torch.device(name)
            torch.empty(1, device=device)
    except (RuntimeError, AssertionError):
        raise BadInput(f"training: device {name!r} is not available here; use 'auto' or 'cpu'") from None
    return device


class Frozen(NamedTuple):
    """A model's frozen parameters. They are in no checkpoint, and each client receives them once."""

    bytes: int
    fingerprint: str  # sixteen hex digits of the SHA-256 of all values


class Prepared(NamedTuple):
    """Tasks, their initial model, and the rows in the form that their modules take."""

    tasks: tuple[Task, ...]  # one for each architecture
    x0: Tensor  # (P,)
    x: Tensor  # (n, ...) training rows
    x_test: Tensor
    frozen: Frozen | None


def prepared(experiment: Experiment, dataset: Dataset, x: Rows, x_test: Rows, timing: bool = False) -> Prepared:
    """Build the modules, and convert training rows ``x`` and test rows ``x_test`` to their input.

    ``timing`` gives ones in place of the frozen layers' results. Raises `BadInput` if model and data do not fit.
    """
    training = experiment.training
    dtype, device = DTYPES[training.dtype], device_of(training.device)
    model, x, x_test = fitted(network_of(experiment.model, experiment.harmonisation), dataset, x, x_test)
    shape = tuple(x.shape[1:])
    check_digits(dataset, dtype)
    tasks = tasks_of(training, experiment.task.fitted(dataset.y), model, shape, dataset.num_categories)
    task = tasks[0]
    require(
        not dataset.vocabulary or task.ids or isinstance(model, (Encoder, Mixed, OwnModel)),
        f"model {experiment.labels('model')[0]}: would treat the word ids of {dataset.name} as measurements; use text-cnn, "
        "or a pretrained encoder such as minilm",
    )
    check_places(f"model {experiment.labels('model')[0]}", task, dataset, x, x_test)
    net = model.build(shape, task.num_outputs, torch_stream(training.seed, "init"))
    frozen = frozen_of(task)
    train, test = (rows_of(part, dtype, device, task.ids) for part in (x, x_test))
    if isinstance(model, Encoder) and model.cache != "none" and prefix(task.model):  # type: ignore[arg-type]
        of_frozen = ones if timing else partial(computed, cache=model.cache)
        train, test = of_frozen(task, torch.cat([train, test])).split([len(x), len(x_test)])
        tasks = (rest_of(task),)
    return Prepared(tasks, task.space.flatten(net).to(device, dtype), train, test, frozen)


MOST_ROUNDED = 0.01
"""Largest distance of neighbouring numbers at the mean of the targets, in their standard deviations."""


def check_digits(dataset: Dataset, dtype: torch.dtype) -> None:
    """Raise `BadInput` if numbers of this type have too few digits to tell the targets apart, such as times in seconds."""
    if dataset.target != "number" or not len(dataset.y):
        return
    mean, deviation = float(dataset.y.mean(dtype=np.float64)), float(dataset.y.std(dtype=np.float64))
    require(
        abs(mean) * torch.finfo(dtype).eps <= MOST_ROUNDED * deviation,
        f"{dataset.name}: the targets are about {mean:.10g} and deviate by {deviation:.3g}, which {str(dtype)[6:]} would round "
        "away; subtract a constant from all of them, or write --dtype float64",
    )


def check_places(name: str, task: Task, dataset: Dataset, *parts: Rows) -> None:
    """Check models that predict at each place of a row: they need rows of known symbols, with a target at each place.

    Raises `BadInput` if this is not so, and if another model gets such rows.
    """
    sequences = dataset.target == "symbols"
    if not getattr(task.module, "per_place", False):
        require(
            not sequences,
            f"{name}: predicts once a row, but {dataset.name} has a target at each place; use symbol-lstm or transformer",
        )
        return
    require(
        sequences,
        f"{name}: predicts the next symbol at each place, but {dataset.name} has one target a row; use mlp or text-cnn",
    )
    require(
        dataset.y.shape[1:] == dataset.shape,
        f"{name}: rows of {dataset.name} have shape {dataset.shape}, but their targets have shape {dataset.y.shape[1:]}; give "
        "each place a target, or -1",
    )
    for x in filter(len, parts):
        whole = np.issubdtype(x.dtype, np.integer)
        require(
            bool(whole and x.min() >= -1 and x.max() < task.num_outputs),
            f"{name}: rows of {dataset.name} must be integers 0..{task.num_outputs - 1}, or -1 after a row's end; found "
            f"{x.dtype} {x.min()}..{x.max()}",
        )


def fitted(model: Architecture, dataset: Dataset, x: Rows, x_test: Rows) -> tuple[Architecture, Rows, Rows]:
    """Return the model fitted to the rows, and training and test rows in its input format."""
    if isinstance(model, Encoder):
        ids, x_test = token_ids(model, dataset)
        x = ids[: len(x)]  # x has no rows if the clients are on other machines
    elif isinstance(model, TextModel):
        for part in filter(len, (x, x_test)):
            model = model.fitted(part)
    return model, x, x_test


def network_of(model: Architecture, harmonisation: Harmonisation) -> Architecture:
    """Return the model, with an intercept of each site if the harmonisation adds one."""
    return with_intercept(model, harmonisation.rate) if isinstance(harmonisation, OutputHarmonisation) else model


def tasks_of(
    training: Training,
    kind: TaskKind,
    model: Architecture,
    shape: tuple[int, ...],
    categories: int,
    device: torch.device | None = None,
) -> tuple[Task, ...]:
    """Return the task of each architecture, on the training's device by default.

    Runs with the same model and shape of data share the objects. If the files of an encoder change, they are read again.
    """
    dtype, bf16, device = DTYPES[training.dtype], training.precision == "bf16", device or device_of(training.device)
    return tasks_at(stamps(model), kind, model, shape, kind.num_outputs(categories), dtype, device, bf16)


def stamps(model: Architecture) -> tuple[tuple[str, int, int], ...]:
    """Return names, sizes and modification times of an encoder's local files; empty for other models."""
    folder = Path(model.where()) if isinstance(model, Encoder) else None
    if folder is None or not folder.is_dir():
        return ()
    files = [(path.name, path.stat()) for path in sorted(folder.iterdir())]
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in files)


@lru_cache(maxsize=16)
def tasks_at(
    stamps: tuple[tuple[str, int, int], ...],
    kind: TaskKind,
    model: Architecture,
    shape: tuple[int, ...],
    outputs: int,
    dtype: torch.dtype,
    device: torch.device,
    bf16: bool,
) -> tuple[Task, ...]:
    """Do what `tasks_of` does, cached by ``stamps`` and the other arguments."""
    skeletons = [model.build(shape, outputs, torch.Generator()).to(device, dtype)]
    if isinstance(model, Mixed):
        skeletons = [cast(MixedNet, skeletons[0]).using(number) for number in range(len(model.models))]
    space = ParameterSpace(skeletons[0])
    return tuple(Task(kind, skeleton, space, outputs, bf16) for skeleton in skeletons)


@lru_cache(maxsize=16)
def frozen_of(task: Task) -> Frozen | None:
    """Return size and fingerprint of the task's frozen parameters; None if there are none."""
    frozen = [p.detach().cpu().contiguous() for p in task.model.parameters() if not p.requires_grad]
    if not frozen:
        return None
    digest = hashlib.sha256()
    for p in frozen:
        digest.update(p.flatten().view(torch.uint8).numpy().data)
    return Frozen(sum(p.nbytes for p in frozen), digest.hexdigest()[:16])


def size_of(model: Architecture, shape: tuple[int, ...], outputs: int) -> int | None:
    """Return the number of a model's parameters. This needs no memory for them, so None where a build might read weights."""
    if isinstance(model, OwnModel | Encoder):  # another package's module may need real memory
        return None
    with torch.device("meta"):
        net = model.build(shape, outputs, torch.Generator(device="cpu"))
    return sum(p.numel() for p in net.parameters())


@lru_cache(maxsize=16)
def rest_of(task: Task) -> Task:
    """Return the task without frozen layers. Its input is their activations."""
    rest = suffix(task.model)  # type: ignore[arg-type]
    return Task(task.kind, rest, task.space, task.num_outputs, task.bf16)


def token_ids(model: Encoder, dataset: Dataset) -> list[Rows]:
    """Return token ids (n, L) of the training texts and of the test texts, padded to one length and cached."""
    require(
        dataset.texts is not None,
        f"{dataset.name} has no texts, which a pretrained encoder needs; use a text data set or another --model",
    )
    assert dataset.texts is not None
    texts = [text for part in dataset.texts for text in part]
    digest = hashlib.sha256(model.reading().encode())
    for text in texts:
        digest.update(text.encode() + b"\0")

    def make(path: Path) -> None:
        np.save(path, model.tokens(texts))

    return np.split(np.array(kept(f"tokens-{digest.hexdigest()[:16]}", make)), [len(dataset.x)])


def compute(net: EncoderNet, ids: Tensor, out: Tensor) -> None:
    """Write the activations to ``out``. Progress is plain lines: another process may draw the bars of the runs."""
    with Board({"": Part("frozen layers")}, Lines()) as board:
        activations(net, ids, out, lambda done, of: board.stage("frozen layers", done / of))


MEMORY: dict[str, Tensor] = {}
"""Activations of this process's last data set and model, by key. The runs of a comparison share them."""


def width(net: EncoderNet) -> int:
    return int(cast("PretrainedConfig", net.encoder.config).hidden_size)


def ones(task: Task, ids: Tensor) -> Tensor:
    """Return a stand-in for `computed`, of the same shape, with ones until a text's end. A step takes the same time with it."""
    tokens = real(ids)[..., None].to(ids.dtype)
    return tokens.expand(*ids.shape, width(cast(EncoderNet, task.model)))


def computed(task: Task, ids: Tensor, cache: str) -> Tensor:
    """Return the activations (n, L, H) of the frozen layers for token ids (n, L); they are 0 after a text's end."""
    net = cast(EncoderNet, task.model)
    name = key(net, ids)
    shape = (*ids.shape, width(net))
    if cache == "memory":
        if name not in MEMORY:
            out = ids.new_zeros(shape)
            compute(net, ids, out)
            MEMORY.clear()
            MEMORY[name] = out
        return MEMORY[name]

    def make(path: Path) -> None:
        kind = str(ids.dtype).rpartition(".")[2]
        stored = np.lib.format.open_memmap(path, "w+", dtype=kind, shape=shape)
        compute(net, ids, torch.from_numpy(stored))
        stored.flush()

    return torch.from_numpy(kept(f"activations-{name}", make)).to(ids.device)
