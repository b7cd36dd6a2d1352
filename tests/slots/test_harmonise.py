"""Harmonisation of rows: fits from sites' sums equal formulas that see all rows, and identities hold."""

import tomllib
from dataclasses import replace

import numpy as np
import pytest

from fedskew.core.errors import BadInput
from fedskew.core.sites import SiteMaps, SiteSums
from fedskew.data.dataset import Dataset
from fedskew.execution.deal import client_data
from fedskew.experiment.config import Experiment, from_toml
from fedskew.slots import Combat, Prior, SiteScale

SIZES = (40, 7, 25, 90)
NONE = np.arange(0)


def sites(seed: int = 0, columns: int = 6) -> list[np.ndarray]:
    """Rows of four sites that differ in the location and scale of each column; column 1 follows column 0."""
    rng = np.random.default_rng(seed)
    parts = [rng.normal(rng.normal(0, 2, columns), rng.uniform(0.3, 3, columns), (n, columns)) for n in SIZES]
    for rows in parts:
        rows[:, 1] += 3 * rows[:, 0]
    return parts


def changed(maps: SiteMaps, parts: list[np.ndarray]) -> list[np.ndarray]:
    return [maps.changed(rows, np.full(len(rows), k)) for k, rows in enumerate(parts)]


def pooled_combat(parts: list[np.ndarray], protected: list[int], shrinkage: bool) -> list[np.ndarray]:
    """ComBat with all rows in one place: least squares on indicators of the sites and the protected columns."""
    x, at = np.concatenate(parts), np.repeat(np.arange(len(parts)), [len(rows) for rows in parts])
    free = [column for column in range(x.shape[1]) if column not in protected]
    design = np.column_stack([np.eye(len(parts))[at], x[:, protected]])
    weights = np.linalg.lstsq(design, x[:, free], rcond=None)[0]
    means = weights[: len(parts)]
    alpha = np.array([len(rows) for rows in parts]) @ means / len(x)
    sigma = np.sqrt(np.square(x[:, free] - design @ weights).mean(0))
    usual = alpha + x[:, protected] @ weights[len(parts) :]
    z = (x[:, free] - usual) / sigma
    result = x.copy()
    for k in range(len(parts)):
        mine = z[at == k]
        gamma, delta = mine.mean(0), mine.var(0)
        if shrinkage:
            m, s2, center, t2 = delta.mean(), delta.var(ddof=1), gamma.mean(), gamma.var(ddof=1)
            a, b = m**2 / s2 + 2, m**3 / s2 + m
            first, n, variance = gamma, len(mine), delta
            for _ in range(3000):
                gamma = (t2 * n * first + variance * center) / (t2 * n + variance)
                variance = (np.square(mine - gamma).sum(0) / 2 + b) / (n / 2 + a - 1)
            delta = variance
        result[np.ix_(at == k, free)] = (mine - gamma) / np.sqrt(delta) * sigma + usual[at == k]
    return np.split(result, np.cumsum([len(rows) for rows in parts])[:-1])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("protected", [[], [0], [0, 3]])
@pytest.mark.parametrize("shrinkage", [True, False])
def test_combat_from_sums_equals_combat_with_all_rows(seed: int, protected: list[int], shrinkage: bool) -> None:
    parts = sites(seed)
    maps = Combat(shrinkage=shrinkage).fit(SiteSums.of(parts, np.array(protected, dtype=np.int64)))
    for rows, expected in zip(changed(maps, parts), pooled_combat(parts, protected, shrinkage), strict=True):
        np.testing.assert_allclose(rows, expected, rtol=0, atol=1e-12)
    rows = sites(9)[0]
    assert np.array_equal(maps.changed(rows, np.full(len(rows), -1)), rows)


