"""Advice from the evidence: expected gains, the nearest cases, and whether such advice was any good."""

from fedskew.advice.advise import NEAREST, advise, caution, check, command, distance, gains_of
from fedskew.advice.evidence import Case, change
from fedskew.measure.heterogeneity.faces import FACES
from tests.advice.planted import case, planted

EFFECTS = {
    "scaffold": lambda label, concept: 0.2 * label - 0.1 * concept,
    "ifca": lambda label, concept: 0.3 * concept - 0.05,
    "krum": lambda label, concept: -0.05,
}


def test_the_overall_winner_comes_first_with_its_mean_gain() -> None:
    """Over the planted cases SCAFFOLD gains 0.2 x 0.34 - 0.1 x 0.28 of accuracy, twice this share of FedAvg's error of 0.5."""
    advice = advise(planted(EFFECTS, 8), "label", {"label": 0.9}, "--dataset digits")
    [first] = advice["methods"]
    assert (first["method"], first["measure"], first["data_sets"], first["methods"]) == ("scaffold", "test", 8, 3)
    assert abs(first["gain"] - 2 * (0.2 * 0.34 - 0.1 * 0.28)) < 1e-12
    assert first["half"] < 1e-12
    assert advice["because"].startswith(
        "Your clients differ mostly by label (strength 0.90). Compare FedAvg with SCAFFOLD"
    )
    assert advice["command"].startswith("fedskew compare --dataset digits --tuned --algorithms fedavg scaffold")


def test_a_method_that_is_higher_in_a_near_case_is_advised_too() -> None:
    cases = [case({"concept": 0.9}, ("ifca", 0.3), ("krum", -0.1), p=0.001), *planted({"krum": lambda *_: 0.1}, 4)]
    assert "--algorithms fedavg krum ifca" in advise(cases, "concept", {"concept": 0.9})["command"]


def test_the_nearest_cases_are_shown_by_all_faces() -> None:
    strengths = {"label": 0.85}
    nearest = advise(planted({"scaffold": lambda label, _: 0.2 * label}, 8), "label", strengths)["nearest"]
    assert [near["skew"] for near in nearest] == ["s2"] * NEAREST
    assert all(abs(near["distance"] - 0.05) < 1e-9 for near in nearest)
    assert distance(case({"label": 0.3, "concept": 0.4}), {}) == 0.5


def test_a_winner_that_beat_fedavg_elsewhere_says_so() -> None:
    said = advise(planted(EFFECTS, 8, noise=0.001), "label", {"label": 0.9})["checked"]
    assert said[0].startswith("The winner of the other data sets beat FedAvg, tuned, on 8 data sets with one model")
    assert said[1].startswith("The winner was not checked with a model for each client")


def test_the_winner_of_chance_does_not_beat_fedavg() -> None:
    effects = dict.fromkeys("abcdefgh", lambda label, concept: 0.0)
    result = check(planted(effects, 8, noise=0.05), "test")
    assert result is not None
    assert not result.beats_fedavg
    assert result.best > abs(result.gain)


def test_a_data_set_has_no_part_in_the_choice_of_its_winner() -> None:
    """The winner on set0 gains nothing on the others, so each data set gets the method that wins elsewhere."""
    cases = [case({}, ("a", 0.4 if at == 0 else 0.0), ("b", 0.05), data=f"set{at}") for at in range(4)]
    result = check(cases, "test")
    assert result is not None
    # without set0, b wins with 0.05 of accuracy; without another set, a wins with a mean of 0.4 / 3, and gains nothing there
    assert abs(result.gain - 2 * 0.05 / 4) < 1e-12
    assert check(cases[:2], "test") is None


def test_only_federated_methods_that_were_measured_often_win() -> None:
    cases = [case({}, ("often", 0.1), ("centralised", 0.2), ("data-sharing", 0.1), skew=str(at)) for at in range(3)]
    cases[0] = case({}, ("often", 0.1), ("once", 0.3), skew="0")
    assert list(gains_of(cases, "test")) == ["often"]


def own(at: int, *lines: tuple[str, float]) -> Case:
    return case({}, *lines, data=f"set{at}", measure="own")


def test_a_model_for_each_client_must_beat_adapted_fedavg() -> None:
    """Ditto gains 0.3 of accuracy over FedAvg and 0.2 over adapted FedAvg, two fifths of FedAvg's error of 0.5."""
    better = [own(at, ("ditto", 0.3), ("fedavg-ft", 0.1)) for at in range(4)]
    advised = advise(better, "label", {"label": 0.5})
    [line] = advised["methods"]
    assert (line["method"], line["beyond"]) == ("ditto", " more than FedAvg + FT did")
    assert abs(line["gain"] - 0.4) < 1e-12
    assert "beat FedAvg + FT, tuned, on 4 data sets" in advised["checked"][1]
    worse = [own(at, ("ditto", 0.3), ("fedavg-ft", 0.31 + 0.01 * at)) for at in range(4)]
    advised = advise(worse, "label", {"label": 0.5})
    assert advised["methods"] == []
    assert advised["command"].endswith("--algorithms fedavg fedavg-ft")
    assert advised["checked"][1].startswith(
        "No method had a larger mean gain than FedAvg + FT, tuned, with any of 4 data sets"
    )


def test_cases_without_adapted_fedavg_say_nothing_about_models_of_clients() -> None:
    cases = [own(at, ("ditto", 0.3)) for at in range(4)]
    assert gains_of(cases, "own") == {}
    assert advise(cases, "label", {"label": 0.5})["command"].endswith("--algorithms fedavg")
    mixed = [*cases, own(5, ("ditto", 0.3), ("fedavg-ft", 0.1))]
    assert list(gains_of(mixed, "own")["ditto"]) == ["set5"]


def test_without_a_gain_fedavg_is_advised() -> None:
    advised = advise(planted({"krum": lambda label, _: -0.1}, 4), "label", {"label": 0.5})
    assert advised["methods"] == []
    assert "Train with FedAvg, and tune its learning rate: no method did better on average." in advised["because"]
    assert advised["command"].endswith("--tuned --algorithms fedavg")


def test_data_that_do_not_differ_need_no_method() -> None:
    alone = advise(planted(EFFECTS), "", dict.fromkeys(FACES, 0.0))
    assert "Train with FedAvg, and tune its learning rate." in alone["because"]
    assert alone["command"].endswith("--tuned --algorithms fedavg")


def test_evidence_on_classes_gives_no_advice_for_numbers() -> None:
    advised = advise(planted(EFFECTS), "label", {"label": 0.5}, target="number")
    assert advised["methods"] == []
    assert advised["caution"] == "We cannot say which method is best here: all our experiments have classes."
    assert advised["command"].endswith("--algorithms fedavg scaffold fedprox:mu=0.1")
    assert "there are no experiments" in advise([], "label", {"label": 0.5})["caution"]


def test_the_command_has_the_options_that_methods_need() -> None:
    words = command(["fedavg", "fedbn", "feddf:steps=20", "fedga"])
    assert "--model mlp:norm=group" in words
    assert words.count("--server-data 0.05") == 1


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
