"""What combines with every algorithm: local solvers, server optimisers, availability and selection of clients."""

from fedskew.slots.availability import Always, Blocks, DayNight, Random
from fedskew.slots.selection import Everyone, Uniform
from fedskew.slots.server import Adagrad, Adam, Momentum, ServerSgd, Yogi
from fedskew.slots.solvers import AdamW, Sgd

SOLVERS = {"sgd": Sgd, "adamw": AdamW}
SERVER_OPTIMISERS = {"sgd": ServerSgd, "momentum": Momentum, "adagrad": Adagrad, "adam": Adam, "yogi": Yogi}
AVAILABILITIES = {"always": Always, "random": Random, "day-night": DayNight, "blocks": Blocks}
SELECTIONS = {"everyone": Everyone, "uniform": Uniform}
