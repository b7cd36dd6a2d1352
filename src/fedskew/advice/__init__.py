"""Recommends methods from a table of our own runs."""
