"""One file a method. Each names its paper and reads like it."""

from fedskew.algorithms.fedavg import FedAvg
from fedskew.algorithms.feddyn import FedDyn
from fedskew.algorithms.fedga import FedGA
from fedskew.algorithms.fedga_alignment import FedGAAlignment
from fedskew.algorithms.fedga_generalisation import FedGAGeneralisation
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
    "fedga": FedGA,
    "fedga-generalisation": FedGAGeneralisation,
    "fedga-alignment": FedGAAlignment,
}
