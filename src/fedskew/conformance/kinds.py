"""The promises of components that are not methods, one function each; it raises `Broken` with the reason.

A slot also keeps the promises of a federation of FedAvg with it: equal engines, exact resume, nothing changed in place.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedskew.algorithms import FedAvg
from fedskew.conformance import promises
from fedskew.conformance.miniature import NET, SIZES, SPACE, TASK, X0, federation, normal
from fedskew.conformance.promises import Subject, Verdict, examined
from fedskew.conformance.records import Broken, expect_same, shapes
from fedskew.core.contract import Augmentation, Availability, Codec, Selection, ServerOptimiser, Sharing, Solver
from fedskew.core.errors import BadInput
from fedskew.core.seeding import stream
from fedskew.core.trees import map_leaves, num_bytes, pick
from fedskew.core.vectors import ParameterSpace
from fedskew.data.dataset import Dataset
from fedskew.skew.concept import Concept, labels_of
from fedskew.skew.feature import FeatureSkew, transformed
from fedskew.skew.partition import Dealer, Ints
from fedskew.skew.quantity import SizeSkew
from fedskew.slots import ServerSgd
from fedskew.slots.codecs import encode

ROWS, CLASSES, CLIENTS = 240, 8, 7
"""Of the rows that a skew deals."""

SHAPES = ((64,), (1, 8, 8), (3, 32, 32), (1, 28, 28), (9, 128))
"""Shapes of a row. A model is checked on the first that it takes: digits, images, sensor windows."""


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
    holds(sent <= stated + len(shapes(message)), f"a message has {sent} bytes, and its bits are those of {stated}")


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
        chosen = selection.select(clients, stream(0, "select", 0))
        text = f"from {clients.tolist()}: {np.asarray(chosen).tolist()}"
        holds(bool(np.isin(chosen, clients).all() and (np.diff(chosen) > 0).all()), text)
        most = selection.largest(len(clients))
        holds(len(chosen) <= most, f"{len(chosen)} clients, and `largest` says {most}")
        again = selection.select(clients, stream(0, "select", 0))
        holds(np.array_equal(chosen, again), f"the same generator gives {chosen.tolist()} and {again.tolist()}")


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
    one, two = (augmentation.draw((3, 5), np.random.default_rng(1)) for _ in range(2))
    if one is None or two is None:
        holds(one is two, "the same generator gives None and numbers")
        return
    holds(one.shape == (3, 5, 3) and np.issubdtype(one.dtype, np.integer), f"{one.dtype} of shape {one.shape}")
    holds(np.array_equal(one, two), "the same generator gives other numbers")


# data, models


class Loads(Protocol):
    """A data set."""

    def load(self) -> Dataset: ...


class Builds(Protocol):
    """A model."""

    def build(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> nn.Module: ...


def data_are_whole(source: Loads) -> None:
    """loads a `fedskew.Dataset` with training rows of every class that the test rows have"""
    data = source.load()
    holds(isinstance(data, Dataset), f"load returns {type(data).__name__}")
    missing = np.setdiff1d(data.y_test, data.y)
    holds(not len(missing), f"no training row has class {missing[:3].tolist()}, which the test rows have")


def data_are_the_same_again(source: Loads) -> None:
    """loads the same rows again"""
    one, two = source.load().fingerprint(), source.load().fingerprint()
    holds(one == two, f"fingerprint {one}, then {two}; draw random numbers from numpy.random.default_rng(0)")


def made(model: Builds) -> tuple[nn.Module, Tensor]:
    """The module on the first of `SHAPES` that it takes, and five rows."""
    failed = ""
    for shape in SHAPES:
        x = torch.randn(5, *shape, generator=torch.Generator().manual_seed(1))
        try:
            net = model.build(shape, CLASSES, torch.Generator().manual_seed(0))
            x = x.abs().clamp(max=1).long() if getattr(net, "ids", False) else x
            net(x)
        except Exception as error:
            failed = failed or f"rows of shape {shape}: {error}"
            continue
        return net, x
    raise Broken(f"takes rows of none of the shapes {SHAPES}; {failed}")


def model_gives_features_and_logits(model: Builds) -> None:
    """gives features (B, D) and logits (B, classes), each row's independent of the other rows"""
    net, x = made(model)
    z, logits = net(x)
    holds(z.dim() == 2 and logits.shape == (5, CLASSES), f"shapes {tuple(z.shape)} and {tuple(logits.shape)}")
    alone = net(x[2:3])[1][0].detach()
    expect_same({"logits of one row": alone}, {"logits of one row": logits[2].detach()}, tolerance=1e-4)


def model_starts_from_the_seed(model: Builds) -> None:
    """draws its parameters from the given generator: equal seeds give equal models"""
    one, two = (ParameterSpace(net).flatten(net) for net in (made(model)[0] for _ in range(2)))
    expect_same({"parameters": two}, {"parameters": one}, tolerance=0.0)


