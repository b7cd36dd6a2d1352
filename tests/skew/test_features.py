"""Feature skew: how rows change, and that everything else stays as it is."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import ndimage

from fedskew.core.component import build
from fedskew.core.errors import BadInput
from fedskew.data.dataset import Dataset
from fedskew.execution.build import assemble
from fedskew.execution.deal import client_data
from fedskew.measure.heterogeneity import label_distance
from fedskew.skew import SKEWS
from fedskew.skew.feature import FeatureRotation, transformed, turned
from tests.blobs import DATA, small

IMAGES = np.random.default_rng(0).random((60, 3, 6, 6)).astype(np.float32)
WINDOWS = np.random.default_rng(1).standard_normal((60, 6, 32)).astype(np.float32)
TABLE = np.random.default_rng(2).standard_normal((60, 36))
OWNER = np.random.default_rng(3).integers(-1, 5, 60)
FITS = {
    "feature-noise": [IMAGES, WINDOWS, TABLE],
    "feature-affine": [IMAGES, WINDOWS, TABLE],
    "feature-sensor": [WINDOWS],
    "feature-rotation": [IMAGES],
    "feature-rotation:side=6": [TABLE],
    "feature-blur": [IMAGES],
    "feature-style": [IMAGES],
    "feature-style:side=6": [TABLE],
}
CASES = [(spec, x) for spec, fitting in FITS.items() for x in fitting]


def changed_by(spec: str, x: np.ndarray, owner: np.ndarray = OWNER, clients: int = 5, seed: int = 0):
    skew = build("skew", SKEWS, spec)
    own = skew.draw(x, clients, np.random.default_rng(seed))
    return transformed([skew], [own], x, owner, seed), own


@pytest.mark.parametrize(("spec", "x"), CASES, ids=lambda v: v if isinstance(v, str) else f"{v.ndim}d")
def test_only_rows_with_an_owner_change(spec: str, x: np.ndarray) -> None:
    before = x.copy()
    seen, own = changed_by(spec, x)
    assert np.array_equal(x, before), "the data set is not changed in place"
    assert (seen.shape, seen.dtype) == (x.shape, x.dtype)
    assert np.isfinite(seen).all()
    assert np.array_equal(seen[OWNER < 0], x[OWNER < 0]), "rows of the server, shared or left out stay as they are"
    assert not np.array_equal(seen[OWNER >= 0], x[OWNER >= 0])
    assert all(len(values) == 5 for values in own.values())
    assert np.array_equal(seen, changed_by(spec, x)[0])


@pytest.mark.parametrize(("spec", "x"), CASES, ids=lambda v: v if isinstance(v, str) else f"{v.ndim}d")
def test_a_rows_change_does_not_depend_on_the_owners_of_other_rows(spec: str, x: np.ndarray) -> None:
    other = np.where(np.arange(60) == 7, OWNER, (OWNER + 1) % 5)
    assert np.array_equal(changed_by(spec, x)[0][7], changed_by(spec, x, other)[0][7])


@pytest.mark.parametrize("spec", ["feature-affine:strength=0", "feature-style:strength=0", "feature-noise:level=0"])
def test_strength_zero_changes_nothing(spec: str) -> None:
    assert np.allclose(changed_by(spec, IMAGES)[0], IMAGES, atol=1e-6)


@pytest.mark.parametrize(("kind", "expected"), [("variance", [0.3, 0.6, 0.9]), ("std", [0.0, 0.2025, 0.81])])
def test_noise_has_the_variances_of_the_paper_and_of_its_code(kind: str, expected: list[float]) -> None:
    """2.A.10: variance level i / K, i = 1..K; or standard deviation level i / (K - 1), from 0. Over 10,000 numbers a client."""
    x, owner = np.zeros((300, 100)), np.arange(300) % 3
    seen, _ = changed_by(f"feature-noise:level=0.9,kind={kind}", x, owner, 3)
    for k, variance in enumerate(expected):
        assert seen[owner == k].var() == pytest.approx(variance, rel=5 * np.sqrt(2 / 10_000), abs=1e-12)
        assert seen[owner == k].mean() == pytest.approx(0, abs=0.05)


@pytest.mark.parametrize("x", [IMAGES, WINDOWS, TABLE], ids=["image", "window", "table"])
def test_affine_gives_each_channel_a_gain_and_an_offset(x: np.ndarray) -> None:
    seen, own = changed_by("feature-affine:strength=0.4", x.astype(np.float64))
    std = x.astype(np.float64).std(axis=(0, *range(2, x.ndim)))
    assert np.abs(own["gain"] - 1).max() <= 0.4
    assert (np.abs(own["offset"]) <= 0.4 * std).all()
    for i in np.flatnonzero(OWNER >= 0)[:10]:
        for c in range(x.shape[1]):
            k = OWNER[i]
            assert np.allclose(seen[i, c], own["gain"][k, c] * x[i, c] + own["offset"][k, c])


def test_turned_sensors_keep_lengths_and_angles() -> None:
    seen, own = changed_by("feature-sensor:degrees=120", WINDOWS.astype(np.float64))
    for matrix in own["matrix"]:
        assert np.allclose(matrix @ matrix.T, np.eye(3))
        assert np.linalg.det(matrix) == pytest.approx(1)
        assert np.degrees(np.arccos(np.clip((np.trace(matrix) - 1) / 2, -1, 1))) <= 120 + 1e-9
    i = int(np.flatnonzero(OWNER == 2)[0])
    for sensor in (slice(0, 3), slice(3, 6)):
        assert np.allclose(seen[i, sensor], own["matrix"][2] @ WINDOWS[i, sensor])


def test_quarter_turns_are_exact_and_others_agree_with_scipy() -> None:
    picture = np.zeros((1, 1, 3, 3))
    picture[0, 0, 0, 2] = 1
    assert turned(picture, 90)[0, 0, 0, 0] == 1
    assert turned(picture, 180)[0, 0, 2, 0] == 1
    smooth = ndimage.gaussian_filter(np.random.default_rng(0).random((1, 1, 21, 21)), (0, 0, 2, 2))
    inner = (slice(None), slice(None), slice(6, 15), slice(6, 15))
    assert np.allclose(
        turned(smooth, 90)[inner], ndimage.rotate(smooth, 90.0, axes=(3, 2), reshape=False, order=1)[inner]
    )
    assert np.allclose(turned(smooth, 89.999)[inner], turned(smooth, 90)[inner], atol=1e-4), "both turn one way"


def test_groups_of_rotation_are_of_equal_size() -> None:
    own = FeatureRotation(clusters=4).draw(IMAGES, 40, np.random.default_rng(0))
    assert dict(zip(*np.unique(own["degrees"], return_counts=True), strict=True)) == {0: 10, 90: 10, 180: 10, 270: 10}


def test_flat_images_are_turned_as_images_are() -> None:
    flat, own = changed_by("feature-rotation:side=6", TABLE)
    images, _ = changed_by("feature-rotation", TABLE.reshape(60, 1, 6, 6))
    assert np.array_equal(flat, images.reshape(60, 36))
    assert set(own) == {"degrees"}


def test_labels_test_set_server_rows_and_sensitive_column_stay() -> None:
    people = Dataset(
        x=np.column_stack([DATA.x, np.arange(120) % 2]).astype(np.float32),
        y=DATA.y % 2,
        x_test=np.column_stack([DATA.x, np.arange(120) % 2]).astype(np.float32),
        y_test=DATA.y % 2,
        classes=("no", "yes"),
        sensitive="sex",
    )
    changes = {"server_data": {"share": 0.2}, "clients": {"number": 3, "held_out": 0.3}, "selection": "everyone"}
    plain = assemble(small(skew="iid", **changes), people)
    made = assemble(small(skew=["iid", "feature-affine"], **changes), people)
    fed = made.federation
    assert np.array_equal(made.partition.indices, plain.partition.indices)
    assert torch.equal(fed.server_data.x, plain.federation.server_data.x)
    assert torch.equal(made.x_test, plain.x_test)
    assert torch.equal(made.y_test, plain.y_test)
    assert torch.equal(fed.y, plain.federation.y)
    assert torch.equal(fed.x[:, -1], plain.federation.x[:, -1])
    for rows in (made.partition.indices, made.partition.held_out[0]):
        assert (fed.x[rows] != plain.federation.x[rows]).any(1).all(), "training rows and held-out rows alike"
    assert label_distance(made.data.label_counts()) == label_distance(plain.data.label_counts())
    assert made.partition_facts()["test_set"] == "features as the data set has them"


def test_word_ids_are_refused() -> None:
    words = replace(DATA, x=np.arange(240).reshape(120, 2), x_test=np.zeros((60, 2), int))
    with pytest.raises(BadInput, match="word ids, which only feature-text can change"):
        client_data(small(skew=["iid", "feature-noise"]), words)


def test_shared_rows_stay() -> None:
    made = assemble(small(skew=["iid", "feature-affine"], shared_data={"beta": 0.25}), DATA)
    held = np.bincount(made.partition.indices, minlength=120)
    shared = np.flatnonzero(held > 1)
    assert len(shared) == 24
    assert np.array_equal(made.federation.x[shared].numpy(), DATA.x[shared])
