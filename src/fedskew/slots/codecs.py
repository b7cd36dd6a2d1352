"""Codecs: compression of the updates that clients send to the server.

    client   wanted <- update (+ error);  coded <- compress(wanted);  error <- wanted - decode(coded)
    server   receives decode(coded)

`encode` does this for a cohort, in simulations and on nodes. Between machines a node sends ``pack(coded)``, and the server decodes
the result of ``unpack``. A number takes as many bits as in the model's type. Only the update is compressed, not the extra values
that a method sends.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.linalg import vector_norm

from fedskew.core.contract import Codec, SharedModel
from fedskew.core.limits import PositiveFloat, PositiveInt, PositiveShare
from fedskew.core.privacy import alone
from fedskew.core.trees import Tree


class Encoded(NamedTuple):
    """The encoded updates of a cohort."""

    coded: Tree  # contents of the messages; leading axis C
    received: Tensor  # (C, P) updates as the server decodes them
    memory: Tree  # the clients' memories; leading axis C
    size: int  # size of one message in bytes


def encode(codec: Codec, rows: Tensor, memory: Tree, draws: Tensor | None, model: SharedModel) -> Encoded:
    """Compress updates (C, P).

    ``memory`` has the clients' errors (C, P) if the codec has error feedback; otherwise it is empty. ``draws`` (C, P) are uniform
    in [0, 1) if the codec is ``random``; otherwise None.
    """
    update = rows + memory["error"] if memory else rows
    coded = codec.compress(update, draws, model)
    received = codec.decode(coded, model)
    left = {"error": update - received} if memory else memory
    return Encoded(coded, received, left, -(-codec.bits(rows, model) // 8))


def bits_of(rows: Tensor) -> int:
    """Return the number of bits of one value."""
    return 8 * rows.element_size()


@dataclass(frozen=True, kw_only=True)
class Uncompressed:
    """Sends every number of the update unchanged."""

    idea: ClassVar[str] = "updates travel as they are"
    random: ClassVar[bool] = False
    private = alone

    def init(self, x: Tensor) -> Tree:
        return {}

    def compress(self, rows: Tensor, draws: Tensor | None, model: SharedModel) -> Tree:
        return {"values": rows}

    def decode(self, coded: Tree, model: SharedModel) -> Tensor:
        return coded["values"]

    def bits(self, rows: Tensor, model: SharedModel) -> int:
        return bits_of(rows) * rows.shape[1]

    def pack(self, coded: Tree, model: SharedModel) -> Tree:
        return coded

    def unpack(self, message: Tree, model: SharedModel) -> Tree:
        return message


@dataclass(frozen=True, kw_only=True)
class Clip(Uncompressed):
    """Scales an update down to length ``norm`` if it is longer. `fedskew.algorithms.dp_fedavg` clips without this codec."""

    norm: PositiveFloat = 1.0

    idea: ClassVar[str] = "updates longer than norm are shortened to it; saves nothing, bounds what one client can do"
    private = alone

    def compress(self, rows: Tensor, draws: Tensor | None, model: SharedModel) -> Tree:
        length = vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64)
        return {"values": rows * (self.norm / length).clamp(max=1).to(rows.dtype)}


@dataclass(frozen=True, kw_only=True)
class _Lossy:
    """A codec that loses information. With error feedback, a client adds the lost part to its next update."""

    error_feedback: bool = False

    def init(self, x: Tensor) -> Tree:
        return {"error": torch.zeros_like(x)} if self.error_feedback else {}


@dataclass(frozen=True, kw_only=True)
class TopK(_Lossy):
    """Sends only the ``share`` of the numbers with the largest absolute value, of the whole model or of each layer.

    At least one number is sent. If numbers are equal, the first ones are sent. A message has their values, and their positions as
    indices or as a bitmap, whichever is shorter.
    """

    error_feedback: bool = True
    share: PositiveShare = 0.01
    scope: Literal["model", "layer"] = "model"

    idea: ClassVar[str] = "the largest numbers of each update, the rest is added to the next one"
    cites: ClassVar[tuple[str, ...]] = ("top-k", "error-feedback")
    random: ClassVar[bool] = False
    private = alone

    def sizes(self, d: int, model: SharedModel) -> list[int]:
        """Return the sizes of the parts of a vector (d,). The largest numbers of each part are sent."""
        return layer_sizes(model) if self.scope == "layer" else [d]

    def number(self, d: int) -> int:
        """Return how many of d numbers are sent."""
        # in floating point 0.29 * 100 is 28.999..., but the floor must be 29
        return max(int(self.share * d + 1e-9), 1)

    def compress(self, rows: Tensor, draws: Tensor | None, model: SharedModel) -> Tree:
        parts = rows.split(self.sizes(rows.shape[1], model), dim=1)
        mask = torch.cat([largest(part, self.number(part.shape[1])) for part in parts], dim=1)
        return {"values": torch.where(mask, rows, 0.0), "kept": mask}

    def decode(self, coded: Tree, model: SharedModel) -> Tensor:
        return coded["values"]

    def bits(self, rows: Tensor, model: SharedModel) -> int:
        sizes = [(self.number(d), d) for d in self.sizes(rows.shape[1], model)]
        return sum(k * bits_of(rows) + 8 * place_bytes(k, d) for k, d in sizes)

    def pack(self, coded: Tree, model: SharedModel) -> Tree:
        values, places, sizes = [], [], self.sizes(len(coded["values"]), model)
        for part, mask in zip(coded["values"].split(sizes), coded["kept"].split(sizes), strict=True):
            d, k = len(part), self.number(len(part))
            values.append(part[mask])
            if indexed(k, d):
                places.append(pack_bits(mask.nonzero()[:, 0], (d - 1).bit_length()))
            elif k < d:
                places.append(pack_bits(mask, 1))
        return {"values": torch.cat(values), "places": torch.cat([torch.empty(0, dtype=torch.uint8), *places])}

    def unpack(self, message: Tree, model: SharedModel) -> Tree:
        values, places, parts = message["values"], message["places"], []
        for d in self.sizes(model.space.size, model):
            k = self.number(d)
            size = place_bytes(k, d)
            part_places, places = places[:size], places[size:]
            if k == d:
                at = torch.arange(d)
            elif indexed(k, d):
                at = unpack_bits(part_places, (d - 1).bit_length(), k)
            else:
                at = unpack_bits(part_places, 1, d).nonzero()[:, 0]
            if len(at) != k or int(at.max()) >= d:
                raise ValueError("places that the model does not have")
            part = values.new_zeros(d)
            part[at], values = values[:k], values[k:]
            parts.append(part)
        return {"values": torch.cat(parts)}


def indexed(k: int, d: int) -> bool:
    """True if indices of k of d numbers are shorter than a bitmap."""
    return k < d and k * (d - 1).bit_length() < d


def place_bytes(k: int, d: int) -> int:
    """Return the number of bytes for the positions of k of d numbers."""
    return -(-min(k * (d - 1).bit_length(), d) // 8) if k < d else 0


def pack_bits(values: Tensor, width: int) -> Tensor:
    """Pack whole numbers (n,) of at least 0 into bytes, with ``width`` bits for each number."""
    bits = (values.cpu().numpy().astype(np.int64)[:, None] >> np.arange(width)) & 1
    return torch.from_numpy(np.packbits(bits.astype(np.uint8).reshape(-1)))


def unpack_bits(data: Tensor, width: int, count: int) -> Tensor:
    """Inverse of `pack_bits`."""
    bits = np.unpackbits(data.numpy(), count=width * count).reshape(count, width)
    return torch.from_numpy(bits.astype(np.int64) @ (1 << np.arange(width)))


def layer_sizes(model: SharedModel) -> list[int]:
    """Return the number of parameters of each layer, in the order of the vector."""
    return [sum(place.stop - place.start for place in places) for places in model.space.layers().values()]


def largest(rows: Tensor, k: int) -> Tensor:
    """Return a mask (C, d) of the k entries of each row with the largest absolute value. Of equal entries the first are taken."""
    size = rows.abs()
    least = size.topk(k, dim=1).values[:, -1:]
    above, tied = size > least, size == least
    room = k - above.sum(1, keepdim=True)
    if bool((tied.sum(1, keepdim=True) > room).any()):
        tied &= tied.cumsum(1) <= room
    return above | tied


@dataclass(frozen=True, kw_only=True)
class Qsgd(_Lossy):
    """Rounds the absolute value of each number, randomly and without bias, to one of ``levels`` + 1 levels.

    A bucket has ``bucket`` numbers; its highest level is the bucket's norm. A message has a norm for each bucket, and a sign and a
    level for each number, without entropy coding.
    """

    levels: PositiveInt = 15
    bucket: PositiveInt | Literal["all"] = 512

    idea: ClassVar[str] = "numbers rounded at random, without bias, to a few levels of their bucket's length"
    cites: ClassVar[tuple[str, ...]] = ("qsgd",)
    random: ClassVar[bool] = True
    private = alone

    def bucketed(self, rows: Tensor) -> Tensor:
        """Reshape rows (C, d) to (C, buckets, width), with zeros at the end."""
        d = rows.shape[1]
        width = d if self.bucket == "all" else min(self.bucket, d)
        return F.pad(rows, (0, -d % width)).view(len(rows), -1, width)

    def compress(self, rows: Tensor, draws: Tensor | None, model: SharedModel) -> Tree:
        """Return signed levels (C, d), and the buckets' norms (C, buckets)."""
        assert draws is not None
        v = self.bucketed(rows)
        length = vector_norm(v, dim=2, keepdim=True, dtype=torch.float64).to(v.dtype)
        a = torch.where(length > 0, v.abs() / length, 0.0).clamp(max=1) * self.levels
        low = a.floor()
        level = low + (self.bucketed(draws) < a - low)
        return {"steps": (v.sign() * level).flatten(1)[:, : rows.shape[1]], "lengths": length[..., 0]}

    def decode(self, coded: Tree, model: SharedModel) -> Tensor:
        steps, d = self.bucketed(coded["steps"]), coded["steps"].shape[1]
        return (coded["lengths"][..., None] * steps.sign() * (steps.abs() / self.levels)).flatten(1)[:, :d]

    def bits(self, rows: Tensor, model: SharedModel) -> int:
        return self.bucketed(rows[:1]).shape[1] * bits_of(rows) + rows.shape[1] * (1 + self.levels.bit_length())

    def pack(self, coded: Tree, model: SharedModel) -> Tree:
        codes = coded["steps"] + self.levels
        return {"lengths": coded["lengths"], "steps": pack_bits(codes, 1 + self.levels.bit_length())}

    def unpack(self, message: Tree, model: SharedModel) -> Tree:
        codes = unpack_bits(message["steps"], 1 + self.levels.bit_length(), model.space.size)
        if int(codes.max()) > 2 * self.levels:
            raise ValueError("levels that this codec does not have")
        return {"steps": (codes - self.levels).to(message["lengths"].dtype), "lengths": message["lengths"]}


