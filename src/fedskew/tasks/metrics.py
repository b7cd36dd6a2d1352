"""The metrics of all tasks. This file does not import PyTorch, as views do not need it."""

from fedskew.core.metrics import TaskMetric

AUC = TaskMetric(
    name="auc",
    title="AUC",
    better="higher",
    low=0.0,
    high=1.0,
    note="area under the ROC curve, of one class or label against the rest, mean over those that have rows of both kinds",
    aside=True,
    pooled=True,
)
MACRO_F1 = TaskMetric(
    name="f1_macro",
    title="macro-F1",
    better="higher",
    unit="%",
    low=0.0,
    high=1.0,
    note="mean over the classes or labels",
    aside=True,
    pooled=True,
)

CLASSIFICATION = (
    TaskMetric(name="accuracy", title="accuracy", better="higher", unit="%", low=0.0, high=1.0),
    TaskMetric(
        name="balanced_accuracy",
        title="balanced accuracy",
        better="higher",
        unit="%",
        low=0.0,
        high=1.0,
        note="mean of the classes' accuracies",
        aside=True,
        pooled=True,
    ),
    MACRO_F1,
    AUC,
    TaskMetric(
        name="ece",
        title="calibration error",
        better="lower",
        unit="%",
        low=0.0,
        high=1.0,
        note="of the largest probability, in 15 bins (Guo et al. 2017)",
        aside=True,
        pooled=True,
    ),
)

MULTI_LABEL = (
    TaskMetric(name="f1_micro", title="micro-F1", better="higher", unit="%", low=0.0, high=1.0, note="of all labels"),
    MACRO_F1,
    AUC,
)

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
NEXT_TOKEN = (CLASSIFICATION[0], PERPLEXITY)

SURVIVAL = (
    TaskMetric(
        name="c_index",
        title="C-index",
        better="higher",
        low=0.0,
        high=1.0,
        note="0.5 is chance; left out without a comparable pair",
        pooled=True,
    ),
)

METRICS = tuple(dict.fromkeys((*CLASSIFICATION, *REGRESSION, *MULTI_LABEL, *NEXT_TOKEN, *SURVIVAL)))
