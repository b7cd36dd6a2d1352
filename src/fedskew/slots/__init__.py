"""What combines with every algorithm: local solvers, server optimisers, selection of clients, the part they share."""

from fedskew.slots.selection import Everyone, Uniform
from fedskew.slots.server import Adagrad, Adam, Momentum, ServerSgd, Yogi
from fedskew.slots.sharing import All, Norm, Personal
from fedskew.slots.solvers import AdamW, Sgd

SOLVERS = {"sgd": Sgd, "adamw": AdamW}
SERVER_OPTIMISERS = {"sgd": ServerSgd, "momentum": Momentum, "adagrad": Adagrad, "adam": Adam, "yogi": Yogi}
SELECTIONS = {"everyone": Everyone, "uniform": Uniform}
SHARINGS = {"all": All, "personal": Personal, "norm": Norm}
