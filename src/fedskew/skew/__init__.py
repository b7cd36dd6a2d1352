"""How the rows of a data set become clients that differ: in labels, sizes, features and concepts, alone or together."""

from fedskew.skew.catalogue import SKEWS
from fedskew.skew.label import LabelDirichlet, LabelDirichletPerClass, LabelSorted
from fedskew.skew.plain import Iid, Natural, Pooled

__all__ = ["SKEWS", "Iid", "LabelDirichlet", "LabelDirichletPerClass", "LabelSorted", "Natural", "Pooled"]
