"""Tasks, one file each: loss and metrics of a kind of target. This file imports no task, so that metrics do not need PyTorch."""
