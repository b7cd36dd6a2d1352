"""The gap between the clients' own optima and the common optimum."""

from collections.abc import Callable, Sequence

import numpy as np
from scipy import optimize, special

from fedskew.measure.heterogeneity.rows import Floats, Ints

Objective = Callable[[Floats], tuple[float, Floats]]
"""Maps parameters (P,) to the value and the gradient (P,)."""

RIDGE = 0.01


def optimum_gap(objectives: Sequence[Objective], weights: Floats, start: Floats) -> float:
    """Return Gamma = F(w*) - sum p_k F_k(w_k*), with F = sum p_k F_k, for convex objectives that have minima.

    ``weights`` p (K,) sum to 1. Gamma is 0 if one w is the optimum of every client (Li et al. 2020, "On the Convergence of FedAvg
    on Non-IID Data").
    """

    def whole(w: Floats) -> tuple[float, Floats]:
        values, gradients = zip(*(objective(w) for objective in objectives), strict=True)
        return float(weights @ np.asarray(values)), weights @ np.stack(gradients)

    return least(whole, start) - float(weights @ np.asarray([least(objective, start) for objective in objectives]))


def least(objective: Objective, start: Floats) -> float:
    """Return the minimum of a smooth convex function."""
    found = optimize.minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 500, "ftol": 1e-10})
    return float(found.fun)


def softmax_objective(z: Floats, y: Ints, classes: int, ridge: float = RIDGE) -> Objective:
    """Return the objective of softmax regression on rows (n, d): mean cross-entropy plus ridge / 2 ||w||^2.

    w is (classes x (d + 1),).
    """
    rows = np.column_stack([z, np.ones(len(z))])
    each = np.arange(len(y))

    def objective(w: Floats) -> tuple[float, Floats]:
        logits = rows @ w.reshape(classes, -1).T
        logs = special.log_softmax(logits, axis=1)
        error = np.exp(logs)
        error[each, y] -= 1
        value = -logs[each, y].mean() + ridge / 2 * w @ w
        return float(value), (error.T @ rows / len(y)).ravel() + ridge * w

    return objective


def softmax_gap(z: Floats, y: Ints, client: Ints, classes: int, clients: Ints, ridge: float = RIDGE) -> float:
    """Return the optimum gap of softmax regression over ``clients``, weighted by rows; NaN if fewer than two have rows.

    Small clients have a gap by chance, because their optimum fits their few rows closely.
    """
    held = [rows for k in clients if len(rows := np.flatnonzero(client == k))]
    if len(held) < 2:
        return float("nan")
    sizes = np.asarray([len(rows) for rows in held], dtype=float)
    objectives = [softmax_objective(z[rows], y[rows], classes, ridge) for rows in held]
    return optimum_gap(objectives, sizes / sizes.sum(), np.zeros(classes * (z.shape[1] + 1)))
