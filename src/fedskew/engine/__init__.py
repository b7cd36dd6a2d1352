"""Engines: ways to execute the local loop for a cohort. All engines give the same numbers for the same seed."""

from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked

ENGINES = {"sequential": Sequential, "stacked": Stacked}
