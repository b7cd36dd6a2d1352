"""Runs the same methods between real machines, on Flower. Each client's rows and state stay on the client's own node."""
