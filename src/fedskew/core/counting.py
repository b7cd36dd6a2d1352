"""Format a number with its noun."""


def count(number: int, noun: str) -> str:
    """``1 seed``, ``3 seeds``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
