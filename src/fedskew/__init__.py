"""Federated learning when clients' data differ: simulate, measure, compare honestly.

Example::

    import fedskew as fs

    experiment = fs.Experiment(dataset="digits", skew="label-dirichlet:alpha=0.1")
    runs = fs.compare(experiment, ["fedavg", "scaffold"], seeds=3)
    print(runs.table())
    runs.plot("accuracy").savefig("accuracy.png")
"""

from importlib import import_module
from typing import Any

PLACES = {
    "Algorithm": "fedskew.core.algorithm",
    "BadInput": "fedskew.core.errors",
    "Dataset": "fedskew.data.dataset",
    "Diverged": "fedskew.core.errors",
    "Experiment": "fedskew.experiment.config",
    "FedskewError": "fedskew.core.errors",
    "RunStore": "fedskew.store.runs",
    "Runs": "fedskew.experiment.results",
    "compare": "fedskew.experiment.results",
    "from_torch": "fedskew.data.datasets.own",
    "load": "fedskew.experiment.shortcuts",
    "partition": "fedskew.experiment.shortcuts",
    "run": "fedskew.experiment.results",
}

__all__ = [*PLACES]


def __getattr__(name: str) -> Any:
    # on first use, so that `fedskew --help` does not wait for PyTorch
    if name not in PLACES:
        raise AttributeError(f"module 'fedskew' has no attribute {name!r}")
    return getattr(import_module(PLACES[name]), name)
