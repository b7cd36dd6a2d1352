"""The diagnosis: chance is not called skew, each planted face is named, the order of alphas is kept, and what the user sees."""

from __future__ import annotations

import json
import re
import shlex
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedskew.advice import advise as advice
from fedskew.advice.evidence import read
from fedskew.cli.main import main
from fedskew.core.component import build, parse, shown
from fedskew.core.errors import BadInput
from fedskew.data.datasets.digits import Digits
from fedskew.data.datasets.table import Table
from fedskew.experiment.combinations import with_method
from fedskew.experiment.config import Experiment
from fedskew.experiment.diagnose import arguments_of, from_experiment, table_arguments
from fedskew.measure.heterogeneity.concept import concept_distance
from fedskew.measure.heterogeneity.details import details
from fedskew.measure.heterogeneity.diagnose import MEANINGS, diagnose, label_chance, p_value, shuffled
from fedskew.measure.heterogeneity.feature import feature_distance
from fedskew.measure.heterogeneity.label import (
    dirichlet_alpha,
    label_distance,
    label_distance_by_chance,
    label_measures,
    pairwise_variation,
)
from fedskew.skew import LabelDirichlet
from fedskew.skew.partition import deal
from tests.data.test_real import real_data
from tests.planted import FACES, diagnosed

QUICK = settings(max_examples=50, deadline=None, derandomize=True, database=None)


@pytest.fixture(scope="module")
def digits():
    return Digits().load()


# chance


def test_chance_levels_of_labels_agree_with_theory():
    counts = np.array([[30, 20, 10], [5, 15, 20], [60, 60, 60]])
    drawn = label_chance(counts, np.random.default_rng(0))
    assert np.mean(drawn) == pytest.approx(label_distance_by_chance(counts), rel=0.03)


def test_tables_by_chance_are_rows_dealt_at_random():
    counts = np.array([[3, 1], [2, 6]])
    drawn = np.array(label_chance(counts, np.random.default_rng(0)))
    # 2x2 tables with these margins are hypergeometric in their first cell
    from scipy import stats

    cells = np.arange(5)
    probability = stats.hypergeom(12, 5, 4).pmf(cells)
    values = [label_distance(np.array([[c, 4 - c], [5 - c, 3 + c]])) for c in cells]
    assert drawn.mean() == pytest.approx(probability @ values, abs=0.01)


def test_random_tables_are_not_held_all_at_once():
    counts = np.random.default_rng(0).integers(0, 4, (200, 10))
    tracemalloc.start()
    try:
        label_chance(counts, np.random.default_rng(0))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # 999 of them are 16 MB
    assert peak < 100 * counts.nbytes


@QUICK
@given(st.integers(0, 10_000))
def test_shuffled_clients_keep_their_sizes_and_labels(seed):
    rng = np.random.default_rng(seed)
    y, client = rng.integers(0, 4, 60), rng.integers(0, 5, 60)
    dealt = shuffled(client, y, rng)
    assert np.array_equal(np.bincount(dealt * 4 + y, minlength=20), np.bincount(client * 4 + y, minlength=20))


@pytest.mark.parametrize("face", ["feature", "concept"])
def test_a_permutation_test_at_five_per_cent_rejects_five_per_cent(face):
    """Against 19 permutations chance is the largest of twenty in one of twenty; 60 independent draws of IID clients."""
    found = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        y, client, half = rng.integers(0, 2, 120), rng.integers(0, 4, 120), rng.integers(0, 2, 120)
        z = rng.standard_normal((120, 3)) + y[:, None]
        weights = np.bincount(client, minlength=4) / 120

        def value(owner, z=z, y=y, half=half, weights=weights):
            if face == "feature":
                return weights @ feature_distance(z, y, owner, 4, 2, half)
            return weights @ concept_distance(z, y, owner, 4, 2)

        found += p_value(value(client), [value(shuffled(client, y, rng)) for _ in range(19)]) <= 0.05
    # 3 expected, with standard deviation 1.7
    assert found <= 7


