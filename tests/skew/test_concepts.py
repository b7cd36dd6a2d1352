"""Concept skew: which labels change for which clients and when, in partitions and in whole runs."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from fedskew.api.functions import run
from fedskew.core.errors import BadInput
from fedskew.data.dataset import Dataset
from fedskew.execution.build import assemble
from fedskew.execution.deal import client_data
from fedskew.execution.measurements import recovery_rows
from fedskew.experiment.combinations import with_method
from fedskew.measure.heterogeneity import label_distance, label_distance_by_chance
from fedskew.skew.concept import ConceptFlip, ConceptSwap, Labels, Layer, labels_of
from tests.blobs import DATA, numbers, small

QUICK = settings(max_examples=30)


SWAP = ["label-dirichlet:alpha=0.5", "feature-noise", "concept-swap:clusters=2,at_round=2,course=gradual,rounds=3"]


@pytest.mark.parametrize(("classes", "clusters", "strength"), [(2, 2, 1.0), (5, 5, 1.0), (10, 3, 0.4), (6, 1, 0.5)])
def test_concepts_disagree_on_all_exchanged_classes(classes: int, clusters: int, strength: float) -> None:
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
    """2.A.14: with two equal clusters and a full flip, the best single model has 50 %. One model for each cluster has 100 %."""
    data = client_data(small(skew=["iid", "concept-swap"], clients={"number": 2}), DATA)
    y, test = data.labels.at(0), data.test_labels.at(0)
    owner = np.repeat([0, 1], data.partition.sizes)
    meant = DATA.y[data.partition.indices]
    for c in range(3):
        given = [y[data.partition.indices][(owner == k) & (meant == c)] for k in (0, 1)]
        assert len(set(given[0])) == len(set(given[1])) == 1, "within a client one meaning"
        assert given[0][0] != given[1][0]
    assert 0.3 < (test != DATA.y_test).mean() < 0.7, "the test rows follow the clients' concepts"


def test_clusters_have_equal_sizes() -> None:
    swap = ConceptSwap(clusters=3)
    group = swap.draw(np.zeros((4, 2)), 10, 30, np.random.default_rng(0))["group"]
    assert np.bincount(group).tolist() == [10, 10, 10]


@pytest.mark.parametrize(("clusters", "clients", "dealt"), [(1, 0.3, [7, 3]), (3, 0.4, [6, 2, 2]), (2, 0.01, [9, 1])])
def test_a_share_of_the_clients_changes(clusters: int, clients: float, dealt: list[int]) -> None:
    for seed in range(12):
        group = ConceptSwap(clusters=clusters, clients=clients).assign(10, np.random.default_rng(seed))["group"]
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


def times(skew, rounds: int = 30) -> list[float]:
    return [float(skew.reach(np.asarray([r - skew.at_round]))[0]) for r in range(rounds)]


def test_courses_follow_their_formulas() -> None:
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
def test_no_row_changes_in_the_round_of_the_start(course: str) -> None:
    """The reach in the round of the start is 0, so not even a row with turn 0 changes."""
    labels = layer(ConceptSwap(at_round=4, course=course, rounds=4), [0.0], start=4)
    assert [labels.at(r).tolist() for r in range(3, 7)] == [[0], [0], [1], [1]]


def test_an_incremental_change_moves_one_more_class_a_round() -> None:
    skew = ConceptSwap(clusters=1, at_round=2, course="incremental", rounds=5)
    y = np.arange(500) % 5
    own = skew.draw(np.zeros((500, 2)), 5, 4, np.random.default_rng(0))
    labels = labels_of([skew], [own], np.zeros((500, 2)), y, np.arange(500) % 4, seed=0, part=1)
    for r, moved in zip(range(1, 9), [0, 0, 1, 2, 3, 4, 5, 5], strict=True):
        changed = labels.at(r) != y
        assert {c for c in range(5) if changed[y == c].all()} == {c for c in range(5) if changed[y == c].any()}
        assert len(set(y[changed])) == moved


def test_stagger_delays_each_client_separately() -> None:
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
    ("spec", "words"), [("concept-swap:strength=0.3", "raise it"), ("concept-swap:clusters=4", "clusters=3")]
)
def test_concepts_that_the_classes_do_not_allow_are_refused(spec: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        assemble(small(skew=["iid", spec]), DATA)


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


@pytest.mark.parametrize("method", ["fedlc", "scaffold"])
def test_engines_agree_while_concepts_move(method: str, tmp_path) -> None:
    both = []
    for engine in ("sequential", "stacked"):
        experiment = small(method, rounds=6, skew=SWAP, engine=engine, training__dtype="float64")
        both.append(numbers(run(experiment, data=DATA, runs=tmp_path / engine)))
    assert [row[:4] for row in both[0]] == [row[:4] for row in both[1]]
    assert np.allclose([row[4] for row in both[0]], [row[4] for row in both[1]], atol=1e-9)


def test_the_model_is_measured_on_the_concept_of_the_round(tmp_path) -> None:
    """Classes are well separated. All clients change labels at round 8: the accuracy falls, and then rises again."""
    rng = np.random.default_rng(0)
    y = np.arange(240) % 3
    x = (4 * np.eye(3)[y] + 0.1 * rng.standard_normal((240, 3))).astype(np.float32)
    easy = Dataset(x=x, y=y, x_test=x[:90], y_test=y[:90], classes=("a", "b", "c"))
    experiment = small(
        rounds=20, model="softmax", skew=["iid", "concept-swap:clusters=1,at_round=8"], solver="sgd:lr=0.2"
    )
    runs = run(experiment, data=easy, runs=tmp_path)
    made = runs.measurements()
    test = made[made["split"] == "test"]
    accuracy = test[test["name"] == "accuracy"].set_index("round")["value"]
    assert accuracy[7] > 0.95
    assert accuracy[8] < 0.05
    back = test[test["name"] == "recovery"]
    assert len(back) == 1
    assert back["value"].iloc[0] == back["round"].iloc[0] - 8
    assert accuracy[back["round"].iloc[0]] >= 0.95 * accuracy[:7].mean()
    # a killed run plays stored rounds again: its recovery was lost, or stood in a later round
    again = [
        [at, row[3]]
        for at, value in accuracy.items()
        for row in recovery_rows(runs.store, 1, experiment, at, [(None, "test", "accuracy", value)])
    ]
    assert again == back[["round", "value"]].to_numpy().tolist()


def test_pooled_keeps_the_changes_of_other_skews() -> None:
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


def test_shuffled_deals_the_same_rows_to_clients_of_the_same_sizes() -> None:
    skews = ["label-sorted", "feature-affine", "concept-swap"]
    apart, mixed = (assemble(small(skew=[*skews, *more], held_out=0.25), DATA) for more in ((), ("shuffled",)))
    again = assemble(small(skew=[*skews, "shuffled"], held_out=0.25), DATA)
    before, after = apart.partition, mixed.partition
    assert np.array_equal(before.offsets, after.offsets)
    assert np.array_equal(before.held_out[1], after.held_out[1])
    for dealt, anew in ((before.indices, after.indices), (before.held_out[0], after.held_out[0])):
        assert sorted(dealt) == sorted(anew)
        assert not np.array_equal(dealt, anew)
    assert np.array_equal(after.indices, again.partition.indices)
    assert after.names == tuple(map(str, range(len(after))))
    assert torch.equal(mixed.federation.x, apart.federation.x)
    assert torch.equal(mixed.federation.targets(0), apart.federation.targets(0))
    facts = [part.data.label_counts() for part in (apart, mixed)]
    distances = [label_distance(counts) for counts in facts]
    assert distances[0] > 0.5
    assert distances[1] < 2 * label_distance_by_chance(facts[1])


def test_shuffled_and_pooled_together_pool() -> None:
    both = client_data(small(skew=["label-sorted", "shuffled", "pooled"]), DATA).partition
    alone = client_data(small(skew=["label-sorted", "pooled"]), DATA).partition
    assert len(both) == 1
    assert np.array_equal(both.indices, alone.indices)
