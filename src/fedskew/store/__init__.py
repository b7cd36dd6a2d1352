"""The run store. One SQLite file holds runs and their measurements; checkpoints beside it hold the models."""