@pytest.mark.slow
def test_iid_clients_are_not_called_skewed_more_than_five_times_in_a_hundred():
    called = [seed for seed in range(200) if diagnosed("digits", "iid", seed, 99).dominant]
    assert len(called) <= 10, called


# planted faces


@pytest.mark.parametrize("face", ["label", "feature", "quantity", "concept"])
def test_a_planted_face_dominates(face):
    """Of each face one skew; all of them, over twenty seeds, in the slow test."""
    skew = next(skew for skew, planted in FACES.items() if planted == face)
    assert diagnosed("digits", skew, 0, 79).dominant == face


@pytest.mark.slow
@pytest.mark.parametrize("skew", FACES)
@pytest.mark.parametrize("dataset", ["digits", "uci-har"])
def test_a_planted_face_dominates_in_nineteen_of_twenty_seeds(dataset, skew):
    if dataset != "digits":
        real_data()
    found = [diagnosed(dataset, skew, seed, 99).dominant for seed in range(20)]
    assert found.count(FACES[skew]) >= 19, found


def test_the_people_of_uci_har_move_differently_but_do_the_same():
    real_data()
    experiment = Experiment(dataset="uci-har", skew="natural")
    subject = from_experiment(experiment, "people")
    keep = np.random.default_rng(0).permutation(len(subject.y))[:2500]
    found = diagnose(subject.x[keep], subject.y[keep], subject.client[keep], permutations=79)
    assert found.dominant == "feature"
    assert found.face("feature").strength > 0.3
    assert found.face("label").strength < 0.03
    assert found.face("concept").strength < 0.1


LIGHT = ("digits", "synthetic", "synthetic-softmax", "uci-har", "adult", "bitext-support")
HEAVY = ("cifar-10", "ag-news", "20-newsgroups")


@pytest.mark.parametrize("name", [*LIGHT, *(pytest.param(name, marks=pytest.mark.slow) for name in HEAVY)])
def test_the_label_measures_rank_alphas(name):
    """On the mean of eight partitions; alpha 0.01 of two classes and ten clients is nearly one class a client."""
    if name not in LIGHT[:3]:
        real_data()
    loaded = Experiment(dataset=name).dataset.load()
    told: dict[str, list[float]] = {}
    for alpha in (100.0, 1.0, 0.5, 0.1, 0.01):
        means: dict[str, float] = {}
        for seed in range(8):
            counts = deal(LabelDirichlet(alpha=alpha), loaded.y, None, 10, seed).label_counts(
                loaded.y, loaded.num_classes
            )
            values = {name: v.mean() for name, v in label_measures(counts).items()}
            values |= {"pairs": pairwise_variation(counts), "alpha": -dirichlet_alpha(counts)}
            for name, value in values.items():
                means[name] = (
                    means.get(name, 0) + (-value if name in ("effective classes", "classes held") else value) / 8
                )
        for name, value in means.items():
            told.setdefault(name, []).append(value)
    for name, values in told.items():
        # two classes: everybody holds both down to small alphas
        assert values == sorted(values), (name, values)


def test_faces_are_bounded_and_the_interval_holds_the_number():
    found = diagnosed("digits", "label-dirichlet:alpha=0.5", 3, 19)
    assert [face.name for face in found.faces] == list(MEANINGS)
    for face in found.faces:
        assert 0 <= face.strength <= 1
        assert face.low - 1e-9 <= face.value <= face.high + 1e-9 or face.name == "quantity"
        assert len(face.each) == 10


def test_the_same_seed_gives_the_same_diagnosis():
    one, other = (diagnosed("digits", "iid", 4, 9) for _ in range(2))
    for a, b in zip(one.faces, other.faces, strict=True):
        assert (a.value, a.low, a.chance, a.p) == (b.value, b.low, b.chance, b.p)


