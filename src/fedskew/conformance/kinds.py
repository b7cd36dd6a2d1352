"""The promises of solvers, server optimisers, codecs, sharings, selections, harmonisations and other components.

Each is a function that raises `Broken` with the reason.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedskew.algorithms import FedAvg
from fedskew.conformance import miniature, promises
from fedskew.conformance.hooks import Broken, expect_same
from fedskew.conformance.promises import Subject, Verdict, examined
from fedskew.core.contract import Augmentation, Availability, Codec, Metric, Selection, ServerOptimiser, Sharing, Solver
from fedskew.core.errors import BadInput
from fedskew.core.seeding import stream
from fedskew.core.sites import Harmonisation, OutputHarmonisation, RowHarmonisation, SiteSums
from fedskew.core.task import Pooling, TaskKind
from fedskew.core.trees import ParameterSpace, map_leaves, num_bytes, pick, signature
from fedskew.data.dataset import Dataset
from fedskew.skew.concept import Concept, labels_of
from fedskew.skew.feature import FeatureSkew, transformed
from fedskew.skew.partition import Dealer, Ints
from fedskew.skew.quantity import SizeSkew
from fedskew.slots import ServerSgd
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
        moved, _ = solver.update(
            torch.zeros_like(miniature.X0), solver.init(miniature.X0), miniature.X0, miniature.X0.new_tensor(0.1)
        )
        expect_same({"w": moved}, {"w": miniature.X0}, tolerance=0.0)


def solver_is_what_it_says(solver: Solver) -> None:
    """takes steps linear in the gradients if `linear`, and its rate times the gradient if `plain`"""
    lr, w = miniature.X0.new_tensor(0.1), torch.zeros_like(miniature.X0)

    def path(*gradients: Tensor) -> Tensor:
        at, state = w, solver.init(w)
        for g in gradients:
            at, state = solver.update(g, state, at, lr)
        return at

    a, b = miniature.normal(1, miniature.SPACE.size), miniature.normal(2, miniature.SPACE.size)
    if solver.linear:
        expect_same({"a + b": path(a + b, a - b)}, {"a + b": path(a, a) + path(b, -b)})
        steps = torch.tensor(3.0, dtype=w.dtype)
        moved = -path(*[torch.ones_like(w)] * 3) / lr
        expect_same({"unit_response": solver.unit_response(steps).expand_as(w)}, {"unit_response": moved})
    if solver.plain:
        expect_same({"step": path(a)}, {"step": -lr * a})


def server_rests(server: ServerOptimiser) -> None:
    """stays where it is if the clients' mean update is 0"""
    moved, _ = server.update(torch.zeros_like(miniature.X0), server.init(miniature.X0), miniature.X0)
    expect_same({"x": moved}, {"x": miniature.X0}, tolerance=0.0)


# codecs, sharing


def codec_decodes(codec: Codec) -> None:
    """decodes what it encodes to finite updates of the same shape, one client's independent of the others'"""
    rows = miniature.normal(5, 4, miniature.SPACE.size)
    draws = torch.tensor(np.random.default_rng(6).random(rows.shape)) if codec.random else None
    received = codec.decode(codec.compress(rows, draws, miniature.TASK), miniature.TASK)
    holds(received.shape == rows.shape, f"{tuple(rows.shape)} becomes {tuple(received.shape)}")
    holds(bool(received.isfinite().all()), "a decoded update is not finite")
    alone = codec.decode(
        codec.compress(rows[2:3], None if draws is None else draws[2:3], miniature.TASK), miniature.TASK
    )
    expect_same({"update of one client": alone[0]}, {"update of one client": received[2]}, tolerance=0.0)


