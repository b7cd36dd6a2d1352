"""Rounds of fedskew against plain PyTorch loops and other simulators: `make bench`."""
