"""The Python functions of the package, and the objects that they return."""
