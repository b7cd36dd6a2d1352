"""Decodes updates on the server, which arrive as messages of the experiment's codec."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedskew.core.contract import Codec, SharedModel
from fedskew.core.trees import Tree, map_leaves, pick
from fedskew.flower.wire import Rejected
from fedskew.slots import Uncompressed
from fedskew.slots.codecs import encode


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
