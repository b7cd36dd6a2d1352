"""Further measures of heterogeneity from the literature, besides the four faces (`fedskew.measure.heterogeneity.faces`)."""

from collections.abc import Callable, Sequence

import numpy as np
from scipy import linalg, optimize, special

from fedskew.core.seeding import stream
from fedskew.measure.heterogeneity.counts import dirichlet_alpha, label_measures, pairwise_variation, size_measures
from fedskew.measure.heterogeneity.faces import sample
from fedskew.measure.heterogeneity.rows import Floats, Ints

Distance = Callable[[Floats, Floats], float]


def sliced_wasserstein(a: Floats, b: Floats, rng: np.random.Generator, directions: int = 128) -> float:
    """Project the rows onto random directions; return the root mean square of the projections' 2-Wasserstein distances.

    The distance is exact in each direction. A shift by v gives about ||v|| / sqrt(d).
    """
    lines = rng.standard_normal((a.shape[1], directions))
    lines /= np.linalg.norm(lines, axis=0)
    quantiles = np.sort(a @ lines, axis=0), np.sort(b @ lines, axis=0)
    # both quantile functions are step functions: integrate their squared difference between the jumps of both
    jumps = np.union1d(np.arange(1, len(a) + 1) / len(a), np.arange(1, len(b) + 1) / len(b))
    middle = jumps - np.diff(jumps, prepend=0) / 2
    first, second = (v[np.minimum((middle * len(v)).astype(int), len(v) - 1)] for v in quantiles)
    return float(np.sqrt((np.diff(jumps, prepend=0) @ (first - second) ** 2).mean()))


def frechet(a: Floats, b: Floats) -> float:
    """Return ||m_a - m_b||^2 + tr(S_a + S_b - 2 (S_a^1/2 S_b S_a^1/2)^1/2), with covariances shrunk by Ledoit and Wolf.

    It is the squared 2-Wasserstein distance of two Gaussians; a shift by v gives ||v||^2.
    """
    first, second = shrunk_covariance(a), shrunk_covariance(b)
    roots = np.sqrt(np.maximum(linalg.eigvals(first @ second).real, 0))
    return float(((a.mean(0) - b.mean(0)) ** 2).sum() + max(np.trace(first) + np.trace(second) - 2 * roots.sum(), 0.0))


def shrunk_covariance(x: Floats) -> Floats:
    """Return the covariance (d, d) of rows (n, d), shrunk towards a multiple of the identity (Ledoit and Wolf 2004).

    It is invertible with fewer rows than columns.
    """
    rows, width = x.shape
    centred = x - x.mean(0)
    covariance = centred.T @ centred / rows
    mean = np.trace(covariance) / width
    distance = ((covariance - mean * np.eye(width)) ** 2).sum()
    error = (((centred**2).sum(1) ** 2).sum() / rows - (covariance**2).sum()) / rows
    shrinkage = min(error / distance, 1.0) if distance > 0 else 0.0
    return (1 - shrinkage) * covariance + shrinkage * mean * np.eye(width)


MOST = 200
"""Maximum number of rows of each side that are compared: the first ones."""


def within_classes(distance: Distance, z: Floats, y: Ints, client: Ints, clients: Ints, fewest: int = 5) -> float:
    """Return the mean distance between a client's rows of a class and the other clients' rows of that class.

    The mean is over ``clients`` and classes, weighted by the client's rows. Both sides need at least ``fewest`` rows. NaN if
    there are no such rows.
    """
    distances, weights = [], []
    for k in clients:
        mine = client == k
        for c in np.unique(y[mine]):
            inside, others = np.flatnonzero(mine & (y == c)), np.flatnonzero(~mine & (y == c))
            if min(len(inside), len(others)) >= fewest:
                distances.append(distance(z[inside[:MOST]], z[others[:MOST]]))
                weights.append(len(inside))
    return float(np.average(distances, weights=weights)) if distances else float("nan")


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

    of_clients = np.asarray([least(objective, start)[0] for objective in objectives])
    return least(whole, start)[0] - float(weights @ of_clients)


def least(objective: Objective, start: Floats) -> tuple[float, Floats]:
    """Return the minimum of a smooth convex function, and where it is."""
    minimum = optimize.minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 500, "ftol": 1e-10})
    return float(minimum.fun), minimum.x


def softmax_objective(z: Floats, y: Ints, classes: int, ridge: float = RIDGE) -> Objective:
    """Return the objective of softmax regression on rows (n, d): mean cross-entropy plus ridge / 2 ||w||^2.

    w is (classes x (d + 1),).
    """
    rows = np.column_stack([z, np.ones(len(z))])
    each = np.arange(len(y))

    def objective(w: Floats) -> tuple[float, Floats]:
        logs = special.log_softmax(rows @ w.reshape(classes, -1).T, axis=1)
        error = np.exp(logs)
        error[each, y] -= 1
        value = -logs[each, y].mean() + ridge / 2 * w @ w
        return float(value), (error.T @ rows / len(y)).ravel() + ridge * w

    return objective


def softmax_gap(z: Floats, y: Ints, client: Ints, classes: int, clients: Ints) -> float:
    """Return the optimum gap of softmax regression over ``clients``, weighted by rows; NaN if fewer than two have rows.

    Small clients have a gap by chance, because their optimum fits their few rows closely.
    """
    parts = [rows for k in clients if len(rows := np.flatnonzero(client == k))]
    if len(parts) < 2:
        return float("nan")
    sizes = np.asarray([len(rows) for rows in parts], dtype=float)
    objectives = [softmax_objective(z[rows], y[rows], classes) for rows in parts]
    return optimum_gap(objectives, sizes / sizes.sum(), np.zeros(classes * (z.shape[1] + 1)))


