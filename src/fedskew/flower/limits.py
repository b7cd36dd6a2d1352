"""What the owner of a node lets a server ask for: a recipe comes from another machine, and is checked before it costs anything."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from fedskew.algorithms import ALGORITHMS
from fedskew.core.errors import BadInput, require
from fedskew.core.own import MARK
from fedskew.core.toml import toml_table
from fedskew.core.trust import admit_module
from fedskew.experiment.config import Experiment, from_toml
from fedskew.flower.wire import Request
from fedskew.loop.plan import Planner, SeededPlanner
from fedskew.models import Mixed, Module, TextCnn
from fedskew.models.encoder import Encoder


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The most that one request may ask for; the defaults allow more than honest work needs.

    ``clients`` of the population, ``classes``, ``threads``, local ``steps``, and ``examples``, the rows of all steps together.
    ``allow`` names what a recipe may use besides fedskew's own: methods of other packages, and modules as PACKAGE.MODULE.CLASS.
    """

    clients: int = 100_000
    classes: int = 100_000
    threads: int = 256
    steps: int = 100_000
    examples: int = 10_000_000
    allow: tuple[str, ...] = ()

    def check(self, what: str, asked: int) -> None:
        """Raise `BadInput` if a server asks for more, or for less than nothing."""
        most = getattr(self, what)
        require(
            0 <= asked <= most,
            f"the server asks for {asked} {what}, and this node allows {most}; its owner can start it with --limit {what}={asked}",
        )

    def check_request(self, request: Request) -> None:
        self.check("clients", request.clients)
        self.check("classes", request.classes)
        self.check("steps", request.steps)

    def check_work(self, planner: Planner, client: int, rows: int) -> None:
        """Raise `BadInput` for local work that is too long, before it is planned."""
        assert isinstance(planner, SeededPlanner)
        steps, size = planner.extent(client, rows)
        self.check("steps", steps)
        self.check("examples", steps * size)

    def recipe(self, text: str) -> Experiment:
        """The experiment that a server asks for. Raises `BadInput` if it names code that the owner did not list."""
        table = toml_table(text, "recipe")
        check_no_files(table)
        self.check_method(table.get("algorithm"))
        self.check_module(table.get("model"))
        experiment = from_toml(text, "recipe")
        self.check("threads", experiment.training.threads)
        model = experiment.model
        require(
            not isinstance(model, (Encoder, Mixed, TextCnn)),
            "recipe: models that read texts, and clients of different architectures, are not deployed; use another model",
        )
        # the node's rows are its own, and the server's stay with the server
        return replace(experiment, server_data=replace(experiment.server_data, share=0.0))

    def check_method(self, spec: Any) -> None:
        """Raise `BadInput` for another package's method, which is imported as soon as its name is looked up."""
        name = spec.get("name") if isinstance(spec, dict) else str(spec).partition(":")[0]
        require(
            spec is None or name in ALGORITHMS or name in self.allow,
            f"recipe: algorithm {name} is not fedskew's own; the node's owner can start it with --allow NAME",
        )

    def check_module(self, spec: Any) -> None:
        """Raise `BadInput` for a module of another package that the owner did not list."""
        if isinstance(spec, dict) and spec.get("name") == "module":
            source = str(spec.get("source"))
            require(
                source in self.allow,
                f"recipe: model {source} is not fedskew's own; the node's owner can start it with --allow NAME",
            )
            admit_module(source)


def check_no_files(table: object) -> None:
    """Raise `BadInput` if a recipe names a file of code."""
    if isinstance(table, dict):
        for value in table.values():
            check_no_files(value)
    elif isinstance(table, list):
        for value in table:
            check_no_files(value)
    elif isinstance(table, str) and (MARK in table or ".py" in table):
        raise BadInput(f"recipe: {table!r} names a file of code; nodes run only what is installed on them")


def check_size(model: Any, shape: tuple[int, ...], classes: int, received: int) -> None:
    """Raise `BadInput` unless the recipe's model has as many parameters as were received, before it takes memory."""
    if isinstance(model, Module):  # its constructor is the user's own, and may not bear it
        return
    with torch.device("meta"):
        net = model.build(shape, classes, torch.Generator(device="cpu"))
    size = sum(p.numel() for p in net.parameters())
    require(size == received, f"the recipe's model has {size} parameters, and the server sent {received}")
