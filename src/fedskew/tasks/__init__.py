"""Tasks by name: loss and metrics of a kind of target."""

from fedskew.tasks.classification import Classification, MultiLabel, NextToken
from fedskew.tasks.regression import Regression
from fedskew.tasks.survival import Survival

TASKS: dict[str, type] = {
    "classification": Classification,
    "regression": Regression,
    "multi-label": MultiLabel,
    "survival": Survival,
    "next-token": NextToken,
}
