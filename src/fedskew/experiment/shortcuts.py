"""Load data, deal them to clients and read experiment files from Python."""

from pathlib import Path

from fedskew.core.component import build
from fedskew.data.dataset import Dataset
from fedskew.experiment import config
from fedskew.experiment.config import COMPONENTS, Experiment
from fedskew.experiment.deal import dealt_by
from fedskew.skew.compose import mixture, skews_of
from fedskew.skew.partition import Partition, deal


def load(dataset: object) -> Dataset:
    """A data set by name, ``"digits"`` or ``"uci-har"``, with options as in ``"digits:test_fraction=0.3"``."""
    loaded: Dataset = build("dataset", COMPONENTS["dataset"], dataset).load()
    return loaded


def partition(dataset: Dataset, how: object, clients: int = 10, seed: int = 0, held_out: float = 0.0) -> Partition:
    """Deal the rows to clients, as ``"label-dirichlet:alpha=0.1"`` says, or a list of a label and a quantity skew."""
    skews = mixture(skews_of(how))
    return deal(skews, dealt_by(skews, dataset), dataset.groups, clients, seed, held_out)


def from_toml(source: str | Path) -> Experiment:
    """The experiment of a TOML file, or of a TOML text."""
    if isinstance(source, str) and not source.endswith(".toml"):
        return config.from_toml(source)
    return config.read(Path(source))