def codec_states_its_bytes(codec: Codec) -> None:
    """packs messages that decode to the same update, no longer than the bits that it states"""
    rows = miniature.normal(5, 3, miniature.SPACE.size)
    coded = codec.compress(rows, torch.full_like(rows, 0.4) if codec.random else None, miniature.TASK)
    message = codec.pack(pick(coded, 1), miniature.TASK)
    opened = map_leaves(lambda leaf: leaf[None], codec.unpack(message, miniature.TASK))
    expect_same(
        {"update": codec.decode(opened, miniature.TASK)[0]},
        {"update": codec.decode(coded, miniature.TASK)[1]},
        tolerance=0.0,
    )
    stated, sent = -(-codec.bits(rows, miniature.TASK) // 8), num_bytes(message)
    holds(sent <= stated + len(signature(message)), f"a message has {sent} bytes, but `bits` gives {stated} bytes")


def codec_feeds_errors_back(codec: Codec) -> None:
    """sends in the long run what it has left out, if a client keeps an error"""
    if not codec.init(miniature.X0):
        return
    rows, error = miniature.normal(7, 1, miniature.SPACE.size), []
    memory = {key: value[None] for key, value in codec.init(rows[0]).items()}
    for round_ in range(256):
        draws = torch.tensor(np.random.default_rng(round_).random(rows.shape)) if codec.random else None
        memory = encode(codec, rows, memory, draws, miniature.TASK).memory
        error.append(float(memory["error"].norm()))
    holds(max(error[128:]) <= 1.5 * max(error[:128]), f"the error grows from {error[127]:.3g} to {error[-1]:.3g}")


def sharing_divides(sharing: Sharing) -> None:
    """keeps ascending positions of the model, each once, or None"""
    try:
        space, at = miniature.SPACE, sharing.kept(miniature.NET, miniature.SPACE)
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
    info = miniature.federation(FedAvg()).info
    for round_ in range(5):
        there = availability.available(info, round_, 3)
        holds(there.shape == (len(miniature.SIZES),) and there.dtype == bool, f"{there.dtype} of shape {there.shape}")
        again = availability.available(info, round_, 3)
        holds(np.array_equal(there, again), f"round {round_} differs when asked again")


def augmentation_draws(augmentation: Augmentation) -> None:
    """draws three whole numbers for each row, or None, by the given generator only"""
    first, second = (augmentation.draw((3, 5), np.random.default_rng(1)) for _ in range(2))
    if first is None or second is None:
        holds(first is second, "the same generator gives None and numbers")
        return
    holds(first.shape == (3, 5, 3) and np.issubdtype(first.dtype, np.integer), f"{first.dtype} of shape {first.shape}")
    holds(np.array_equal(first, second), "the same generator gives other numbers")


def harmonisation_treats_sites_alike(harmonisation: Harmonisation) -> None:
    """gives each site finite numbers, the same in another order of the sites; rows of unknown sites stay finite"""
    rng, order = np.random.default_rng(1), np.array([2, 0, 3, 1])
    if isinstance(harmonisation, RowHarmonisation):
        sites = [rng.normal(k, 1 + k, (5, 4)) for k in range(4)]
        rows, at = np.concatenate(sites), np.arange(4).repeat(5)
        orders = sites, [sites[k] for k in order]
        maps, other = (harmonisation.fit(SiteSums.of(part, np.arange(0))) for part in orders)
        changed = maps.changed(rows, at)
        holds(bool(np.isfinite([changed, maps.changed(rows, at * 0 - 1)]).all()), "a row is not finite")
        expect_same({"rows": torch.tensor(other.changed(rows, np.argsort(order)[at]))}, {"rows": torch.tensor(changed)})
    if isinstance(harmonisation, OutputHarmonisation):
        counts = rng.integers(0, 9, (4, miniature.CLASSES)).astype(float)
        intercepts = harmonisation.intercept(counts, counts.sum(0))
        number = intercepts is None or (intercepts.shape == counts.shape and bool(np.isfinite(intercepts).all()))
        holds(number, "an intercept is not a number for each class")


TASK_ROWS = 6
"""Number of example rows."""


def example(task: TaskKind, rows: int = TASK_ROWS) -> tuple[TaskKind, Tensor, Tensor]:
    """Return the fitted task, outputs (rows, ..., K) and targets (rows, ...)."""
    y = miniature.targets(task.target, rows)
    sizes = (rows, miniature.LENGTH) if task.target == "symbols" else (rows,)
    count = task.num_outputs(miniature.CLASSES if task.target in ("classes", "labels", "symbols") else 0)
    return task.fitted(y.numpy()), miniature.normal(1, *sizes, count), y


def task_scores_rows(task: TaskKind) -> None:
    """gives each row a finite loss with a finite gradient; the loss is among the scores, which have one or more values a row"""
    task, outputs, y = example(task)
    losses = task.loss(outputs, y)
    holds(
        losses.shape == (TASK_ROWS,) and bool(losses.isfinite().all()),
        f"the losses of {TASK_ROWS} rows are {losses.tolist()}",
    )
    slope = grad(lambda outputs: task.loss(outputs, y).sum())(outputs)
    holds(bool(slope.isfinite().all()), "a gradient is not finite")
    scores = task.scores(outputs, y)
    wrong = [name for name, values in scores.items() if values.dim() not in (1, 2) or len(values) != TASK_ROWS]
    holds("loss" in scores and not wrong, f"scores are {', '.join(scores)}; each needs one or more values a row")


def task_ignores_other_rows(task: TaskKind) -> None:
    """gives a row the same loss whatever the other rows are, unless it declares `joint = True`; padded rows never change one"""
    task, outputs, y = example(task)
    losses = task.loss(outputs, y)
    if not getattr(task, "joint", False):
        expect_same({"loss of one row": task.loss(outputs[2:3], y[2:3])[0]}, {"loss of one row": losses[2]})
    padding = torch.zeros_like(y) if y.is_floating_point() else y
    padded = task.loss(torch.cat([outputs, 1 + outputs]), torch.cat([y, padding]))[:TASK_ROWS]
    expect_same({"losses with padded rows": padded}, {"losses with padded rows": losses})


def task_measures_its_metrics(task: TaskKind) -> None:
    """computes each of its metrics, the primary one among them, from means of scores, or from all outputs if it is pooled"""
    task, outputs, y = example(task, 40)
    names = {metric.name: metric.pooled for metric in task.metrics}
    holds(task.primary in names, f"primary is {task.primary!r}, and the metrics are {', '.join(names)}")
    measured = task.measured({name: values.mean(0) for name, values in task.scores(outputs, y).items()})
    pooled = dict(task.pooled(outputs, y)) if isinstance(task, Pooling) else {}
    odd = sorted({*measured, *pooled} - {"loss", *names})
    holds(
        "loss" in measured and not odd,
        f"measured gives {', '.join(measured)}; name {', '.join(odd) or 'the loss'} in metrics",
    )
    holds(task.primary in (pooled if names[task.primary] else measured), f"{task.primary} is not computed")
    wrong = [name for name, value in measured.items() if value.shape != ()]
    holds(not wrong, f"{', '.join(wrong)} of all rows must be one number")


ROWS, EIGHT_CLASSES, CLIENTS = 240, 8, 7
"""Numbers of rows, classes and clients in the checks of a skew."""

SHAPES = ((64,), (1, 8, 8), (3, 32, 32), (1, 28, 28), (9, 128))
"""Shapes of a row: digits, images, sensor windows. A model is checked on the first shape that it accepts."""


# data, models


class Loads(Protocol):
    """A data set."""

    def load(self) -> Dataset: ...


class Builds(Protocol):
    """A model."""

    def build(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> nn.Module: ...


def data_are_whole(source: Loads) -> None:
    """loads a `fedskew.Dataset`, with training rows of every class that the test rows have"""
    data = source.load()
    holds(isinstance(data, Dataset), f"load returns {type(data).__name__}")
    missing = np.setdiff1d(data.y_test, data.y) if data.num_classes else np.empty(0)
    holds(not len(missing), f"no training row has class {missing[:3].tolist()}, which the test rows have")


def data_are_the_same_again(source: Loads) -> None:
    """loads the same rows again"""
    first, second = source.load().fingerprint(), source.load().fingerprint()
    holds(first == second, f"fingerprint {first}, then {second}; draw random numbers from numpy.random.default_rng(0)")


def tried(model: Builds) -> tuple[dict[tuple[int, ...], tuple[nn.Module, Tensor]], str]:
    """Return the module and five rows for each of `SHAPES` that the model accepts, and why it refuses the first of the others."""
    nets: dict[tuple[int, ...], tuple[nn.Module, Tensor]] = {}
    failed = ""
    for shape in SHAPES:
        x = torch.randn(5, *shape, generator=torch.Generator().manual_seed(1))
        ids = x.abs().mul(10).long()
        try:
            fitted = model.fitted(ids.numpy()) if hasattr(model, "fitted") else model
            net = fitted.build(shape, EIGHT_CLASSES, torch.Generator().manual_seed(0))
            x = ids if getattr(net, "ids", False) else x
            net(x)
        except Exception as error:
            failed = failed or f"rows of shape {shape}: {error}"
            continue
        nets[shape] = net, x
    return nets, failed


def made(model: Builds) -> tuple[nn.Module, Tensor]:
    """Return the module for the first of `SHAPES` that the model accepts, and five rows."""
    nets, failed = tried(model)
    holds(bool(nets), f"takes rows of none of the shapes {SHAPES}; {failed}")
    return next(iter(nets.values()))


def where_tried(model: Builds) -> str:
    """Say on which shape of rows a model is checked, and which other shapes it accepts or refuses."""
    fit = [str(shape) for shape in tried(model)[0]]
    others = [str(shape) for shape in SHAPES if str(shape) not in fit]
    also = f"; it also takes {', '.join(fit[1:])}" * (len(fit) > 1) + f"; it refuses {', '.join(others)}" * bool(others)
    return f" (checked on rows of shape {fit[0]}{also})" if fit else ""


def model_gives_features_and_logits(model: Builds) -> None:
    """gives features (B, D) and logits (B, classes), or (B, T, symbols); each row's are independent of the other rows"""
    net, x = made(model)
    z, logits = net(x)
    places = x.shape[1:] if getattr(net, "per_place", False) else ()
    holds(
        z.dim() == 2 and logits.shape == (5, *places, EIGHT_CLASSES),
        f"shapes {tuple(z.shape)} and {tuple(logits.shape)}",
    )
    alone = net(x[2:3])[1][0].detach()
    expect_same({"logits of one row": alone}, {"logits of one row": logits[2].detach()}, tolerance=1e-4)


def model_starts_from_the_seed(model: Builds) -> None:
    """draws its parameters from the given generator: equal seeds give equal models"""
    first, second = (ParameterSpace(net).flatten(net) for net in (made(model)[0] for _ in range(2)))
    expect_same({"parameters": second}, {"parameters": first}, tolerance=0.0)


def model_learns(model: Builds) -> None:
    """has finite gradients that are not all 0, for one model and for a stack of models unless it declares `stacks = False`"""
    net, x = made(model)
    space = ParameterSpace(net)

    def loss(w: Tensor, x: Tensor) -> Tensor:
        return functional_call(net, space.unflatten(w), (x,))[1].logsumexp(-1).sum()

    w = torch.stack([space.flatten(net), 0.9 * space.flatten(net)])
    slopes = torch.stack([grad(loss)(parameters, x) for parameters in w])
    holds(bool(slopes.isfinite().all() and slopes.any()), "a gradient is not finite, or all are 0")
    if getattr(net, "stacks", True):
        size = slopes.abs().max()
        expect_same({"slopes": vmap(grad(loss), (0, None))(w, x) / size}, {"slopes": slopes / size}, tolerance=1e-4)


# skews


def rows_for(skew: object) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.float32]], Ints]:
    """Return rows that the skew can change (sensor windows or images), and their labels."""
    x, y = np.random.default_rng(0).standard_normal((ROWS, 6, 4)).astype(np.float32), np.arange(ROWS) % EIGHT_CLASSES
    try:
        if isinstance(skew, FeatureSkew):
            skew.draw(x, CLIENTS, np.random.default_rng(0))
    except BadInput:
        x = np.random.default_rng(0).standard_normal((ROWS, 1, 8, 8)).astype(np.float32)
    return x, y