def test_what_cannot_be_diagnosed_is_refused(digits):
    x, y = digits.x[:50], digits.y[:50]
    with pytest.raises(BadInput, match="one client"):
        diagnose(x, y, np.zeros(50, dtype=np.int64))
    with pytest.raises(BadInput, match="same label"):
        diagnose(x, np.zeros(50, dtype=np.int64), np.arange(50) % 3)
    with pytest.raises(BadInput, match="29 rows say nothing; give at least 30"):
        diagnose(x[:29], y[:29], np.arange(29) % 3)
    with pytest.raises(BadInput, match="without rows"):
        diagnose(x, y, 2 * (np.arange(50) % 3))


def test_few_clients_have_no_interval_and_lone_classes_are_counted():
    rng = np.random.default_rng(0)
    y, client = np.repeat([0, 1, 2], 40), np.r_[np.repeat([0, 1, 2], 40)[:80], rng.integers(0, 3, 40)]
    found = diagnose(rng.standard_normal((120, 3)), y, client, permutations=9)
    assert all(np.isnan(face.low) for face in found.faces)
    assert found.alone == 80


def test_clients_without_a_common_label_reach_the_bound_that_is_told():
    """Every client is part of everybody: with equal clients nothing in common is 1 - 1/clients."""
    for clients in (2, 5):
        y = np.repeat(np.arange(clients), 40)
        found = diagnose(np.random.default_rng(0).standard_normal((len(y), 3)), y, y, permutations=9)
        assert found.face("label").value == pytest.approx(1 - 1 / clients)


def test_details_name_every_measure_and_their_chance():
    rng = np.random.default_rng(0)
    y, client = rng.integers(0, 2, 600), rng.integers(0, 3, 600)
    x = rng.standard_normal((600, 4)) + client[:, None]
    counts = np.zeros((3, 2), dtype=np.int64)
    np.add.at(counts, (client, y), 1)
    told = details(x, y, client, counts)
    assert told["feature"]["sliced Wasserstein"] > 3 * told["feature"]["sliced Wasserstein by chance"]
    assert told["feature"]["classifier AUC"] > 0.6 > told["feature"]["classifier AUC by chance"]
    assert told["gradient"]["B^2 at zero"] >= 1
    # the labels are of no client and of no input: what is best for one is best for all
    assert 0 <= told["gradient"]["optimum gap"] < 0.05
    swapped = details(x, ((x[:, 0] > client) ^ (client == 0)).astype(int), client, counts)["gradient"]
    assert swapped["optimum gap"] > 2 * swapped["optimum gap by chance"]
    assert told["quantity"]["effective clients"] == pytest.approx(3, rel=0.05)


def test_a_label_so_rare_that_no_fitted_row_has_it_leaves_only_the_pooled_fit_out(monkeypatch):
    monkeypatch.setattr("fedskew.measure.heterogeneity.details.FITTED_ROWS", 20)
    rng = np.random.default_rng(0)
    y, client = np.r_[1, np.zeros(599, dtype=np.int64)], rng.integers(0, 3, 600)
    counts = np.zeros((3, 2), dtype=np.int64)
    np.add.at(counts, (client, y), 1)
    told = details(rng.standard_normal((600, 4)), y, client, counts)["gradient"]
    assert {name for name, value in told.items() if value is None} == {
        f"{name} at the pooled fit" for name in ("zeta^2", "B^2", "G^2")
    }


# what the user sees


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr("fedskew.measure.heterogeneity.diagnose.PERMUTATIONS", (19, 19))
    monkeypatch.setattr("fedskew.experiment.diagnose.details", lambda *a: {"label": {"L1": 0.5, "alpha": None}})


COMMAND = ["diagnose", "--dataset", "digits", "--skew", "label-dirichlet", "--clients", "8"]


def test_the_terminal_stays_within_eighty_columns(quick, capsys):
    assert main(COMMAND) == 0
    out = capsys.readouterr().out
    assert out.startswith("The clients differ mostly by label")
    assert all(len(line) <= 80 for line in out.splitlines() if not line.startswith("fedskew compare"))
    assert "0 alike, at most 0.88 where these 8 clients have nothing in common" in " ".join(out.split())
    for word in (*MEANINGS, "chance", "interval", "8 clients", "What to try", "fedskew compare --dataset digits"):
        assert word in out


