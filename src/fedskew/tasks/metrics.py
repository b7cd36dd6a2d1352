"""The metrics of all tasks. This file does not import PyTorch, because views do not need it."""

from functools import partial

from fedskew.core.metrics import TaskMetric

share = partial(TaskMetric, better="higher", unit="%", low=0.0, high=1.0)
error = partial(TaskMetric, better="lower", low=0.0, note="in the unit of the target")
of_all_rows = partial(TaskMetric, better="higher", low=0.0, high=1.0, pooled=True)
"""Metrics that are computed from the outputs of all rows together."""

ACCURACY = share(name="accuracy", title="accuracy")
MACRO_F1 = of_all_rows(name="f1_macro", title="macro-F1", unit="%", note="mean over the classes or labels", aside=True)
AUC = of_all_rows(
    name="auc",
    title="AUC",
    note="area under the ROC curve, of one class or label against the rest, mean over those that have rows of both kinds",
    aside=True,
)

CLASSIFICATION = (
    ACCURACY,
    of_all_rows(
        name="balanced_accuracy",
        title="balanced accuracy",
        unit="%",
        note="mean of the classes' accuracies",
        aside=True,
    ),
    MACRO_F1,
    AUC,
    of_all_rows(
        name="ece",
        title="calibration error",
        better="lower",
        unit="%",
        note="of the largest probability, in 15 bins (Guo et al. 2017)",
        aside=True,
    ),
)

MULTI_LABEL = (share(name="f1_micro", title="micro-F1", note="of all labels"), MACRO_F1, AUC)

REGRESSION = (
    error(name="rmse", title="RMSE"),
    error(name="mae", title="MAE"),
    error(name="pinball", title="quantile loss"),
    TaskMetric(
        name="r2", title="R²", better="higher", high=1.0, note="left out where the targets do not vary", aside=True
    ),
)

NEXT_TOKEN = (
    ACCURACY,
    TaskMetric(
        name="perplexity",
        title="perplexity",
        better="lower",
        low=1.0,
        note="exp of the cross-entropy of a symbol",
        aside=True,
    ),
)

SURVIVAL = (of_all_rows(name="c_index", title="C-index", note="0.5 is chance; left out without a comparable pair"),)

METRICS = tuple(dict.fromkeys((*CLASSIFICATION, *REGRESSION, *MULTI_LABEL, *NEXT_TOKEN, *SURVIVAL)))
