"""The regression and the tables of residuals from sums equal those from rows."""

import numpy as np
import pytest

from fedskew.measure.heterogeneity.concept import (
    RESIDUAL_BINS,
    alignment,
    regression,
    residual_cells,
    residual_distance,
    residual_model,
    target_sums,
)
from fedskew.measure.heterogeneity.faces import concept_chance
from fedskew.measure.heterogeneity.rounding import rounded_by_sites
from fedskew.measure.heterogeneity.rows import sums_by, table
from fedskew.measure.heterogeneity.sites import moment_sums
from fedskew.skew.values import quantile_bins


def test_the_regression_of_all_sites_from_their_sums_equals_the_one_of_aligned_rows() -> None:
    rng = np.random.default_rng(0)
    z, site = rng.normal(size=(300, 3)), rng.integers(0, 3, 300)
    z[site == 1] = 1.5 * z[site == 1] + 0.7
    response = z @ [1.0, -0.5, 0.2] + rng.normal(size=300)
    y = quantile_bins(response, 5)
    counts = table(site, y, (3, 5))
    of_class, of_site = ([sums_by(g, n, v) for v in (z, z * z)] for g, n in ((y, 5), (site, 3)))
    parts = alignment(counts, (of_class[0], of_class[1]), (of_site[0], of_site[1]))
    own = [dict(zip(("centre", "stretch", "shift"), one, strict=True)) for one in zip(*parts, strict=True)]
    answers = [
        {**moment_sums(z[site == k], y[site == k], 5), **target_sums(z[site == k], response[site == k])}
        for k in range(3)
    ]
    found = residual_model(answers, own)

    centre, stretch, shift = (part[site] for part in parts)
    moved = (z - centre) * stretch + centre + shift
    columns = np.column_stack([np.ones(300), moved, moved * moved - 1])
    expected = regression(columns.T @ columns, columns.T @ response)
    assert found["coefficients"] == pytest.approx(expected, abs=1e-12)
    error = response - columns @ expected
    assert found["bounds"] / np.sqrt((error**2).mean()) == pytest.approx([-0.8416, -0.2533, 0.2533, 0.8416], abs=1e-4)

    kind = rng.integers(0, 4, 300)
    cell = residual_cells(moved, response, kind, found)
    assert (cell // RESIDUAL_BINS).tolist() == kind.tolist()
    by_cell = np.stack([table(y[site == k], cell[site == k], (5, 4 * RESIDUAL_BINS)) for k in range(3)])
    by_rows = table(site * 4 + kind, np.searchsorted(found["bounds"], error), (12, RESIDUAL_BINS)).reshape(
        3, 4, RESIDUAL_BINS
    )
    assert residual_distance(by_cell) == pytest.approx(
        residual_distance(by_rows.reshape(len(by_rows), 1, -1)), abs=1e-12
    )


def test_chance_of_rounded_tables_equals_the_value_of_new_rows(monkeypatch) -> None:
    """Tables drawn with the uneven margins of rounded tables would differ less than tables of new rows do."""
    monkeypatch.setattr("fedskew.measure.heterogeneity.faces.CONCEPT_TABLES", 39)
    rng, fewest = np.random.default_rng(0), np.full(6, 5)

    def value(tables: np.ndarray) -> float:
        return float(residual_distance(tables.astype(float)).mean())

    excess = []
    for _ in range(20):
        share = rng.dirichlet(np.ones(25), size=2)
        rows = np.stack([rng.multinomial(50, share[g], size=6) for g in (0, 1)], axis=1)
        seen = rounded_by_sites(rows, fewest, rng)
        excess.append(value(seen) - np.mean(concept_chance(seen, fewest, value, rng)))
    assert abs(np.mean(excess)) < 0.012