def test_json_and_page_hold_the_same(quick, capsys, tmp_path):
    assert main([*COMMAND, "--json", "--html", str(tmp_path / "d.html")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["dominant"] == "label"
    assert [face["face"] for face in told["faces"]] == list(MEANINGS)
    assert told["clients"] == 8 == len(told["label_counts"])
    page = (tmp_path / "d.html").read_text()
    assert page.count("<svg") == 2
    assert "The clients differ mostly by label" in page
    assert "0 alike, at most 1 − 1/clients" in page
    assert f"{told['faces'][0]['value']:.2f}" in page
    # self-contained: nothing is fetched, nothing runs
    assert not re.search(r'(src|href)="(?!#)|@import|url\((?!#)|<script', page)
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page


def test_files_on_the_command_line(quick, capsys, tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        "a,b,site,out",
        *(f"{rng.normal():.3f},{rng.normal():.3f},s{i % 6},{'n' if i % 5 else 'y'}" for i in range(600)),
    ]
    rows += ["1,2,,y"]
    (tmp_path / "d.csv").write_text("\n".join(rows) + "\n")
    assert main(["diagnose", str(tmp_path / "d.csv"), "--label", "out", "--client", "site"]) == 0
    out = capsys.readouterr().out
    assert "Nothing differs beyond chance" in out
    assert "1 of 601 rows dropped: no value in 'site'" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give files"),
        (["a.csv"], "--label COLUMN"),
        (["a.csv", "--dataset", "digits"], "one of the two"),
        (["a.csv", "--label", "y", "--skew", "iid"], "--client"),
        (["--dataset", "digits", "--label", "y"], "has its own"),
        (["a.csv", "--label", "y", "--client", "k"], "no such file"),
        (["--dataset", "digits", "--skew", "natural"], "does not say whose rows"),
        (["--dataset", "digits", "--seed", "-1"], "seed must be at least 0, got -1"),
    ],
)
def test_bad_requests_are_one_line(arguments, words, capsys):
    assert main(["diagnose", *arguments]) == 2
    message = capsys.readouterr().err
    assert words in message
    assert message.count("\n") == 1


# advice


def case(strength, *methods, measure="test", data="digits", model="mlp", **others):
    lines = [
        {"method": m, "measure": measure, "gain": g, "half": 0.01, "verdict": v, "seeds": 5, "lr": 0.1}
        for m, g, v in methods
    ]
    face = {"dominant": "label", "strengths": {"label": strength, **others}}
    return {"data": data, "skew": "s", "model": model, "methods": lines, **face}


def test_advice_recommends_what_helped_near_by_and_hurt_nowhere(monkeypatch):
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
    told = advice.advise("label", {"label": 0.55, "quantity": 0.4})
    assert [line["method"] for line in told["methods"]] == ["better", "good"]
    assert told["command"] == "fedskew compare --held-out 0.2 --algorithms fedavg better good"
    assert "Thin evidence: digits only, 5 seeds" in told["caution"]
    assert "quantity" in told["caution"]


def test_advice_keeps_one_model_for_all_and_models_of_ones_own_apart(monkeypatch):
    cases = [
        case(0.5, ("global", 0.02, "higher"), ("both", -0.05, "lower"), model="mlp:norm=group"),
        case(0.5, ("local", 0.5, "higher"), ("both", 0.1, "higher"), measure="own", model="mlp:norm=group"),
    ]
    monkeypatch.setattr(advice, "evidence", lambda: {"cases": cases})
    told = advice.advise("label", {"label": 0.55}, "--dataset digits")
    assert [(line["method"], line["measure"]) for line in told["methods"]] == [
        ("global", "test"),
        ("local", "own"),
        ("both", "own"),
    ]
    assert "none of these" not in told["because"]
    assert told["command"] == (
        "fedskew compare --dataset digits --held-out 0.2 --model mlp:norm=group --algorithms fedavg global local both"
    )
    monkeypatch.setattr(advice, "evidence", lambda: {"cases": [cases[1], case(0.5, ("vain", 0.01, "undecided"))]})
    told = advice.advise("label", {"label": 0.55})
    assert {line["measure"] for line in told["methods"]} == {"own"}
    assert (
        "For one model for all, on the test set, none of these did better than FedAvg beyond chance: vain."
        in told["because"]
    )


