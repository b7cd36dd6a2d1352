"""Python functions that load data, deal them to clients, and read experiment files."""

from pathlib import Path

from fedskew.core.component import brief, build
from fedskew.core.errors import require
from fedskew.data.dataset import Dataset
from fedskew.execution.deal import dealt_by
from fedskew.experiment import config
from fedskew.experiment.config import COMPONENTS, Experiment
from fedskew.skew.compose import mixture, skews_of
from fedskew.skew.partition import Partition, deal


def load(dataset: object) -> Dataset:
    """Load a data set by name and options: ``"uci-har"``, ``"digits:test_fraction=0.3"``."""
    loaded: Dataset = build("dataset", COMPONENTS["dataset"], dataset).load()
    return loaded


def partition(dataset: Dataset, how: object, clients: int = 10, seed: int = 0, held_out: float = 0.0) -> Partition:
    """Deal the rows to clients. ``how`` is a skew such as ``"label-dirichlet:alpha=0.1"``, or a list of skews."""
    require(isinstance(dataset, Dataset), f"partition: give a fedskew.Dataset, not {brief(dataset)}")
    skews = mixture(skews_of(how))
    settings = clients, seed, held_out, dataset.persons and dataset.persons[0]
    return deal(skews, dealt_by(skews, dataset), dataset.groups, *settings)


def from_toml(source: str | Path) -> Experiment:
    """Read an experiment from a TOML file (a path that ends in .toml) or from TOML text."""
    if isinstance(source, str) and not source.endswith(".toml"):
        return config.from_toml(source)
    return config.read(Path(source))
