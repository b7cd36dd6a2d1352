"""The tasks by name."""

from fedskew.tasks.classification import Classification

TASKS: dict[str, type] = {"classification": Classification}
