"""Heterogeneity of the clients' data before training: labels, sizes, features and concepts, compared with chance."""

from fedskew.measure.heterogeneity.counts import label_distance, label_distance_by_chance

__all__ = ["label_distance", "label_distance_by_chance"]
