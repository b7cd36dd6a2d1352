"""Tasks: what is learnt, one file a task. This file imports none of them, so that metrics do not need PyTorch."""
