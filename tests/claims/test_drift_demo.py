"""The listing of the textbook section 'Non-IID Data' by our engine, against an independent numpy loop and the printed numbers."""

import numpy as np
import pytest
import torch

from fedskew.claims.extras import DOCUMENT, drift_demo

torch.set_num_threads(1)


def independent_loop() -> list[tuple[float, float]]:
    """(drift, accuracy) of the four runs in plain numpy, written from the specification of the listing alone."""
    rng = np.random.default_rng(0)
    means = rng.standard_normal((6, 30)) * 0.45
    y = rng.integers(0, 6, size=12_000)
    x = means[y] + rng.standard_normal((12_000, 30))
    hot = np.eye(6)[y]
    iid = np.array_split(rng.permutation(12_000), 30)
    by_label = np.array_split(np.argsort(y, kind="stable"), 30)
    results = []
    for dealt, epochs in ((iid, 1), (iid, 10), (by_label, 1), (by_label, 10)):
        w, drifts = np.zeros((30, 6)), []
        for _ in range(30):
            models = []
            for rows in dealt:
                v = w.copy()
                for _ in range(epochs):
                    order = rng.permutation(rows)
                    for lo in range(0, len(order), 32):
                        b = order[lo : lo + 32]
                        z = x[b] @ v
                        p = np.exp(z - z.max(1, keepdims=True))
                        p /= p.sum(1, keepdims=True)
                        v -= 1.5 * x[b].T @ (p - hot[b]) / len(b)
                models.append(v)
            stack = np.stack(models)
            w = np.tensordot([len(r) / 12_000 for r in dealt], stack, axes=1)
            drifts.append(np.mean([np.linalg.norm(v - w) for v in stack]))
        results.append((float(np.mean(drifts)), float(((x @ w).argmax(1) == y).mean())))
    return results


@pytest.mark.slow
def test_the_engine_equals_an_independent_loop_and_prints_the_documents_numbers() -> None:
    ours = list(drift_demo())
    for reproduced, (drift, accuracy), printed in zip(ours, independent_loop(), DOCUMENT, strict=True):
        assert reproduced.drift == pytest.approx(drift, abs=1e-9)
        assert reproduced.accuracy == pytest.approx(accuracy, abs=1e-9)
        assert f"{reproduced.drift:.3f}" == f"{printed.drift:.3f}"
        assert f"{reproduced.accuracy:.3f}" == f"{printed.accuracy:.3f}"
