"""Symbols from arrays to a trained model: the default task, models of one's own, and one clear line for what does not fit."""

import numpy as np
import pytest
from torch import nn

import fedskew as fs
from fedskew.core.errors import BadInput

V, T = 4, 6


def sequences(**changes) -> fs.Dataset:
    """Return rows of 1 to 6 symbols of two clients. The symbols follow each other in a circle."""
    rng = np.random.default_rng(0)
    symbols = (rng.integers(0, V, (40, 1)) + np.arange(T + 1)) % V
    ended = rng.integers(1, T + 1, (40, 1)) <= np.arange(T)
    x, y = np.where(ended, -1, symbols[:, :-1]), np.where(ended, -1, symbols[:, 1:])
    parts = {"x": x[:30], "y": y[:30], "x_test": x[30:], "y_test": y[30:], "groups": np.arange(30) % 2}
    return fs.Dataset(**{**parts, "classes": tuple("abcd"), **changes})


def run(data: fs.Dataset, **options):
    settings = {"model": "symbol-lstm:embedding=3,hidden=6", "skew": "natural", "rounds": 3, "lr": 1.0, "epochs": 10}
    return fs.run(**{**settings, **options}, data=data)


class Table(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.table, self.out = nn.Embedding(classes, 5), nn.Linear(5, classes)

    def forward(self, x):
        return self.out(self.table(x.clamp(min=0)))


class Fails(Table):
    def forward(self, x):
        return self.out(self.table(x))


@pytest.mark.parametrize("model", ["symbol-lstm:embedding=3,hidden=6", "transformer:width=8,layers=1,heads=2", Table])
def test_arrays_of_symbols_are_learnt_without_naming_a_task(model):
    table = run(sequences(), model=model).table()
    assert table["accuracy"][0] > 0.8
    assert 1 <= table["perplexity"][0] < 3


@pytest.mark.parametrize(
    ("changes", "options", "line"),
    [
        ({}, {"model": "mlp"}, "mlp.*: predicts once a row, .* use symbol-lstm or transformer"),
        (
            {"x": sequences().x + 1},
            {},
            r"rows of own data must be integers 0..3, or -1 after a row's end; found int64 0..4",
        ),
        ({"x": sequences().x / 1}, {}, "must be integers 0..3, .* found float64"),
        (
            {"x": sequences().x[:, 1:], "x_test": sequences().x_test[:, 1:]},
            {},
            r"shape \(5,\), but .* have shape \(6,\)",
        ),
        ({"classes": ("a",), "y": sequences().y * 0, "y_test": sequences().y_test * 0}, {}, "a vocabulary of 1"),
        ({"classes": tuple("abc")}, {}, "must lie in 0..2, or be -1 where a row has ended, found -1..3"),
        ({"y": 0 * sequences().y - 1}, {}, "no training row has a symbol"),
    ],
)
def test_symbols_that_cannot_be_learnt_give_one_line_errors(changes, options, line):
    with pytest.raises(BadInput, match=line):
        run(sequences(**changes), **options)


def test_a_model_of_symbols_refuses_other_targets():
    with pytest.raises(
        BadInput, match=r"transformer.*: predicts the next symbol .* digits has one target a row; use mlp"
    ):
        fs.run(dataset="digits", model="transformer", rounds=1)


def test_a_module_that_fails_on_padding_is_told_to_use_clamp():
    with pytest.raises(BadInput, match=r"Fails: fails on -1, .* use x.clamp\(min=0\)"):
        run(sequences(), model=Fails)
