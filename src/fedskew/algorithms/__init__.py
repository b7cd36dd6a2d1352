"""One method a file. Each file names its paper and follows its notation."""

from fedskew.algorithms.afl import Afl
from fedskew.algorithms.ditto import Ditto
from fedskew.algorithms.dp_fedavg import DpFedAvg
from fedskew.algorithms.drfa import Drfa
from fedskew.algorithms.dualmetric import DualMetric
from fedskew.algorithms.f3 import F3
from fedskew.algorithms.f3_gradient import F3Gradient
from fedskew.algorithms.fairfed import FairFed
from fedskew.algorithms.fedavg import FedAvg
from fedskew.algorithms.fedbs import FedBS
from fedskew.algorithms.feddyn import FedDyn
from fedskew.algorithms.fedga import FedGA
from fedskew.algorithms.fedga_alignment import FedGAAlignment
from fedskew.algorithms.fedga_generalisation import FedGAGeneralisation
from fedskew.algorithms.fedlc import FedLc
from fedskew.algorithms.fedmd import FedMd
from fedskew.algorithms.fednova import FedNova
from fedskew.algorithms.fedntd import FedNtd
from fedskew.algorithms.fedpa import FedPa
from fedskew.algorithms.fedpbs import FedPBS
from fedskew.algorithms.fedproc import FedProc
from fedskew.algorithms.fedprox import FedProx
from fedskew.algorithms.fedsam import FedSam
from fedskew.algorithms.fedsmoo import FedSmoo
from fedskew.algorithms.fedsol import FedSol
from fedskew.algorithms.ifca import Ifca
from fedskew.algorithms.krum import Krum
from fedskew.algorithms.median import Median
from fedskew.algorithms.mofedsam import MoFedSam
from fedskew.algorithms.moon import Moon
from fedskew.algorithms.per_fedavg import PerFedAvg
from fedskew.algorithms.qfedavg import QFedAvg
from fedskew.algorithms.scaffold import Scaffold
from fedskew.algorithms.trimmed_mean import TrimmedMean

ALGORITHMS = {
    # the reference, and the first methods against skew
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "fednova": FedNova,
    "feddyn": FedDyn,
    "moon": Moon,
    # the loss landscape
    "fedntd": FedNtd,
    "fedlc": FedLc,
    "fedproc": FedProc,
    "fedga-alignment": FedGAAlignment,
    # the update path
    "fedsam": FedSam,
    "mofedsam": MoFedSam,
    "fedsol": FedSol,
    "fedpa": FedPa,
    # both
    "fedsmoo": FedSmoo,
    # aggregation and selection
    "fedbs": FedBS,
    "fedpbs": FedPBS,
    "fedga": FedGA,
    "fedga-generalisation": FedGAGeneralisation,
    "dualmetric": DualMetric,
    # broken clients
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "krum": Krum,
    # fairness between clients, and between groups of people
    "qfedavg": QFedAvg,
    "afl": Afl,
    "drfa": Drfa,
    "fairfed": FairFed,
    "f3": F3,
    "f3-gradient": F3Gradient,
    # the clients' personal models
    "ditto": Ditto,
    "per-fedavg": PerFedAvg,
    "ifca": Ifca,
    "fedmd": FedMd,
    # privacy
    "dp-fedavg": DpFedAvg,
}
