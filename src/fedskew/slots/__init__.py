"""What combines with every algorithm: local solvers, server optimisers, selection of clients, refinement on the server."""

from fedskew.slots.refine import Distillation, Unrefined
from fedskew.slots.selection import Everyone, Uniform
from fedskew.slots.server import Adagrad, Adam, Momentum, ServerSgd, Yogi
from fedskew.slots.solvers import AdamW, Sgd

SOLVERS = {"sgd": Sgd, "adamw": AdamW}
SERVER_OPTIMISERS = {"sgd": ServerSgd, "momentum": Momentum, "adagrad": Adagrad, "adam": Adam, "yogi": Yogi}
SELECTIONS = {"everyone": Everyone, "uniform": Uniform}
REFINES = {"none": Unrefined, "distillation": Distillation}
