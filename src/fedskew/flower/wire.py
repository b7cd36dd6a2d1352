"""Messages between server and nodes: a typed head in JSON, and tensors as safetensors with a checksum. Pickle is not used."""

import hashlib
import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

import msgspec
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from fedskew.core.contract import Codec, SharedModel
from fedskew.core.errors import FedskewError, first_line
from fedskew.core.trees import Signature, Tree, all_finite, from_leaves, leaves, map_leaves, pick, signature
from fedskew.data.preprocessing import Preprocessing
from fedskew.slots import Uncompressed
from fedskew.slots.codecs import encode

DEEPEST = 16
"""Maximum number of parts in the path of a leaf."""

Kind = Literal["meet", "survey", "train", "measure", "diagnose", "harmonise"]
Purpose = Literal["run", "columns", "diagnosis"]
Fault = Literal["missing", "refused", "garbage", "other_round", "wrong_shape", "not_finite", "out_of_range", "too_long"]

PROTOCOL = 7
"""Changes with every change of the messages."""


class Rejected(FedskewError):
    """Raised for a message that is not accepted. It is counted under the name ``fault``."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault: Fault = fault


class Encoding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Instructions to a node: how it converts its table to the run's rows."""

    preprocessing: Preprocessing
    classes: tuple[str, ...] = ()


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request to a node. ``recipe`` is the complete experiment as TOML: names and numbers, no code."""

    kind: Kind
    run: str  # id of the run, 32 hex digits
    round: int  # number of finished rounds
    client: int  # -1: the server does not know it yet
    clients: int  # of the whole population
    recipe: str
    classes: int
    shape: tuple[int, ...]  # of one row
    stamp: int = 0  # use the client's state that was stored after this number of rounds; 0: the client has none yet
    needed: int = 0  # states with a smaller stamp are not needed any more
    steps: int = 0  # local steps
    measured: bool = False  # whether to measure the local model
    asked: bool = True  # whether the client was surveyed in this round
    labels: bool = False  # whether to report the rows of each class
    protocol: int = PROTOCOL
    purpose: Purpose = "run"  # "columns": with `meet`, summarise the columns of the table and do nothing else
    encoding: Encoding | None = None  # only with `meet`
    protected: tuple[int, ...] = ()  # positions of protected columns; with `harmonise` only
    totals: tuple[int, ...] = ()  # rows of each class at all clients, if they report them; not with `meet`
    weights: str = ""  # hash of a pretrained model's tokenizer and frozen weights


def first_request(run: str, clients: int, recipe: str = "", classes: int = 0, purpose: Purpose = "run") -> Request:
    """Return the first request to a node. It does not have the shape of a row yet."""
    about = Request(kind="meet", run=run, round=0, client=-1, clients=clients, recipe=recipe, classes=classes, shape=())
    return msgspec.structs.replace(about, purpose=purpose)


NAME_RULE = "a site's name has at most 60 letters, no line breaks, and is not another site's number, such as site 1"


def is_name(text: str) -> bool:
    """True if this may be the name of a site. An empty text stands for none."""
    return len(text) <= 60 and text.isprintable() and not re.fullmatch(r"site \d+", text)


class Reply(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node's reply, with the request's run, round and client."""

    kind: Kind | Literal["refused"]
    run: str
    round: int
    client: int
    name: str = ""  # that the site's owner gave; only with `meet`
    rows: int = 0  # training rows
    measured_rows: int = 0  # held-out rows; 0: the client is measured on its training rows
    label_counts: tuple[int, ...] = ()
    summary: bytes = b""  # of the table's columns, a `Summary` or `SiteWords` of `fedskew.data` in MessagePack
    reason: str = ""  # reason of a refusal
    protocol: int = PROTOCOL

    @property
    def site(self) -> str:
        """The name of the site; without one ``site 1`` for client 1."""
        return self.name or f"site {self.client}"


class Spoken(msgspec.Struct):
    """The part of a head that is the same in all versions."""

    protocol: int = 0


Head = TypeVar("Head", Request, Reply)


class Body(NamedTuple):
    """Serialized tensors. Many messages can share them."""

    data: bytes
    digest: bytes


def body(tensors: Tree) -> Body:
    """Serialize tensors as safetensors, with their SHA-256."""
    data = safetensors.torch.save({path: leaf.detach().cpu().contiguous().clone() for path, leaf in leaves(tensors)})
    return Body(data, hashlib.sha256(data).digest())


def pack(head: Request | Reply, tensors: Tree | Body | None = None) -> bytes:
    """Convert a message to bytes."""
    text = msgspec.json.encode(head)
    tail = tensors if isinstance(tensors, Body) else body(tensors or {})
    return msgspec.msgpack.encode((checksum(text, tail.digest), text, tail.data))


def checksum(text: bytes, digest: bytes) -> bytes:
    return hashlib.sha256(text + digest).digest()


