"""How the rows of a data set are dealt to clients."""

from fedskew.skew.label import LabelDirichlet, LabelDirichletPerClass, LabelSorted
from fedskew.skew.plain import Iid, Natural, Pooled

SKEWS = {
    "iid": Iid,
    "label-dirichlet": LabelDirichlet,
    "label-dirichlet-per-class": LabelDirichletPerClass,
    "label-sorted": LabelSorted,
    "natural": Natural,
    "pooled": Pooled,
}
