"""Selection of clients."""

import numpy as np
import pytest

from fedskew.core.errors import BadInput
from fedskew.execution.build import check_clients
from fedskew.experiment.config import Experiment
from fedskew.slots import Everyone, Uniform


def chosen(selection, num_clients: int, i: int = 0) -> list[int]:
    return selection.select(np.arange(num_clients), np.random.default_rng(i)).tolist()


def test_everyone() -> None:
    assert chosen(Everyone(), 9) == list(range(9))


@pytest.mark.parametrize(
    ("fraction", "num_clients", "size"),
    [
        (0.1, 100, 10),
        (0.29, 100, 29),
        (0.57, 100, 57),
        (0.07, 100, 7),
        (0.1, 9, 1),
        (0.01, 10, 1),
        (0.5, 7, 3),
        (0.999, 10, 9),
        (1.0, 13, 13),
    ],
)
def test_size_of_a_fraction_is_the_floor_and_at_least_one(fraction: float, num_clients: int, size: int) -> None:
    """The floor of the decimal that was written: 0.29 * 100 is 28.999... in floating point."""
    assert len(chosen(Uniform(fraction=fraction), num_clients)) == size


@pytest.mark.parametrize("selection", [Uniform(clients=4), Uniform(fraction=0.4)], ids=["clients", "fraction"])
def test_a_cohort_is_sorted_without_repeats_and_repeatable(selection) -> None:
    seen = set()
    for i in range(50):
        cohort = chosen(selection, 10, i)
        assert len(cohort) == len(set(cohort)) == 4
        assert cohort == sorted(cohort)
        assert set(cohort) <= set(range(10))
        assert cohort == chosen(selection, 10, i)
        seen.add(tuple(cohort))
    assert len(seen) > 30


def test_every_client_and_pair_is_chosen_equally_often() -> None:
    rng, draws = np.random.default_rng(0), 4000
    table = np.zeros((draws, 6))
    for row in table:
        row[Uniform(clients=2).select(np.arange(6), rng)] = 1
    pairs = table.T @ table
    for value, share in ((np.diag(pairs), 1 / 3), (pairs[np.triu_indices(6, 1)], 1 / 15)):
        assert (abs(value - draws * share) < 5 * np.sqrt(draws * share * (1 - share))).all()


def test_the_whole_population_can_be_drawn_but_not_more() -> None:
    assert chosen(Uniform(clients=5), 5) == [0, 1, 2, 3, 4]
    check_clients(Experiment(selection=Uniform(clients=5)), 5)
    with pytest.raises(BadInput, match="selection uniform draws 6 clients, but only 5 have data"):
        check_clients(Experiment(selection=Uniform(clients=6)), 5)
