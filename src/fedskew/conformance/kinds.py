"""The promises of components that are not methods. Each is a function that raises `Broken` with the reason.

Some kinds are also tested in a federation of FedAvg with the component: equal engines, exact resume, nothing changed in place.
"""

from collections.abc import Callable, Iterator
from typing import Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedskew.algorithms import FedAvg
from fedskew.conformance import promises, slots
from fedskew.conformance.hooks import expect_same
from fedskew.conformance.miniature import normal, slots_of
from fedskew.conformance.promises import Subject, Verdict, examined
from fedskew.conformance.slots import holds
from fedskew.conformance.tasks import TASK_PROMISES
from fedskew.core.contract import Metric
from fedskew.core.errors import BadInput
from fedskew.core.task import TaskKind
from fedskew.core.trees import ParameterSpace
from fedskew.data.dataset import Dataset
from fedskew.skew.concept import Concept, labels_of
from fedskew.skew.feature import FeatureSkew, transformed
from fedskew.skew.partition import Dealer, Ints
from fedskew.skew.quantity import SizeSkew
from fedskew.slots import ServerSgd

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
    """Return the module and five rows for each of `SHAPES` that it accepts, and why it refuses the first of the others."""
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
    """Return the module for the first of `SHAPES` that it accepts, and five rows."""
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
    holds(z.dim() == 2 and logits.shape == (5, *places, EIGHT_CLASSES), f"shapes {tuple(z.shape)} and {tuple(logits.shape)}")
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
        changes = skew.draw(x, EIGHT_CLASSES, CLIENTS, rng)
        labels = labels_of([skew], [changes], x, y, np.arange(ROWS) % CLIENTS, 0, 1).at(skew.complete)
        holds(bool(((labels >= 0) & (labels < EIGHT_CLASSES)).all()), "a label is outside the classes")


def drawn(skew: object, seed: int) -> list[np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
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
    first, second = drawn(skew, 1), drawn(skew, 1)
    same = len(first) == len(second) and all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    holds(same, "seed 1 gives two partitions; take all random numbers from rng")


def metric_is_a_number(metric: Metric) -> None:
    """gives a number in its range on an example, the same again, and changes no input"""
    inputs = {"test": (normal(1, 30, EIGHT_CLASSES), torch.arange(30) % EIGHT_CLASSES), "round": (normal(2, 5, 9), torch.ones(5))}
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
    "task": TASK_PROMISES,
    "model": (model_gives_features_and_logits, model_starts_from_the_seed, model_learns),
    "solver": (slots.solver_rests, slots.solver_is_what_it_says),
    "server": (slots.server_rests,),
    "augment": (slots.augmentation_draws,),
    "availability": (slots.availability_decides,),
    "refine": (),
    "selection": (slots.selection_draws,),
    "sharing": (slots.sharing_divides,),
    "metric": (metric_is_a_number,),
    "codec": (slots.codec_decodes, slots.codec_states_its_bytes, slots.codec_feeds_errors_back),
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
        components = slots_of(component) if isinstance(component, TaskKind) else {SLOTS[section]: component}
        subject = Subject(FedAvg(), ServerSgd(), {}, components)
        for test in (
            promises.trains,
            promises.resume_is_exact,
            *(OF_CLIENTS if section in ("solver", "codec", "task") else ()),
            *((promises.padding_changes_nothing,) if section == "task" else ()),
        ):
            yield examined(test.__doc__ or "", test, subject)