def unpack(data: bytes, kind: type[Head]) -> tuple[Head, Tree]:
    """Read a message from the bytes of `pack`. Raises `Rejected` for any other bytes."""
    try:
        digest, text, tail = msgspec.msgpack.decode(data, type=tuple[bytes, bytes, bytes])
    except msgspec.MsgspecError:
        raise Rejected("garbage", "the message is not one of fedskew's") from None
    if checksum(text, hashlib.sha256(tail).digest()) != digest:
        raise Rejected("garbage", "the message's checksum is wrong")
    try:
        if (spoken := msgspec.json.decode(text, type=Spoken).protocol) != PROTOCOL:
            raise Rejected(
                "garbage", f"its protocol is {spoken}, ours {PROTOCOL}; install the same fedskew on all machines"
            )
        head = msgspec.json.decode(text, type=kind)
        # clones are aligned in memory, and the message's tensors are not: the last bit of a result may depend on that
        return head, tree_of({name: leaf.clone() for name, leaf in safetensors.torch.load(tail).items()})
    except (msgspec.MsgspecError, SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise Rejected("garbage", f"the message cannot be read: {first_line(error)}") from None


def tree_of(flat: dict[str, Tensor]) -> Tree:
    """Return the tree of these named leaves. Raises `ValueError` if a name is no path, or a path leads through another leaf."""
    for name in flat:
        parts = name.split("/")
        if not all(parts) or len(parts) > DEEPEST:
            raise ValueError(f"{name[:40]!r} is no leaf's name")
        if any("/".join(parts[:i]) in flat for i in range(1, len(parts))):
            raise ValueError(f"{name} runs through a leaf")
    return from_leaves(flat)


def check_signature(tree: Tree, expected: Signature) -> None:
    """Raise `Rejected` if a leaf is missing or unexpected, or has another shape or type. The first such leaf is named."""
    actual = signature(tree)
    for name in [*expected, *actual]:
        if actual.get(name) != expected.get(name):
            raise Rejected(
                "wrong_shape", f"{name}: {leaf_text(actual.get(name))} instead of {leaf_text(expected.get(name))}"
            )


def leaf_text(leaf: tuple[tuple[int, ...], torch.dtype] | None) -> str:
    return f"{list(leaf[0])} {leaf[1]}" if leaf else "nothing"


def check_finite_leaves(tree: Tree, may_lack: Collection[str] = ()) -> None:
    """Raise `Rejected` if a leaf has a value that is not finite. Leaves named in ``may_lack`` are not checked."""
    for name, leaf in leaves(tree):
        if name.rpartition("/")[2] not in may_lack and leaf.is_floating_point() and not all_finite(leaf):
            raise Rejected("not_finite", f"{name} holds values that are not finite")


MOST_LOSS = 1e6
"""Highest mean loss, in nats, that the server accepts."""

HIGHEST = {"accuracy": 1.0, "loss": MOST_LOSS}
"""Scores that lie between 0 and this number per row. Others may be any finite number."""


def check_scores(scores: Tree, rows: int) -> None:
    """Raise `Rejected` if one of these sums over ``rows`` rows is outside its range."""
    for path, value in leaves(scores):
        name = path.rpartition("/")[2]
        highest = HIGHEST.get(name, math.inf) * rows
        if name in HIGHEST and not 0 <= float(value) <= highest:
            raise Rejected("out_of_range", f"{path} of {float(value):.3g} over {rows} rows; it lies in 0..{highest:g}")


@dataclass(frozen=True)
class Decoded(Uncompressed):
    """A codec for updates that are already decoded. It does not change them, and counts the bytes of their messages."""

    codec: Codec

    def bits(self, rows: Tensor, model: SharedModel) -> int:
        return self.codec.bits(rows, model)

    def applied(self, row: Tensor) -> Codec:
        """Return the codec of an update (P,). If clients share no parameters (P = 0), nothing is encoded."""
        return self.codec if len(row) else Uncompressed()

    def pattern(self, row: Tensor, model: SharedModel) -> Tree:
        """Return an example message: it has the names, shapes and types of an update like ``row`` (P,)."""
        codec, zeros = self.applied(row), torch.zeros_like(row)[None]
        draws = zeros if codec.random else None
        return codec.pack(pick(encode(codec, zeros, {}, draws, model).coded, 0), model)

    def opened(self, message: Tree, row: Tensor, model: SharedModel) -> Tensor:
        """Return the update (P,) of a message. Raises `Rejected` if the codec cannot read it."""
        codec = self.applied(row)
        try:
            coded = codec.unpack(message, model)
        except ValueError as error:
            raise Rejected("garbage", f"the update cannot be decoded: {error}") from None
        return codec.decode(map_leaves(lambda leaf: leaf[None], coded), model)[0]
