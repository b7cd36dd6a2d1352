"""Advice from the packaged evidence: what helped near by, why nothing is advised, and how thin the evidence is."""

import json

from fedskew.advice import advise as advice
from fedskew.advice.evidence import read
from fedskew.experiment.combinations import with_method
from fedskew.experiment.config import Experiment
from fedskew.measure.heterogeneity.diagnose import MEANINGS


def case(strength, *methods, measure="test", data="digits", model="mlp", **others):
    lines = [
        {"method": m, "measure": measure, "gain": g, "half": 0.01, "verdict": v, "seeds": 5, "lr": 0.1}
        for m, g, v in methods
    ]
    face = {"dominant": "label", "strengths": {"label": strength, **others}}
    return {"data": data, "skew": "s", "model": model, "methods": lines, **face}


def test_advice_names_methods_that_helped_in_near_cases_and_hurt_in_none(monkeypatch):
    cases = [
        case(
            0.5,
            ("good", 0.02, "higher"),
            ("better", 0.05, "higher"),
            ("mixed", 0.09, "higher"),
            ("vain", 0.01, "undecided"),
        ),
        case(0.6, ("good", 0.03, "undecided"), ("mixed", -0.05, "lower")),
        case(0.95, ("far", 0.2, "higher")),
    ]
    monkeypatch.setattr(advice, "evidence", lambda: {"cases": cases})
    advised = advice.advise("label", {"label": 0.55, "quantity": 0.4})
    assert [line["method"] for line in advised["methods"]] == ["better", "good"]
    assert advised["command"] == "fedskew compare --held-out 0.2 --tuned --algorithms fedavg better good"
    assert advised["because"].startswith(
        "Your clients differ mostly by label (strength 0.55). Compare FedAvg with better and good. In 2 experiments with such "
        "differences, we tried no method with a model for each client"
    )
    assert advised["caution"] == (
        "This rests on 2 experiments (digits; 5 seeds each), so compare before you choose. Your clients also differ by quantity, "
        "theirs hardly did. Leave out --tuned for a quick look."
    )


def test_advice_separates_global_and_personal_models(monkeypatch):
    cases = [
        case(0.5, ("global", 0.02, "higher"), ("both", -0.05, "lower"), model="mlp:norm=group"),
        case(0.5, ("local", 0.5, "higher"), ("both", 0.1, "higher"), measure="own", model="mlp:norm=group"),
    ]
    monkeypatch.setattr(advice, "evidence", lambda: {"cases": cases})
    advised = advice.advise("label", {"label": 0.55}, "--dataset digits")
    assert [(line["method"], line["measure"]) for line in advised["methods"]] == [
        ("global", "test"),
        ("local", "own"),
        ("both", "own"),
    ]
    assert "none of" not in advised["because"]
    assert advised["command"] == (
        "fedskew compare --dataset digits --held-out 0.2 --tuned --model mlp:norm=group --algorithms fedavg global local both"
    )
    monkeypatch.setattr(advice, "evidence", lambda: {"cases": [cases[1], case(0.5, ("vain", 0.01, "undecided"))]})
    advised = advice.advise("label", {"label": 0.55})
    assert {line["measure"] for line in advised["methods"]} == {"own"}
    assert (
        "In 2 experiments with such differences, the only method was not better than FedAvg with one model for all clients"
        in advised["because"]
    )


def test_methods_against_an_absent_face_are_not_advised(monkeypatch):
    cases = [
        case(0.5, ("against-swaps", 0.3, "higher"), concept=0.06, quantity=0.04),
        case(0.5, ("good", 0.02, "higher")),
    ]
    monkeypatch.setattr(advice, "evidence", lambda: {"cases": cases})
    pure, mixed = (advice.advise("label", {"label": 0.55, "concept": concept}) for concept in (0.0, 0.02))
    assert [line["method"] for line in pure["methods"]] == ["good"]
    assert [line["method"] for line in mixed["methods"]] == ["against-swaps", "good"]


def test_without_evidence_advice_says_so(monkeypatch):
    monkeypatch.setattr(advice, "evidence", lambda: {"cases": [case(0.9, ("far", 0.2, "higher"))]})
    for face, strength in (("label", 0.2), ("concept", 0.9)):
        advised = advice.advise(face, {face: strength})
        assert advised["methods"] == []
        assert advised["caution"].startswith("We cannot say which method is best here: ")
        assert "Compare FedAvg with two widely used methods." in advised["because"]
        assert advised["command"].endswith("--algorithms fedavg scaffold fedprox:mu=0.1")
    assert "our experiments have other strengths (0.90)" in advice.advise("label", {"label": 0.2})["caution"]
    assert "we have no experiment with this difference" in advised["caution"]
    alone = advice.advise("", dict.fromkeys(MEANINGS, 0.0))
    assert "Train with FedAvg, and tune its learning rate." in alone["because"]
    assert alone["command"].endswith("--tuned --algorithms fedavg")