def test_what_helped_against_a_face_that_is_not_here_is_not_advised(monkeypatch):
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
        told = advice.advise(face, {face: strength})
        assert told["methods"] == []
        assert "no runs of our own near that" in told["caution"]
    assert "plain averaging" in advice.advise("", dict.fromkeys(MEANINGS, 0.0))["because"]


def test_near_runs_that_show_another_face_are_named_as_the_reason(monkeypatch):
    cases = [
        case(0.4, ("far", 0.2, "higher")),
        case(0.65, ("a", 0.2, "higher"), quantity=0.3),
        case(0.78, ("b", 0.2, "higher"), quantity=0.3, concept=0.1),
    ]
    monkeypatch.setattr(advice, "evidence", lambda: {"cases": cases})
    told = advice.advise("label", {"label": 0.74})["caution"]
    assert told == (
        "Our runs near that (0.65, 0.78) also show the face quantity and concept, which your data do not, "
        "so no method is recommended: compare some."
    )
    assert "only at 0.40, 0.65, 0.78" in advice.advise("label", {"label": 0.1})["caution"]


def test_what_was_not_tried_is_not_said_to_have_failed(monkeypatch):
    monkeypatch.setattr(advice, "evidence", lambda: {"cases": [case(0.5, ("good", 0.02, "higher"))]})
    told = advice.advise("label", {"label": 0.5})["because"]
    assert told.endswith("on its own held-out rows, nothing was tried.")


def test_the_packaged_evidence_is_whole():
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


def test_the_advised_command_runs(quick, capsys, tmp_path):
    assert main(["diagnose", "--dataset", "digits", "--skew", "iid", "--clients", "5", "--json"]) == 0
    words = shlex.split(json.loads(capsys.readouterr().out)["advice"]["command"])
    assert words == [
        "fedskew",
        "compare",
        "--dataset",
        "digits",
        "--skew",
        "iid",
        "--clients",
        "5",
        "--held-out",
        "0.2",
        "--algorithms",
        "fedavg",
    ]
    short = ["--rounds", "1", "--seeds", "1", "--epochs", "1", "--jobs", "1", "--engine", "stacked", "--runs"]
    assert main([*words[1:], *short, str(tmp_path)]) == 0


@QUICK
@given(st.lists(st.text("ab01 ,[]\"'\\=:.#\né", min_size=1, max_size=8), max_size=3))
def test_any_text_can_be_written_as_an_option(values):
    options = {f"o{i}": value for i, value in enumerate(values)} | {"all": values}
    spec = "table:" + ",".join(f"{name}={shown(value)}" for name, value in options.items())
    assert parse(spec, "here") == ("table", options)


def test_the_advised_command_names_files_and_skews():
    assert table_arguments([Path("my data.csv")], "y", "k") == (
        "--dataset 'table:path=my data.csv,label=y,client=k' --skew natural"
    )
    assert table_arguments([Path("a.csv"), Path("b.csv")], "y", "k") == ""
    odd = shlex.split(table_arguments([Path("it's [1].csv")], "2020", "site,no"))
    told = build("dataset", {"table": Table}, odd[1])
    assert (told.path, told.label, told.client) == ("it's [1].csv", "2020", "site,no")
    skews = ["label-classes:k=3", "feature-noise:level=0.5"]
    told = arguments_of(Experiment(dataset="uci-har:form=features", skew=skews))
    assert told == "--dataset uci-har:form=features --skew label-classes:k=3 --skew feature-noise:level=0.5"
