"""The loss landscape around the model of a stored run, on the test set and on some clients' rows; its sharpness.

H. Li, Xu, Taylor, Studer, Goldstein: Visualizing the Loss Landscape of Neural Nets, NeurIPS 2018, arXiv:1712.09913.
"""

import itertools
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import numpy as np
import torch
from msgspec import Meta
from numpy.typing import NDArray
from torch import Tensor
from torch.linalg import vector_norm

from fedskew.core.contract import one_global_model
from fedskew.core.errors import BadInput, FedskewError, require
from fedskew.core.limits import PositiveFloat
from fedskew.core.records import Server
from fedskew.core.seeding import torch_stream
from fedskew.core.trees import ParameterSpace, unit
from fedskew.data.dataset import Dataset
from fedskew.engine.states import ClientStates
from fedskew.execution.build import Assembly
from fedskew.execution.facts import tell_where
from fedskew.execution.rounds import goes_on, state_of
from fedskew.execution.site import LocalClients
from fedskew.experiment.keywords import Kind
from fedskew.loop.evaluate import evaluate, evaluate_clients
from fedskew.loop.round import start
from fedskew.loop.work import Outcome, States
from fedskew.report.console import png, self_showing
from fedskew.report.draw import draw_slices
from fedskew.report.plots import AXES, keep
from fedskew.store.runs import RunStore

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Floats = NDArray[np.float64]
MARGIN = 0.2
"""A window extends beyond its points by this share of their extent."""


def filter_normalised(w: Tensor, space: ParameterSpace, generator: torch.Generator) -> Tensor:
    """Draw a random direction (P,). Each filter gets the norm of the same filter in ``w``; vectors such as biases get 0.

    A filter is a slice of a tensor along its first dimension.
    """
    draw = torch.randn(w.shape, generator=generator, dtype=torch.float64).to(w)
    parts = []
    for weights, drawn in zip(space.unflatten(w).values(), space.unflatten(draw).values(), strict=True):
        if weights.dim() < 2:
            parts.append(torch.zeros_like(weights).flatten())
            continue
        rows, lengths = drawn.flatten(1), weights.flatten(1).norm(dim=1, keepdim=True)
        parts.append((rows * (lengths / (rows.norm(dim=1, keepdim=True) + 1e-10))).flatten())
    return torch.cat(parts)


@dataclass(frozen=True, eq=False)
class Window:
    """A grid on a line or plane: ``origin`` + a first + b second, for all values of ``a`` and ``b``. On a line, b is 0."""

    origin: Tensor  # (P,)
    first: Tensor
    second: Tensor | None
    a: Floats
    b: Floats

    def at(self, a: float, b: float) -> Tensor:
        """Return the model (P,) at these coordinates."""
        point = self.origin + a * self.first
        return point if self.second is None else point + b * self.second


def around(w: Tensor, first: Tensor, second: Tensor | None, reach: float, points: int) -> Window:
    """Return the window from -``reach`` to ``reach`` around a model. With an odd number of points its centre is the model."""
    ticks = np.linspace(-reach, reach, points)
    return Window(w, first, second, ticks, ticks if second is not None else np.zeros(1))


def through(models: Tensor, points: int) -> tuple[Window, Floats]:
    """Return the plane through three models (3, P), and their coordinates (3, 2) in it. If they lie on a line, return the line.

    The first model is the origin; the second lies on the first axis. The axes are orthonormal. Raises `BadInput` if all three
    models are equal.
    """
    origin, to_second, to_third = models[0], models[1] - models[0], models[2] - models[0]
    length, other = (float(vector_norm(step, dtype=torch.float64)) for step in (to_second, to_third))
    require(max(length, other) > 0, "landscape: the three models are equal; name clients whose models differ")
    first = unit(to_second if length else to_third)
    along = float(to_third.double() @ first.double())
    rest = to_third - along * first
    above = float(vector_norm(rest, dtype=torch.float64))
    flat = not length or above <= 1e-6 * other
    at = np.array([[0.0, 0.0], [length, 0.0], [along, 0.0 if flat else above]])
    return window_of(origin, first, None if flat else rest / above, at, points), at


def through_path(models: Tensor, points: int) -> tuple[Window, Floats]:
    """Return a plane through the last of the models (R, P), and the models' coordinates (R, 2) in it.

    Its axes are the two directions in which the models vary most: the first principal directions of the path (Li et al., section
    7). If the models lie on a line, the line is returned.
    """
    steps = (models - models[-1]).double()
    require(bool(steps.any()), "landscape: the global model has not moved, so it has no path")
    _, sizes, directions = torch.linalg.svd(steps, full_matrices=False)
    flat = len(sizes) < 2 or float(sizes[1]) <= 1e-6 * float(sizes[0])
    first, second = directions[0], directions[0] * 0 if flat else directions[1]
    at = torch.stack([steps @ first, steps @ second], 1).cpu().numpy()
    return window_of(models[-1], first.to(models), None if flat else second.to(models), at, points), at