def test_site_scale_equals_the_deviations_from_each_site_s_mean_and_of_all_rows_for_an_unknown_site() -> None:
    parts = sites()
    maps, x = SiteScale().fit(SiteSums.of(parts, NONE)), np.concatenate(parts)
    for rows, result in zip(parts, changed(maps, parts), strict=True):
        np.testing.assert_allclose(result, (rows - rows.mean(0)) / rows.std(0), rtol=0, atol=1e-12)
    new = sites(9)[0]
    np.testing.assert_allclose(
        maps.changed(new, np.full(len(new), -1)), (new - x.mean(0)) / x.std(0), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("protected", [[], [0, 2]])
@pytest.mark.parametrize("shrinkage", [True, False])
def test_combat_with_one_site_is_exactly_the_identity(protected: list[int], shrinkage: bool) -> None:
    [rows, *_] = sites()
    maps = Combat(shrinkage=shrinkage).fit(SiteSums.of([rows], np.array(protected, dtype=np.int64)))
    assert np.array_equal(maps.changed(rows, np.zeros(len(rows), dtype=np.int64)), rows)


def test_protected_columns_and_their_effect_stay() -> None:
    """Where the protected column alone differs between sites, the column that follows it does not change."""
    rng = np.random.default_rng(0)
    age = [rng.normal(10 * k, 1, 4000) for k in range(3)]
    parts = [np.column_stack([a, 2 * a + rng.normal(0, 1, len(a)), rng.normal(0, 1, len(a))]) for a in age]
    kept = changed(Combat().fit(SiteSums.of(parts, np.array([0]))), parts)
    lost = changed(Combat().fit(SiteSums.of(parts, NONE)), parts)
    for rows, result in zip(parts, kept, strict=True):
        assert np.array_equal(result[:, 0], rows[:, 0])
        assert np.abs(result[:, 1] - rows[:, 1]).max() < 0.3
    assert abs(lost[0][:, 1].mean() - lost[2][:, 1].mean()) < 1  # without protection the difference of 40 is removed


@pytest.mark.parametrize("harmonisation", [SiteScale(), Combat(), Combat(shrinkage=False)])
def test_constant_columns_and_single_rows_give_finite_rows(harmonisation: SiteScale | Combat) -> None:
    parts = sites()
    parts[1][:, 2] = 0.1  # constant at one site
    for k, rows in enumerate(parts):
        rows[:, 3], rows[:, 4] = 0.7, k  # constant everywhere; constant at each site
    parts[3] = parts[3][:1]
    maps = harmonisation.fit(SiteSums.of(parts, NONE))
    result = changed(maps, parts)
    assert all(np.isfinite(rows).all() and np.abs(rows).max() < 100 for rows in result)
    assert np.array_equal(result[3], maps.changed(parts[3], np.array([-1])))
    assert all(np.ptp(rows[:, 4]) == 0 for rows in result)
    np.testing.assert_allclose(result[0][0, 4], result[2][0, 4], atol=1e-12)


def test_prior_equals_bayes_with_the_pooled_shares_and_is_0_for_equal_shares() -> None:
    counts = np.array([[30.0, 10, 0], [5, 5, 10], [0, 0, 7]])
    share = counts.sum(0) / counts.sum()
    own = (counts + 3 * share) / (counts.sum(1) + 3)[:, None]
    np.testing.assert_allclose(Prior().intercept(counts, counts.sum(0)), np.log(own / share), rtol=0, atol=1e-12)
    equal = np.array([[3.0, 6, 1, 0], [30, 60, 10, 0], [9, 18, 3, 0]])
    np.testing.assert_allclose(Prior().intercept(equal, equal.sum(0)), 0, rtol=0, atol=1e-12)


def dataset(**options: object) -> Dataset:
    parts = sites()
    x = np.concatenate(parts)
    return Dataset(
        x=x,
        y=np.arange(len(x)) % 2,
        x_test=x[::9],
        y_test=np.arange(len(x))[::9] % 2,
        classes=("a", "b"),
        groups=np.repeat(np.arange(4), SIZES),
        columns=("age", "dose", "cp = 1", "cp = 2", "bmi", "rest"),
        name="sites",
        **options,
    )


def test_rows_of_clients_are_changed_by_their_training_rows_and_test_rows_as_of_an_unknown_site() -> None:
    data = dataset()
    experiment = Experiment(skew="natural", harmonisation="site-scale")
    plain, scaled = (client_data(e, data) for e in (experiment.replace(harmonisation="none"), experiment))
    assert plain.maps is None
    part = plain.partition
    for k in range(4):
        rows = plain.x[part.rows(k)]
        for at in (part.rows(k), part.measured_rows(k)):
            np.testing.assert_allclose(scaled.x[at], (plain.x[at] - rows.mean(0)) / rows.std(0), rtol=0, atol=1e-12)
    trained = plain.x[part.indices]
    np.testing.assert_allclose(scaled.x_test, (plain.x_test - trained.mean(0)) / trained.std(0), rtol=0, atol=1e-12)


def test_test_rows_of_known_sites_are_changed_like_the_site_s_rows() -> None:
    """-1 is a row of an unknown site. Rows of clients that take no part in training, too, count as unknown."""
    at = np.array([0, 2, 3, -1, 2, 1] * 3)
    data = dataset(groups_test=at)
    experiment = Experiment(skew="natural", harmonisation="site-scale")
    plain, scaled = (client_data(e, data) for e in (experiment.replace(harmonisation="none"), experiment))
    for k in range(4):
        rows = plain.x[plain.partition.rows(k)]
        expected = (plain.x_test[at == k] - rows.mean(0)) / rows.std(0)
        np.testing.assert_allclose(scaled.x_test[at == k], expected, rtol=0, atol=1e-12)
    rows = plain.x[plain.partition.indices]
    expected = (plain.x_test[at == -1] - rows.mean(0)) / rows.std(0)
    np.testing.assert_allclose(scaled.x_test[at == -1], expected, rtol=0, atol=1e-12)
    fewer = client_data(experiment.replace(unseen=0.5), data)
    assert len(fewer.partition) == 2
    assert fewer.maps is not None
    trained = plain.x[fewer.partition.indices]
    unseen = np.setdiff1d(
        np.arange(len(data.y)), np.concatenate([fewer.partition.indices, fewer.partition.held_out[0]])
    )
    expected = (plain.x[unseen] - trained.mean(0)) / trained.std(0)
    np.testing.assert_allclose(fewer.x[unseen], expected, rtol=0, atol=1e-12)


def test_protected_names_a_column_or_all_inputs_of_its_words() -> None:
    data = dataset()
    maps = client_data(Experiment(skew="natural", harmonisation="combat:protected=[age,cp]"), data).maps
    assert maps is not None
    assert maps.protected.tolist() == [0, 2, 3]
    with pytest.raises(BadInput, match="protected: there is no column 'agee'; did you mean 'age'"):
        client_data(Experiment(skew="natural", harmonisation="combat:protected=[agee]"), data)


@pytest.mark.parametrize("harmonisation", ["site-scale", "combat:protected=[age]"])
def test_a_sensitive_attribute_stays_0_and_1(harmonisation: str) -> None:
    data = dataset()
    people = [np.column_stack([x, np.arange(len(x)) % 3 == 0]) for x in (data.x, data.x_test)]
    fair = replace(data, x=people[0], x_test=people[1], columns=(*data.columns, "sex"), sensitive="sex")
    changed = client_data(Experiment(skew="natural", harmonisation=harmonisation), fair)
    for x, before in ((changed.x, people[0]), (changed.x_test, people[1])):
        assert np.array_equal(x[:, -1], before[:, -1])
        assert np.array_equal(x[:, 1], before[:, 1]) == (x is changed.x_test and "combat" in harmonisation)


def test_rows_without_columns_of_numbers_are_refused() -> None:
    y = np.arange(40) % 2
    for x, words in ((np.ones((40, 1, 4, 4)), r"shape \(1, 4, 4\)"), (np.arange(80).reshape(40, 2), "int64 of shape")):
        data = Dataset(x=x, y=y, x_test=x[:4], y_test=y[:4], classes=("a", "b"), vocabulary=99 * (x.ndim == 2))
        with pytest.raises(BadInput, match=f"{words}.*; use --harmonisation site-bias"):
            client_data(Experiment(skew="iid", clients=2, harmonisation="site-scale"), data)


def test_default_is_absent_from_toml_and_the_hash() -> None:
    none, scaled = Experiment(harmonisation="none"), Experiment(harmonisation="site-scale")
    assert none.toml() == Experiment().toml()
    assert "harmonisation" not in none.toml()
    assert tomllib.loads(scaled.toml())["harmonisation"] == {"name": "site-scale"}
    assert from_toml(scaled.toml()) == scaled
    assert scaled.hash() != none.hash()
