"""Components that combine with every method: solvers, server optimisers, refinements, selection, availability, sharing, codecs."""

from fedskew.slots.augment import CropFlip, Unaugmented
from fedskew.slots.availability import Always, Blocks, DayNight, OnOff, Random, Unequal
from fedskew.slots.codecs import Clip, Int8, Qsgd, TopK, Uncompressed
from fedskew.slots.refine import Distillation, Unrefined
from fedskew.slots.selection import Everyone, Poisson, Uniform
from fedskew.slots.server import Adagrad, Adam, Momentum, ServerSgd, Yogi
from fedskew.slots.sharing import All, Norm, Personal
from fedskew.slots.solvers import AdamW, Sgd

SOLVERS = {"sgd": Sgd, "adamw": AdamW}
SERVER_OPTIMISERS = {"sgd": ServerSgd, "momentum": Momentum, "adagrad": Adagrad, "adam": Adam, "yogi": Yogi}
AVAILABILITIES: dict[str, type] = {
    **{"always": Always, "random": Random, "unequal": Unequal, "on-off": OnOff},
    **{"day-night": DayNight, "blocks": Blocks},
}
AUGMENTATIONS = {"none": Unaugmented, "crop-flip": CropFlip}
SELECTIONS = {"everyone": Everyone, "uniform": Uniform, "poisson": Poisson}
CODECS = {"none": Uncompressed, "top-k": TopK, "qsgd": Qsgd, "int8": Int8, "clip": Clip}
REFINES = {"none": Unrefined, "distillation": Distillation}
SHARINGS = {"all": All, "personal": Personal, "norm": Norm}