def window_of(origin: Tensor, first: Tensor, second: Tensor | None, at: Floats, points: int) -> Window:
    """Return the window around the coordinates ``at`` (R, 2), with a margin."""
    low, high = at.min(0), at.max(0)
    margin = MARGIN * float((high - low).max())
    a, b = (np.linspace(low[axis] - margin, high[axis] + margin, points) for axis in (0, 1))
    return Window(origin, first, second, a, np.zeros(1) if second is None else b)


def losses_on(
    window: Window, losses: Callable[[Tensor], Tensor], on_point: Callable[[], None] = lambda: None
) -> Floats:
    """Evaluate ``losses``, which maps (P,) to (F,), on the window; return (F, len(b), len(a)).

    ``on_point()`` is called after each point.
    """
    values = []
    for b, a in itertools.product(window.b, window.a):
        values.append(losses(window.at(float(a), float(b))).double().cpu().numpy())
        on_point()
    return np.stack(values, -1).reshape(-1, len(window.b), len(window.a))


@dataclass(frozen=True)
class Sharpness:
    """How fast a loss rises around a model.

    ``rise`` is the increase of the loss at distance ``radius`` along the gradient (the inner step of SAM). ``eigenvalue`` is the
    Hessian's largest in absolute value, by power iteration.
    """

    rise: float
    radius: float
    eigenvalue: float


def sharpness(loss: Callable[[Tensor], Tensor], w: Tensor, radius: float, generator: torch.Generator) -> Sharpness:
    """Compute the sharpness at ``w`` (P,) of a differentiable ``loss``, which maps (P,) to ()."""
    gradient = torch.func.grad(loss)
    rise = float(loss(w + radius * unit(gradient(w))) - loss(w))
    v = unit(torch.randn(w.shape, generator=generator, dtype=torch.float64).to(w))
    eigenvalue = 0.0
    for _ in range(30):  # power iteration
        product = torch.func.jvp(gradient, (w,), (v,))[1]
        eigenvalue = float(v.double() @ product.double())
        v = unit(product)
    return Sharpness(rise, radius, eigenvalue)


ROWS = 2048
"""Maximum number of training rows on which sharpness is measured."""


