"""Limits that the owner of a node sets for servers. A recipe is checked before it uses time or memory."""

import hashlib
import json
from dataclasses import dataclass, replace
from functools import lru_cache

from fedskew.core.component import Catalogue, code_of, parse
from fedskew.core.errors import require
from fedskew.core.files import toml_table
from fedskew.core.limits import PositiveInt
from fedskew.core.task import Task
from fedskew.core.user_code import MARK, admit_module
from fedskew.diagnosis.questions import FEWEST
from fedskew.execution.build import check_needs, setup_of
from fedskew.execution.prepare import frozen_of, network_of, size_of, tasks_of
from fedskew.experiment.config import COMPONENTS, Experiment, from_toml
from fedskew.experiment.settings import ServerData
from fedskew.loop.plan import Planner, SeededPlanner
from fedskew.models.encoder import Encoder, HuggingFaceEncoder


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of one request. The defaults allow more than honest work needs.

    They limit ``clients`` in the population, ``classes``, ``threads``, local ``steps``, ``examples`` (rows of all steps together)
    and ``bytes`` of a message.
    ``allow`` names other code that a recipe may use: components that other packages offer by name, and classes as MODULE::CLASS.
    With ``summary`` the node sends counts, means, sums and words of its columns. With ``diagnosis`` it answers questions on how
    its rows differ from others', in at most ``diagnoses`` diagnoses. Counts in both are 0 or at least ``fewest`` rows.
    """

    clients: int = 100_000
    classes: int = 100_000
    threads: int = 256
    steps: int = 100_000
    examples: int = 10_000_000
    bytes: int = 1 << 32
    allow: tuple[str, ...] = ()
    summary: bool = False
    diagnosis: bool = False
    fewest: PositiveInt = FEWEST
    diagnoses: int = 3

    def check(self, name: str, requested: int) -> None:
        """Raise `BadInput` if a server asks for more than the limit of this name, or for a negative number."""
        most = getattr(self, name)
        cure = f"its owner can start it with --limit {name}={requested}"
        require(0 <= requested <= most, f"the server asks for {requested} {name}, but this node allows {most}; {cure}")

    def check_work(self, planner: Planner, client: int, rows: int) -> None:
        """Raise `BadInput` if the local work has too many steps or rows. This is checked before the work is planned."""
        assert isinstance(planner, SeededPlanner)
        steps, size = planner.extent(client, rows)
        self.check("steps", steps)
        self.check("examples", steps * size)

    def recipe(self, text: str) -> Experiment:
        """Return the recipe's experiment. Raises `BadInput` if it names code that is not allowed, or cannot run on a node."""
        table = toml_table(text, "recipe")
        written = json.dumps(table, default=str)
        for name in self.allow:
            written = written.replace(name, "")
        require(
            MARK not in written and ".py" not in written,
            "recipe: it names a file of code (NAME.py or FILE::NAME); nodes run no such code; use "
            "a class of an installed package that the node's owner allows with --allow MODULE::CLASS",
        )
        # looking up the name of another package's component imports it
        for section, catalogue in COMPONENTS.items():
            components = table.get(section)
            for part in components if isinstance(components, list) else [components]:
                self.check_allowed(section, part.get("name") if isinstance(part, dict) else part, catalogue)
        experiment = from_toml(text, "recipe")
        self.check("threads", experiment.training.threads)
        source = getattr(experiment.model, "source", "")
        require(
            not isinstance(experiment.model, HuggingFaceEncoder) or source in self.allow,
            f"recipe: model hf:{source} is not part of fedskew; the node's owner can start the node with --allow {source}, and "
            "must have the model's files: a node downloads nothing",
        )
        check_needs(experiment, replace(setup_of(experiment), simulated=False))
        # the server's rows stay on the server
        return replace(experiment, server_data=ServerData())

    def check_allowed(self, part: str, name: object, catalogue: Catalogue) -> None:
        """Raise `BadInput` unless the name, without options after a colon, is known or allowed."""
        plain = parse(str(name), "recipe")[0]
        if plain in self.allow and (MARK in plain or plain in catalogue.offered):
            admit_module(plain if MARK in plain else code_of(catalogue.offered[plain]))
        require(
            name is None or plain in (*catalogue.ours, *self.allow),
            f"recipe: {part} {plain} is not part of fedskew; the node's owner can start the node with --allow NAME",
        )


def check_size(experiment: Experiment, shape: tuple[int, ...], classes: int, received: int) -> None:
    """Raise `BadInput` unless the recipe's model has ``received`` parameters. The check needs no memory for the model."""
    size = size_of(network_of(experiment.model, experiment.harmonisation), shape, experiment.task.num_outputs(classes))
    require(size in (None, received), f"the recipe's model has {size} parameters, but the server sent {received}")


def tasks_on(experiment: Experiment, shape: tuple[int, ...], classes: int) -> tuple[Task, ...]:
    """Return the tasks of an experiment with rows of this shape."""
    model = network_of(experiment.model, experiment.harmonisation)
    return tasks_of(experiment.training, experiment.task, model, shape, classes)


@lru_cache(maxsize=16)
def weights_of(model: object, task: Task) -> str:
    """Return a hash (16 hex digits) of a pretrained model's tokenizer and frozen weights, or "" for other models."""
    if not isinstance(model, Encoder):
        return ""
    frozen = frozen_of(task)
    return hashlib.sha256(f"{model.reading()} {frozen.fingerprint if frozen else ''}".encode()).hexdigest()[:16]
