"""The promises of solvers, server optimisers, codecs, sharings, selections, availabilities and augmentations.

Each is a function that raises `Broken` with the reason.
"""

from dataclasses import fields, replace

import numpy as np
import torch
from torch import Tensor, nn

from fedskew.algorithms import FedAvg
from fedskew.conformance.hooks import Broken, expect_same, shapes
from fedskew.conformance.miniature import NET, SIZES, SPACE, TASK, X0, federation, normal
from fedskew.core.contract import Augmentation, Availability, Codec, Selection, ServerOptimiser, Sharing, Solver
from fedskew.core.errors import BadInput
from fedskew.core.seeding import stream
from fedskew.core.trees import ParameterSpace, map_leaves, num_bytes, pick
from fedskew.slots.codecs import encode


def holds(condition: bool, reason: str) -> None:
    """Raise `Broken` with the reason unless the condition holds."""
    if not condition:
        raise Broken(reason)


# solvers, server optimisers


def solver_rests(solver: Solver) -> None:
    """stays where it is if the gradient and the weight decay are 0"""
    if "weight_decay" in {field.name for field in fields(solver)}:  # type: ignore[arg-type]
        solver = replace(solver, weight_decay=0.0)  # type: ignore[type-var]
    if solver.weight_decay == 0:
        moved, _ = solver.update(torch.zeros_like(X0), solver.init(X0), X0, X0.new_tensor(0.1))
        expect_same({"w": moved}, {"w": X0}, tolerance=0.0)


def solver_is_what_it_says(solver: Solver) -> None:
    """takes steps linear in the gradients if `linear`, and its rate times the gradient if `plain`"""
    lr, w = X0.new_tensor(0.1), torch.zeros_like(X0)

    def path(*gradients: Tensor) -> Tensor:
        at, state = w, solver.init(w)
        for g in gradients:
            at, state = solver.update(g, state, at, lr)
        return at

    a, b = normal(1, SPACE.size), normal(2, SPACE.size)
    if solver.linear:
        expect_same({"a + b": path(a + b, a - b)}, {"a + b": path(a, a) + path(b, -b)})
        steps = torch.tensor(3.0, dtype=w.dtype)
        moved = -path(*[torch.ones_like(w)] * 3) / lr
        expect_same({"unit_response": solver.unit_response(steps).expand_as(w)}, {"unit_response": moved})
    if solver.plain:
        expect_same({"step": path(a)}, {"step": -lr * a})


def server_rests(server: ServerOptimiser) -> None:
    """stays where it is if the clients' mean update is 0"""
    moved, _ = server.update(torch.zeros_like(X0), server.init(X0), X0)
    expect_same({"x": moved}, {"x": X0}, tolerance=0.0)


# codecs, sharing


def codec_decodes(codec: Codec) -> None:
    """decodes what it encodes to finite updates of the same shape, one client's independent of the others'"""
    rows = normal(5, 4, SPACE.size)
    draws = torch.tensor(np.random.default_rng(6).random(rows.shape)) if codec.random else None
    received = codec.decode(codec.compress(rows, draws, TASK), TASK)
    holds(received.shape == rows.shape, f"{tuple(rows.shape)} becomes {tuple(received.shape)}")
    holds(bool(received.isfinite().all()), "a decoded update is not finite")
    alone = codec.decode(codec.compress(rows[2:3], None if draws is None else draws[2:3], TASK), TASK)
    expect_same({"update of one client": alone[0]}, {"update of one client": received[2]}, tolerance=0.0)


def codec_states_its_bytes(codec: Codec) -> None:
    """packs messages that decode to the same update, no longer than the bits that it states"""
    rows = normal(5, 3, SPACE.size)
    draws = torch.full_like(rows, 0.4) if codec.random else None
    coded = codec.compress(rows, draws, TASK)
    message = codec.pack(pick(coded, 1), TASK)
    opened = map_leaves(lambda leaf: leaf[None], codec.unpack(message, TASK))
    expect_same({"update": codec.decode(opened, TASK)[0]}, {"update": codec.decode(coded, TASK)[1]}, tolerance=0.0)
    stated, sent = -(-codec.bits(rows, TASK) // 8), num_bytes(message)
    holds(sent <= stated + len(shapes(message)), f"a message has {sent} bytes, but `bits` gives {stated} bytes")


def codec_feeds_errors_back(codec: Codec) -> None:
    """sends in the long run what it has left out, if a client keeps an error"""
    if not codec.init(X0):
        return
    rows, error = normal(7, 1, SPACE.size), []
    memory = {key: value[None] for key, value in codec.init(rows[0]).items()}
    for round_ in range(256):
        draws = torch.tensor(np.random.default_rng(round_).random(rows.shape)) if codec.random else None
        memory = encode(codec, rows, memory, draws, TASK).memory
        error.append(float(memory["error"].norm()))
    holds(max(error[128:]) <= 1.5 * max(error[:128]), f"the error grows from {error[127]:.3g} to {error[-1]:.3g}")


def sharing_divides(sharing: Sharing) -> None:
    """keeps ascending positions of the model, each once, or None"""
    try:
        space, at = SPACE, sharing.kept(NET, SPACE)
    except BadInput:  # it needs normalisation layers
        net = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3))
        space = ParameterSpace(net)
        at = sharing.kept(net, space)
    if at is not None:
        inside = bool(((at >= 0) & (at < space.size)).all())
        holds(inside and bool((at.diff() > 0).all()), "positions are not ascending within the model")


# who takes part


def selection_draws(selection: Selection) -> None:
    """draws ascending ids of available clients, each at most once and no more than `largest`, by the given generator only"""
    for clients in (np.arange(40), np.arange(3, 20, 4), np.arange(1), np.arange(0)):
        if not len(clients) and not selection.largest(0):
            continue
        first = selection.select(clients, stream(0, "select", 0))
        text = f"from {clients.tolist()}: {np.asarray(first).tolist()}"
        holds(bool(np.isin(first, clients).all() and (np.diff(first) > 0).all()), text)
        most = selection.largest(len(clients))
        holds(len(first) <= most, f"{len(first)} clients, and `largest` says {most}")
        second = selection.select(clients, stream(0, "select", 0))
        holds(np.array_equal(first, second), f"the same generator gives {first.tolist()} and {second.tolist()}")


def availability_decides(availability: Availability) -> None:
    """says yes or no for each client, and the same for the same round and seed"""
    info = federation(FedAvg()).info
    for round_ in range(5):
        there = availability.available(info, round_, 3)
        holds(there.shape == (len(SIZES),) and there.dtype == bool, f"{there.dtype} of shape {there.shape}")
        holds(
            np.array_equal(there, availability.available(info, round_, 3)), f"round {round_} differs when asked again"
        )


def augmentation_draws(augmentation: Augmentation) -> None:
    """draws three whole numbers for each row, or None, by the given generator only"""
    first, second = (augmentation.draw((3, 5), np.random.default_rng(1)) for _ in range(2))
    if first is None or second is None:
        holds(first is second, "the same generator gives None and numbers")
        return
    holds(first.shape == (3, 5, 3) and np.issubdtype(first.dtype, np.integer), f"{first.dtype} of shape {first.shape}")
    holds(np.array_equal(first, second), "the same generator gives other numbers")
