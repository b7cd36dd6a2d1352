"""The diagnosis of sites that add noise: what leaves them, and what it shows."""

from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import fedskew as fs
from fedskew.cli.main import main
from fedskew.core.errors import BadInput
from fedskew.experiment.federated import Facts, federated
from fedskew.experiment.federated_site import Site
from fedskew.experiment.questions import Answer, Array, Question
from fedskew.experiment.rehearsal import by_bytes, rehearse
from tests.federated import HOSPITALS, frame, recorded, wide_sites, with_epsilon


def test_only_classes_and_their_counts_leave_a_site_with_noise():
    made, _ = recorded({name: with_epsilon(site, 2) for name, site in wide_sites(2).items()})
    answers = [msgspec.msgpack.decode(data, type=Answer) for data in made.sent]
    assert [answer.step for answer in answers] == ["columns"] * 3 + ["counts"] * 3
    for answer in answers:
        assert answer.summary is None
        assert not answer.copies
        assert set(answer.numbers) <= {"rows of classes"}
    exact = wide_sites(2)["bern"]
    for step in ("scale", "products", "moments", "faces"):
        asked = msgspec.msgpack.encode(Question(step=step, classes=("a", "b")))
        answer = msgspec.msgpack.decode(with_epsilon(exact, 2).reply(asked), type=Answer)
        assert answer.refused == "this site sends only rows of each class, with noise"


def test_noise_cannot_be_averaged_away():
    """The same question about the same rows has the same answer, and a class is counted once in a question."""
    site = with_epsilon(wide_sites(2)["bern"], 0.5)
    question = Question(step="counts", classes=("a", "b", "c"))
    again = with_epsilon(wide_sites(2)["bern"], 0.5)
    assert site.answer(question) == again.answer(question)
    fewer = Site(site.table.slice(1), site.y[1:], 2, site.seed, 0.5)
    for classes in (("b", "a"), ("b",)):
        counts = np.frombuffer(site.answer(Question(step="counts", classes=classes)).numbers["rows of classes"].data)
        every = np.frombuffer(site.answer(question).numbers["rows of classes"].data)
        assert counts.tolist() == [every["abc".index(word)] for word in classes]
    noises = set()
    for one in (site, fewer):
        for epsilon in (0.5, 0.50001, 0.50002):
            counts = with_epsilon(one, epsilon).answer(question).numbers["rows of classes"].data
            exact = [(one.y == word).sum() for word in question.classes]
            noises.add(tuple((np.frombuffer(counts) - exact)[:2].tolist()))
    assert len(noises) == 6, "other rows, and other questions, have other noise"
    with pytest.raises(BadInput, match="the question names a class twice"):
        site.answer(Question(step="counts", classes=("a", "a")))


def test_a_diagnosis_with_noise_has_the_faces_of_counts(tmp_path: Path, capsys):
    table = tmp_path / "patients.csv"
    frame().to_csv(table, index=False)
    options = [str(table), "--label", "ill", "--client", "hospital", "--federated"]
    assert main(["diagnose", *options, "--epsilon", "100", "--json"]) == 0
    found = msgspec.json.decode(capsys.readouterr().out)
    exact = fs.diagnose(str(table), label="ill", client="hospital", federated=True, fewest=1, progress=False)
    assert [face["face"] for face in found["faces"]] == ["label", "quantity"]
    assert found["label_counts"] == exact["label_counts"]
    for face in found["faces"]:
        assert face["each"] == next(one for one in exact["faces"] if one["face"] == face["face"])["each"]
    assert found["columns"] == []
    assert "noise of epsilon 100 and delta 1e-06" in found["notes"][0]
    assert "look different" not in found["notes"][0]
    assert main(["diagnose", *options, "--epsilon", "1"]) == 0
    assert "Not measured: feature and concept." in " ".join(capsys.readouterr().out.split())


def test_a_note_says_how_many_classes_are_small_beside_the_noise():
    found = rehearse({name: with_epsilon(site, 0.7) for name, site in wide_sites(2).items()}, Facts("small"))
    assert (
        "; 2 classes have fewer than 57 rows at each site, and may make alike sites look different" in found["notes"][0]
    )


def test_sites_with_and_without_noise_are_compared_by_their_counts():
    sites, rng = wide_sites(2), np.random.default_rng(0)
    y = rng.choice(["a", "b", "c"], 90, p=[0.8, 0.1, 0.1])
    sites["sion"] = Site(sites["sion"].table, y, 2, epsilon=3)
    found = rehearse(sites, Facts("three"))
    assert found["dominant"] == "label"
    assert found["label_counts"][0] == [(sites["bern"].y == word).sum() for word in "ab"] + [0]
    assert np.abs(np.array(found["label_counts"][2]) - [(y == word).sum() for word in "abc"]).max() < 12


def test_too_much_noise_and_impossible_counts_are_refused():
    sites = wide_sites(2)
    with pytest.raises(BadInput, match="all rows have the same label; noise hides the others; give more rows"):
        rehearse({name: with_epsilon(site, 0.01) for name, site in sites.items()}, Facts("hidden"))
    honest = by_bytes({**sites, "sion": with_epsilon(sites["sion"], 9)})
    for counts, words in (
        ([0, 0], "genf: noise hides all its rows"),
        ([-3, 4], "genf: its rows of classes are no numbers of rows"),
        ([1e15, 4], "genf: its rows of classes are no numbers of rows"),
        ([2.5, 4], "genf: its rows of classes are no numbers of rows"),
    ):

        def ask(questions, counts=counts):
            answers = dict(honest(questions))
            if answers["genf"].step == "counts":
                made = {"rows of classes": Array((2,), np.array(counts, dtype=float).tobytes())}
                answers["genf"] = msgspec.structs.replace(answers["genf"], numbers=made)
            return answers

        with pytest.raises(BadInput, match=words):
            federated(list(sites), ask, Facts("lies"))


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "most"), [(40, 20), (18, 200)])
def test_alike_sites_with_enough_rows_of_each_class_are_seldom_called_skewed(rows, most):
    """With few rows only a figure is printed: the page says that alike sites may then look different."""
    called = done = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        counts = rng.multinomial(2 * 10 * rows, np.full(20, 1 / 20)).reshape(2, 10)
        sites = {
            name: Site(pa.table({"a": np.zeros(held.sum())}), np.repeat(list("abcdefghij"), held), seed=seed, epsilon=1)
            for name, held in zip(HOSPITALS, counts, strict=False)
        }
        with suppress(BadInput):  # noise hides all classes but one
            called += rehearse(sites, Facts("alike"))["dominant"] is not None
            done += 1
    print(f"{rows} rows of each class: {called} of {done} diagnoses call two alike sites skewed")
    assert called <= most
