"""Texts as word ids: the vocabulary, the honest split, and integer rows through both engines."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedskew.core.errors import BadInput
from fedskew.data.dataset import Dataset
from fedskew.data.texts import PAD, UNKNOWN, apart, encoded, of_texts, reworded, vocabulary_of, words
from fedskew.engine import ENGINES
from fedskew.engine.states import ClientStates
from fedskew.experiment import config
from fedskew.experiment.build import assemble
from fedskew.experiment.config import Experiment
from fedskew.experiment.deal import client_data
from fedskew.loop.round import play_round, start
from fedskew.models import MODELS


def test_words_are_lower_case_runs_of_letters_digits_and_apostrophes():
    assert words("I can't find Order #12, d'être; x_y") == ["i", "can't", "find", "order", "12", "d'être", "x", "y"]
    assert words("  ...!") == []


def test_the_vocabulary_is_ranked_by_frequency_then_alphabet():
    texts = ["b a b", "c a b", "d"]
    assert vocabulary_of(texts, 10, 3) == {"b": 2, "a": 3, "c": 4, "d": 5}
    assert vocabulary_of(texts, 4, 3) == {"b": 2, "a": 3}
    assert vocabulary_of(texts, 10, 1) == {"b": 2, "c": 3, "d": 4}, "words behind the cut stand in no row"


def test_texts_are_cut_and_padded():
    known = {"a": 2, "b": 3}
    rows = encoded(["a b a b", "b", "zebra a", "?!"], known, 3)
    assert rows.tolist() == [[2, 3, 2], [3, PAD, PAD], [UNKNOWN, 2, PAD], [UNKNOWN, PAD, PAD]]
    assert rows.dtype == np.int64


def test_the_vocabulary_knows_the_training_part_only():
    data = of_texts(
        (["red apple", "blue sea"], np.array([0, 1])),
        (["red zebra", "blue sea sea sea"], np.array([0, 1])),
        classes=("fruit", "water"),
        length=2,
        vocabulary=100,
        name="tiny",
    )
    known = vocabulary_of(["red apple", "blue sea"], 100, 2)
    assert data.x_test.tolist() == [[known["red"], UNKNOWN], [known["blue"], known["sea"]]]
    assert data.texts == (("red apple", "blue sea"), ("red zebra", "blue sea sea sea"))
    other = of_texts(
        (["red apple", "blue sea"], np.array([0, 1])),
        (["red lion", "blue sea sea sea"], np.array([0, 1])),
        classes=("fruit", "water"),
        length=2,
        vocabulary=100,
        name="tiny",
    )
    assert np.array_equal(other.x_test, data.x_test)
    assert other.fingerprint() != data.fingerprint(), "the ids are the same, the texts are not"


@pytest.mark.parametrize(
    ("train", "test", "expected"),
    [
        ((["a", " "], [0, 1]), (["b"], [0]), "1 texts of the training part are empty, the first one is row 2"),
        (
            (["a", "b"], [0, 1]),
            (["b", "c", ""], [0, 1, 1]),
            "1 texts of the test part are empty, the first one is row 3",
        ),
        ((["a", "b"], [0, 0]), (["b"], [1]), "the training part has no row of two"),
    ],
)
def test_texts_that_cannot_be_right_are_one_line(train, test, expected):
    with pytest.raises(BadInput) as error:
        of_texts(
            (train[0], np.array(train[1])),
            (test[0], np.array(test[1])),
            classes=("one", "two"),
            length=2,
            vocabulary=9,
            name="tiny",
        )
    assert expected in str(error.value)
    assert "tiny" in str(error.value)


TEXTS = st.lists(
    st.tuples(st.lists(st.sampled_from("abcde"), min_size=1, max_size=3), st.integers(0, 2)), min_size=6, max_size=40
)


@given(TEXTS)
def test_no_set_of_words_stands_on_both_sides(rows):
    texts, y = [" ".join(parts) for parts, _ in rows], np.array([label for _, label in rows])
    test = apart(texts, y, 0.3)
    sets = [frozenset(text.split()) for text in texts]
    assert not {s for s, held in zip(sets, test, strict=True) if held} & {
        s for s, held in zip(sets, test, strict=True) if not held
    }
    assert np.array_equal(test, apart(texts, y, 0.3))


def test_different_texts_are_split_in_the_share_of_each_class():
    texts = [f"message {i}" for i in range(500)]
    y = np.repeat([0, 1], [400, 100])
    assert np.bincount(y[apart(texts, y, 0.2)]).tolist() == [80, 20]


# integer rows through the loop


class WordNet(nn.Module):
    """The mean of word vectors, and a linear layer."""

    ids = True

    def __init__(self, ids: int, classes: int) -> None:
        super().__init__()
        self.words = nn.Embedding(ids, 5)
        self.out = nn.Linear(5, classes)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = self.words(x).mean(1)
        return z, self.out(z)


@dataclass(frozen=True, kw_only=True)
class MeanOfWords:
    has_features: ClassVar[bool] = True

    def build(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> nn.Module:
        net = WordNet(30, classes)
        for p in net.parameters():
            nn.init.normal_(p, generator=generator)
        return net


def test_integer_rows_train_alike_in_both_engines(monkeypatch):
    monkeypatch.setitem(config.COMPONENTS, "model", {**MODELS, "mean-of-words": MeanOfWords})
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 90)
    texts = [" ".join(rng.choice(list("abcdefgh"[4 * c : 4 * c + 6]), 7)) for c in y]
    data = of_texts(
        (texts[:60], y[:60]), (texts[60:], y[60:]), classes=("x", "y"), length=6, vocabulary=30, name="tiny"
    )
    models = []
    for engine in ("sequential", "stacked"):
        experiment = Experiment(
            dataset="digits",
            model="mean-of-words",
            algorithm="scaffold",
            skew="iid",
            clients={"number": 4},
            server_data={"share": 0.1},
            training={"rounds": 2, "dtype": "float64"},
        )
        made = assemble(experiment, data)
        assert made.federation.x.dtype == torch.long
        assert made.federation.info.num_examples.dtype == torch.float64
        assert made.federation.server_data.mask.dtype == torch.float64
        server, states = start(made.federation, made.x0), ClientStates()
        for _ in range(2):
            server = play_round(made.federation, ENGINES[engine](), server, states).server
        models.append(server.x)
    assert float((models[0] - made.x0).abs().max()) > 1e-3
    torch.testing.assert_close(models[0], models[1], rtol=1e-12, atol=1e-12)


def test_feature_skews_refuse_word_ids(monkeypatch):
    monkeypatch.setitem(config.COMPONENTS, "model", {**MODELS, "mean-of-words": MeanOfWords})
    y = np.array([0, 1] * 10)
    data = of_texts(
        (["a b", "c d"] * 10, y), (["a", "d"], y[:2]), classes=("x", "y"), length=2, vocabulary=9, name="tiny"
    )
    experiment = Experiment(
        dataset="digits", model="mean-of-words", skew=["iid", "feature-noise"], clients={"number": 2}
    )
    with pytest.raises(BadInput, match="tiny holds word ids"):
        assemble(experiment, data)


def shop(vocabulary: int = 100) -> Dataset:
    """Ten texts, each with a word of its own, and one test text that has all of them."""
    texts = [f"word{row} order" for row in range(10)]
    return of_texts(
        (texts, np.array([0, 1] * 5)),
        ([" ".join(texts)], np.array([0])),
        classes=("x", "y"),
        length=20,
        vocabulary=vocabulary,
        name="shop",
    )


def known_to(rows: np.ndarray) -> set[int]:
    return set(np.unique(rows)) - {PAD, UNKNOWN}


@pytest.mark.parametrize(
    ("settings", "unused"),
    [
        ({"server_data": {"share": 0.4}}, 4),
        ({"clients": {"number": 2, "held_out": 0.4}}, 4),
        ({"clients": {"number": 3}, "skew": "label-shards:shards=1"}, 1),
    ],
)
def test_words_of_rows_that_no_client_trains_on_are_unknown(settings, unused):
    data = shop()
    experiment = Experiment(
        **{"dataset": "digits", "model": "text-cnn:widths=[1]", "skew": "iid", "clients": {"number": 2}} | settings
    )
    made = client_data(experiment, data)
    trained = set(made.partition.indices.tolist())
    assert len(trained) == 10 - unused
    own = {row: made.x[row, 0] for row in range(10)}
    assert {row for row in range(10) if own[row] == UNKNOWN} == set(range(10)) - trained
    assert len(known_to(made.x)) == len(trained) + 1, "their own words, and the one that all texts have"
    assert known_to(made.x_test) == known_to(made.x)
    assert int((made.x_test == UNKNOWN).sum()) == unused
    assert assemble(experiment, data).federation.task.model.embedding.num_embeddings == len(trained) + 3


def test_other_rows_do_not_say_which_words_are_frequent():
    texts = ["a", "b b", "b b", "c c c", "c c c", "a a"]
    data = of_texts(
        (texts, np.array([0, 1] * 3)), (["a b c"], np.array([0])), classes=("x", "y"), length=3, vocabulary=3, name="t"
    )
    assert data.x_test.tolist() == [[UNKNOWN, UNKNOWN, 2]], "of all rows c is the most frequent"
    x, x_test = reworded(data, np.array([0, 1, 2, 5, 5]))
    assert x_test.tolist() == [[UNKNOWN, 2, UNKNOWN]], "of these b"
    assert x[3].tolist() == [UNKNOWN] * 3
    assert reworded(data, np.arange(6))[0] is data.x


def test_rows_that_are_no_words_stay_as_they_are():
    data = shop()
    bare = dataclasses.replace(data, vocabulary=0)
    assert reworded(bare, np.array([0]))[1] is data.x_test
