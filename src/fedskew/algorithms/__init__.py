"""One file a method. Each names its paper and reads like it."""

from fedskew.algorithms.afl import Afl
from fedskew.algorithms.drfa import Drfa
from fedskew.algorithms.dualmetric import DualMetric
from fedskew.algorithms.fedavg import FedAvg
from fedskew.algorithms.fedbs import FedBS
from fedskew.algorithms.feddyn import FedDyn
from fedskew.algorithms.fednova import FedNova
from fedskew.algorithms.fedpbs import FedPBS
from fedskew.algorithms.fedprox import FedProx
from fedskew.algorithms.moon import Moon
from fedskew.algorithms.qfedavg import QFedAvg
from fedskew.algorithms.scaffold import Scaffold

ALGORITHMS = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "fednova": FedNova,
    "feddyn": FedDyn,
    "moon": Moon,
    "qfedavg": QFedAvg,
    "afl": Afl,
    "drfa": Drfa,
    "fedbs": FedBS,
    "fedpbs": FedPBS,
    "dualmetric": DualMetric,
}
