"""Prepare a data set for a model before training: token ids of texts, and activations of frozen layers, both cached.

Engines get rows and a module. Only this file knows that the rows may be activations, and the module the rest of an encoder.
"""

import hashlib
import os
import sys
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import platformdirs
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedskew.core.errors import FedskewError, require
from fedskew.core.records import rows_of
from fedskew.core.seeding import torch_stream
from fedskew.core.task import ModelTask, TaskKind
from fedskew.core.vectors import ParameterSpace
from fedskew.data.dataset import Dataset
from fedskew.experiment.config import Architecture, Experiment
from fedskew.models import Mixed, TextCnn
from fedskew.models.encoder import Encoder, EncoderNet
from fedskew.models.mixed import MixedNet
from fedskew.models.own import OwnModel
from fedskew.models.prefix import OnProgress, activations, key, prefix, suffix

if TYPE_CHECKING:
    from transformers import PretrainedConfig

VARIABLE = "FEDSKEW_CACHE"
"""The environment variable with the cache folder; by default a per-user folder."""


Rows = NDArray[np.generic]
"""Rows of a data set (n, ...): numbers or token ids."""

LINE_EVERY = 5.0
"""Seconds between two lines of progress."""


class Frozen(NamedTuple):
    """The frozen parameters: they are in no checkpoint, and every client needs them once."""

    bytes: int
    fingerprint: str  # sixteen hex digits that change with any value


class Prepared(NamedTuple):
    """Tasks, their initial model, and the rows that their modules take."""

    tasks: tuple[ModelTask, ...]  # one for each architecture
    x0: Tensor  # (P,)
    x: Tensor  # (n, ...) training rows
    x_test: Tensor
    frozen: Frozen | None


def prepared(
    experiment: Experiment,
    dataset: Dataset,
    x: Rows,
    x_test: Rows,
    dtype: torch.dtype,
    device: torch.device,
    on_progress: OnProgress | None = None,
) -> Prepared:
    """Build the modules and their input rows from the clients' rows ``x`` and the test rows ``x_test``.

    ``on_progress(done, total)`` is called as rows pass through the frozen layers; by default progress is printed on standard error.
    Raises `BadInput` if model and data do not fit.
    """
    model, x, x_test = fitted(experiment.model, dataset, x, x_test)
    shape = tuple(x.shape[1:])
    bf16 = experiment.training.precision == "bf16"
    tasks = tasks_of(experiment.task.fitted(dataset.y), model, shape, dataset.num_categories, dtype, device, bf16)
    task = tasks[0]
    require(
        not dataset.vocabulary or task.ids or isinstance(model, (Encoder, Mixed, OwnModel)),
        f"model {experiment.labels('model')[0]}: treats the word ids of {dataset.name} as measurements; use text-cnn, "
        "or a pretrained encoder, minilm",
    )
    check_places(f"model {experiment.labels('model')[0]}", task, dataset, x, x_test)
    net = model.build(shape, task.num_outputs, torch_stream(experiment.training.seed, "init"))
    frozen = frozen_of(task)
    train, test = (rows_of(part, dtype, device, task.ids) for part in (x, x_test))
    if isinstance(model, Encoder) and model.cache != "none" and prefix(task.model):  # type: ignore[arg-type]
        train, test = computed(task, torch.cat([train, test]), model.cache, on_progress or printed_progress()).split(
            [len(x), len(x_test)]
        )
        tasks = (rest_of(task),)
    return Prepared(tasks, task.space.flatten(net).to(device, dtype), train, test, frozen)


def check_places(name: str, task: ModelTask, dataset: Dataset, *parts: Rows) -> None:
    """Raise `BadInput` unless a model that predicts at each place of a row gets symbols that it knows, and targets there."""
    sequences = dataset.target == "symbols"
    if not getattr(task.module, "per_place", False):
        require(
            not sequences,
            f"{name}: gives one answer a row, and {dataset.name} has a target at each place; use symbol-lstm or transformer",
        )
        return
    require(
        sequences,
        f"{name}: predicts the next symbol at each place, and {dataset.name} has one target a row; use mlp or text-cnn",
    )
    require(
        dataset.y.shape[1:] == dataset.shape,
        f"{name}: rows of {dataset.name} have shape {dataset.shape}, their targets {dataset.y.shape[1:]}; give each place a "
        "target, or -1",
    )
    for x in filter(len, parts):
        whole = np.issubdtype(x.dtype, np.integer)
        require(
            bool(whole and x.min() >= -1 and x.max() < task.num_outputs),
            f"{name}: rows of {dataset.name} must be integers 0..{task.num_outputs - 1}, or -1 behind a row's end; found "
            f"{x.dtype} {x.min()}..{x.max()}",
        )


def fitted(model: Architecture, dataset: Dataset, x: Rows, x_test: Rows) -> tuple[Architecture, Rows, Rows]:
    """The model for these rows, and the training and test rows in its input format."""
    if isinstance(model, Encoder):
        known, x_test = token_ids(model, dataset)
        x = known[: len(x)]  # none where the clients are on other machines
    elif isinstance(model, TextCnn):
        for part in filter(len, (x, x_test)):
            model = model.fitted(part)
    return model, x, x_test


