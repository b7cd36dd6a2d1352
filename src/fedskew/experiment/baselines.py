"""Baselines without a model, such as the same prediction for every row. A model must be better than these."""

import math

import numpy as np

from fedskew.core.task import ConstantAnswer
from fedskew.data.dataset import Baselines
from fedskew.experiment.build import Assembly
from fedskew.loop.evaluate import evaluate_constant


def baselines(assembly: Assembly) -> Baselines:
    """Return metrics on the test rows of the best constant prediction, and of the data set's own baselines."""
    task, kind, data = assembly.federation.task, assembly.experiment.task, assembly.dataset
    if not isinstance(kind, ConstantAnswer) or not len(data.y):
        return data.baselines
    found = evaluate_constant(task, kind.fitted(data.y).constant(data.y, task.num_outputs), assembly.test_targets(0))
    metrics = {m.name: found[m.name] for m in kind.metrics if not math.isnan(found.get(m.name, np.nan))}
    return {"always the same answer": metrics, **data.baselines}
