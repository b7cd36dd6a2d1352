"""Checkpoints: one safetensors file holds the tensors, and the other facts as JSON. A crash never leaves half a file."""

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedskew.core.errors import BadInput, FedskewError
from fedskew.core.files import UNFINISHED, replacing, require_regular
from fedskew.core.trees import Tree, from_leaves, leaves, map_leaves
from fedskew.store.records import Json

NAME = re.compile(r"round-(\d{6})\.safetensors")


def save(
    folder: Path, round_: int, tree: Tree, facts: Mapping[str, object], keep: int = 1, best: int | None = None
) -> Path:
    """Write ``tree`` and the JSON ``facts`` as the checkpoint after ``round_`` rounds; return its path.

    The newest ``keep`` checkpoints and the ``best`` round's stay; others, also of later rounds, are deleted. Raises
    `FedskewError` if the file cannot be written; the previous checkpoint then stays.
    """
    target = folder / file_name(round_)
    write(target, tree, facts)
    others = sorted(path for path in checkpoints_in(folder) if path != target and rounds_in(path) != best)
    older = [path for path in others if path < target]
    for old in set(others) - set(older[max(len(older) + 1 - keep, 0) :]):
        old.unlink()
    for left in folder.glob(f"{UNFINISHED}*/round-*.safetensors"):  # a process was killed while it wrote
        shutil.rmtree(left.parent, ignore_errors=True)
    return target


def write(target: Path, tree: Tree, facts: Mapping[str, object]) -> None:
    """Write ``tree`` and ``facts`` to a file, whole or not at all. Raises `FedskewError` if it cannot be written."""
    tensors = {path: leaf.detach().cpu().contiguous().clone() for path, leaf in leaves(tree)}
    try:
        with replacing(target) as partial:
            save_file(tensors, partial, metadata={"facts": json.dumps(facts), "sha256": digest(tensors)})
            with partial.open("rb+") as file:
                os.fsync(file.fileno())
        sync_folder(target.parent)
    except (OSError, SafetensorError) as error:
        raise FedskewError(f"checkpoint {target}: cannot be written ({error}); the previous one is kept") from None


def sync_folder(folder: Path) -> None:
    """Sync the folder's entries to disk, if the system supports that."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def digest(tensors: dict[str, Tensor]) -> str:
    """The SHA-256 of names, shapes, types and values."""
    checksum = hashlib.sha256()
    for name, leaf in sorted(tensors.items()):
        checksum.update(f"{name} {tuple(leaf.shape)} {leaf.dtype} ".encode())
        if leaf.numel():  # an empty tensor has no view as bytes
            checksum.update(leaf.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return checksum.hexdigest()


def file_name(round_: int) -> str:
    return f"round-{round_:06d}.safetensors"


def latest(folder: Path) -> Path | None:
    """The newest checkpoint in the folder."""
    return max(checkpoints_in(folder), default=None)


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints in the folder."""
    return [path for path in folder.glob("round-*.safetensors") if NAME.fullmatch(path.name)]


def newest(folder: Path, covered: int | None = None) -> tuple[Tree, Json] | None:
    """Load the newest undamaged checkpoint after at most ``covered`` rounds; return its tree and facts.

    Returns None if there is no checkpoint. If all are damaged, raises `BadInput` for the newest one.
    """
    failed: BadInput | None = None
    for path in sorted(checkpoints_in(folder), reverse=True):
        if covered is not None and rounds_in(path) > covered:
            continue
        try:
            return load(path)
        except BadInput as error:
            failed = failed or error
    if failed:
        raise failed
    return None


def rounds_in(path: Path) -> int:
    """Read the number of finished rounds from a checkpoint's file name."""
    return int(path.stem.removeprefix("round-"))


def load(path: Path) -> tuple[Tree, Json]:
    """Load a checkpoint; return its tree and facts. Raises `BadInput` if it cannot be read or its checksum differs."""
    from safetensors import safe_open

    try:
        require_regular(path)
        # A kernel's last bit may depend on memory alignment. Tensors in the file are not aligned; copies are.
        flat: dict[str, Tensor] = {name: leaf.clone() for name, leaf in load_file(path).items()}
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
        facts = json.loads(metadata["facts"])
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
        raise BadInput(f"checkpoint {path}: cannot be read: {error}") from None
    if metadata.get("sha256") != digest(flat):
        raise BadInput(f"checkpoint {path}: is damaged: its checksum does not match")
    return from_leaves(flat), facts


def to_device(tree: Tree, device: torch.device) -> Tree:
    return map_leaves(lambda leaf: leaf.to(device), tree)
