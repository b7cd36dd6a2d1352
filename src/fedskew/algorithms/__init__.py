"""One file a method. Each names its paper and reads like it."""

from fedskew.algorithms.ditto import Ditto
from fedskew.algorithms.fedavg import FedAvg
from fedskew.algorithms.feddyn import FedDyn
from fedskew.algorithms.fednova import FedNova
from fedskew.algorithms.fedprox import FedProx
from fedskew.algorithms.ifca import Ifca
from fedskew.algorithms.moon import Moon
from fedskew.algorithms.per_fedavg import PerFedAvg
from fedskew.algorithms.scaffold import Scaffold

ALGORITHMS = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "fednova": FedNova,
    "feddyn": FedDyn,
    "moon": Moon,
    "ditto": Ditto,
    "per-fedavg": PerFedAvg,
    "ifca": Ifca,
}
