"""The loss landscape around the model of a stored run, on the test set and on some clients' rows."""

import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor

from fedskew.core.errors import FedskewError, require
from fedskew.core.limits import PositiveFloat
from fedskew.core.records import Server
from fedskew.core.seeding import torch_stream
from fedskew.data.dataset import Dataset
from fedskew.engine.states import ClientStates
from fedskew.execution.build import Assembly, assemble
from fedskew.execution.facts import tell_where
from fedskew.execution.rounds import resume
from fedskew.experiment.config import from_toml
from fedskew.experiment.keywords import Kind
from fedskew.experiment.settings import Auto
from fedskew.loop.evaluate import evaluate, evaluate_clients
from fedskew.loop.round import play_round, start
from fedskew.loop.work import States
from fedskew.measure.landscape import (
    Floats,
    Sharpness,
    Window,
    around,
    filter_normalised,
    losses_on,
    overlap,
    sharpness,
    through,
    through_path,
)
from fedskew.report.console import png, self_showing
from fedskew.report.draw import draw_slices
from fedskew.report.plots import AXES, keep
from fedskew.store.runs import RunStore

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    path: list[tuple[float, float]] = field(
        default_factory=list
    )  # the global model before round 1 and after each round

    def __repr__(self) -> str:
        losses = [f"loss of {name} {sheet.min():.4g} to {sheet.max():.4g}" for name, sheet in self.sheets.items()]
        return f"{self.kind}: {', '.join(losses)}; plot() draws it"

    def _repr_png_(self) -> bytes:
        return png(self.plot())

    def plot(self) -> "Figure":
        """Draw one panel for each sheet, or one curve for each sheet along a line."""
        return self_showing(
            draw_slices(self.window.a, self.window.b, self.sheets, self.points, AXES[self.kind], self.path)
        )

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
        require(
            self.kind != "plane" or len(self.clients) >= 2,
            "a plane goes through the global model and two clients' models; name two clients",
        )


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
    require(
        not fed.others and fed.contract.shares_model,
        f"landscape: the clients of run {run} have separate models; name a run whose clients share one model",
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
        first, second = (
            filter_normalised(server.x, fed.task.space, torch_stream(fed.seed, "landscape", i)) for i in range(2)
        )
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
    both = overlap(sheets[1], sheets[2]) if len(clients) > 1 else None
    result = Landscape(
        grid.kind, window, dict(zip(names, sheets, strict=True)), marks, sharp(assembly, server), both, path
    )
    with suppress(FedskewError):  # the store is read-only
        keep(store.run_folder(run), grid.kind, result.numbers())
    return result


def plane(assembly: Assembly, server: Server, states: States, grid: Grid) -> tuple[Window, Marks]:
    """Return the plane through the global model and two clients' models after one more round, and these models."""
    outcome = play_round(assembly.federation, assembly.engine, server, states, measure_local=False)
    row_of = {int(k): i for i, k in enumerate(outcome.work.clients)}
    for k in grid.clients[:2]:
        require(k in row_of, f"landscape: client {k} takes no part in the next round; choose from {sorted(row_of)}")
    local = [server.x + outcome.done.uploads.delta[row_of[k]] for k in grid.clients[:2]]
    window, at = through(torch.stack([server.x, *local]), grid.points)
    marks = {f"client {k}": (float(a), float(b)) for k, (a, b) in zip(grid.clients[:2], at[1:], strict=True)}
    return window, {"global": (0.0, 0.0), **marks, "next global": projected(window, outcome.server.x)}


def models_of(assembly: Assembly, rounds: int) -> Tensor:
    """Repeat the run; return the global models (rounds + 1, P) before round 1 and after each round."""
    server, states = start(assembly.federation, assembly.x0), ClientStates()
    models = [server.x]
    for _ in range(rounds):
        server = play_round(assembly.federation, assembly.engine, server, states, measure_local=False).server
        models.append(server.x)
    return torch.stack(models)


def state_of(store: RunStore, run: int, dataset: Dataset | None = None) -> tuple[Assembly, Server, States]:
    """Return assembly, server and client states of a run's newest checkpoint.

    ``dataset`` is needed if the run's data came from a Python program.
    """
    record = store.run(run)
    require(
        record.rounds_done > 0,
        f"run {run} has not finished a round yet; `{store.resume_command(run)}` continues it",
    )
    experiment = from_toml(record.experiment, f"run {run}")
    require(not isinstance(experiment.engine, Auto), f"run {run} has not chosen its engine yet")
    assembly = assemble(experiment, dataset or experiment.dataset.load())
    server, states = resume(store, run, assembly, to_show=store.used(run))
    return assembly, server, states


def projected(window: Window, w: Tensor) -> tuple[float, float]:
    """Return the coordinates (a, b) of a model's projection onto the window."""
    step = (w - window.origin).double()
    b = 0.0 if window.second is None else float(step @ window.second.double())
    return float(step @ window.first.double()), b


def sharp(assembly: Assembly, server: Server) -> Sharpness:
    """Return the sharpness of the mean loss on at most `ROWS` training rows, within 5 % of the model's norm."""
    fed = assembly.federation
    rows = torch.as_tensor(fed.partition.indices[:ROWS], device=fed.x.device)
    w, x, y = server.x, fed.x[rows], fed.targets(server.round)[rows]

    def loss(v: Tensor) -> Tensor:
        return fed.task.loss(fed.task.logits(v, x), y).mean()

    radius = 0.05 * float(w.double().norm())
    return sharpness(loss, w, radius, torch_stream(fed.seed, "landscape", 2))