def gradient_dissimilarity(gradients: Floats, weights: Floats) -> dict[str, float]:
    """Measure full local gradients (clients, P) with ``weights`` (clients,) that sum to 1.

    ``zeta^2`` = sum p_k ||g_k - g||^2, so that sum p_k ||g_k||^2 = ||g||^2 + zeta^2; ``B^2`` = 1 + zeta^2 / ||g||^2 (FedProx,
    infinite at a stationary point);
    ``G^2`` = the least G^2 with mean ||g_k||^2 <= G^2 + ||g||^2 (SCAFFOLD's bound with B = 1, 0 at least).
    """
    mean = weights @ gradients
    zeta = float(weights @ ((gradients - mean) ** 2).sum(1))
    length = float(mean @ mean)
    bound = max(float((gradients**2).sum(1).mean()) - length, 0.0)
    return {"zeta^2": zeta, "B^2": 1 + zeta / length if length > 0 else float("inf"), "G^2": bound}


def softmax_gradients(z: Floats, y: Ints, client: Ints, clients: int, weights: Floats) -> Floats:
    """Return each client's gradient of the mean cross-entropy of a softmax regression (classes, d + 1).

    The result is (clients, classes x (d + 1)); 0 for a client without rows.
    """
    gradients = np.zeros((clients, weights.size))
    for k in np.unique(client):
        rows = client == k
        gradients[k] = softmax_objective(z[rows], y[rows], len(weights), ridge=0.0)(weights.ravel())[1]
    return gradients


COMPARED_CLIENTS = 20
"""Maximum number of clients, chosen at random, over which distances between sets of rows are averaged."""

FITTED_ROWS = 5000


def details(z: Floats, y: Ints, client: Ints, counts: Ints, seed: int = 0) -> dict[str, dict[str, float | None]]:
    """Compute the measures by face: label, quantity, feature (within classes) and gradient. Undefined measures are None.

    ``z`` (n, d) are standardised columns of the rows, ``y`` (n,) their classes or strata, ``client`` (n,) their clients. ``counts``
    (clients, classes) may cover more rows. Each distance between sets of rows also has a value ``by chance``, after rows were
    shuffled among the clients: within labels, or all rows for the optimum gap.
    """
    rng = stream(seed, "diagnose", 2)
    rows = sample(client, rng)
    z, y, client = z[rows], y[rows], client[rows]
    clients = rng.permutation(len(counts))[:COMPARED_CLIENTS]
    slices = int(rng.integers(2**31))
    ways: dict[str, Distance] = {
        "sliced Wasserstein": lambda a, b: sliced_wasserstein(a, b, np.random.default_rng(slices), 64),
        "Frechet": frechet,
    }
    dealt = shuffled(client, y, rng)
    feature = {}
    for name, distance in ways.items():
        for title, owner in ((name, client), (f"{name} by chance", dealt)):
            feature[title] = within_classes(distance, z, y, owner, clients)
    measures: dict[str, dict[str, float]] = {"feature": feature, "gradient": gradients(z, y, client, counts)}
    first = slice(FITTED_ROWS)
    for title, owner in (("optimum gap", client), ("optimum gap by chance", rng.permutation(client))):
        measures["gradient"][title] = softmax_gap(z[first], y[first], owner[first], counts.shape[1], clients)
    return {**of_counts(counts, counts.sum(1)), **finite(measures)}


def shuffled(client: Ints, y: Ints, rng: np.random.Generator) -> Ints:
    """Shuffle clients (n,) among the rows of each label. Every client keeps its numbers of rows of each label."""
    order = np.argsort(y, kind="stable")
    dealt = np.lexsort((rng.random(len(y)), y))
    result = np.empty_like(client)
    result[order] = client[dealt]
    return result


def of_counts(counts: Ints, sizes: Ints) -> dict[str, dict[str, float | None]]:
    """Compute the measures of the label and quantity faces from counts (clients, classes) and sizes (clients,)."""
    by_client = label_measures(counts)
    label = {name: float(sizes @ values / sizes.sum()) for name, values in by_client.items()}
    label["total variation, unweighted"] = float(by_client["total variation"].mean())
    label["total variation, pairs"] = pairwise_variation(counts)
    label["Dirichlet alpha"] = dirichlet_alpha(counts)
    return finite({"label": label, "quantity": size_measures(sizes)})


def finite(measures: dict[str, dict[str, float]]) -> dict[str, dict[str, float | None]]:
    """Replace undefined values by None."""
    return {face: {k: v if np.isfinite(v) else None for k, v in of.items()} for face, of in measures.items()}


def gradients(z: Floats, y: Ints, client: Ints, counts: Ints) -> dict[str, float]:
    """Compute the gradient dissimilarity of softmax regression at zero and at a model fitted to the pooled rows.

    If all rows have the same label, there is no fitted model, and its values are NaN.
    """
    clients, classes = counts.shape
    start, first = np.zeros((classes, z.shape[1] + 1)), slice(FITTED_ROWS)
    if len(np.unique(y[first])) < 2:
        end = np.full_like(start, np.nan)
    else:
        end = least(softmax_objective(z[first], y[first], classes), start.ravel())[1].reshape(start.shape)
    measures: dict[str, float] = {}
    for place, at in (("at zero", start), ("at the pooled fit", end)):
        local = softmax_gradients(z, y, client, clients, at)
        values = gradient_dissimilarity(local, counts.sum(1) / counts.sum())
        measures |= {f"{name} {place}": value for name, value in values.items()}
    return measures
