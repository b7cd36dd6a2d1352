"""Skews deal the rows of a data set to clients that differ in labels, sizes, features or concepts, or in several of these."""

from fedskew.skew.catalogue import SKEWS
from fedskew.skew.label import LabelDirichlet, LabelDirichletPerClass, LabelSorted
from fedskew.skew.partition import Iid, Natural, Pooled

__all__ = ["SKEWS", "Iid", "LabelDirichlet", "LabelDirichletPerClass", "LabelSorted", "Natural", "Pooled"]
