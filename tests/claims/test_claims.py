"""Claims: planted ones get the right verdict; statistics and quantities by hand."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedskew.claims.document import Claim, Region, evidence_for, judge, kendall
from fedskew.claims.quantities import curve, quantity, read_run
from fedskew.claims.verdicts import corrected
from fedskew.core.errors import BadInput
from fedskew.measure.statistics import decided, paired_p
from fedskew.store.runs import RunStore


def claim(**changes) -> Claim:
    given = {
        "name": "c", "text": "a is better", "where": "Table 1", "table": "t", "kind": "difference", "of": "accuracy",
        "arms": ("a", "b"), "expect": "> 0",
    }  # fmt: skip
    return Claim(**{**given, **changes})


def verdict(one: Claim, values: Sequence[float]) -> str:
    """The verdict on a document's only claim."""
    evidence = evidence_for(one, values)
    return judge(evidence, evidence.p)


def store_of(folder: Path, curves: dict[str, list[list[float]]]) -> dict[str, list]:
    """Runs with these accuracies over the rounds, one list a seed; loss is 1 - accuracy."""
    store = RunStore(folder)
    runs = {}
    for name, seeds in curves.items():
        for seed, accuracies in enumerate(seeds):
            run = store.add_run(
                name=name, experiment="", experiment_hash=name, seed=seed, partition_seed=seed, rounds=len(accuracies)
            )
            store.write_round(run, 0, [(None, "test", "accuracy", 0.1), (None, "test", "loss", 0.9)])
            for round_, value in enumerate(accuracies, 1):
                rows = [
                    (None, "test", "accuracy", value),
                    (None, "test", "loss", 1 - value),
                    (0, "local-model", "loss", 0),
                ]
                rows += [(1, "local-model", "loss", 2.0), (None, "round", "drift", value * 10)]
                store.write_round(run, round_, rows)
            store.update(run, status="finished")
            runs.setdefault(name, []).append(read_run(store, store.run(run)))
    return runs


@pytest.mark.parametrize(
    ("values", "expect", "found"),
    [
        ([0.0, 0.0, 0.0], "> 0", "undecided"),
        ([0.01, 0.01], "> 0", "undecided"),
        ([0.01] * 5, "> 0", "undecided"),
        ([0.01] * 6, "> 0", "holds"),
        ([0.01] * 6, "< 0", "fails"),
        ([0.1 + 0.2] * 6, "0.3..1", "undecided"),
        ([0.5], "> 0", "undecided"),
        ([], "> 0", "not run"),
        ([0.5, math.nan], "> 0", "undecided"),
        ([0.4, 0.6], "> 0", "undecided"),
        ([-0.001, 0.001, 0.0], "-0.01..0.01", "holds"),
        ([2.0, 2.1, 1.9], "< 1.5", "fails"),
        ([1e-4] * 6, "< 1e-3", "holds"),
    ],
)
def test_verdicts(values: list[float], expect: str, found: str) -> None:
    assert verdict(claim(expect=expect), values) == found


@pytest.mark.parametrize(
    "values", [[0.0] * 3, [0.01] * 2, [0.01] * 5, [0.01] * 6, [0.1, 0.2, 0.3], [0.2, 0.2, 0.3], [0.5]]
)
def test_claims_and_comparisons_decide_by_one_rule(values: list[float]) -> None:
    comparison = decided(paired_p(values), sum(values))
    assert verdict(claim(expect="> 0"), values) == ("holds" if comparison == "higher" else "undecided")
    assert verdict(claim(expect="< 0"), values) == ("fails" if comparison == "higher" else "undecided")


@pytest.mark.parametrize(
    ("values", "expect", "found"),
    [
        ([2.0, 2.0], "> 1.9", "holds"),
        ([2.0, 2.0], "> 2", "fails"),
        ([2.0], "> 1.9", "undecided"),
        ([2.0, 2.1], "> 1.9", "undecided"),
    ],
)
def test_counted_quantities_decide_without_chance(values: list[float], expect: str, found: str) -> None:
    assert verdict(claim(expect=expect, of="megabytes"), values) == found


def test_eleven_seeds_that_agree_decide_one_of_fifty_claims() -> None:
    values = [0.001] * 10 + [5.0]
    assert evidence_for(claim(expect="> 0"), values).p * 50 < 0.05
    assert verdict(claim(expect="> 0"), values) == "holds"
    assert verdict(claim(expect="> 0"), values[1:]) == "undecided"


def test_p_is_corrected_for_all_claims_that_chance_could_decide() -> None:
    assert corrected([0.01, 0.0, 0.04, math.nan, 0.02]) == pytest.approx([0.03, 0.0, 0.04, math.nan, 0.04], nan_ok=True)


def test_inside_the_largest_p_counts_and_outside_the_p_of_the_crossed_end() -> None:
    values = [0.4, 0.5, 0.7]
    above, below = paired_p([0.2, 0.3, 0.5]), paired_p([-0.4, -0.3, -0.1])
    assert evidence_for(claim(expect="0.2..0.8"), values).p == pytest.approx(max(above, below))
    outside = evidence_for(claim(expect="0.8..0.9"), values)
    assert (outside.inside, outside.p) == (False, pytest.approx(below))


@pytest.mark.parametrize("text", ["", "0", ">= 1", "2..1", "1..1", "a..b", "> x"])
def test_wrong_regions_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match="cannot read"):
        Region.read(text)


