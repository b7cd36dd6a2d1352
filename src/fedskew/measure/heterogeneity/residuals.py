"""The concept face of numbers, as `concept.residual_distance` has it, but from sums instead of rows."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from fedskew.measure.heterogeneity.concept import RESIDUAL_BINS, regression, residual_table_distance
from fedskew.measure.heterogeneity.rows import Floats, Ints

Numbers = Mapping[str, NDArray[np.float64]]


def target_sums(z: Floats, response: Floats) -> dict[str, Floats]:
    """A site's sums of the products of its targets with 1, with each column of ``z`` (n, d) and its square, and with themselves."""
    columns = np.column_stack([np.ones(len(z)), z, z * z - 1, response])
    return {"products with target": columns.T @ response}


def residual_model(answers: Sequence[Numbers], own: Sequence[Numbers]) -> dict[str, Floats]:
    """The regression of the targets on all sites' aligned columns and squares, and the inner bounds of the residuals' bins.

    ``own`` has each site's alignment. The bounds are quantiles of normal numbers with the residuals' deviation.
    """
    products, with_target = np.zeros(()), np.zeros(())
    for answer, alignment in zip(answers, own, strict=True):
        of_columns, of_target = aligned_products(answer, alignment)
        products, with_target = products + of_columns, with_target + of_target
    found = regression(products, with_target)
    square = sum(answer["products with target"][-1] for answer in answers)
    left = square - 2 * found @ with_target + found @ products @ found
    deviation = np.sqrt(max(float(left / products[0, 0]), 0.0))
    return {"coefficients": found, "bounds": deviation * norm.ppf(np.arange(1, RESIDUAL_BINS) / RESIDUAL_BINS)}


def aligned_products(answer: Numbers, own: Numbers) -> tuple[Floats, Floats]:
    """A site's sums of products of 1, aligned columns and their squares: with one another, and with the target."""
    rows, total = answer["rows by class"].sum(), answer["sums by class"].sum((0, 1))
    products = np.block([[rows, total[None]], [total[:, None], answer["products by half"].sum(0)]])
    # aligned columns are stretch z + offset, so they and their squares are linear in 1, z and z^2 - 1
    stretch, offset = own["stretch"], own["centre"] * (1 - own["stretch"]) + own["shift"]
    none = np.zeros((len(stretch), len(stretch)))
    change = np.block(
        [
            [np.ones((1, 1)), np.zeros((1, 2 * len(stretch)))],
            [offset[:, None], np.diag(stretch), none],
            [(stretch**2 + offset**2 - 1)[:, None], np.diag(2 * stretch * offset), np.diag(stretch**2)],
        ]
    )
    return change @ products @ change.T, change @ answer["products with target"][:-1]


def residual_cells(aligned: Floats, response: Floats, kind: Ints, asked: Numbers) -> Ints:
    """The cell (n,) of each row: its kind, and within the kind the bin of its residual."""
    columns = np.column_stack([np.ones(len(aligned)), aligned, aligned * aligned - 1])
    return kind * RESIDUAL_BINS + np.searchsorted(asked["bounds"], response - columns @ asked["coefficients"])


def residual_distance(counts: Floats) -> Floats:
    """Return each site's distance (sites,) from its rows (sites, strata of the target, cells)."""
    held = counts.sum(1)
    return residual_table_distance(held.reshape(len(held), -1, RESIDUAL_BINS))
