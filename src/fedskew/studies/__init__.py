"""Several runs: comparisons, tuning, the evidence, landscapes. One runner executes what the store lacks."""
