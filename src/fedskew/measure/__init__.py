"""Measures of partitions, updates, models and privacy, and statistics for the comparison of methods."""
