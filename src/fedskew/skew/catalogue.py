"""The skews by name."""

from fedskew.skew.balanced import LabelDirichletBalanced, LabelDirichletTopUp
from fedskew.skew.blocks import LabelBlocks, LabelClasses, LabelShards, LabelSimilarity
from fedskew.skew.concept import ConceptFlip, ConceptSwap
from fedskew.skew.exported import FromFolder
from fedskew.skew.feature import FeatureAffine, FeatureNoise, FeatureSensor
from fedskew.skew.image import FeatureBlur, FeatureRotation, FeatureStyle
from fedskew.skew.label import LabelDirichlet, LabelDirichletPerClass, LabelSorted
from fedskew.skew.plain import Iid, IidStratified, Natural, Pooled
from fedskew.skew.quantity import QuantityDirichlet, QuantityLogNormal, QuantityPowerLaw, QuantitySizes
from fedskew.skew.text import FeatureText
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
