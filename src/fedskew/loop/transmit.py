"""Encode and decode updates with the codec, and combine the method's and the codec's client states."""

from typing import NamedTuple

import torch
from torch import Tensor

from fedskew.core.contract import Codec
from fedskew.core.records import Upload
from fedskew.core.seeding import torch_stream
from fedskew.core.task import Task
from fedskew.core.trees import Tree, num_bytes
from fedskew.loop.federation import Federation
from fedskew.loop.sharing import PART, Shared
from fedskew.loop.work import Done, Work
from fedskew.slots import Uncompressed
from fedskew.slots.codecs import encode


def fresh(fed: Federation, x: Tensor) -> Tree:
    """Return the state of a client that takes part for the first time."""
    state, sent = fed.algorithm.client_init(x), x
    if fed.kept:
        state, sent = state | {PART: fed.kept.of_model(x)}, fed.kept.sent(x)
    return together(state, fed.codec.init(sent))


def together(state: Tree, memory: Tree) -> Tree:
    """Combine a client's states of the method and of the codec. If the codec has no state, it is the method's alone."""
    if not memory:
        return state
    return {"algorithm": state, "codec": memory} if state else {"codec": memory}


def taken_apart(kept: Tree) -> tuple[Tree, Tree]:
    """Split a client's state into the method's and the codec's: the inverse of `together`."""
    return (kept.get("algorithm", {}), kept["codec"]) if "codec" in kept else (kept, {})


class Sent(NamedTuple):
    """The messages of a cohort, with leading axis C."""

    uploads: Upload  # as the server decodes them
    coded: Tree  # the contents of the messages, before ``codec`` packs them to bytes
    codec: Codec
    states: Tree  # the clients' new states, see `together`
    num_bytes: int  # size of all messages together


def transmit(fed: Federation, work: Work, done: Done) -> Sent:
    """Encode the shared part of the updates, and decode it as the server does."""
    uploads, states = done.uploads, done.states
    rows = fed.kept.sent(uploads.delta) if fed.kept else uploads.delta
    # if clients share nothing, there is nothing to encode
    codec = fed.codec if rows.shape[1] else Uncompressed()
    encoded = encode(codec, rows, work.memory, codec_draws(fed, codec, work, rows), shared_model(fed))
    received = fed.kept.received(encoded.received) if fed.kept else encoded.received
    if encoded.received is not rows and (factors := fed.contract.codec_loss):
        lost = uploads.delta - received
        states = {**states, **{name: states[name] + factor * lost for name, factor in factors.items()}}
    size = len(rows) * encoded.size + num_bytes((uploads.extras, uploads.report))
    return Sent(uploads._replace(delta=received), encoded.coded, codec, together(states, encoded.memory), size)


def codec_draws(fed: Federation, codec: Codec, work: Work, rows: Tensor) -> Tensor | None:
    """Draw uniform random numbers for the codec, with the updates' shape (C, P); None if the codec needs none."""
    if not codec.random:
        return None
    streams = [torch_stream(fed.seed, "codec", work.round, int(k)) for k in work.clients]
    return torch.stack([torch.rand(rows.shape[1], generator=g, dtype=rows.dtype) for g in streams]).to(rows.device)


def shared_model(fed: Federation) -> Task | Shared:
    """Return the model whose parameters an update holds: the whole model, or its shared part."""
    return Shared(fed.task, fed.kept) if fed.kept else fed.task
