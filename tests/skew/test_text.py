"""Text styles of clusters: the changed words, the changed texts, and models and measures on them."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedskew.core.errors import BadInput
from fedskew.data.dataset import Dataset
from fedskew.data.find import Files
from fedskew.data.preprocessing import Texts
from fedskew.data.texts import UNKNOWN, of_texts
from fedskew.diagnosis.diagnose import faces_of
from fedskew.diagnosis.subject import from_experiment
from fedskew.execution.build import assemble
from fedskew.execution.deal import client_data
from fedskew.experiment.config import Experiment
from fedskew.skew.feature import CAPITALS, SHORT, SHORTENED, TEMPLATES, TYPOS, FeatureText, rewritten, styled
from tests.texts import tiny_encoder

QUICK = settings(max_examples=30)
SENTENCE = "please send the information for your account today because people want delivery before tomorrow"
TEXTS = [" ".join(np.random.default_rng(i).choice(SENTENCE.split(), 12)) for i in range(200)]


def shop(texts: list[str] = TEXTS, test: list[str] | None = None) -> Dataset:
    y = np.arange(len(texts)) % 2
    files = Files(dataset="shop", licence="", classes=2)
    return of_texts(files, (texts, y), (test or texts[:20], y[:20]), ("x", "y"), Texts(length=20), 200)


def experiment(skew: str, clients: int = 6, **changes: object) -> Experiment:
    return Experiment(
        **{
            "dataset": "digits",
            "model": "text-cnn:widths=[1]",
            "skew": ["iid", skew],
            "clients": {"number": clients, "held_out": 0.0},
        }
        | changes
    )


def written(texts: list[str], owner: np.ndarray, clients: int = 5, seed: int = 0, **options: float) -> list[str]:
    skew = FeatureText(**options)
    own = skew.draw(np.zeros((1, 1)), clients, np.random.default_rng(seed))
    return rewritten(skew, own, texts, owner, seed, 0)


@pytest.mark.parametrize(
    ("word", "typo", "short", "capitals", "becomes"),
    [
        ("Delivery", False, False, False, "Delivery"),
        ("Delivery", True, False, False, "Dleivery"),
        ("the", True, False, False, "the"),
        ("Please", False, True, False, "pls"),
        ("Please", True, True, True, "PLS"),
        ("Delivery", True, True, True, "DVLRY"),
        ("parcel", True, True, True, "PRACEL"),
    ],
)
def test_a_word_in_a_style(word, typo, short, capitals, becomes):
    assert styled(word, typo, short, capitals) == becomes


@QUICK
@given(st.integers(0, 1000), st.floats(0.1, 1))
def test_only_texts_with_an_owner_change_and_no_word_is_lost(seed, strength):
    owner = np.random.default_rng(seed).integers(-1, 5, 40)
    seen = written(TEXTS[:40], owner, seed=seed, strength=strength)
    assert [seen[i] for i in np.flatnonzero(owner < 0)] == [TEXTS[i] for i in np.flatnonzero(owner < 0)]
    known = {"".join(sorted(short)) for short in SHORT.values()}
    for text, before in zip(seen, TEXTS, strict=False):
        opening, closing = next(((a, b) for a, b in TEMPLATES if text.startswith(a) and text.endswith(b)), ("", ""))
        said = text.removeprefix(opening).removesuffix(closing).split()
        assert len(said) == 12
        for now, then in zip(said, before.split(), strict=True):
            letters = "".join(sorted(now.lower()))
            assert letters in known or letters == "".join(sorted(then))
    # a text does not depend on the owners of the others
    other = np.where(np.arange(40) == 7, owner, (owner + 1) % 5)
    assert written(TEXTS[:40], other, seed=seed, strength=strength)[7] == seen[7]


def test_the_shares_are_those_drawn():
    skew = FeatureText(clusters=1, strength=0.8)
    own = skew.draw(np.zeros((1, 1)), 1, np.random.default_rng(3))
    texts = [" ".join(["abcd"] * 50)] * 200
    seen = rewritten(skew, own, texts, np.zeros(200, dtype=int), 0, 0)
    said = [word for text in seen for word in text.split() if word.lower() in ("abcd", "acbd")]
    assert len(said) == 10_000
    # three standard deviations of 10,000 draws are 0.015 at most, of 200 texts 0.085
    assert np.mean([word.lower() == "acbd" for word in said]) == pytest.approx(own["typos"][0], abs=0.015)
    assert np.mean([word.isupper() for word in said]) == pytest.approx(own["capitals"][0], abs=0.015)
    assert np.mean([len(text.split()) > 50 for text in seen]) == pytest.approx(0.8, abs=0.085)


def test_shares_grow_with_strength_up_to_the_greatest():
    half, whole = (FeatureText(strength=s).draw(np.zeros((1, 1)), 400, np.random.default_rng(4)) for s in (0.5, 1.0))
    for name, most in (("typos", TYPOS), ("short", SHORTENED), ("capitals", CAPITALS)):
        assert half[name] == pytest.approx(whole[name] / 2)
        assert 0 < whole[name].min() <= whole[name].max() <= most
    assert (half["framed"] == 0.5).all()


def test_clients_train_on_rewritten_texts_and_the_test_set_stays():
    plain, made = (client_data(experiment(f"feature-text:strength={s}"), shop()) for s in (0, 1))
    assert np.array_equal(plain.x, shop().x)
    assert made.dataset.texts is not None
    assert made.dataset.texts[1] == shop().texts[1]  # type: ignore[index]
    again = shop([*made.dataset.texts[0]], TEXTS[:20])
    assert np.array_equal(made.x, again.x)
    assert np.array_equal(made.x_test, again.x_test)
    assert not (plain.x == UNKNOWN).any()
    assert set(made.drawn) == {
        f"0-feature-text-{name}" for name in ("cluster", "typos", "short", "capitals", "framed", "template")
    }


@pytest.mark.slow
def test_an_encoder_gets_the_rewritten_texts(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setenv("FEDSKEW_CACHE", str(tmp_path))
    rain = shop(["rain sun wind snow goal"] * 40)
    model = f"hf:{tiny_encoder(tmp_path / 'encoder')},frozen=1,cache=none"
    rows = [assemble(experiment(f"feature-text:strength={s}", model=model), rain).federation.x for s in (0, 1)]
    assert (rows[0] == rows[0][:1]).all()
    assert rows[1].shape[1] > rows[0].shape[1], "openings and closings make texts longer"


def test_the_diagnosis_of_texts_names_the_feature_face(monkeypatch):
    monkeypatch.setattr("fedskew.data.datasets.images.Digits.load", lambda self: shop(TEXTS * 2))
    subject = from_experiment(experiment("feature-text:clusters=6,strength=1"), "texts")
    assert any("hashed words" in note for note in subject.source.notes)
    assert faces_of(subject).dominant == "feature"


def test_rows_without_texts_are_refused():
    bare = Dataset(x=np.eye(4), y=np.arange(4) % 2, x_test=np.eye(4), y_test=np.arange(4) % 2, classes=("a", "b"))
    with pytest.raises(BadInput, match="has no texts, which feature-text needs; use another feature skew"):
        client_data(experiment("feature-text", 2), bare)