@pytest.mark.parametrize(
    ("kind", "numbers", "statistic"),
    [
        ("value", [0.5], 0.5),
        ("difference", [0.5, 0.2], 0.3),
        ("ratio", [0.5, 0.2], 2.5),
        ("interaction", [0.9, 0.5, 0.4, 0.3], 0.3),
        ("ratio of ratios", [0.8, 0.2, 0.4, 0.2], 2.0),
        ("trend", [0.1, 0.2, 0.3], 1.0),
        ("trend", [0.1, 0.3, 0.2], 1 / 3),
        ("spread", [0.1, 0.7, 0.2], 0.6),
        ("lead", [0.7, 0.1, 0.6], 0.1),
        ("lag", [0.7, 0.1, 0.6], 0.6),
    ],
)
def test_statistics_by_hand(tmp_path, kind: str, numbers: list[float], statistic: float) -> None:
    arms = tuple("abcd"[: len(numbers)])
    runs = store_of(tmp_path, {arm: [[value]] for arm, value in zip(arms, numbers, strict=True)})
    one = claim(kind=kind, arms=arms)
    assert one.statistic([runs[arm][0] for arm in arms]) == pytest.approx(statistic)
    assert one.printed({arm: {"accuracy": v} for arm, v in zip(arms, numbers, strict=True)}) == pytest.approx(statistic)
    assert one.printed({}) is None


def test_statistics_over_rounds_and_correlation(tmp_path) -> None:
    runs = store_of(tmp_path, {"a": [[0.2, 0.5, 0.6, 0.9]], "b": [[0.3, 0.4, 0.5, 0.6]], "c": [[0.1, 0.2, 0.3, 0.7]]})
    a, b, c = (runs[name][0] for name in "abc")
    assert claim(kind="share of rounds").statistic([a, b]) == 0.75
    assert claim(kind="largest gap").statistic([a, b]) == pytest.approx(0.3)
    assert claim(kind="correlation", arms=("a", "b", "c"), against="drift", expect="> 0").statistic([a, b, c]) == 0.5
    assert kendall([1, 1, 2]) == pytest.approx(2 / 3)


def test_quantities_by_hand(tmp_path) -> None:
    run = store_of(tmp_path, {"a": [[0.2, 0.6, 0.5, 0.9, 0.7, 0.8]]})["a"][0]
    expected = {
        "accuracy": 0.8, "best-accuracy": 0.9, "mean-accuracy": 3.7 / 6, "loss": 0.2, "lowest-loss": 0.1,
        "round-of-lowest-loss": 4, "overfitting": 1.0, "fluctuation": np.std([0.9, 0.7, 0.8]), "rounds-to:0.55": 2,
        "rounds-to:0.95": 7, "drift": 37 / 6, "first-drift": 2.0, "last-drift": 8.0, "client-loss-spread": 1.0,
        "late-local-loss": 1.0, "early-local-loss": 1.0,
    }  # fmt: skip
    assert {name: quantity(name, run) for name in expected} == pytest.approx(expected)
    # second differences of the loss: .4 .1 -.4 -> -.4 -> .1: |.5| + |-.5| + |.6| + |-.3| over the range .7
    assert quantity("test-loss-roughness", run) == pytest.approx((0.5 + 0.5 + 0.6 + 0.3) / 0.7)
    with pytest.raises(BadInput, match="did you mean 'accuracy'"):
        quantity("acuracy", run)


def test_rounds_have_the_numbers_of_the_run_if_some_are_not_measured(tmp_path) -> None:
    run = store_of(tmp_path, {"a": [[0.2, 0.6, 0.5, 0.9, 0.7, 0.8]]})["a"][0]
    even = {key: (rounds % 2 == 0, rounds, values) for key, (rounds, values) in run.series.items()}
    series = {key: (rounds[of], values[of]) for key, (of, rounds, values) in even.items()}  # 0.6, 0.9 and 0.8
    every_second = replace(run, series=series)
    assert quantity("rounds-to:0.85", every_second) == 4
    assert quantity("rounds-to:0.95", every_second) == 7
    assert quantity("round-of-lowest-loss", every_second) == 4


def test_layers_are_read_by_their_numbers(tmp_path) -> None:
    store = RunStore(tmp_path)
    number = store.add_run(name="a", experiment="", experiment_hash="", seed=0, partition_seed=0, rounds=2)
    for round_ in (1, 2):
        rows = [(layer, "layer", "cosine", 0.1 * layer + round_) for layer in range(3)]
        store.write_round(number, round_, [*rows, (7, "local-model", "loss", 5.0), (None, "round", "cosine", 0.5)])
    run = read_run(store, store.run(number))
    assert [part.tolist() for part in curve("first-layer-cosine", run)] == [[1, 2], [1.0, 2.0]]
    assert curve("last-layer-cosine", run)[1].tolist() == [1.2, 2.2]
    assert quantity("last-layer-cosine", run) == pytest.approx(1.7)
    assert quantity("cosine", run) == 0.5
    assert quantity("late-local-loss", run) == 5.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "difrence"}, "did you mean 'difference'"),
        ({"arms": ("a",)}, "needs at least 2 arms"),
        ({"kind": "trend"}, "needs at least 3 arms"),
        ({"against": "drift"}, "belongs to correlation"),
    ],
)
def test_wrong_claims_are_refused(change: dict, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        claim(**change)
