"""Further measures of heterogeneity from the literature, in addition to the four faces of `diagnose`."""

import numpy as np

from fedskew.core.seeding import stream
from fedskew.measure.heterogeneity.diagnose import sample
from fedskew.measure.heterogeneity.distances import (
    Distance,
    frechet,
    sliced_wasserstein,
    within_classes,
)
from fedskew.measure.heterogeneity.gradient import gradient_dissimilarity, softmax_gradients
from fedskew.measure.heterogeneity.label import dirichlet_alpha, label_measures, pairwise_variation
from fedskew.measure.heterogeneity.optimum import softmax_gap
from fedskew.measure.heterogeneity.quantity import size_measures
from fedskew.measure.heterogeneity.rows import Floats, Ints

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
    chosen = rng.permutation(len(counts))[:COMPARED_CLIENTS]
    slices = int(rng.integers(2**31))
    ways: dict[str, Distance] = {
        "sliced Wasserstein": lambda a, b: sliced_wasserstein(a, b, np.random.default_rng(slices), 64),
        "Frechet": frechet,
    }
    dealt = shuffled(client, y, rng)
    feature = {}
    for name, distance in ways.items():
        for title, owner in ((name, client), (f"{name} by chance", dealt)):
            feature[title] = within_classes(distance, z, y, owner, chosen)
    found: dict[str, dict[str, float]] = {"feature": feature, "gradient": gradients(z, y, client, counts)}
    first = slice(FITTED_ROWS)
    for title, owner in (("optimum gap", client), ("optimum gap by chance", rng.permutation(client))):
        found["gradient"][title] = softmax_gap(z[first], y[first], owner[first], counts.shape[1], chosen)
    return {**of_counts(counts, counts.sum(1)), **finite(found)}


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


def finite(found: dict[str, dict[str, float]]) -> dict[str, dict[str, float | None]]:
    """Replace undefined values by None."""
    return {face: {k: v if np.isfinite(v) else None for k, v in of.items()} for face, of in found.items()}


def gradients(z: Floats, y: Ints, client: Ints, counts: Ints) -> dict[str, float]:
    """Compute the gradient dissimilarity of softmax regression at zero and at a model fitted to the pooled rows.

    If all rows have the same label, there is no fitted model, and its values are NaN.
    """
    from sklearn.linear_model import LogisticRegression

    clients, classes = counts.shape
    weights = counts.sum(1) / counts.sum()
    start = np.zeros((classes, z.shape[1] + 1))
    fitted = slice(FITTED_ROWS)
    end = start.copy()
    if len(np.unique(y[fitted])) < 2:
        end[:] = np.nan
    else:
        model = LogisticRegression(C=0.1, max_iter=1000, tol=1e-3).fit(z[fitted], y[fitted])
        own = np.column_stack([model.coef_, model.intercept_])
        # for two classes, scikit-learn gives one row of coefficients
        end[model.classes_] = np.stack([-own[0] / 2, own[0] / 2]) if len(own) == 1 else own
    found: dict[str, float] = {}
    for place, at in (("at zero", start), ("at the pooled fit", end)):
        values = gradient_dissimilarity(softmax_gradients(z, y, client, clients, at), weights)
        found |= {f"{name} {place}": value for name, value in values.items()}
    return found