@dataclass(frozen=True, kw_only=True)
class Int8(_Lossy):
    """Rounds each parameter tensor to multiples of its largest absolute value / 127. ``nearest`` rounds halves to even."""

    rounding: Literal["nearest", "stochastic"] = "nearest"

    idea: ClassVar[str] = "numbers as signed bytes, one scale for each parameter tensor"
    private = alone

    @property
    def random(self) -> bool:
        return self.rounding == "stochastic"

    def compress(self, rows: Tensor, draws: Tensor | None, model: SharedModel) -> Tree:
        """Return the multiples (C, P), and the step size of each tensor (C, tensors)."""
        scales = torch.stack([part.abs().amax(1) for part in rows.split(model.space.sizes, dim=1)], dim=1) / 127
        scale = for_each_parameter(scales, model)
        steps = torch.where(scale > 0, rows / scale, 0.0)
        steps = steps.round() if draws is None else (steps + draws).floor()
        return {"steps": steps.clamp(-127, 127), "scales": scales}

    def decode(self, coded: Tree, model: SharedModel) -> Tensor:
        return coded["steps"] * for_each_parameter(coded["scales"], model)

    def bits(self, rows: Tensor, model: SharedModel) -> int:
        return 8 * rows.shape[1] + bits_of(rows) * len(model.space.sizes)

    def pack(self, coded: Tree, model: SharedModel) -> Tree:
        return {"steps": coded["steps"].to(torch.int8), "scales": coded["scales"]}

    def unpack(self, message: Tree, model: SharedModel) -> Tree:
        return {"steps": message["steps"].to(message["scales"].dtype), "scales": message["scales"]}


def for_each_parameter(scales: Tensor, model: SharedModel) -> Tensor:
    """Repeat each tensor's scale (C, tensors) for all its parameters, (C, P)."""
    return scales.repeat_interleave(torch.tensor(model.space.sizes, device=scales.device), dim=1)
