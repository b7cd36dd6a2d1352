"""Updates as messages of the experiment's codec: a node encodes them, the server decodes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedskew.core.records import Upload
from fedskew.core.trees import Tree, pick
from fedskew.flower.wire import Rejected
from fedskew.loop.federation import Federation
from fedskew.loop.round import Work, codec_draws, shared_model
from fedskew.slots import Uncompressed
from fedskew.slots.codecs import Model


def message_of(fed: Federation, work: Work, uploads: Upload) -> Tree:
    """The message of a node's update, the only one of ``uploads``."""
    rows = fed.kept.sent(uploads.delta) if fed.kept else uploads.delta
    draws = codec_draws(fed, work, rows)
    own = None if draws is None else draws[0]
    return applied(fed.codec, rows[0]).message(rows[0], pick(work.memory, 0), own, shared_model(fed))


def applied(codec: Any, row: Tensor) -> Any:
    """The codec of an update (P,). Where clients share nothing (P = 0), nothing is encoded."""
    return codec if len(row) else Uncompressed()


@dataclass(frozen=True)
class Decoded(Uncompressed):
    """The server's side of a codec: `encode` leaves updates as they are, and counts the bytes of their messages."""

    codec: Any

    def encode(self, rows: Tensor, memory: Tree, draws: Tensor | None, model: Model) -> tuple[Tensor, Tree, Tensor]:
        zeros = torch.zeros_like(rows[:1])
        memories = {name: leaf[None] for name, leaf in self.codec.init(zeros[0]).items()}
        sizes = self.codec.encode(zeros, memories, zeros if self.codec.random else None, model)[2]
        return rows, memory, sizes.expand(len(rows))

    def pattern(self, row: Tensor, model: Model) -> Tree:
        """A message with the names, shapes and types of an update like ``row`` (P,)."""
        zeros = torch.zeros_like(row)
        draws = zeros if self.codec.random else None
        return applied(self.codec, row).message(zeros, self.codec.init(zeros), draws, model)

    def opened(self, message: Tree, row: Tensor, model: Model) -> Tensor:
        """The update (P,) of a message. Raises `Rejected` if the codec cannot read it."""
        try:
            read: Tensor = applied(self.codec, row).read(message, model)
        except ValueError as error:
            raise Rejected("garbage", f"the update cannot be decoded: {error}") from None
        return read
