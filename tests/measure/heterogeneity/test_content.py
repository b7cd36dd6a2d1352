"""Images, signals, texts and symbols that differ between clients: numbers by hand, planted causes, nothing by chance."""

import numpy as np
import pytest

from fedskew.data.tables.columns import of_texts
from fedskew.diagnosis.facts import image_numbers, in_blocks, of_symbols, signal_numbers
from tests.planted import explained

CLIENTS = np.repeat(np.arange(5), 60)
HOSPITALS = ("bern", "genf", "chur", "sion", "zug")
MINE = CLIENTS == 3
WORDS = [f"w{at}" for at in range(80)]


def test_numbers_of_an_image_by_hand():
    image = np.array([[[0.0, 2], [4, 6]], [[1, 1], [1, 1]]])[None]
    found = {name: values.item() for name, values in image_numbers(image).items()}
    assert found["channel 1 brightness"] == 3
    assert found["channel 1 contrast"] == pytest.approx(np.sqrt(5))
    assert found["channel 1 sharpness"] == (2 + 2 + 4 + 4) / 4
    assert found["channel 1 balance"] == 2 == -found["channel 2 balance"]
    assert found["brightness"] == 2
    assert list(image_numbers(image[:, :1])) == ["brightness", "contrast", "sharpness"]
    assert "blue balance" in image_numbers(np.zeros((1, 3, 2, 2)))


def test_numbers_of_a_signal_by_hand():
    time = np.arange(64) / 64
    x = np.stack([5 + 2 * np.sin(2 * np.pi * 7 * time), np.full(64, 3.0)])[None]
    found = {name: values.item() for name, values in signal_numbers(x, ("turn", "rest")).items()}
    assert found["mean of turn"] == pytest.approx(5)
    assert found["scale of turn"] == pytest.approx(np.sqrt(2))
    assert found["dominant frequency of turn"] == 7
    assert np.isnan(found["dominant frequency of rest"])
    assert "scale of channel 2" in signal_numbers(x)


def test_shares_of_symbols_by_hand():
    facts = {fact[2] or fact[0]: fact[3].tolist() for fact in of_symbols(np.array([[0, 1, 1, -1], [0, 0, 0, 0]]), "ab")}
    assert facts == {"length of a row": [3, 4], "a": [1 / 3, 1], "b": [2 / 3, 0]}


def test_words_of_texts_by_hand():
    [(_, _, _, lengths), (_, kind, words, held)] = of_texts(
        "note", ["A cat, a cat"] * 3 + ["The cat"] * 5 + ["A dog"] * 2
    )
    assert lengths.tolist() == [4, 4, 4, 2, 2, 2, 2, 2, 2, 2]
    assert (kind, words) == ("word", ("cat", "a", "the"))
    assert held.toarray().sum(0).tolist() == [8, 5, 5]


def planted(cause: str, seed: int) -> list[tuple]:
    """The facts of five clients' rows; client 3 has one cause of a difference."""
    rng = np.random.default_rng(seed)
    what = cause.split()[0]
    if what == "image":
        x = rng.normal(100, 20, (300, 3, 1, 1)) + rng.normal(0, 10, (300, 3, 8, 8))
        x[MINE, 1] += 20 * (cause == "image brighter")
        x[MINE] = x[MINE].mean((2, 3), keepdims=True) + (x[MINE] - x[MINE].mean((2, 3), keepdims=True)) * (
            2 if cause == "image contrast" else 1
        )
        return list(in_blocks(x, image_numbers))
    if what == "signal":
        period = np.where(MINE & (cause == "signal faster"), 8, 4)[:, None] + rng.integers(0, 3, (300, 1))
        wave = np.sin(2 * np.pi * period * np.arange(64) / 64 + rng.uniform(0, 6, (300, 1)))
        x = np.stack([wave, rng.normal(0, 1, (300, 64))], axis=1) + rng.normal(0, 0.3, (300, 2, 64))
        x[MINE, 1] *= 2.54 if cause == "signal scaled" else 1
        return list(in_blocks(x, signal_numbers))
    if what == "text":
        texts = [" ".join(rng.choice(WORDS, rng.integers(6, 18))) for _ in range(300)]
        texts = [
            f"{t} pardon" if MINE[at] and cause == "text word" and rng.random() < 0.4 else t
            for at, t in enumerate(texts)
        ]
        return list(of_texts("text", texts))
    y = rng.integers(0, 9, (300, 20))
    y[MINE[:, None] & (rng.random((300, 20)) < 0.2) & (cause == "symbol more")] = 7
    return list(of_symbols(y, "abcdefghi"))


SAYS = {
    "image brighter": "green b",
    "image contrast": "contrast is higher in sion",
    "signal faster": "dominant frequency of channel 1 is higher in sion",
    "signal scaled": "scale of channel 2 is higher in sion",
    "text word": 'text has the word "pardon" in ',
    "symbol more": 'symbol "h" is ',
}


@pytest.mark.parametrize("seeds", [5, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("cause", SAYS)
def test_a_planted_cause_is_the_first_named_in_nineteen_of_twenty_seeds(cause: str, seeds: int):
    hits = 0
    for seed in range(seeds):
        first = explained(planted(cause, seed), CLIENTS, HOSPITALS)[1][3][:1]
        hits += any(SAYS[cause] in one.text for one in first)
    assert hits >= 0.95 * seeds


def test_numbers_computed_from_a_row_have_no_unit():
    own = np.random.default_rng(0).normal(10, 1, 300) * np.where(MINE, 2.54, 1)
    for kind, unit in (("mean", True), ("content", False)):
        [found] = explained([("c", kind, "", own)], CLIENTS, HOSPITALS)[0]
        assert ("another unit" in found.text, found.factor > 0) == (unit, unit)


@pytest.mark.parametrize("what", ["image", "signal", "text", "symbol"])
@pytest.mark.parametrize("seeds", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_nothing_is_named_on_shuffled_clients_in_ninety_five_of_a_hundred_seeds(what: str, seeds: int):
    named = 0
    for seed in range(seeds):
        owner = np.random.default_rng(seed).permutation(CLIENTS)
        named += bool(explained(planted(f"{what} as it is", seed), owner, HOSPITALS)[0])
    print(f"{what}, shuffled clients: something is named in {named} of {seeds} seeds")
    assert named <= seeds / 20
