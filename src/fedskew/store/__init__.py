"""Numbers are stored once: runs and their measurements in one SQLite file, models in checkpoints beside it."""