def skew_deals(skew: object) -> None:
    """deals rows of the data, none twice; sizes are at least 1, their sum at most the number of rows; changed rows stay finite"""
    x, y, rng = *rows_for(skew), np.random.default_rng(0)
    if isinstance(skew, Dealer):
        rows = np.concatenate(skew.deal(y, y % CLIENTS, CLIENTS, rng))
        holds(bool(((rows >= 0) & (rows < ROWS)).all()), "a row number is outside the data")
        holds(len(np.unique(rows)) == len(rows), f"{len(rows) - len(np.unique(rows))} rows are dealt twice")
    if isinstance(skew, SizeSkew):
        sizes = skew.sizes(ROWS, CLIENTS, rng)
        holds(len(sizes) == CLIENTS and min(sizes) >= 1 and sum(sizes) <= ROWS, f"sizes {np.asarray(sizes).tolist()}")
    if isinstance(skew, FeatureSkew):
        changed = transformed([skew], [skew.draw(x, CLIENTS, rng)], x, np.arange(ROWS) % CLIENTS, 0)
        whole = changed.shape == x.shape and bool(np.isfinite(changed).all())
        holds(whole, "rows change their shape, or are not finite")
    if isinstance(skew, Concept):
        changes = skew.draw(x, EIGHT_CLASSES, CLIENTS, rng)
        labels = labels_of([skew], [changes], x, y, np.arange(ROWS) % CLIENTS, 0, 1).at(skew.complete)
        holds(bool(((labels >= 0) & (labels < EIGHT_CLASSES)).all()), "a label is outside the classes")


