"""Heterogeneity of the clients' data before any training: labels, sizes, features, concepts; intervals and chance."""

from fedskew.measure.heterogeneity.label import label_distance, label_distance_by_chance

__all__ = ["label_distance", "label_distance_by_chance"]
