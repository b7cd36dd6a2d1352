"""Format numbers: with a noun, as percent."""


def count(number: int, noun: str) -> str:
    """``1 seed``, ``3 seeds``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def percent(share: float) -> str:
    """``12 %``; one decimal below 1 %."""
    return f"{100 * share:.{int(0 < share < 0.01)}f} %"
