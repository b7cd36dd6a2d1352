"""Federated learning when clients' data differ: simulate, measure, compare honestly.

Example::

    import fedskew as fs

    runs = fs.compare(["fedavg", "scaffold"], dataset="digits", skew="label-dirichlet:alpha=0.1", seeds=3)
    print(runs.table())
    runs.plot("accuracy").savefig("accuracy.png")
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedskew.core.algorithm import Algorithm
    from fedskew.core.errors import BadInput, Diverged, FedskewError
    from fedskew.data.dataset import Dataset
    from fedskew.data.datasets.own import from_torch
    from fedskew.experiment.config import Experiment
    from fedskew.experiment.results import (
        check,
        cite,
        clients,
        compare,
        diagnose,
        landscape,
        open,
        resume,
        run,
        table,
        tune,
    )
    from fedskew.experiment.runs import Runs
    from fedskew.experiment.shortcuts import from_toml, load, partition
    from fedskew.experiment.use import export, load_model
    from fedskew.store.runs import RunStore

    __version__: str

PLACES = {
    "Algorithm": "core.algorithm",
    "BadInput": "core.errors",
    "Dataset": "data.dataset",
    "Diverged": "core.errors",
    "Experiment": "experiment.config",
    "FedskewError": "core.errors",
    "RunStore": "store.runs",
    "Runs": "experiment.runs",
    "check": "experiment.results",
    "cite": "experiment.results",
    "clients": "experiment.results",
    "compare": "experiment.results",
    "diagnose": "experiment.results",
    "export": "experiment.use",
    "from_toml": "experiment.shortcuts",
    "from_torch": "data.datasets.own",
    "landscape": "experiment.results",
    "load": "experiment.shortcuts",
    "load_model": "experiment.use",
    "open": "experiment.results",
    "partition": "experiment.shortcuts",
    "resume": "experiment.results",
    "run": "experiment.results",
    "table": "experiment.results",
    "tune": "experiment.results",
}
"""Where each public name is. It is imported on first use, since PyTorch takes longer to load than anything else."""

__all__ = [
    "Algorithm",
    "BadInput",
    "Dataset",
    "Diverged",
    "Experiment",
    "FedskewError",
    "RunStore",
    "Runs",
    "__version__",
    "check",
    "cite",
    "clients",
    "compare",
    "diagnose",
    "export",
    "from_toml",
    "from_torch",
    "landscape",
    "load",
    "load_model",
    "open",
    "partition",
    "resume",
    "run",
    "table",
    "tune",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("fedskew")
    if name not in PLACES:
        from difflib import get_close_matches

        near = get_close_matches(name, PLACES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise AttributeError(f"module 'fedskew' has no attribute {name!r}{hint}", name=name)
    value: object = getattr(import_module(f"fedskew.{PLACES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
