"""Concept distance: do clients give different labels, or numbers, to the same kind of input?"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from scipy.special import ndtri

from fedskew.measure.heterogeneity.rows import Floats, Ints, divided

DIRECTIONS = 12
TRUSTED = 10
"""If a client has more than this number of rows, its own moments count more than the pooled ones."""
ITERATIONS = 12

RESIDUAL_DIRECTIONS, KINDS, RESIDUAL_BINS, RIDGE = 2, 8, 5, 0.01
"""If targets are numbers: number of directions and of kinds, number of bins of the residuals, ridge penalty."""


def kinds_for(rows: int, classes: int) -> int:
    """Return the number of kinds of inputs."""
    return int(np.clip(3 * classes, 6, max(6, min(40, rows // 30))))


def table_distance(counts: Floats) -> Floats:
    """Return each client's total variation (clients,) between its table (kinds, classes) of rows and the expected one.

    The expected table has the client's own totals of each kind and each class, but the pooled odds ratios (iterative proportional
    fitting). Therefore label skew, or other frequencies of kinds, do not change the distance. Small clients have a positive
    distance by chance.
    """
    return distance_to(fitted(counts.sum(0), counts.sum(2), counts.sum(1)), counts)


def distance_to(expected: Floats, counts: Floats) -> Floats:
    """Return each client's total variation (clients,) between tables (clients, a, c) with equal totals."""
    return divided(np.abs(counts - expected).sum((1, 2)) / 2, counts.sum((1, 2)))


def fitted(seed: Floats, rows: Floats, columns: Floats) -> Floats:
    """Fit tables (k, a, c) that have margins ``rows`` (k, a) and ``columns`` (k, c), and the odds ratios of ``seed`` (a, c)."""
    tables = np.broadcast_to(seed, (len(rows), *seed.shape)).copy()
    for _ in range(ITERATIONS):
        tables *= divided(columns, tables.sum(1))[:, None, :]
        tables *= divided(rows, tables.sum(2))[:, :, None]
    return tables


def regression(products: Floats, with_target: Floats) -> Floats:
    """Return the coefficients (c,) of a ridge regression, from the sums of the products of its columns, the first one constant."""
    penalty = RIDGE * products[0, 0] * np.eye(len(products))
    penalty[0, 0] = 0
    return np.asarray(np.linalg.solve(products + penalty, with_target))


def separating(means: Floats, of_client: Floats, sizes: Ints, within: Floats) -> Floats:
    """Return the directions (d, d) that separate labels within clients, the best one last.

    A cell is one client's rows of one label. ``means`` (cells, d) are the cells' means, ``sizes`` (cells,) their numbers of rows,
    ``of_client`` (cells, d) the means of the cells' clients, and ``within`` (d, d) the covariance around ``means``.
    """
    between = (means - of_client) * np.sqrt(sizes)[:, None]
    ridge = 0.05 * np.trace(within) / len(within) + 1e-9
    return np.asarray(linalg.eigh(between.T @ between / sizes.sum(), within + ridge * np.eye(len(within)))[1])


def alignment(
    counts: Floats, of_class: tuple[Floats, Floats], of_client: tuple[Floats, Floats]
) -> tuple[Floats, Floats, Floats]:
    """Return the centre, scale and shift (clients, d) that give each client the mean and variance that its labels have everywhere.

    This removes the effect that a client's sensor or style has on all its rows. Small clients are changed less.
    ``of_class`` and ``of_client`` are sums of the columns and of their squares, by label and by client.
    """
    sizes = counts.sum(1, keepdims=True)
    share, trust = divided(counts, sizes), sizes / (sizes + TRUSTED)
    mean, square = (share @ divided(v, counts.sum(0)[:, None]) for v in of_class)
    client_mean, client_square = (divided(v, sizes) for v in of_client)
    due, present = np.maximum(square - mean**2, 1e-6), np.maximum(client_square - client_mean**2, 1e-6)
    return client_mean, np.clip(due / present, 1e-2, 1e2) ** (trust / 2), trust * (mean - client_mean)


Numbers = Mapping[str, NDArray[np.float64]]


def target_sums(z: Floats, response: Floats) -> dict[str, Floats]:
    """A site's sums of the products of its targets with 1, with each column of ``z`` (n, d) and its square, and with themselves."""
    columns = np.column_stack([np.ones(len(z)), z, z * z - 1, response])
    return {"products with target": columns.T @ response}


def residual_model(answers: Sequence[Numbers], alignments: Sequence[Numbers]) -> dict[str, Floats]:
    """The regression of the targets on all sites' aligned columns and squares, and the inner bounds of the residuals' bins.

    ``alignments`` has each site's own. The bounds are quantiles of normal numbers with the residuals' deviation.
    """
    products, with_target = np.zeros(()), np.zeros(())
    for answer, alignment in zip(answers, alignments, strict=True):
        of_columns, of_target = aligned_products(answer, alignment)
        products, with_target = products + of_columns, with_target + of_target
    coefficients = regression(products, with_target)
    square = sum(answer["products with target"][-1] for answer in answers)
    left = square - 2 * coefficients @ with_target + coefficients @ products @ coefficients
    deviation = np.sqrt(max(float(left / products[0, 0]), 0.0))
    return {"coefficients": coefficients, "bounds": deviation * ndtri(np.arange(1, RESIDUAL_BINS) / RESIDUAL_BINS)}


def aligned_products(answer: Numbers, site: Numbers) -> tuple[Floats, Floats]:
    """A site's sums of products of 1, aligned columns and their squares: with one another, and with the target.

    ``site`` is its alignment.
    """
    rows, total = answer["rows by class"].sum(), answer["sums by class"].sum((0, 1))
    products = np.block([[rows, total[None]], [total[:, None], answer["products by half"].sum(0)]])
    # aligned columns are stretch z + offset, so they and their squares are linear in 1, z and z^2 - 1
    stretch, offset = site["stretch"], site["centre"] * (1 - site["stretch"]) + site["shift"]
    none = np.zeros((len(stretch), len(stretch)))
    change = np.block(
        [
            [np.ones((1, 1)), np.zeros((1, 2 * len(stretch)))],
            [offset[:, None], np.diag(stretch), none],
            [(stretch**2 + offset**2 - 1)[:, None], np.diag(2 * stretch * offset), np.diag(stretch**2)],
        ]
    )
    return change @ products @ change.T, change @ answer["products with target"][:-1]


def residual_cells(aligned: Floats, response: Floats, kind: Ints, parameters: Numbers) -> Ints:
    """The cell (n,) of each row: its kind, and within the kind the bin of its residual."""
    columns = np.column_stack([np.ones(len(aligned)), aligned, aligned * aligned - 1])
    return kind * RESIDUAL_BINS + np.searchsorted(parameters["bounds"], response - columns @ parameters["coefficients"])


def residual_distance(counts: Floats) -> Floats:
    """Return each client's total variation (clients,) between its table (kinds, bins of residuals) and the expected one.

    ``counts`` are (clients, strata of the target, kinds x bins). The residuals come from one regression for all clients. The
    expected table has the client's total of each kind, and within each kind the residuals of all clients. If only the clients'
    targets differ and p(y | x) is equal, a small distance remains.
    """
    tables = counts.sum(1).reshape(len(counts), -1, RESIDUAL_BINS)
    of_kind = tables.sum(0)
    return distance_to(tables.sum(2)[:, :, None] * divided(of_kind, of_kind.sum(1, keepdims=True)), tables)
