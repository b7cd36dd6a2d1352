"""Refused skews: each message is one line that names the option and the fix."""

import re

import numpy as np
import pytest

from fedskew.core.errors import BadInput
from fedskew.skew.compose import mixture, skews_of
from fedskew.skew.partition import deal
from tests.skew.test_features import TABLE, WINDOWS, changed_by


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("label-dirichlet:alpah=1", "alpha"),
        ("label-dirichle", "label-dirichlet"),
        ("column-dirichlet", "column"),
        ([], "the list is empty"),
        (["label-sorted", "label-shards"], "label-sorted and label-shards both deal the rows"),
        (["natural", "iid"], "both deal the rows"),
        (["quantity-lognormal", "quantity-dirichlet"], "both set the clients' sizes"),
        (["natural", "quantity-lognormal"], "natural clients have their own sizes"),
        (["from-folder:path=x", "quantity-power-law"], "the folder sets the clients' sizes"),
        (["time-blocks", "quantity-power-law"], "blocks of time have equal sizes"),
        (["pooled", "pooled"], "pooled is given twice"),
        (["natural", "shuffled", "shuffled"], "shuffled is given twice"),
    ],
    ids=str,
)
def test_wrong_names_and_combinations_are_refused(spec, words: str) -> None:
    with pytest.raises(BadInput, match=re.escape(words)):
        skews_of(spec)


@pytest.mark.parametrize(
    ("spec", "clients", "words"),
    [
        *[
            (skew, clients, str(clients))
            for skew in ("iid", "label-sorted", "label-dirichlet", "label-dirichlet-per-class:min_size=0")
            for clients in (-1, 0, 21)
        ],
        ("natural", 3, "natural"),
        ("label-dirichlet-per-class:min_size=10", 3, "30 rows"),
        # every client's share of a class is below one row
        ("label-dirichlet:alpha=1e6,remainder=drop", 20, "gives no client any rows"),
        ("label-shards:shards=3", 10, "30 rows"),
        ("time-blocks:blocks=7", 3, "3 clients with 7 blocks each need 21 rows, the data set has 20"),
        ("label-classes:k=5", 3, "k = 5 of 4 classes"),
        ("label-classes:k=4", 8, "5 rows for 8 clients"),
        ("label-blocks", 5, "use fewer clients"),
        ("quantity-dirichlet:min_size=10", 3, "30 rows"),
        ("quantity-sizes:rows=[1,2]", 3, "2 sizes for 3 clients"),
        ("quantity-sizes:rows=[10,20]", 2, "30 rows in all"),
        ("quantity-lognormal", 21, "21 clients cannot share 20 rows"),
        (["label-sorted", "quantity-lognormal"], 0, "at least 1"),
    ],
    ids=str,
)
def test_twenty_rows_of_four_classes_do_not_allow_these_partitions(spec, clients: int, words: str) -> None:
    with pytest.raises(BadInput, match=re.escape(words)):
        deal(mixture(skews_of(spec)), np.arange(20) % 4, None, clients, 0)


@pytest.mark.parametrize(
    ("spec", "x", "words"),
    [
        ("feature-rotation", TABLE, "if they are flat images of 6 x 6, add side=6"),
        ("feature-blur", TABLE[:, :5], "needs images (channels, height, width), these rows have shape (5,)"),
        ("feature-style", WINDOWS, "needs images"),
        ("feature-rotation:side=5", TABLE, "25 pixels"),
        ("feature-sensor", TABLE, "needs windows"),
        ("feature-sensor", WINDOWS[:, :4], "in threes"),
    ],
)
def test_rows_of_another_shape_are_refused(spec: str, x: np.ndarray, words: str) -> None:
    with pytest.raises(BadInput, match=re.escape(words)):
        changed_by(spec, x)
