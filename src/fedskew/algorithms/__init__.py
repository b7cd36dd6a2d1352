"""One file a method. Each names its paper and reads like it."""

from fedskew.algorithms.dp_fedavg import DpFedAvg
from fedskew.algorithms.fedavg import FedAvg
from fedskew.algorithms.feddyn import FedDyn
from fedskew.algorithms.fednova import FedNova
from fedskew.algorithms.fedprox import FedProx
from fedskew.algorithms.moon import Moon
from fedskew.algorithms.scaffold import Scaffold

ALGORITHMS = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "fednova": FedNova,
    "feddyn": FedDyn,
    "moon": Moon,
    "dp-fedavg": DpFedAvg,
}
