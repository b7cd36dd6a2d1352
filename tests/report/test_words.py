"""Numbers and answers in words: they claim no more than the intervals allow."""

import math
import re
from pathlib import Path

import pytest

from fedskew.measure import registry
from fedskew.report import words
from fedskew.report.answer import answer
from fedskew.report.series import Results
from fedskew.store.runs import RunStore
from tests.report import add, compared, report

SEEDS = (0, 1, 2)


@pytest.mark.parametrize(
    ("methods", "expected"),
    [
        ({"a": (0.5, 0.6, 0.7), "b": (0.6, 0.7, 0.81)}, "b has a higher test accuracy than a: 70.3\xa0% against 60.0"),
        (
            {"a": (0.5, 0.6, 0.7), "b": (0.9, 0.5, 0.8)},
            "Undecided: b does not differ reliably from a. b has the highest",
        ),
        ({"a": (0.5, 0.6, 0.7), "b": (0.4, 0.5, 0.59)}, "No method has a reliably higher test accuracy than a, 60.0"),
        ({"a": (0.5, 0.6, 0.7), "b": (0.4, 0.5, 0.9), "c": (0.3, 0.4, 0.49)}, "Lower: c; undecided: b."),
        ({"a": (0.5, 0.6, 0.7), "b": (0.1, 0.9, 0.9), "c": (0.3, 0.4, 0.49)}, "undecided: b, highest mean."),
        (
            {"a": (0.5, 0.6, 0.7), "b": (0.6, 0.7, 0.81), "c": (0.1, 0.9, 0.5), "d": (0.55, 0.65, 0.755)},
            "Also higher: d; undecided: c.",
        ),
        ({"a": (0.5, 0.6, 0.7), "b": (0.4, 0.59, 0.75)}, "Undecided: b does not differ reliably from a. a has the"),
        ({"a": (0.5,), "b": (0.6,)}, "Undecided: with one seed nothing can be said about certainty. b has the highest"),
        ({"a": (0.5,), "b": (0.4,)}, "with one seed nothing can be said about certainty"),
        ({"a": (0.5,)}, "With one seed nothing can be said about certainty"),
        ({"a": (0.5, 0.6), "b": (0.51, 0.61)}, "is +1.00 points over each of 2 paired seeds"),
        ({"a": (0.5, 0.6), "b": (0.49, 0.59)}, "Undecided: b does not differ reliably from a."),
        ({"a": (0.5, 0.5, 0.56)}, "52.0 ± 8.6\xa0% after round 1"),
    ],
)
def test_answer_claims_no_more_than_the_intervals_allow(
    tmp_path: Path, methods: dict[str, tuple[float, ...]], expected: str
) -> None:
    store = compared(tmp_path, {name: dict(zip(SEEDS, values, strict=False)) for name, values in methods.items()})
    said = answer(Results(store, store.runs()))
    assert expected in said
    decided = re.search("has a higher|Also higher|[Ll]ower: ", said)
    assert bool(decided) != ("Undecided:" in said.split(".")[0] or len(methods) == 1)


def test_differences_that_do_not_vary_have_no_interval_and_need_six_seeds(tmp_path: Path) -> None:
    for seeds, verdict in ((5, "undecided"), (6, "higher")):
        a = {seed: 0.5 + seed / 30 for seed in range(seeds)}
        store = compared(tmp_path / str(seeds), {"a": a, "b": {seed: value + 1 / 90 for seed, value in a.items()}})
        results = Results(store, store.runs())
        table = results.summary
        row = table.iloc[1]
        assert (row["p"], row["verdict"]) == (2.0 ** (1 - seeds), verdict)
        assert math.isnan(row["difference_half"])
        assert math.isnan(row["effect"])
        assert ("Undecided" in answer(results)) == (verdict == "undecided")
        assert "points over each of" in answer(results)


def test_answer_without_finished_runs_or_without_pairs(tmp_path: Path) -> None:
    store = compared(tmp_path, {"a": {0: 0.5, 1: 0.6}, "b": {2: 0.9, 3: 0.9}})
    assert "no seed was finished by both" in answer(Results(store, store.runs()))
    store = RunStore(tmp_path / "none")
    add(store, "a", 0, [0.1], status="failed", rounds=3)
    assert answer(Results(store, store.runs())) == "No run has finished, so there is no answer yet."


def test_numbers_as_people_read_them() -> None:
    assert [words.figures(v) for v in (0.0, 2.5, 0.0123, 12345.0, 1e-9, math.nan)] == [
        "0.00", "2.50", "0.0123", "12\u202f345", "1.00e−09", "–",
    ]  # fmt: skip
    assert words.figures(0.0031, like=0.92) == "0.003"
    assert words.figures(-0.0001, like=0.35) == "0.000"  # without a sign
    assert words.points(-0.0123) == "−1.23"
    assert words.half("0.0", 1e-5) == "<0.1"
    assert (words.half("0.0", 0.0), words.half("0.2", 0.002)) == ("0.0", "0.2")
    assert words.ranges([3, 0, 1, 7, 1]) == "0–1, 3, 7"


def test_intervals_as_people_read_them() -> None:
    assert words.interval(0.925, 0.012) == "92.5 ± 1.2"
    assert words.interval(-0.0126, 0.005, words.signed, low=-1.0) == "−1.3 ± 0.5"
    assert words.interval(0.925, 1e-5) == "92.5 ± <0.1"
    assert words.interval(0.99, 0.02) == "99.0 (97 to 100)"
    assert words.interval(1.0, 0.0) == "100.0 ± 0.0"
    assert words.interval(0.5, math.nan) == "50.0"
    assert words.interval(math.nan, math.nan) == "–"
    assert words.interval(-0.2, 0.1, words.signed, low=-1.0) == "−20.0 ± 10.0"


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        (
            {"a": (0.5, 0.6, 0.7), "b": (0.4, 0.5, 0.59)},
            "b has a lower test loss than a: 0.497 against 0.600, −0.103 ± 0.0",
        ),
        (
            {"a": (0.5, 0.6, 0.7), "b": (0.6, 0.7, 0.81)},
            "No method has a reliably lower test loss than a, 0.600. Higher: b.",
        ),
        (
            {"a": (0.5, 0.6, 0.7), "b": (0.4, 0.59, 0.75)},
            "b has the lowest mean test loss, 0.580; its difference from a",
        ),
    ],
)
def test_answer_reads_a_primary_measure_that_is_better_when_lower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, losses: dict[str, tuple[float, ...]], expected: str
) -> None:
    """In these stores the loss is 1 - accuracy."""
    monkeypatch.setattr(registry, "PRIMARY", "loss")
    methods = {name: {seed: 1 - loss for seed, loss in enumerate(values)} for name, values in losses.items()}
    store = compared(tmp_path, methods)
    said = answer(Results(store, store.runs()))
    assert expected in said.replace("\u00a0", " ")
    assert "points" not in said
    text = report(store, tmp_path)
    assert '<th scope="col" class="against">vs a<small>difference, paired</small></th>' in text
    assert ('class="verdict better"' in text) == said.startswith("b has")
