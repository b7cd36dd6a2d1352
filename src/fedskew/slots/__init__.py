"""Components that combine with every method: solvers, server optimisers, refinements, selection, harmonisation and others."""

from fedskew.slots.augment import CropFlip, Unaugmented
from fedskew.slots.codecs import Clip, Int8, Qsgd, TopK, Uncompressed
from fedskew.slots.harmonise import Combat, Prior, SiteBias, SiteScale, Unharmonised
from fedskew.slots.optimisers import Adagrad, Adam, AdamW, Momentum, ServerSgd, Sgd, Yogi
from fedskew.slots.participation import Always, Blocks, DayNight, Everyone, OnOff, Poisson, Random, Unequal, Uniform
from fedskew.slots.refine import Distillation, Unrefined
from fedskew.slots.sharing import All, Norm, Personal

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
HARMONISATIONS: dict[str, type] = {
    **{"none": Unharmonised, "site-scale": SiteScale, "combat": Combat, "site-bias": SiteBias, "prior": Prior}
}