@dataclass(frozen=True, eq=False, repr=False)
class Landscape:
    """Losses on a grid around a model. There is one sheet of losses for the test set, and one for each chosen client."""

    kind: Kind
    window: Window
    sheets: dict[str, Floats]  # by name: losses (len(b), len(a))
    points: dict[str, tuple[float, float]]  # models by name: their coordinates (a, b)
    sharpness: Sharpness
    overlap: float | None  # correlation of the first two clients' losses on the grid
    # the global model before round 1 and after each round
    path: list[tuple[float, float]] = field(default_factory=list)

    def __repr__(self) -> str:
        losses = [f"loss of {name} {sheet.min():.4g} to {sheet.max():.4g}" for name, sheet in self.sheets.items()]
        return f"{self.kind}: {', '.join(losses)}; plot() draws it"

    def _repr_png_(self) -> bytes:
        return png(self.plot())

    def plot(self) -> "Figure":
        """Draw one panel for each sheet, or one curve for each sheet along a line."""
        a, b = self.window.a, self.window.b
        return self_showing(draw_slices(a, b, self.sheets, self.points, AXES[self.kind], self.path))

    def numbers(self) -> dict[str, object]:
        """Return all numbers as plain values."""
        return {
            "kind": self.kind,
            "a": self.window.a.tolist(),
            "b": self.window.b.tolist(),
            "losses": {name: sheet.tolist() for name, sheet in self.sheets.items()},
            "models": self.points,
            "path": self.path,
            "sharpness": vars(self.sharpness),
            "overlap": self.overlap,
        }


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Which plane or line of models to look at, on ``points`` values along each axis.

    ``plane``: through the global model and two local models. These are of the first two ``clients`` after one more round, which
    is not stored. ``path``: repeats the run; the plane contains the last model and the two directions in which the global model
    moved most. ``line`` and ``surface``: one or two random directions with filter normalisation, from -``reach`` to ``reach``.
    """

    kind: Kind = "plane"
    clients: Annotated[tuple[int, ...], Meta(min_length=1)] = (0, 1)
    points: Annotated[int, Meta(ge=3)] = 25
    reach: PositiveFloat = 1.0

    def __post_init__(self) -> None:
        require(len(set(self.clients)) == len(self.clients), "name different clients")
        if self.kind == "plane" and len(self.clients) < 2:
            raise BadInput("a plane goes through the global model and two clients' models; name two clients")


Marks = dict[str, tuple[float, float]]
"""Models by name: their coordinates (a, b)."""


def landscape(
    store: RunStore,
    run: int,
    grid: Grid,
    on_progress: Callable[[str, float], None] = lambda stage, fraction: None,
    warn: Callable[[str], None] = lambda _: None,
    dataset: Dataset | None = None,
) -> Landscape:
    """Compute losses around the newest checkpoint of a run. They are also written to the run's folder for the report.

    ``warn`` is called with one line if the newest checkpoint is damaged and the previous one is used.
    """
    assembly, server, states = state_of(store, run, dataset)
    tell_where(warn, store, run, server.round)
    fed, clients = assembly.federation, grid.clients
    if fed.others or fed.own_part is not None or one_global_model in fed.contract.needs:
        raise BadInput(
            f"landscape: the clients of run {run} have separate models; name a run whose clients share one model"
        )
    for k in clients:
        require(0 <= k < len(fed.clients), f"landscape: there is no client {k}; they are 0 to {len(fed.clients) - 1}")
    path: list[tuple[float, float]] = []
    if grid.kind == "plane":
        window, marks = plane(assembly, server, states, grid)
    elif grid.kind == "path":
        window, at = through_path(models_of(assembly, server.round), grid.points)
        path = [(float(a), float(b)) for a, b in at]
        marks = {"last round": path[-1], "start": path[0]}
    else:
        generators = (torch_stream(fed.seed, "landscape", i) for i in range(2))
        first, second = (filter_normalised(server.x, fed.task.space, generator) for generator in generators)
        window = around(server.x, first, second if grid.kind == "surface" else None, grid.reach, grid.points)
        marks = {"global": (0.0, 0.0)}
    y, y_test = fed.targets(server.round), assembly.test_targets(server.round)

    def losses(w: Tensor) -> Tensor:
        tested = evaluate(fed.task, w, assembly.x_test, y_test)["loss"]
        of_clients = evaluate_clients(fed.task, w, fed.x, y, fed.partition, np.array(clients))["loss"]
        return torch.cat([torch.tensor([tested], dtype=torch.float64), of_clients])

    finished, number = itertools.count(1), len(window.a) * len(window.b)
    sheets = losses_on(window, losses, lambda: on_progress("losses", next(finished) / number))
    names = ["test set", *(f"client {k}" for k in clients)]
    both = float(np.corrcoef(sheets[1].ravel(), sheets[2].ravel())[0, 1]) if len(clients) > 1 else None
    of_sheet = dict(zip(names, sheets, strict=True))
    result = Landscape(grid.kind, window, of_sheet, marks, sharp(assembly, server), both, path)
    with suppress(FedskewError):  # the store is read-only
        keep(store.run_folder(run), grid.kind, result.numbers())
    return result


def plane(assembly: Assembly, server: Server, states: States, grid: Grid) -> tuple[Window, Marks]:
    """Return the plane through the global model and two clients' models after one more round, and these models."""
    outcome = played(assembly, server, states)
    row_of = {int(k): i for i, k in enumerate(outcome.work.clients)}
    for k in grid.clients[:2]:
        require(k in row_of, f"landscape: client {k} takes no part in the next round; choose from {sorted(row_of)}")
    local = [server.x + outcome.done.uploads.delta[row_of[k]] for k in grid.clients[:2]]
    window, at = through(torch.stack([server.x, *local]), grid.points)
    marks = {f"client {k}": (float(a), float(b)) for k, (a, b) in zip(grid.clients[:2], at[1:], strict=True)}
    return window, {"global": (0.0, 0.0), **marks, "next global": projected(window, outcome.server.x)}


def played(assembly: Assembly, server: Server, states: States) -> Outcome:
    """Play one round as the run does, with its faults and attackers."""
    site = LocalClients(assembly.engine, assembly.experiment.faults)
    return site.play_round(assembly.federation, server, states, measure_local=False)


def models_of(assembly: Assembly, rounds: int) -> Tensor:
    """Repeat the run; return the global models (R, P) before its first round and after each round until ``rounds``."""
    states = ClientStates()
    server = goes_on(assembly, start(assembly.federation, assembly.x0), states, simulated=True)
    models = [server.x]
    while server.round < rounds:
        server = played(assembly, server, states).server
        models.append(server.x)
    return torch.stack(models)


def projected(window: Window, w: Tensor) -> tuple[float, float]:
    """Return the coordinates (a, b) of a model's projection onto the window."""
    step = (w - window.origin).double()
    b = 0.0 if window.second is None else float(step @ window.second.double())
    return float(step @ window.first.double()), b


def sharp(assembly: Assembly, server: Server) -> Sharpness:
    """Return the sharpness of the mean loss on at most `ROWS` training rows of all clients, within 5 % of the model's norm."""
    fed = assembly.federation
    of_clients = fed.partition.indices  # one client after the other
    rows = torch.as_tensor(of_clients[:: math.ceil(len(of_clients) / ROWS)], device=fed.x.device)
    w, x, y = server.x, fed.x[rows], fed.targets(server.round)[rows]

    def loss(v: Tensor) -> Tensor:
        return fed.task.loss(fed.task.logits(v, x), y).mean()

    radius = 0.05 * float(w.double().norm())
    return sharpness(loss, w, radius, torch_stream(fed.seed, "landscape", 2))
