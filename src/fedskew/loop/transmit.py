"""Send updates through the codec, and join the states that a client keeps between rounds."""

from __future__ import annotations

import torch
from torch import Tensor

from fedskew.core.records import Upload
from fedskew.core.seeding import torch_stream
from fedskew.core.task import Task
from fedskew.core.trees import Tree, num_bytes
from fedskew.loop.federation import Federation
from fedskew.loop.sharing import PART, Shared
from fedskew.loop.work import Done, Work


def fresh(fed: Federation, x: Tensor) -> Tree:
    """The state of a client that takes part for the first time."""
    state, sent = fed.algorithm.client_init(x), x
    if fed.kept:
        state, sent = state | {PART: fed.kept.of_model(x)}, fed.kept.sent(x)
    return together(state, fed.codec.init(sent))


def together(state: Tree, memory: Tree) -> Tree:
    """A client's state: the method's, beside the codec's if that has one."""
    if not memory:
        return state
    return {"algorithm": state, "codec": memory} if state else {"codec": memory}


def taken_apart(kept: Tree) -> tuple[Tree, Tree]:
    """Inverse of `together`."""
    return (kept.get("algorithm", {}), kept["codec"]) if "codec" in kept else (kept, {})


def transmit(fed: Federation, work: Work, done: Done) -> tuple[Upload, Tree, int]:
    """Encode and decode the updates.

    Returns what the server receives, the clients' new states (see `together`) and the bytes of all messages. The codec sees the
    shared part of the model; without one nothing is encoded.
    """
    uploads, states = done.uploads, done.states
    extras = num_bytes((uploads.extras, uploads.report))
    rows = fed.kept.sent(uploads.delta) if fed.kept else uploads.delta
    if not rows.shape[1]:
        return uploads, together(states, work.memory), extras
    delta, memory, sizes = fed.codec.encode(rows, work.memory, codec_draws(fed, work, rows), shared_model(fed))
    received = uploads._replace(delta=fed.kept.received(delta) if fed.kept else delta)
    if delta is not rows and (factors := fed.contract.codec_loss):
        lost = uploads.delta - received.delta
        states = {**states, **{name: states[name] + factor * lost for name, factor in factors.items()}}
    return received, together(states, memory), int(sizes.sum()) + extras


def codec_draws(fed: Federation, work: Work, rows: Tensor) -> Tensor | None:
    """Uniform random numbers for the codec, of the shape of these updates (C, P); None if it needs none."""
    if not fed.codec.random:
        return None
    streams = [torch_stream(fed.seed, "codec", work.round, int(k)) for k in work.clients]
    return torch.stack([torch.rand(rows.shape[1], generator=g, dtype=rows.dtype) for g in streams]).to(rows.device)


def shared_model(fed: Federation) -> Task | Shared:
    """The model whose parameters an update holds: the whole one, or its shared part."""
    return Shared(fed.task, fed.kept) if fed.kept else fed.task
