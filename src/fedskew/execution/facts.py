"""Facts that a run stores when it begins: its defaults, and the scores of trivial models."""

import dataclasses
import math

import msgspec
import numpy as np

from fedskew.core.task import ConstantAnswer
from fedskew.data.dataset import Baselines
from fedskew.execution.build import Assembly
from fedskew.experiment.config import COMPONENTS, SETTINGS, SEVERAL, Experiment
from fedskew.loop.evaluate import evaluate_constant


def defaults_of(cls: type) -> dict[str, object]:
    """Return the default of each option of a component or section, as TOML values. Options without a default are left out."""
    found = {}
    for f in dataclasses.fields(cls):
        default = f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
        if default is not dataclasses.MISSING:
            found[f.name] = msgspec.to_builtins(default)
    return found


def defaults(experiment: Experiment) -> dict[str, dict[str, object]]:
    """Return, by section, the default options of its component. The name is included if the component itself is the default."""
    found = {section: defaults_of(cls) for section, cls in SETTINGS.items()}
    own, usual = experiment.table(), Experiment(dataset=experiment.dataset).table()
    for section in COMPONENTS.keys() - SEVERAL.keys():
        found[section] = defaults_of(type(getattr(experiment, section)))
        if own[section]["name"] == usual[section]["name"]:
            found[section]["name"] = own[section]["name"]
    return found


def baselines(assembly: Assembly) -> Baselines:
    """Return metrics on the test rows of the best constant prediction, and of the data set's own baselines."""
    task, kind, data = assembly.federation.task, assembly.experiment.task, assembly.dataset
    if not isinstance(kind, ConstantAnswer) or not len(data.y):
        return data.baselines
    found = evaluate_constant(task, kind.fitted(data.y).constant(data.y, task.num_outputs), assembly.test_targets(0))
    metrics = {m.name: found[m.name] for m in kind.metrics if not math.isnan(found.get(m.name, np.nan))}
    return {"always the same answer": metrics, **data.baselines}
