"""Feature and concept skew: what each client sees, what its labels mean, when that changes, and that all else stays."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from fedskew.cli.main import main
from fedskew.core.component import build
from fedskew.core.errors import BadInput, Interrupted
from fedskew.data.dataset import Dataset
from fedskew.experiment.build import assemble
from fedskew.experiment.combinations import with_method
from fedskew.experiment.config import Experiment, from_toml
from fedskew.experiment.deal import client_data
from fedskew.experiment.results import run
from fedskew.experiment.run import execute, register
from fedskew.measure.heterogeneity import label_distance
from fedskew.measure.recovery import recovery
from fedskew.skew import SKEWS
from fedskew.skew.concept import ConceptFlip, ConceptSwap, Labels, Layer, labels_of
from fedskew.skew.feature import transformed
from fedskew.skew.image import FeatureRotation, turned
from fedskew.store.runs import RunStore
from tests.experiment.test_experiment import DATA, numbers, small

QUICK = settings(max_examples=30, deadline=None, derandomize=True, database=None)
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


def seen_by(spec: str, x: np.ndarray, owner: np.ndarray = OWNER, clients: int = 5, seed: int = 0):
    skew = build("skew", SKEWS, spec)
    own = skew.draw(x, clients, np.random.default_rng(seed))
    return transformed([skew], [own], x, owner, seed), own


# features


@pytest.mark.parametrize(("spec", "x"), CASES, ids=lambda v: v if isinstance(v, str) else f"{v.ndim}d")
def test_each_owner_sees_its_rows_changed_and_nothing_else_changes(spec: str, x: np.ndarray) -> None:
    before = x.copy()
    seen, own = seen_by(spec, x)
    assert np.array_equal(x, before), "the data set is not changed in place"
    assert (seen.shape, seen.dtype) == (x.shape, x.dtype)
    assert np.isfinite(seen).all()
    assert np.array_equal(seen[OWNER < 0], x[OWNER < 0]), "rows of the server, shared or left out stay as they are"
    assert not np.array_equal(seen[OWNER >= 0], x[OWNER >= 0])
    assert all(len(values) == 5 for values in own.values())
    assert np.array_equal(seen, seen_by(spec, x)[0])


@pytest.mark.parametrize(("spec", "x"), CASES, ids=lambda v: v if isinstance(v, str) else f"{v.ndim}d")
def test_a_row_is_seen_the_same_whoever_holds_the_others(spec: str, x: np.ndarray) -> None:
    other = np.where(np.arange(60) == 7, OWNER, (OWNER + 1) % 5)
    assert np.array_equal(seen_by(spec, x)[0][7], seen_by(spec, x, other)[0][7])


@pytest.mark.parametrize("spec", ["feature-affine:strength=0", "feature-style:strength=0", "feature-noise:level=0"])
def test_strength_zero_changes_nothing(spec: str) -> None:
    assert np.allclose(seen_by(spec, IMAGES)[0], IMAGES, atol=1e-6)


@pytest.mark.parametrize(("kind", "expected"), [("variance", [0.3, 0.6, 0.9]), ("std", [0.0, 0.2025, 0.81])])
def test_noise_has_the_variances_of_the_paper_and_of_its_code(kind: str, expected: list[float]) -> None:
    """2.A.10: variance level i / K, i = 1..K; or standard deviation level i / (K - 1), from 0. Over 10,000 numbers a client."""
    x, owner = np.zeros((300, 100)), np.arange(300) % 3
    seen, _ = seen_by(f"feature-noise:level=0.9,kind={kind}", x, owner, 3)
    for k, variance in enumerate(expected):
        assert seen[owner == k].var() == pytest.approx(variance, rel=5 * np.sqrt(2 / 10_000), abs=1e-12)
        assert seen[owner == k].mean() == pytest.approx(0, abs=0.05)


@pytest.mark.parametrize("x", [IMAGES, WINDOWS, TABLE], ids=["image", "window", "table"])
def test_an_affine_change_is_a_gain_and_an_offset_a_channel(x: np.ndarray) -> None:
    seen, own = seen_by("feature-affine:strength=0.4", x.astype(np.float64))
    std = x.astype(np.float64).std(axis=(0, *range(2, x.ndim)))
    assert np.abs(own["gain"] - 1).max() <= 0.4
    assert (np.abs(own["offset"]) <= 0.4 * std).all()
    for i in np.flatnonzero(OWNER >= 0)[:10]:
        for c in range(x.shape[1]):
            k = OWNER[i]
            assert np.allclose(seen[i, c], own["gain"][k, c] * x[i, c] + own["offset"][k, c])


def test_turned_sensors_keep_lengths_and_angles() -> None:
    seen, own = seen_by("feature-sensor:degrees=120", WINDOWS.astype(np.float64))
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
    flat, own = seen_by("feature-rotation:side=6", TABLE)
    images, _ = seen_by("feature-rotation", TABLE.reshape(60, 1, 6, 6))
    assert np.array_equal(flat, images.reshape(60, 36))
    assert set(own) == {"degrees"}


@pytest.mark.parametrize(
    ("spec", "x", "words"),
    [
        ("feature-rotation", TABLE, "if they are flat images of 6 x 6, say side=6"),
        ("feature-blur", TABLE[:, :5], "needs images (channels, height, width), these rows have shape (5,)"),
        ("feature-style", WINDOWS, "needs images"),
        ("feature-rotation:side=5", TABLE, "25 pixels"),
        ("feature-sensor", TABLE, "needs windows"),
        ("feature-sensor", WINDOWS[:, :4], "in threes"),
    ],
)
def test_a_change_that_does_not_fit_the_rows_is_refused(spec: str, x: np.ndarray, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        seen_by(spec, x)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_features_leave_labels_the_test_set_the_server_and_the_sensitive_column() -> None:
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
    assert label_distance(made.label_counts()) == label_distance(plain.label_counts())
    assert made.partition_facts()["test_set"] == "features as the data set has them"


def test_ids_of_words_are_not_changed() -> None:
    words = Dataset(
        x=np.arange(240).reshape(120, 2),
        y=DATA.y,
        x_test=np.zeros((3, 2), int),
        y_test=DATA.y[:3],
        classes=tuple("abc"),
    )
    with pytest.raises(BadInput, match="word ids, which only feature-text can change"):
        client_data(small(skew=["iid", "feature-noise"]), words)


def test_rows_that_clients_share_stay_as_they_are() -> None:
    made = assemble(small(skew=["iid", "feature-affine"], shared_data={"beta": 0.25}), DATA)
    held = np.bincount(made.partition.indices, minlength=120)
    shared = np.flatnonzero(held > 1)
    assert len(shared) == 24
    assert np.array_equal(made.federation.x[shared].numpy(), DATA.x[shared])


# concepts: what


@pytest.mark.parametrize(("classes", "clusters", "strength"), [(2, 2, 1.0), (5, 5, 1.0), (10, 3, 0.4), (6, 1, 0.5)])
def test_concepts_disagree_on_all_classes_that_change_places(classes: int, clusters: int, strength: float) -> None:
    skew = ConceptSwap(clusters=clusters, strength=strength, at_round=1)
    for seed in range(10):
        table = skew.draw(np.zeros((4, 2)), classes, 12, np.random.default_rng(seed))["table"]
        assert (np.sort(table, axis=1) == np.arange(classes)).all(), "each is a permutation"
        moved = (table != np.arange(classes)).any(0)
        assert moved.sum() == round(strength * classes)
        for a in range(len(table)):
            for b in range(a):
                assert (table[a, moved] != table[b, moved]).all()


def test_no_single_labelling_beats_one_half_under_two_equal_concepts() -> None:
    """2.A.14: under two equal clusters and a full flip the best single model has 50 %, one a cluster 100 %."""
    data = client_data(small(skew=["iid", "concept-swap"], clients={"number": 2}), DATA)
    y, test = data.labels.at(0), data.test_labels.at(0)
    owner = np.repeat([0, 1], data.partition.sizes)
    meant = DATA.y[data.partition.indices]
    for c in range(3):
        given = [y[data.partition.indices][(owner == k) & (meant == c)] for k in (0, 1)]
        assert len(set(given[0])) == len(set(given[1])) == 1, "within a client one meaning"
        assert given[0][0] != given[1][0]
    assert 0.3 < (test != DATA.y_test).mean() < 0.7, "the test rows follow the clients' concepts"


def test_clusters_are_equal_and_a_share_of_the_clients_is_concerned() -> None:
    swap = ConceptSwap(clusters=3)
    group = swap.draw(np.zeros((4, 2)), 10, 30, np.random.default_rng(0))["group"]
    assert np.bincount(group).tolist() == [10, 10, 10]
    some = ConceptSwap(clusters=1, clients=0.2, at_round=3).draw(np.zeros((4, 2)), 10, 30, np.random.default_rng(0))
    assert np.bincount(some["group"]).tolist() == [24, 6]


@pytest.mark.parametrize(("clusters", "clients", "dealt"), [(2, 0.3, [7, 3]), (3, 0.4, [6, 2, 2]), (2, 0.01, [9, 1])])
def test_of_a_share_of_the_clients_each_one_changes(clusters: int, clients: float, dealt: list[int]) -> None:
    for seed in range(12):
        group = ConceptSwap(clusters=clusters, clients=clients).who(10, np.random.default_rng(seed))["group"]
        assert np.bincount(group, minlength=clusters).tolist() == dealt


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_a_flip_moves_labels_only_in_a_half_space(share: float) -> None:
    skew = ConceptFlip(clusters=2, share=share)
    x, y = np.random.default_rng(0).standard_normal((400, 4)), np.arange(400) % 3
    own = skew.draw(x, 3, 10, np.random.default_rng(1))
    owner = np.arange(400) % 10
    made = labels_of([skew], [own], x, y, owner, seed=0, part=1).at(0)
    flipped = made != y
    assert (made[flipped] == (y[flipped] + 1) % 3).all()
    concerned = own["group"][owner] == 1
    assert not flipped[~concerned].any()
    across = x @ own["direction"][0]
    border = np.sort(across)[::-1][round(share * 400) - 1]
    assert np.array_equal(flipped[concerned], across[concerned] >= border)


# concepts: when


def times(skew, rounds: int = 30) -> list[float]:
    return [float(skew.reach(np.asarray([r - skew.at_round]))[0]) for r in range(rounds)]


def test_the_courses_are_those_of_the_note() -> None:
    """2.A.15, with r0 = 10, L = 5 and P = 5."""
    r = np.arange(30)
    courses = {
        "sudden": r >= 10,
        "gradual": np.clip((r - 10) / 5, 0, 1),
        "incremental": np.clip((r - 10) / 5, 0, 1),
        "recurrent": (r >= 10) & (r // 5 % 2 == 0),
    }
    for course, expected in courses.items():
        assert times(ConceptSwap(at_round=10, course=course, rounds=5)) == pytest.approx(expected.astype(float)), course
        assert times(ConceptSwap(at_round=10, course=course, rounds=5, rho=0.3)) == pytest.approx(0.3 * expected)


def layer(skew, u, start=0, classes: int = 2) -> Labels:
    n = len(u)
    table = np.stack([np.arange(classes), np.roll(np.arange(classes), -1)])
    made = Layer(skew, table, np.ones(n, dtype=np.int64), np.full(n, start), np.asarray(u))
    return Labels(np.zeros(n, dtype=np.int64), (made,))


def test_rows_change_in_the_order_of_their_numbers() -> None:
    labels = layer(ConceptSwap(at_round=4, course="gradual", rounds=4), [0.1, 0.3, 0.6, 0.9], start=4)
    assert [labels.at(r).tolist() for r in range(3, 9)] == [
        [0, 0, 0, 0],
        [0, 0, 0, 0],
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [1, 1, 1, 0],
        [1, 1, 1, 1],
    ]


@pytest.mark.parametrize("course", ["gradual", "incremental"])
def test_the_first_row_does_not_change_before_its_time(course: str) -> None:
    """The row farthest in the region has its turn at 0, and nothing has changed yet in the round of the start."""
    labels = layer(ConceptSwap(at_round=4, course=course, rounds=4), [0.0], start=4)
    assert [labels.at(r).tolist() for r in range(3, 7)] == [[0], [0], [1], [1]]


def test_an_incremental_change_takes_class_after_class() -> None:
    skew = ConceptSwap(clusters=1, at_round=2, course="incremental", rounds=5)
    y = np.arange(500) % 5
    own = skew.draw(np.zeros((500, 2)), 5, 4, np.random.default_rng(0))
    labels = labels_of([skew], [own], np.zeros((500, 2)), y, np.arange(500) % 4, seed=0, part=1)
    for r, moved in zip(range(1, 9), [0, 0, 1, 2, 3, 4, 5, 5], strict=True):
        changed = labels.at(r) != y
        assert {c for c in range(5) if changed[y == c].all()} == {c for c in range(5) if changed[y == c].any()}
        assert len(set(y[changed])) == moved


def test_each_client_begins_in_a_round_of_its_own() -> None:
    skew = ConceptSwap(clusters=1, at_round=5, stagger=3)
    start = skew.draw(np.zeros((4, 2)), 4, 400, np.random.default_rng(0))["start"]
    assert set(start) == {5, 6, 7, 8}
    owner = np.arange(400)
    own = skew.draw(np.zeros((400, 2)), 4, 400, np.random.default_rng(0))
    labels = labels_of([skew], [own], np.zeros((400, 2)), owner % 4, owner, seed=0, part=1)
    for r in range(4, 10):
        assert np.array_equal(labels.at(r) != owner % 4, r >= own["start"])


@QUICK
@given(st.integers(0, 12), st.sampled_from(["sudden", "gradual", "recurrent", "incremental"]), st.integers(0, 10**6))
def test_labels_are_classes_and_depend_on_the_seed_only(round_: int, course: str, seed: int) -> None:
    skews = ["iid", f"concept-swap:course={course},at_round=3,rounds=4", "concept-flip:clusters=3"]
    e = small(skew=skews, clients={"number": 5, "partition_seed": seed})
    one, two = client_data(e, DATA), client_data(e, DATA)
    assert np.array_equal(one.labels.at(round_), two.labels.at(round_))
    assert set(one.labels.at(round_)) <= set(range(3))
    assert np.array_equal(one.test_labels.at(round_), two.test_labels.at(round_))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("concept-swap:clusters=1", "use clusters=2, or say at_round"),
        ("concept-swap:clusters=0", "clusters"),
        ("concept-swap:clients=0", "clients"),
        ("concept-swap:rho=1.5", "rho"),
        ("concept-swap:at_round=-1", "at_round"),
        ("concept-swap:rounds=0", "rounds"),
        ("concept-swap:stagger=-1", "stagger"),
        ("concept-swap:strength=0", "strength"),
        ("concept-flip:share=0", "share"),
        ("concept-swap:course=slow", "course"),
    ],
)
def test_options_of_concepts_are_checked(spec: str, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        build("skew", SKEWS, spec)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "words"), [("concept-swap:strength=0.3", "raise it"), ("concept-swap:clusters=4", "clusters=3")]
)
def test_concepts_that_the_classes_do_not_allow_are_refused(spec: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        assemble(small(skew=["iid", spec]), DATA)


# in a run

SWAP = ["label-dirichlet:alpha=0.5", "feature-noise", "concept-swap:clusters=2,at_round=2,course=gradual,rounds=3"]


def test_a_federation_gets_the_labels_of_the_round() -> None:
    made = assemble(small(skew=SWAP), DATA)
    fed = made.federation
    assert torch.equal(fed.targets(0), torch.as_tensor(DATA.y))
    assert not torch.equal(fed.targets(5), fed.targets(0))
    for r in (0, 3, 5):
        assert np.array_equal(fed.targets(r).numpy(), made.data.labels.at(r))
        assert np.array_equal(made.test_targets(r).numpy(), made.data.test_labels.at(r))
        counts = made.partition.label_counts(fed.targets(r).numpy(), 3)
        assert np.array_equal(fed.known(r).label_counts.numpy(), counts), (
            "methods that use label counts get the current ones"
        )
    still = assemble(small(skew=["iid", "concept-swap"]), DATA).federation
    assert still.moving is None
    assert still.targets(9) is still.y
    assert still.known(9) is still.info


@pytest.mark.parametrize("method", ["fedavg", "fedlc", "scaffold"])
def test_engines_agree_while_concepts_move(method: str, tmp_path) -> None:
    both = [
        numbers(
            run(
                small(method, rounds=6, skew=SWAP, engine=engine, training__dtype="float64"),
                data=DATA,
                folder=tmp_path / engine,
            )
        )
        for engine in ("sequential", "stacked")
    ]
    assert [row[:4] for row in both[0]] == [row[:4] for row in both[1]]
    assert np.allclose([row[4] for row in both[0]], [row[4] for row in both[1]], atol=1e-9)


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path) -> None:
    experiment = small(rounds=6, skew=SWAP, evaluation={"adapt_steps": 1})
    whole = numbers(run(experiment, data=DATA, folder=tmp_path / "whole"))
    from fedskew.experiment.results import Runs

    store = RunStore(tmp_path / "parts")
    number = register(store, experiment)
    with pytest.raises(Interrupted):
        execute(store, number, DATA, stop=lambda: store.run(number).rounds_done >= 3)
    execute(store, number, DATA)
    assert numbers(Runs(store, (number,))) == whole


def test_the_model_is_measured_on_the_concept_of_the_round(tmp_path) -> None:
    """Well separated classes; when all clients change labels at round 8 the accuracy falls, and comes back."""
    rng = np.random.default_rng(0)
    y = np.arange(240) % 3
    x = (4 * np.eye(3)[y] + 0.1 * rng.standard_normal((240, 3))).astype(np.float32)
    easy = Dataset(x=x, y=y, x_test=x[:90], y_test=y[:90], classes=("a", "b", "c"))
    made = run(
        small(rounds=20, model="softmax", skew=["iid", "concept-swap:clusters=1,at_round=8"], solver="sgd:lr=0.2"),
        data=easy,
        folder=tmp_path,
    ).measurements()
    test = made[made["split"] == "test"]
    accuracy = test[test["name"] == "accuracy"].set_index("round")["value"]
    assert accuracy[7] > 0.95
    assert accuracy[8] < 0.05
    back = test[test["name"] == "recovery"]
    assert len(back) == 1
    assert back["value"].iloc[0] == back["round"].iloc[0] - 8
    assert accuracy[back["round"].iloc[0]] >= 0.95 * accuracy[:7].mean()


def test_recovery_by_hand() -> None:
    """Mean before 0.8, so 0.76 is enough; a slow change counts from its beginning, once it is complete."""
    accuracy = {0: 0.7, 1: 0.9, 2: 0.1, 3: 0.5, 4: 0.76, 5: 0.9}
    assert recovery(accuracy, 2, 2) == 2
    assert recovery(accuracy, 2, 5) == 3
    assert recovery({0: 0.8, 1: 0.8, 2: 0.8, 3: 0.8}, 2, 2) == 0
    assert recovery({0: 0.8, 1: 0.1}, 1, 1) is None
    assert recovery({0: 0.8, 1: 0.1, 2: 0.7}, 1, 1) is None, "the round of the change is not one before it"
    assert recovery({3: 0.1}, 1, 1) is None
    old = dict.fromkeys(range(20), 0.1) | dict.fromkeys(range(20, 30), 1.0) | {30: 0.5}
    assert recovery(old, 30, 30) is None, "only the ten measurements before count"


def test_pooled_puts_together_what_the_other_skews_made() -> None:
    skews = ["label-dirichlet", "feature-affine", "concept-swap:at_round=3"]
    apart = assemble(small(skew=skews), DATA)
    e = with_method(small(skew=skews), "centralised")
    together = assemble(e, DATA)
    assert len(together.partition) == 1
    assert sorted(together.partition.indices) == sorted(apart.partition.indices)
    assert torch.equal(together.federation.x, apart.federation.x)
    assert torch.equal(together.federation.targets(4), apart.federation.targets(4))
    assert with_method(e, "centralised") == e
    assert with_method(small(), "centralised").labels("skew") == ["pooled"]


# files and commands


def test_one_skew_is_a_table_several_are_a_list_and_both_read_back() -> None:
    one, more = Experiment(skew="label-sorted"), Experiment(skew=SWAP)
    assert "[skew]\n" in one.toml()
    assert "[[skew]]" in more.toml() or "skew = [" in more.toml()
    for e in (one, more, Experiment(skew=[*more.skew])):
        assert from_toml(e.toml()) == e
        assert from_toml(e.toml()).hash() == e.hash()
    assert from_toml("[[skew]]\nname = 'iid'\n[[skew]]\nname = 'feature-noise'").labels("skew") == [
        "iid",
        "feature-noise",
    ]
    assert more != one
    assert Experiment(skew=["label-sorted"]) == one


def call(capsys, *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    told = capsys.readouterr()
    return code, told.out, told.err


def test_a_folder_gives_back_the_very_clients(tmp_path, capsys) -> None:
    folder = tmp_path / "clients"
    words = ["--skew", "label-dirichlet:alpha=0.3", "--skew", "quantity-lognormal", "--held-out", "0.2"]
    extra = ["--skew", "feature-affine", "--skew", "concept-swap:at_round=2"]
    code, out, _ = call(capsys, "skew", *words, *extra, "--export", str(folder), "--json", "--partition-seed", "4")
    assert code == 0
    told = json.loads(out)
    skews = [*words[1::2][:2], *extra[1::2]]
    first = Experiment(skew=skews, clients={"held_out": 0.2, "partition_seed": 4})
    data = first.dataset.load()
    made = client_data(first, data)
    back = Experiment(
        skew=[f"from-folder:path={folder}", *extra[1::2]], clients={"held_out": 0.2, "partition_seed": 4, "number": 3}
    )
    again = client_data(back, data)
    assert np.array_equal(again.partition.indices, made.partition.indices)
    assert np.array_equal(again.partition.held_out[0], made.partition.held_out[0])
    assert again.partition.names == made.partition.names
    assert np.array_equal(again.x, made.x)
    assert np.array_equal(again.labels.at(5), made.labels.at(5))
    assert [one["rows"] for one in told["by_client"]] == made.partition.sizes.tolist()
    with np.load(folder / "rows.npz", allow_pickle=False) as z:
        assert np.array_equal(z["x"], made.x)
        assert np.array_equal(z["y"], made.labels.at(0))
    with np.load(folder / "transforms.npz", allow_pickle=False) as z:
        assert z["0-feature-affine-gain"].shape == (10, 64)
        assert set(z["1-concept-swap-group"]) == {0, 1}
    readme = (folder / "README.md").read_text()
    assert "--partition-seed 4 --skew from-folder:path=" in readme
    assert "--skew feature-affine --skew concept-swap:at_round=2" in readme

    with pytest.raises(BadInput, match="made from other data"):
        client_data(
            back.replace(dataset="digits:test_fraction=0.3"),
            back.replace(dataset="digits:test_fraction=0.3").dataset.load(),
        )
    with pytest.raises(BadInput, match="server_data"):
        client_data(back.replace(server_data__share=0.1), data)
    assert call(capsys, "skew", "--export", str(folder))[0] == 2, "a folder is not written over"
    (folder / "partition.npz").write_bytes(b"something else")
    with pytest.raises(BadInput, match="cannot read"):
        client_data(back, data)


def test_the_command_of_an_exported_folder_runs_whatever_the_names_are(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my data").mkdir()
    rows = [f"{i * i % 17},{'ab'[i % 2]},{i % 3}" for i in range(60)]
    Path("my data/t.csv").write_text("\n".join(["size,the client,2020", *rows]) + "\n")
    words = ["--dataset", 'table:path=my data/t.csv,label="2020",client=the client', "--skew", "natural"]
    code, out, _ = call(capsys, "skew", *words, "--export", "out, 2", "--json")
    assert code == 0
    line = next(line for line in Path("out, 2/README.md").read_text().splitlines() if "fedskew run" in line)
    code, again, _ = call(capsys, "skew", *shlex.split(line)[2:], "--json")
    assert code == 0
    assert json.loads(again)["by_client"] == json.loads(out)["by_client"]


def test_a_damaged_partition_is_refused(tmp_path, capsys) -> None:
    folder = tmp_path / "clients"
    assert call(capsys, "skew", "--skew", "iid", "--export", str(folder))[0] == 0
    experiment = Experiment(skew=f"from-folder:path={folder}")
    data = experiment.dataset.load()
    with np.load(folder / "partition.npz") as z:
        arrays = dict(z)
    for name, change in (
        ("indices", lambda a: np.where(np.arange(len(a)) == 0, a[1], a)),
        ("indices", lambda a: a + 10_000),
        ("indices", lambda a: np.where(a == a.max(), len(data.y), a)),
        ("offsets", lambda a: np.where(np.arange(len(a)) == 1, 0, a)),
        ("offsets", lambda a: a[:-1]),
        ("offsets", lambda a: a[::-1]),
    ):
        np.savez(folder / "partition.npz", **{**arrays, name: change(arrays[name])})
        with pytest.raises(BadInput) as caught:
            client_data(experiment, data)
        assert "export it again" in str(caught.value)
    (folder / "partition.json").unlink()
    with pytest.raises(BadInput, match="holds no partition"):
        client_data(experiment, data)


def test_the_verb_shows_clients_at_80_columns(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = call(
        capsys, "skew", "--clients", "30", "--skew", "label-shards", "--skew", "feature-rotation:side=8"
    )
    assert (code, err) == (0, "")
    assert "and 6 more" in out
    assert "label distance by chance alone" in out
    assert "test set: features as the data set has them" in out
    assert max(len(line) for line in out.splitlines()) <= 80


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--skew", "natural", "--skew", "quantity-lognormal"], "natural clients bring their sizes"),
        (["--skew", "feature-rotation"], "say side=8"),
        (["--skew", "label-classes:k=11"], "k=10 or less"),
        (["--skew", "from-folder:path=nowhere"], "holds no partition"),
        (["--skew", "iid", "--skew", "pooled", "--export", "x"], "leave out shared_data and pooled"),
    ],
)
def test_bad_requests_are_one_line_and_exit_code_two(words, message: str, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = call(capsys, "skew", *words)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