def draws_of(skew: object, seed: int) -> list[np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    """Return everything that a skew draws for the clients with this seed."""
    x, y, rng = *rows_for(skew), np.random.default_rng(seed)
    if isinstance(skew, Dealer):
        return [np.sort(rows) for rows in skew.deal(y, y % CLIENTS, CLIENTS, rng)]
    if isinstance(skew, SizeSkew):
        return [skew.sizes(ROWS, CLIENTS, rng)]
    if isinstance(skew, Concept):
        return [*skew.draw(x, EIGHT_CLASSES, CLIENTS, rng).values()]
    return [*skew.draw(x, CLIENTS, rng).values()] if isinstance(skew, FeatureSkew) else []


def skew_follows_the_seed(skew: object) -> None:
    """gives the same partition for the same seed"""
    first, second = draws_of(skew, 1), draws_of(skew, 1)
    same = len(first) == len(second) and all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    holds(same, "seed 1 gives two partitions; take all random numbers from rng")


def metric_is_a_number(metric: Metric) -> None:
    """gives a number in its range on an example, the same again, and changes no input"""
    inputs = {
        "test": (miniature.normal(1, 30, EIGHT_CLASSES), torch.arange(30) % EIGHT_CLASSES),
        "round": (miniature.normal(2, 5, 9), torch.ones(5)),
    }
    values, others = inputs.get(metric.split, (torch.tensor([0.2, 0.5, 0.9]).double(), torch.tensor([4, 8, 3])))
    before = values.clone(), others.clone()
    first, second = (float(metric.compute(values, others)) for _ in range(2))
    low, high = getattr(metric, "low", -np.inf), getattr(metric, "high", np.inf)
    holds(bool(np.isfinite(first)) and low <= first <= high, f"{first:g} is not in {low:g}..{high:g}")
    holds(first == second, f"{first:g}, then {second:g}")
    holds(torch.equal(values, before[0]) and torch.equal(others, before[1]), "it changes its inputs")


KINDS: dict[str, tuple[Callable[..., None], ...]] = {
    "dataset": (data_are_whole, data_are_the_same_again),
    "skew": (skew_deals, skew_follows_the_seed),
    "task": (task_scores_rows, task_ignores_other_rows, task_measures_its_metrics),
    "model": (model_gives_features_and_logits, model_starts_from_the_seed, model_learns),
    "solver": (solver_rests, solver_is_what_it_says),
    "server": (server_rests,),
    "augment": (augmentation_draws,),
    "availability": (availability_decides,),
    "refine": (),
    "selection": (selection_draws,),
    "sharing": (sharing_divides,),
    "metric": (metric_is_a_number,),
    "harmonisation": (harmonisation_treats_sites_alike,),
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
"""By kind of component: the field of a federation that holds it."""

OF_CLIENTS = (promises.engines_agree, promises.order_does_not_matter, promises.nothing_is_changed)


def check(section: str, component: object) -> Iterator[Verdict]:
    """Yield the verdicts on a component, one by one. ``section`` is its kind."""
    where = where_tried(cast(Builds, component)) if section == "model" else ""
    for promise in KINDS[section]:
        yield examined(f"{promise.__doc__}{where * (promise is model_gives_features_and_logits)}", promise, component)
    if section in SLOTS or section == "task":
        components = miniature.slots_of(component) if isinstance(component, TaskKind) else {SLOTS[section]: component}
        subject = Subject(FedAvg(), ServerSgd(), {}, components)
        for test in (
            promises.trains,
            promises.resume_is_exact,
            *(OF_CLIENTS if section in ("solver", "codec", "task") else ()),
            *((promises.padding_changes_nothing,) if section == "task" else ()),
        ):
            yield examined(test.__doc__ or "", test, subject)
