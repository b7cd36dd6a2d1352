"""Ten rounds of some methods on digits at full precision: what no change of the code may move unless it says why.

``python -m tests.golden`` makes the curves anew from the sequential engine on one thread, on this machine.
"""

import json
from pathlib import Path
from typing import Any

import torch

from fedskew.core.machine import processor
from fedskew.engine.choose import on_threads
from fedskew.engine.sequential import Sequential
from fedskew.engine.states import ClientStates
from fedskew.execution.build import assemble
from fedskew.experiment.combinations import with_method
from fedskew.experiment.config import Experiment
from fedskew.loop.evaluate import evaluate
from fedskew.loop.round import play_round, start
from fedskew.loop.work import Engine

FILE = Path(__file__).parent / "curves.json"
METHODS = ("fedavg", "fedprox:mu=0.1", "scaffold", "feddyn", "fedadam")
ROUNDS = 10

Curve = list[dict[str, float]]
"""Of each round what a reader of the curve sees, and the length of the model, in which everything is."""


def experiment(method: str) -> Experiment:
    base = Experiment(
        model="mlp:hidden=[16]",
        skew="label-dirichlet:alpha=0.1,remainder=drop",
        clients={"number": 8, "held_out": 0.0},
        selection={"name": "uniform", "clients": 5},
        local={"epochs": 1, "batch_size": 32},
        training={"rounds": ROUNDS, "dtype": "float64", "threads": 1},
        engine="sequential",
    )
    return with_method(base, method)


def curve(method: str, engine: Engine) -> Curve:
    """Return the measurements of the rounds with an engine, on one thread."""
    with on_threads(1):
        made = assemble(experiment(method), experiment(method).dataset.load())
        fed = made.federation
        server, states, points = start(fed, made.x0), ClientStates(), []
        for _ in range(ROUNDS):
            outcome = play_round(fed, engine, server, states)
            server = outcome.server
            scores = evaluate(fed.task, server.x, made.x_test, made.y_test)
            points.append(
                {
                    "accuracy": float(scores["accuracy"]),
                    "loss": float(scores["loss"]),
                    "drift": float(outcome.measures["drift"]),
                    "length": float(server.x.norm()),
                }
            )
    return points


def made_on() -> str:
    """Return what the last bits depend on: the processor, the instructions that PyTorch uses, and the versions."""
    return f"{processor()}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


def make() -> None:
    curves = {
        method: [{name: value.hex() for name, value in point.items()} for point in curve(method, Sequential())]
        for method in METHODS
    }
    FILE.write_text(json.dumps({"made_on": made_on(), "curves": curves}, indent=1) + "\n", encoding="utf-8")


def read() -> tuple[str, dict[str, Curve]]:
    """Return the machine on which the curves were made, and the curves."""
    held: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    curves = {
        method: [{name: float.fromhex(value) for name, value in point.items()} for point in points]
        for method, points in held["curves"].items()
    }
    return held["made_on"], curves
