"""From a description to numbers in the store: experiments, their checked assembly, single runs and comparisons."""
