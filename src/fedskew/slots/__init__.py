"""What combines with every algorithm: local solvers, server optimisers, selection of clients, compression of their updates."""

from fedskew.slots.codecs import Clip, Int8, Qsgd, TopK, Uncompressed
from fedskew.slots.selection import Everyone, Poisson, Uniform
from fedskew.slots.server import Adagrad, Adam, Momentum, ServerSgd, Yogi
from fedskew.slots.solvers import AdamW, Sgd

SOLVERS = {"sgd": Sgd, "adamw": AdamW}
SERVER_OPTIMISERS = {"sgd": ServerSgd, "momentum": Momentum, "adagrad": Adagrad, "adam": Adam, "yogi": Yogi}
SELECTIONS = {"everyone": Everyone, "uniform": Uniform, "poisson": Poisson}
CODECS = {"none": Uncompressed, "top-k": TopK, "qsgd": Qsgd, "int8": Int8, "clip": Clip}
