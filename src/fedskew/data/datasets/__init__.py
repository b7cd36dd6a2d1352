"""Loaders of the built-in data sets. Each file has one loader, or a few related ones."""