def test_where_no_method_helped_the_command_has_none_of_them(monkeypatch):
    tried = [case(0.5, ("vain", 0.01, "undecided")), case(0.5, ("vain", 0.01, "undecided"), measure="own")]
    monkeypatch.setattr(advice, "evidence", lambda: {"cases": tried})
    advised = advice.advise("label", {"label": 0.5})
    assert "Train with FedAvg, and tune its learning rate." in advised["because"]
    assert advised["command"].endswith("--tuned --algorithms fedavg")


def test_evidence_on_classes_says_nothing_about_numbers(monkeypatch):
    monkeypatch.setattr(advice, "evidence", lambda: {"cases": [case(0.5, ("good", 0.02, "higher"))]})
    advised = advice.advise("label", {"label": 0.5}, target="number")
    assert advised["methods"] == []
    assert advised["caution"] == "We cannot say which method is best here: all our experiments have classes."


def test_near_runs_that_show_another_face_are_named_as_the_reason(monkeypatch):
    cases = [
        case(0.4, ("far", 0.2, "higher")),
        case(0.65, ("a", 0.2, "higher"), quantity=0.3),
        case(0.78, ("b", 0.2, "higher"), quantity=0.3, concept=0.1),
    ]
    monkeypatch.setattr(advice, "evidence", lambda: {"cases": cases})
    advised = advice.advise("label", {"label": 0.74})["caution"]
    assert advised == (
        "We cannot say which method is best here: in our experiments of about this strength (0.65 and 0.78) clients also differ by "
        "quantity and concept, and yours do not."
    )
    assert "(0.40, 0.65 and 0.78)" in advice.advise("label", {"label": 0.1})["caution"]


def test_untried_methods_are_not_called_failed(monkeypatch):
    monkeypatch.setattr(advice, "evidence", lambda: {"cases": [case(0.5, ("good", 0.02, "higher"))]})
    advised = advice.advise("label", {"label": 0.5})["because"]
    assert "we tried no method with a model for each client" in advised


def test_only_gains_are_listed_as_better_than_fedavg(monkeypatch):
    cases = [case(0.5, ("mixed", 0.05, "higher")), case(0.6, ("mixed", -0.019, "undecided"))]
    monkeypatch.setattr(advice, "evidence", lambda: {"cases": cases})
    [line] = advice.advise("label", {"label": 0.55})["methods"]
    assert [gain["gain"] for gain in line["evidence"]] == [0.05]
    assert line["undecided"] == 1


def test_evidence_on_the_same_data_set_is_said(monkeypatch):
    cases = [case(0.5, ("good", 0.02, "higher"), data="uci-har:form=features")]
    monkeypatch.setattr(advice, "evidence", lambda: {"cases": cases})
    same, other = (advice.advise("label", {"label": 0.5}, name=name)["caution"] for name in ("uci-har", "heart"))
    assert "1 experiment used uci-har itself" in same
    assert "itself" not in other


def test_packaged_evidence_is_complete():
    assert {found["dominant"] for found in advice.evidence()["cases"]} == set(MEANINGS)
    for found in advice.evidence()["cases"]:
        assert set(found["strengths"]) == set(MEANINGS)
        assert found["dominant"] in (*MEANINGS, "")
        assert set(found["fedavg"]) == set(advice.MEASURES)
        for line in found["methods"]:
            assert line["verdict"] in ("higher", "lower", "undecided")
            assert line["verdict"] == "undecided" or abs(line["gain"]) > line["half"]
            assert line["measure"] in advice.MEASURES
            Experiment(model=found["model"])
            with_method(Experiment(), line["method"])


def test_verdicts_of_the_evidence_are_corrected_for_all_its_gains():
    def table(lines: int) -> bytes:
        line = {"method": "m", "lr": 0.1, "measure": "own", "gain": 0.05, "half": 0.03, "seeds": 5, "verdict": "lower"}
        found = case(0.5, feature=0.0, quantity=0.0, concept=0.0) | {"fedavg": {"own": 0.9}}
        idle = line | {"gain": 0.0, "half": 0.1}
        return json.dumps({"made_by": "a test", "cases": [found | {"methods": [line, *[idle] * (lines - 1)]}]}).encode()

    # p is 0.0099 alone
    verdicts = [read(table(lines), "x")["cases"][0]["methods"][0]["verdict"] for lines in (1, 5, 6)]
    assert verdicts == ["higher", "higher", "undecided"]