def model_learns(model: Builds) -> None:
    """has finite gradients that are not all 0, for one model and for a stack of models unless it declares `stacks = False`"""
    net, x = made(model)
    space = ParameterSpace(net)

    def loss(w: Tensor, x: Tensor) -> Tensor:
        return functional_call(net, space.unflatten(w), (x,))[1].logsumexp(1).sum()

    w = torch.stack([space.flatten(net), 0.9 * space.flatten(net)])
    slopes = torch.stack([grad(loss)(one, x) for one in w])
    holds(bool(slopes.isfinite().all() and slopes.any()), "a gradient is not finite, or all are 0")
    if getattr(net, "stacks", True):
        size = slopes.abs().max()
        expect_same({"slopes": vmap(grad(loss), (0, None))(w, x) / size}, {"slopes": slopes / size}, tolerance=1e-4)


# skews


def rows_for(skew: object) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.float32]], Ints]:
    """Rows that the skew can change, sensor windows or images, and their labels."""
    x, y = np.random.default_rng(0).standard_normal((ROWS, 6, 4)).astype(np.float32), np.arange(ROWS) % CLASSES
    try:
        if isinstance(skew, FeatureSkew):
            skew.draw(x, CLIENTS, np.random.default_rng(0))
    except BadInput:
        x = np.random.default_rng(0).standard_normal((ROWS, 1, 8, 8)).astype(np.float32)
    return x, y


def skew_deals(skew: object) -> None:
    """deals rows of the data, none of them twice; sizes are at least 1 and no more than all rows; changed rows stay finite"""
    x, y, rng = *rows_for(skew), np.random.default_rng(0)
    if isinstance(skew, Dealer):
        rows = np.concatenate(skew.deal(y, y % CLIENTS, CLIENTS, rng))
        holds(bool(((rows >= 0) & (rows < ROWS)).all()), "a row number is outside the data")
        holds(len(np.unique(rows)) == len(rows), f"{len(rows) - len(np.unique(rows))} rows are dealt twice")
    if isinstance(skew, SizeSkew):
        sizes = skew.sizes(ROWS, CLIENTS, rng)
        holds(len(sizes) == CLIENTS and min(sizes) >= 1 and sum(sizes) <= ROWS, f"sizes {np.asarray(sizes).tolist()}")
    if isinstance(skew, FeatureSkew):
        parameters = skew.draw(x, CLIENTS, rng)
        changed = transformed([skew], [parameters], x, np.arange(ROWS) % CLIENTS, 0)
        holds(
            changed.shape == x.shape and bool(np.isfinite(changed).all()), "rows change their shape, or are not finite"
        )
    if isinstance(skew, Concept):
        own = skew.draw(x, CLASSES, CLIENTS, rng)
        labels = labels_of([skew], [own], x, y, np.arange(ROWS) % CLIENTS, 0, 1).at(skew.complete)
        holds(bool(((labels >= 0) & (labels < CLASSES)).all()), "a label is outside the classes")


def drawn(skew: object, seed: int) -> list[np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    """All that a skew draws for the clients with this seed."""
    x, y, rng = *rows_for(skew), np.random.default_rng(seed)
    if isinstance(skew, Dealer):
        return [np.sort(rows) for rows in skew.deal(y, y % CLIENTS, CLIENTS, rng)]
    if isinstance(skew, SizeSkew):
        return [skew.sizes(ROWS, CLIENTS, rng)]
    if isinstance(skew, Concept):
        return [*skew.draw(x, CLASSES, CLIENTS, rng).values()]
    return [*skew.draw(x, CLIENTS, rng).values()] if isinstance(skew, FeatureSkew) else []


def skew_follows_the_seed(skew: object) -> None:
    """gives the same partition for the same seed"""
    one, two = drawn(skew, 1), drawn(skew, 1)
    same = len(one) == len(two) and all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    holds(same, "seed 1 gives two partitions; take all random numbers from rng")


KINDS: dict[str, tuple[Callable[..., None], ...]] = {
    "dataset": (data_are_whole, data_are_the_same_again),
    "skew": (skew_deals, skew_follows_the_seed),
    "model": (model_gives_features_and_logits, model_starts_from_the_seed, model_learns),
    "solver": (solver_rests, solver_is_what_it_says),
    "server": (server_rests,),
    "augment": (augmentation_draws,),
    "availability": (availability_decides,),
    "refine": (),
    "selection": (selection_draws,),
    "sharing": (sharing_divides,),
    "codec": (codec_decodes, codec_states_its_bytes, codec_feeds_errors_back),
}
"""The promises by kind of component."""

SLOTS = {
    "solver": "solver",
    "server": "server_optimiser",
    "availability": "availability",
    "refine": "refinement",
    "selection": "selection",
    "codec": "codec",
}
"""The fields of a federation that hold a component."""

OF_CLIENTS = (promises.engines_agree, promises.order_does_not_matter, promises.nothing_is_changed)


def check(section: str, component: object) -> Iterator[Verdict]:
    """Yield the verdicts on a component of this kind, one by one."""
    for promise in KINDS[section]:
        yield examined(promise.__doc__ or "", promise, component)
    if section in SLOTS:
        subject = Subject(FedAvg(), ServerSgd(), {}, {SLOTS[section]: component})
        for test in (
            promises.trains,
            promises.resume_is_exact,
            *(OF_CLIENTS if section in ("solver", "codec") else ()),
        ):
            yield examined(test.__doc__ or "", test, subject)
