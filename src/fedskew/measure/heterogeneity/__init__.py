"""How different the clients' data are, before any training: labels, sizes, features, concepts; how sure, and against chance."""

from fedskew.measure.heterogeneity.label import label_distance, label_distance_by_chance

__all__ = ["label_distance", "label_distance_by_chance"]