def tasks_of(
    kind: TaskKind,
    model: Architecture,
    shape: tuple[int, ...],
    categories: int,
    dtype: torch.dtype,
    device: torch.device,
    bf16: bool,
) -> tuple[ModelTask, ...]:
    """The task of each architecture, shared by all runs of a model on data of one shape. A changed encoder folder is read again."""
    return tasks_at(stamps(model), kind, model, shape, kind.num_outputs(categories), dtype, device, bf16)


def stamps(model: Architecture) -> tuple[tuple[str, int, int], ...]:
    """Names, sizes and modification times of an encoder's local files; empty for other models."""
    folder = Path(model.where()) if isinstance(model, Encoder) else None
    if folder is None or not folder.is_dir():
        return ()
    found = [(path.name, path.stat()) for path in sorted(folder.iterdir())]
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in found)


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
) -> tuple[ModelTask, ...]:
    """As `tasks_of`, cached by ``stamps`` and the other arguments."""
    skeletons = [model.build(shape, outputs, torch.Generator()).to(device, dtype)]
    if isinstance(model, Mixed):
        net = cast(MixedNet, skeletons[0])
        skeletons = [net.using(number) for number in range(len(model.models))]
    space = ParameterSpace(skeletons[0])
    return tuple(ModelTask(kind, skeleton, space, outputs, bf16) for skeleton in skeletons)


@lru_cache(maxsize=16)
def frozen_of(task: ModelTask) -> Frozen | None:
    """Size and fingerprint of the task's frozen parameters; None if there are none."""
    found = [p.detach().cpu().contiguous() for p in task.model.parameters() if not p.requires_grad]
    if not found:
        return None
    digest = hashlib.sha256()
    for p in found:
        digest.update(p.flatten().view(torch.uint8).numpy().data)
    return Frozen(sum(p.nbytes for p in found), digest.hexdigest()[:16])


@lru_cache(maxsize=16)
def rest_of(task: ModelTask) -> ModelTask:
    """The task whose input is activations of the frozen layers."""
    rest = suffix(task.model)  # type: ignore[arg-type]
    return ModelTask(task.kind, rest, task.space, task.num_outputs, task.bf16)


def token_ids(model: Encoder, dataset: Dataset) -> list[Rows]:
    """Token ids (n, L) of the training and the test texts, padded to one length and cached."""
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

    ids = kept(f"tokens-{digest.hexdigest()[:16]}", make)
    return np.split(np.array(ids), [len(dataset.x)])


def printed_progress() -> OnProgress:
    """Print progress and the remaining time on standard error every few seconds."""
    began = said = time.perf_counter()

    def show(done: int, of: int) -> None:
        nonlocal said
        now = time.perf_counter()
        if now - said > LINE_EVERY:
            said = now
            left = (now - began) * (of - done) / done
            print(f"frozen layers: {done:,} of {of:,} texts, {left:.0f} s left", file=sys.stderr)

    return show


MEMORY: dict[str, Tensor] = {}
"""Activations of the last data set and model in this process, shared by the runs of a comparison."""


def computed(task: ModelTask, ids: Tensor, cache: str, on_progress: OnProgress) -> Tensor:
    """Activations (n, L, H) of the frozen layers for token ids (n, L); 0 beyond a text's end."""
    net = cast(EncoderNet, task.model)
    name = key(net, ids)
    shape = (*ids.shape, cast("PretrainedConfig", net.encoder.config).hidden_size)
    if cache == "memory":
        if name not in MEMORY:
            out = ids.new_zeros(shape)
            activations(net, ids, out, on_progress)
            MEMORY.clear()
            MEMORY[name] = out
        return MEMORY[name]

    def make(path: Path) -> None:
        kind = str(ids.dtype).rpartition(".")[2]
        stored = np.lib.format.open_memmap(path, "w+", dtype=kind, shape=shape)
        activations(net, ids, torch.from_numpy(stored), on_progress)
        stored.flush()

    return torch.from_numpy(kept(f"activations-{name}", make)).to(ids.device)


def cache_folder() -> Path:
    """The cache folder of this machine."""
    return Path(os.environ.get(VARIABLE) or platformdirs.user_cache_path("fedskew") / "computed")


def kept(name: str, make: Callable[[Path], None]) -> Rows:
    """The array in the cache file of this name, memory-mapped. If the file is missing, ``make(path)`` writes it first.

    The file is written under another name and renamed, so that it is complete or missing.
    """
    folder = cache_folder()
    path, unfinished = folder / f"{name}.npy", folder / f"{name}.{os.getpid()}.part.npy"
    if not path.is_file():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            make(unfinished)
            unfinished.replace(path)
        except OSError as error:
            raise FedskewError(f"cannot write {path}: {error.strerror}; set {VARIABLE} to another folder") from None
        finally:
            unfinished.unlink(missing_ok=True)
    # copy on write: PyTorch warns of arrays that cannot be written
    return np.load(path, mmap_mode="c")
