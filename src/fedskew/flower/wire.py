"""What travels between server and nodes: a typed head in JSON and tensors as safetensors, under a checksum. No pickle."""

from __future__ import annotations

import hashlib
import math
import struct
from typing import Literal, NamedTuple, TypeVar

import msgspec
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from fedskew.core.errors import FedskewError
from fedskew.core.trees import Tree, from_leaves, leaves
from fedskew.core.vectors import all_finite

MAGIC = b"fedskew1"
START = struct.Struct(
    "<8s32sI"
)  # magic, SHA-256 of the head with its length and of the tensors' SHA-256, bytes of the head

DEEPEST = 16
"""Parts of a leaf's path, at most."""

Kind = Literal["meet", "survey", "train", "measure"]
Fault = Literal["missing", "refused", "garbage", "other_round", "wrong_shape", "not_finite", "out_of_range", "too_long"]

Signature = dict[str, tuple[tuple[int, ...], torch.dtype]]
"""Path of a leaf to its shape and type."""


class Rejected(FedskewError):
    """A message that is not taken; ``fault`` is the word under which it is counted."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault: Fault = fault


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the server asks of a node. ``recipe`` is the complete experiment as TOML: names and numbers, no code."""

    kind: Kind
    run: str  # 32 hex digits
    round: int  # rounds finished before
    client: int  # -1 where the server does not know it yet
    clients: int  # of the whole population
    recipe: str
    classes: int
    shape: tuple[int, ...]  # of one row
    stamp: int = 0  # the round after which the client's state was kept that is to be used; 0: none yet
    needed: int = 0  # the stamp of the server's last checkpoint: older states are never asked for again
    steps: int = 0  # local steps
    measured: bool = False  # whether the local model is to be measured
    asked: bool = True  # whether the client was surveyed in this round
    labels: bool = False  # whether the rows of each class are to be told


class Reply(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a node answers, with the request's run, round and client."""

    kind: Literal["meet", "survey", "train", "measure", "refused"]
    run: str
    round: int
    client: int
    rows: int = 0  # it trains on
    measured_rows: int = 0  # it is measured on; 0: those it trains on
    label_counts: tuple[int, ...] = ()
    reason: str = ""  # why it refuses


Head = TypeVar("Head", Request, Reply)


class Body(NamedTuple):
    """Tensors as they travel: made once where many messages carry the same."""

    data: bytes
    digest: bytes


def body(tensors: Tree) -> Body:
    """Tensors as safetensors."""
    data = safetensors.torch.save({path: leaf.detach().cpu().contiguous().clone() for path, leaf in leaves(tensors)})
    return Body(data, hashlib.sha256(data).digest())


def pack(head: Request | Reply, tensors: Tree | Body | None = None) -> bytes:
    """The message as bytes."""
    text = msgspec.json.encode(head)
    tail = tensors if isinstance(tensors, Body) else body(tensors or {})
    return b"".join((START.pack(MAGIC, checksum(text, tail.digest), len(text)), text, tail.data))


def checksum(text: bytes, digest: bytes) -> bytes:
    return hashlib.sha256(struct.pack("<I", len(text)) + text + digest).digest()


def unpack(data: bytes, kind: type[Head]) -> tuple[Head, Tree]:
    """Inverse of `pack`; raises `Rejected` for anything else."""
    if len(data) < START.size or not data.startswith(MAGIC):
        raise Rejected("garbage", "the message is not one of fedskew's")
    _, digest, size = START.unpack_from(data)
    text, tail = data[START.size : START.size + size], memoryview(data)[START.size + size :]
    if len(text) != size or checksum(text, hashlib.sha256(tail).digest()) != digest:
        raise Rejected("garbage", "the message's checksum is wrong")
    try:
        head = msgspec.json.decode(text, type=kind)
        flat = safetensors.torch.load(bytes(tail))
        # in memory of its own: the message's tensors are not aligned, and a kernel's last bit may depend on that
        return head, tree_of({name: leaf.clone() for name, leaf in flat.items()})
    except (msgspec.MsgspecError, SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise Rejected("garbage", f"the message cannot be read: {first_line(error)}") from None


def tree_of(flat: dict[str, Tensor]) -> Tree:
    """The tree of these leaves; raises `ValueError` for what is no leaf's path, or goes through another's leaf."""
    for name in flat:
        parts = name.split("/")
        if not all(parts) or len(parts) > DEEPEST:
            raise ValueError(f"{name[:40]!r} is no leaf's name")
        if any("/".join(parts[:i]) in flat for i in range(1, len(parts))):
            raise ValueError(f"{name} goes through a leaf")
    return from_leaves(flat)


def signature(tree: object) -> Signature:
    """Names, shapes and types of the leaves."""
    return {path: (tuple(leaf.shape), leaf.dtype) for path, leaf in leaves(tree)}


def check_signature(tree: Tree, expected: Signature) -> None:
    """Raise `Rejected` at the first leaf that is missing, is too many, or has another shape or type."""
    found = signature(tree)
    for name in [*expected, *found]:
        if found.get(name) != expected.get(name):
            raise Rejected("wrong_shape", f"{name}: {shown(found.get(name))} instead of {shown(expected.get(name))}")


def shown(leaf: tuple[tuple[int, ...], torch.dtype] | None) -> str:
    return f"{list(leaf[0])} {leaf[1]}" if leaf else "nothing"


def check_finite_leaves(tree: Tree) -> None:
    """Raise `Rejected` at the first leaf with a value that is not finite."""
    for name, leaf in leaves(tree):
        if leaf.is_floating_point() and not all_finite(leaf):
            raise Rejected("not_finite", f"{name} holds values that are not finite")


MOST_LOSS = 1e6
"""Highest mean loss of a model, in nats, that is believed."""

HIGHEST = {"accuracy": 1.0, "loss": MOST_LOSS}
"""Scores that lie between 0 and this, a row."""


def check_scores(scores: Tree, rows: int) -> None:
    """Raise `Rejected` at the first of these sums over ``rows`` rows that is out of its range."""
    for path, value in leaves(scores):
        highest = HIGHEST.get(path.rpartition("/")[2], math.inf) * rows
        if not 0 <= float(value) <= highest:
            raise Rejected("out_of_range", f"{path} of {float(value):.3g} over {rows} rows; it lies in 0..{highest:g}")


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
