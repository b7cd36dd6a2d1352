"""Advice from the evidence: expected gains, the nearest cases, and whether such advice was any good."""

from fedskew.advice.advise import NEAREST, advise, caution, change, distance
from fedskew.measure.heterogeneity.diagnose import MEANINGS
from tests.advice.planted import case, planted

EFFECTS = {
    "scaffold": lambda label, concept: 0.2 * label - 0.1 * concept,
    "ifca": lambda label, concept: 0.3 * concept - 0.05,
    "krum": lambda label, concept: -0.05,
}


def test_the_method_with_the_largest_expected_gain_comes_first() -> None:
    cases = planted(EFFECTS, 8)
    label = advise(cases, "label", {"label": 0.9}, "--dataset digits")
    assert label["methods"][0]["method"] == "scaffold"
    assert "krum" not in [line["method"] for line in label["methods"]]
    assert label["because"].startswith(
        "Your clients differ mostly by label (strength 0.90). Compare FedAvg with SCAFFOLD"
    )
    assert label["command"].startswith("fedskew compare --dataset digits --tuned --algorithms fedavg scaffold")
    concept = advise(cases, "concept", {"label": 0.1, "concept": 0.9})
    assert concept["methods"][0]["method"] == "ifca"
    first = concept["methods"][0]
    assert first["low"] <= first["expected"] <= first["high"]


def test_the_nearest_cases_are_shown_by_all_faces() -> None:
    strengths = {"label": 0.85}
    [line] = advise(planted({"scaffold": lambda label, _: 0.2 * label}, 8), "label", strengths)["methods"]
    assert [near["skew"] for near in line["evidence"]] == ["s2"] * NEAREST
    assert all(abs(near["distance"] - 0.05) < 1e-9 for near in line["evidence"])
    assert distance(case({"label": 0.3, "concept": 0.4}), {}) == 0.5


def test_advice_that_beat_fedavg_elsewhere_says_so() -> None:
    said = advise(planted(EFFECTS, 8), "label", {"label": 0.9})["checked"]
    assert said[0].startswith(
        "Checked on 8 data sets that it never saw, such advice beat FedAvg, tuned, with one model for all clients, on "
        "the test set: "
        "it removed "
    )
    assert said[1].startswith("This advice was not checked with a model for each client")


def test_advice_that_did_not_beat_fedavg_says_exactly_that() -> None:
    said = advise(planted(dict.fromkeys("abcd", lambda label, _: 0.0), 8, noise=0.05), "label", {"label": 0.9})[
        "checked"
    ]
    assert "such advice did not beat FedAvg, tuned" in said[0]


def test_without_an_expected_gain_fedavg_is_advised() -> None:
    advised = advise(planted({"krum": lambda label, _: -0.1}, 4), "label", {"label": 0.5})
    assert advised["methods"] == []
    assert "Train with FedAvg, and tune its learning rate: no method is expected to do better." in advised["because"]
    assert advised["command"].endswith("--tuned --algorithms fedavg")


def test_data_that_do_not_differ_need_no_method() -> None:
    alone = advise(planted(EFFECTS), "", dict.fromkeys(MEANINGS, 0.0))
    assert "Train with FedAvg, and tune its learning rate." in alone["because"]
    assert alone["command"].endswith("--tuned --algorithms fedavg")


def test_evidence_on_classes_gives_no_advice_for_numbers() -> None:
    advised = advise(planted(EFFECTS), "label", {"label": 0.5}, target="number")
    assert advised["methods"] == []
    assert advised["caution"] == "We cannot say which method is best here: all our experiments have classes."
    assert advised["command"].endswith("--algorithms fedavg scaffold fedprox:mu=0.1")
    assert "there are no experiments" in advise([], "label", {"label": 0.5})["caution"]


def test_the_command_has_the_options_that_methods_need() -> None:
    effects = {name: (lambda label, _: 0.2) for name in ("fedbn", "feddf:steps=20", "fedga")}
    command = advise(planted(effects), "label", {"label": 0.5})["command"]
    assert "--model mlp:norm=group" in command
    assert command.count("--server-data 0.05") == 1


def test_the_caution_counts_cases_and_seeds() -> None:
    cases = [case({}, ("a", 0.1), data="uci-har:form=features"), case({}, ("a", 0.1), data="heart")]
    said = caution(cases, "uci-har")
    assert said.startswith("This rests on 2 experiments (heart and uci-har; 5 seeds each)")
    assert "1 experiment used uci-har itself." in said
    assert "itself" not in caution(cases, "adult")


def test_an_error_that_falls_is_shown_as_a_fall() -> None:
    high, low = (case({}, ("a", 0.1), better=better) for better in ("higher", "lower"))
    assert change(high, high.methods[0]) == "+10.0 ± 1.0 points"
    assert change(low, low.methods[0]) == "rmse -0.1 ± 0.01"
