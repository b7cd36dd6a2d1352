"""The skews by name."""

from fedskew.skew.concept import ConceptFlip, ConceptSwap
from fedskew.skew.exported import FromFolder
from fedskew.skew.feature import (
    FeatureAffine,
    FeatureBlur,
    FeatureNoise,
    FeatureRotation,
    FeatureSensor,
    FeatureStyle,
    FeatureText,
)
from fedskew.skew.label import (
    LabelBlocks,
    LabelClasses,
    LabelDirichlet,
    LabelDirichletBalanced,
    LabelDirichletPerClass,
    LabelDirichletTopUp,
    LabelShards,
    LabelSimilarity,
    LabelSorted,
)
from fedskew.skew.partition import Iid, IidStratified, Natural, Pooled
from fedskew.skew.quantity import QuantityDirichlet, QuantityLogNormal, QuantityPowerLaw, QuantitySizes
from fedskew.skew.values import ColumnDirichlet, QuantileDirichlet, TimeBlocks

SKEWS: dict[str, type] = {
    "iid": Iid,
    "iid-stratified": IidStratified,
    "label-dirichlet": LabelDirichlet,
    "label-dirichlet-balanced": LabelDirichletBalanced,
    "label-dirichlet-per-class": LabelDirichletPerClass,
    "label-dirichlet-top-up": LabelDirichletTopUp,
    "label-shards": LabelShards,
    "label-classes": LabelClasses,
    "label-similarity": LabelSimilarity,
    "label-blocks": LabelBlocks,
    "label-sorted": LabelSorted,
    "quantile-dirichlet": QuantileDirichlet,
    "column-dirichlet": ColumnDirichlet,
    "time-blocks": TimeBlocks,
    "quantity-lognormal": QuantityLogNormal,
    "quantity-power-law": QuantityPowerLaw,
    "quantity-dirichlet": QuantityDirichlet,
    "quantity-sizes": QuantitySizes,
    "feature-noise": FeatureNoise,
    "feature-affine": FeatureAffine,
    "feature-sensor": FeatureSensor,
    "feature-rotation": FeatureRotation,
    "feature-blur": FeatureBlur,
    "feature-style": FeatureStyle,
    "feature-text": FeatureText,
    "concept-swap": ConceptSwap,
    "concept-flip": ConceptFlip,
    "natural": Natural,
    "pooled": Pooled,
    "from-folder": FromFolder,
}
