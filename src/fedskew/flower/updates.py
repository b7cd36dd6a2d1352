"""The server's side of updates as messages of the experiment's codec."""

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
    """A codec whose updates are decoded already: it leaves them as they are, and counts the bytes of their messages."""

    codec: Codec

    def bits(self, rows: Tensor, model: SharedModel) -> int:
        return self.codec.bits(rows, model)

    def applied(self, row: Tensor) -> Codec:
        """The codec of an update (P,). Where clients share nothing (P = 0), nothing is encoded."""
        return self.codec if len(row) else Uncompressed()

    def pattern(self, row: Tensor, model: SharedModel) -> Tree:
        """A message with the names, shapes and types of an update like ``row`` (P,)."""
        codec, zeros = self.applied(row), torch.zeros_like(row)[None]
        draws = zeros if codec.random else None
        return codec.pack(pick(encode(codec, zeros, {}, draws, model).coded, 0), model)

    def opened(self, message: Tree, row: Tensor, model: SharedModel) -> Tensor:
        """The update (P,) of a message. Raises `Rejected` if the codec cannot read it."""
        codec = self.applied(row)
        try:
            coded = codec.unpack(message, model)
        except ValueError as error:
            raise Rejected("garbage", f"the update cannot be decoded: {error}") from None
        return codec.decode(map_leaves(lambda leaf: leaf[None], coded), model)[0]
