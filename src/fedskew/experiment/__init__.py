"""Experiments: their settings, checks and assembly, and the runs and comparisons that execute them."""
