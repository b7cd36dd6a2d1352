"""The metrics of all tasks. This file does not import PyTorch, as views do not need it."""

from fedskew.core.metrics import TaskMetric

CLASSIFICATION = (TaskMetric(name="accuracy", title="accuracy", better="higher", unit="%", low=0.0, high=1.0),)

UNIT = "in the unit of the target"

REGRESSION = (
    TaskMetric(name="rmse", title="RMSE", better="lower", low=0.0, note=UNIT),
    TaskMetric(name="mae", title="MAE", better="lower", low=0.0, note=UNIT),
    TaskMetric(
        name="pinball",
        title="quantile loss",
        better="lower",
        low=0.0,
        note=UNIT,
    ),
    TaskMetric(
        name="r2",
        title="R²",
        better="higher",
        high=1.0,
        note="left out where the targets do not vary",
        aside=True,
    ),
)

PERPLEXITY = TaskMetric(
    name="perplexity",
    title="perplexity",
    better="lower",
    low=1.0,
    note="exp of the cross-entropy of a symbol",
    aside=True,
)
NEXT_TOKEN = (*CLASSIFICATION, PERPLEXITY)

METRICS = (*CLASSIFICATION, *REGRESSION, PERPLEXITY)
