"""Ways to drive the local loop over a cohort. The same seed gives the same numbers in every one of them."""

from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked

ENGINES = {"sequential": Sequential, "stacked": Stacked}
