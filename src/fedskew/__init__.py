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
    from fedskew.api.diagnose import diagnose
    from fedskew.api.functions import check, clients, compare, from_toml, load, partition, resume, run, table, tune
    from fedskew.api.models import export, landscape, load_model
    from fedskew.api.runs import Runs, cite, open
    from fedskew.api.study import study
    from fedskew.core.algorithm import Algorithm
    from fedskew.core.errors import BadInput, Diverged, FedskewError
    from fedskew.data.dataset import Dataset
    from fedskew.data.datasets.own import from_torch
    from fedskew.experiment.config import Experiment
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
    "Runs": "api.runs",
    "check": "api.functions",
    "cite": "api.runs",
    "clients": "api.functions",
    "compare": "api.functions",
    "diagnose": "api.diagnose",
    "export": "api.models",
    "from_toml": "api.functions",
    "from_torch": "data.datasets.own",
    "landscape": "api.models",
    "load": "api.functions",
    "load_model": "api.models",
    "open": "api.runs",
    "partition": "api.functions",
    "resume": "api.functions",
    "run": "api.functions",
    "study": "api.study",
    "table": "api.functions",
    "tune": "api.functions",
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
    "study",
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
