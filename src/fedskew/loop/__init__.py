"""The one local loop and the one round loop."""
