"""One file a method. Each names its paper and reads like it."""

from fedskew.algorithms.fedavg import FedAvg
from fedskew.algorithms.feddyn import FedDyn
from fedskew.algorithms.fednova import FedNova
from fedskew.algorithms.fedprox import FedProx
from fedskew.algorithms.fedsam import FedSam
from fedskew.algorithms.fedsmoo import FedSmoo
from fedskew.algorithms.fedsol import FedSol
from fedskew.algorithms.krum import Krum
from fedskew.algorithms.median import Median
from fedskew.algorithms.mofedsam import MoFedSam
from fedskew.algorithms.moon import Moon
from fedskew.algorithms.scaffold import Scaffold
from fedskew.algorithms.trimmed_mean import TrimmedMean

ALGORITHMS = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "fednova": FedNova,
    "feddyn": FedDyn,
    "moon": Moon,
    "fedsam": FedSam,
    "mofedsam": MoFedSam,
    "fedsol": FedSol,
    "fedsmoo": FedSmoo,
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "krum": Krum,
}
