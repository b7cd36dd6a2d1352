"""One experiment, from its description to stored numbers."""
