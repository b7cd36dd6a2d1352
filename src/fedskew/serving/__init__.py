"""A trained model in use: predictions, exports, the preprocessing as a graph."""
