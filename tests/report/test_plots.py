"""Figures: what they draw, their colours and axes."""

import math
import subprocess
import sys
from pathlib import Path

import pytest

from fedskew.core.errors import BadInput
from fedskew.report import plots
from fedskew.report.style import SERIES, WIDTH
from fedskew.store.runs import RunStore
from tests.report import add

OF_ONE_DATA_SET = [what for what in plots.pictures() if what != "ranks"]


@pytest.mark.parametrize("what", OF_ONE_DATA_SET)
def test_every_figure_can_be_drawn(store: RunStore, what: str) -> None:
    figure = plots.plot(store, store.runs(), what)
    assert figure.get_size_inches()[0] * 72 == pytest.approx(WIDTH)
    lines = {line.get_label() for line in figure.axes[0].get_lines()}
    if what != "partition":
        assert "FedAvg" in lines


def test_unknown_figure_is_refused_with_the_nearest_name(store: RunStore) -> None:
    with pytest.raises(BadInput, match="did you mean 'accuracy'"):
        plots.plot(store, store.runs(), "acuracy")
    with pytest.raises(BadInput, match="run 2 has not noted its partition"):
        plots.plot(store, store.runs()[1:], "partition")


def test_colour_belongs_to_the_method_even_where_others_have_no_numbers(store: RunStore) -> None:
    axes = plots.plot(store, store.runs(), "clients").axes[0]
    colours = {str(line.get_label()): line.get_color() for line in axes.get_lines()}
    assert colours["FedProx mu = 0.1"] == SERIES[1]
    axes = plots.plot(store, [r for r in store.runs() if r.name != "fedavg"], "clients").axes[0]
    assert axes.get_lines()[0].get_color() == SERIES[0]


@pytest.mark.parametrize(
    ("values", "scale"), [([5.0, 1.0, 0.6], "linear"), ([50.0, 1.0, 0.6], "log"), ([9.0, 0.0], "linear")]
)
def test_axis_is_logarithmic_where_more_than_a_decade_is_spanned(
    tmp_path: Path, values: list[float], scale: str
) -> None:
    store = RunStore(tmp_path)
    run = add(store, "a", 0, [0.1])
    for round_, value in enumerate([*values, math.inf]):
        store.write_round(run, round_ + 1, [(None, "round", "drift", value)])
    axes = plots.plot(store, store.runs(), "drift").axes[0]
    assert axes.get_yscale() == scale
    low, high = axes.get_ylim()
    assert low < min(values)
    assert max(values) < high < 2 * max(values)


def test_wide_intervals_do_not_squash_the_curves(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    add(store, "a", 0, [0.2, 0.3, 0.5])
    add(store, "a", 1, [0.2, 0.7, 0.6])
    low, high = plots.plot(store, store.runs(), "loss").axes[0].get_ylim()
    assert 0.8 - 0.45 < high - low < 0.8
    add(store, "b", 0, [0.1, 0.99])
    add(store, "b", 1, [0.1, 0.85])
    low, high = plots.plot(store, store.runs(), "accuracy").axes[0].get_ylim()
    assert -0.02 < low < 0
    assert 1 < high < 1.02


def test_partition_shows_sixty_clients_and_says_how_many_more(store: RunStore) -> None:
    store.set_partition(1, [(k, f"client-number-{k}", str(c), k + c + 1) for k in range(70) for c in (10, 9)])
    store.add_facts(1, {"partition": {"clients": 2000}})
    axes = plots.plot(store, store.runs(), "partition").axes[0]
    assert len(axes.get_yticks()) == 60
    assert [label.get_text() for label in axes.get_xticklabels()] == ["9", "10"]
    assert axes.get_xlabel() == "and 1940 more clients"
    totals = [text.get_text() for text in axes.texts]
    assert totals[0] == str(0 + 9 + 1 + 0 + 10 + 1)


def test_partition_prints_counts_where_there_is_room(store: RunStore) -> None:
    texts = [text.get_text() for text in plots.plot(store, store.runs(), "partition").axes[0].texts]
    assert texts == ["30", "2", "5", "32", "5", "rows"]


def test_importing_the_room_is_quick() -> None:
    code = (
        "import sys, fedskew.report.html, fedskew.report.plots; "
        "print([m for m in ('pandas', 'matplotlib', 'jinja2', 'scipy', 'torch') if m in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100).stdout
        == "[]\n"
    )
