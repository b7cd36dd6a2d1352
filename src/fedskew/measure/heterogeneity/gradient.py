"""Dissimilarity of the clients' gradients at a common model."""

import numpy as np

from fedskew.measure.heterogeneity.rows import Floats, Ints, divided, sums_by


def gradient_dissimilarity(gradients: Floats, weights: Floats) -> dict[str, float]:
    """Measure full local gradients (clients, P) with ``weights`` (clients,) that sum to 1.

    ``zeta^2`` = sum p_k ||g_k - g||^2, so that sum p_k ||g_k||^2 = ||g||^2 + zeta^2; ``B^2`` = 1 + zeta^2 / ||g||^2 (FedProx,
    infinite at a stationary point);
    ``G^2`` = the least G^2 with mean ||g_k||^2 <= G^2 + ||g||^2 (SCAFFOLD's bound with B = 1, 0 at least).
    """
    mean = weights @ gradients
    zeta = float(weights @ ((gradients - mean) ** 2).sum(1))
    length = float(mean @ mean)
    return {
        "zeta^2": zeta,
        "B^2": 1 + zeta / length if length > 0 else float("inf"),
        "G^2": max(float((gradients**2).sum(1).mean()) - length, 0.0),
    }


def softmax_gradients(z: Floats, y: Ints, client: Ints, clients: int, weights: Floats) -> Floats:
    """Return each client's gradient of the mean cross-entropy of a softmax regression (classes, d + 1).

    The result is (clients, classes x (d + 1)).
    """
    rows = np.column_stack([z, np.ones(len(z))])
    logits = rows @ weights.T
    probability = np.exp(logits - logits.max(1, keepdims=True))
    probability /= probability.sum(1, keepdims=True)
    probability[np.arange(len(y)), y] -= 1
    sizes = np.bincount(client, minlength=clients)[:, None]
    return np.concatenate([divided(sums_by(client, clients, rows * p[:, None]), sizes) for p in probability.T], axis=1)
