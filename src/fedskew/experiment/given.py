"""Make an experiment from keywords, for the command line and for Python."""

from collections.abc import Mapping
from typing import cast

from fedskew.core.errors import require
from fedskew.data.dataset import Dataset
from fedskew.data.targets import TARGETS
from fedskew.experiment.combinations import with_method
from fedskew.experiment.config import Experiment
from fedskew.experiment.keywords import Settings
from fedskew.experiment.settings import Evaluation
from fedskew.skew import Natural


def suited(experiment: Experiment, dataset: Dataset) -> Experiment:
    """Return the experiment; if no task was given, with the default task for the data's targets."""
    if not experiment.default_task or experiment.task.target == dataset.target:
        return experiment
    return experiment.replace(task=TARGETS[dataset.target].task)


def experiment_from(base: Experiment | None, keywords: Mapping[str, object]) -> Experiment:
    """Apply the keywords to ``base``, or to the defaults of `fedskew run`. The method is applied last."""
    last = {key: value for key, value in keywords.items() if key.startswith("algorithm__")}
    given = {key: value for key, value in keywords.items() if key not in ("algorithm", "name", *last)}
    if base is None:
        made = Experiment(**cast(Settings, {"evaluation": Evaluation(every="auto"), **given}))
        require(
            "skew" in given or not isinstance(given.get("clients"), int) or not isinstance(made.skew[0], Natural),
            f"clients {given.get('clients')}: {made.labels('dataset')[0]} has natural clients; leave the number out, or "
            "add the skew label-dirichlet:alpha=0.1 or another one to deal its rows anew",
        )
    else:
        made = base.replace(**cast(Settings, given))
    if "algorithm" in keywords:
        made = with_method(made, keywords["algorithm"])
    made = made.replace(**cast(Settings, last)) if last else made
    return made.replace(name=str(keywords["name"])) if keywords.get("name") else made
