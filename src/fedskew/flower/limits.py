"""The limits that a node's owner sets for a server. A recipe is checked before it costs time or memory."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from fedskew.core.component import parse
from fedskew.core.errors import require
from fedskew.core.own import MARK
from fedskew.core.task import ModelTask
from fedskew.core.toml import toml_table
from fedskew.core.trust import admit_module
from fedskew.experiment.build import DTYPES, check_needs, device_of, setup_of
from fedskew.experiment.config import COMPONENTS, Experiment, from_toml
from fedskew.experiment.federated_site import FEWEST
from fedskew.experiment.prepare import frozen_of, tasks_of
from fedskew.flower.wire import Request
from fedskew.loop.plan import Planner, SeededPlanner
from fedskew.models.encoder import Encoder, HuggingFace
from fedskew.models.own import OwnModel


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The most that one request may ask for. The defaults allow more than honest work needs.

    ``clients`` in the population, ``classes``, ``threads``, local ``steps``, ``examples``: the rows of all steps together, and
    ``bytes`` of a message.
    ``allow`` names other code that a recipe may use: components that other packages offer by name, and classes as MODULE::CLASS.
    ``summary``: whether the node sends counts, sums and words of its table's columns. ``diagnosis``: whether it answers how its
    rows differ from others', with counts of at least ``fewest`` rows, for ``diagnoses`` diagnoses in all.
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
    fewest: int = FEWEST
    diagnoses: int = 3

    def __post_init__(self) -> None:
        require(self.fewest >= 1, f"--fewest must be at least 1, got {self.fewest}")

    def check(self, name: str, requested: int) -> None:
        """Raise `BadInput` if a server asks for more than the limit of this name, or for a negative number."""
        most = getattr(self, name)
        cure = f"its owner can start it with --limit {name}={requested}"
        require(0 <= requested <= most, f"the server asks for {requested} {name}, and this node allows {most}; {cure}")

    def check_request(self, request: Request) -> None:
        """Raise `BadInput` if the request itself asks for too much."""
        for name in ("clients", "classes", "steps"):
            self.check(name, getattr(request, name))

    def check_work(self, planner: Planner, client: int, rows: int) -> None:
        """Raise `BadInput` if local work is too long, before it is planned."""
        assert isinstance(planner, SeededPlanner)
        steps, size = planner.extent(client, rows)
        self.check("steps", steps)
        self.check("examples", steps * size)

    def recipe(self, text: str) -> Experiment:
        """The experiment of a recipe. Raises `BadInput` if it names code that the owner did not allow, or cannot run on a node."""
        table = toml_table(text, "recipe")
        written = json.dumps(table, default=str)
        for name in self.allow:
            written = written.replace(name, "")
        require(
            MARK not in written and ".py" not in written,
            "recipe: it names a file of code (NAME.py or FILE::NAME); nodes run only what is installed on them, of "
            "other packages what the owner allows with --allow MODULE::CLASS",
        )
        # a component of another package is imported as soon as its name is looked up
        for section, catalogue in COMPONENTS.items():
            given = table.get(section)
            for part in given if isinstance(given, list) else [given]:
                self.check_allowed(section, part.get("name") if isinstance(part, dict) else part, catalogue.ours)
        experiment = from_toml(text, "recipe")
        self.check("threads", experiment.training.threads)
        source = getattr(experiment.model, "source", "")
        require(
            not isinstance(experiment.model, HuggingFace) or source in self.allow,
            f"recipe: model hf:{source} is not fedskew's own; the node's owner can start it with --allow {source}, and must have "
            "its files: a node downloads nothing",
        )
        check_needs(experiment, replace(setup_of(experiment), simulated=False))
        # the server's rows stay on the server
        return replace(experiment, server_data=replace(experiment.server_data, share=0.0))

    def check_allowed(self, part: str, name: object, known: Mapping[str, type]) -> None:
        """Raise `BadInput` unless the name, without options after a colon, is known or allowed."""
        plain = parse(str(name), "recipe")[0]
        if MARK in plain and plain in self.allow:
            admit_module(plain)
        require(
            name is None or plain in (*known, *self.allow),
            f"recipe: {part} {plain} is not fedskew's own; the node's owner can start it with --allow NAME",
        )


def check_size(experiment: Experiment, shape: tuple[int, ...], classes: int, received: int) -> None:
    """Raise `BadInput` unless the recipe's model has ``received`` parameters, before it takes memory."""
    if isinstance(
        experiment.model, OwnModel | Encoder
    ):  # another package's module may need real memory, weights are read
        return
    with torch.device("meta"):
        net = experiment.model.build(shape, experiment.task.num_outputs(classes), torch.Generator(device="cpu"))
    size = sum(p.numel() for p in net.parameters())
    require(size == received, f"the recipe's model has {size} parameters, and the server sent {received}")


def tasks_on(experiment: Experiment, shape: tuple[int, ...], classes: int) -> tuple[ModelTask, ...]:
    """The tasks of an experiment whose rows have this shape."""
    training = experiment.training
    device, dtype, bf16 = device_of(training.device), DTYPES[training.dtype], training.precision == "bf16"
    return tasks_of(experiment.task, experiment.model, shape, classes, dtype, device, bf16)


@lru_cache(maxsize=16)
def weights_of(model: object, task: ModelTask) -> str:
    """Sixteen hex digits that change with the tokenizer and the frozen weights of a pretrained model; empty for others."""
    if not isinstance(model, Encoder):
        return ""
    frozen = frozen_of(task)
    return hashlib.sha256(f"{model.reading()} {frozen.fingerprint if frozen else ''}".encode()).hexdigest()[:16]
