"""Skews deal the rows of a data set to clients that differ in labels, sizes, features or concepts, or in several of these."""

from fedskew.skew import feature, label
from fedskew.skew.concept import ConceptFlip, ConceptSwap
from fedskew.skew.exported import FromFolder
from fedskew.skew.label import LabelDirichlet, LabelDirichletPerClass, LabelSorted
from fedskew.skew.partition import Iid, IidStratified, Natural, Pooled, Shuffled
from fedskew.skew.quantity import QuantityDirichlet, QuantityLogNormal, QuantityPowerLaw, QuantitySizes
from fedskew.skew.values import ColumnDirichlet, QuantileDirichlet, TimeBlocks

SKEWS: dict[str, type] = {
    "iid": Iid,
    "iid-stratified": IidStratified,
    "label-dirichlet": label.LabelDirichlet,
    "label-dirichlet-balanced": label.LabelDirichletBalanced,
    "label-dirichlet-per-class": label.LabelDirichletPerClass,
    "label-dirichlet-top-up": label.LabelDirichletTopUp,
    "label-shards": label.LabelShards,
    "label-classes": label.LabelClasses,
    "label-similarity": label.LabelSimilarity,
    "label-blocks": label.LabelBlocks,
    "label-sorted": label.LabelSorted,
    "quantile-dirichlet": QuantileDirichlet,
    "column-dirichlet": ColumnDirichlet,
    "time-blocks": TimeBlocks,
    "quantity-lognormal": QuantityLogNormal,
    "quantity-power-law": QuantityPowerLaw,
    "quantity-dirichlet": QuantityDirichlet,
    "quantity-sizes": QuantitySizes,
    "feature-noise": feature.FeatureNoise,
    "feature-affine": feature.FeatureAffine,
    "feature-sensor": feature.FeatureSensor,
    "feature-rotation": feature.FeatureRotation,
    "feature-blur": feature.FeatureBlur,
    "feature-style": feature.FeatureStyle,
    "feature-text": feature.FeatureText,
    "concept-swap": ConceptSwap,
    "concept-flip": ConceptFlip,
    "natural": Natural,
    "pooled": Pooled,
    "shuffled": Shuffled,
    "from-folder": FromFolder,
}
"""The skews by name."""

__all__ = ["SKEWS", "Iid", "LabelDirichlet", "LabelDirichletPerClass", "LabelSorted", "Natural", "Pooled"]
