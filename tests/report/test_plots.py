"""Figures: what they draw, their colours and axes."""

import math
import re
from importlib.resources import files
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb

from fedskew.core.errors import BadInput
from fedskew.report import plots
from fedskew.report.series import Results
from fedskew.report.style import SERIES, WIDTH
from fedskew.store.runs import RunStore
from tests.report import OF_ONE_DATA_SET, add, compared


def test_every_figure_can_be_drawn(store: RunStore) -> None:
    pictures = plots.pictures(Results(store, store.runs()).titled)
    assert {*OF_ONE_DATA_SET} == {*pictures}
    for what, picture in pictures.items():
        figure = picture.draw(picture.label)
        assert figure.get_size_inches()[0] * 72 == pytest.approx(WIDTH)
        lines = {line.get_label() for line in figure.axes[0].get_lines()}
        assert "FedAvg" in lines or what in ("partition", "differences")


def test_unknown_figure_is_refused_with_the_nearest_name(store: RunStore) -> None:
    with pytest.raises(BadInput, match="did you mean 'accuracy'"):
        plots.plot(Results(store, store.runs()), "acuracy")
    with pytest.raises(BadInput, match="run 2 has no stored partition"):
        plots.plot(Results(store, store.runs()[1:]), "partition")


def test_colour_belongs_to_the_method_even_where_others_have_no_numbers(store: RunStore) -> None:
    axes = plots.plot(Results(store, store.runs()), "clients").axes[0]
    colours = {str(line.get_label()): line.get_color() for line in axes.get_lines()}
    assert colours["FedProx mu = 0.1"] == SERIES[1]
    axes = plots.plot(Results(store, [r for r in store.runs() if r.name != "fedavg"]), "clients").axes[0]
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
    axes = plots.plot(Results(store, store.runs()), "drift").axes[0]
    assert axes.get_yscale() == scale
    low, high = axes.get_ylim()
    assert low < min(values)
    assert max(values) < high < 2 * max(values)


def test_wide_intervals_do_not_squash_the_curves(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    add(store, "a", 0, [0.2, 0.3, 0.5])
    add(store, "a", 1, [0.2, 0.7, 0.6])
    low, high = plots.plot(Results(store, store.runs()), "loss").axes[0].get_ylim()
    # the loss before the first round, 0.8, does not flatten the curve after it
    assert low < 0.45 < 0.5 < high < 0.8
    add(store, "b", 0, [0.1, 0.99])
    add(store, "b", 1, [0.1, 0.85])
    low, high = plots.plot(Results(store, store.runs()), "accuracy").axes[0].get_ylim()
    assert 0.2 < low < 0.3, "half the range of the means below the lowest after the first round"
    assert 1 < high < 1.02


def test_partition_shows_sixty_clients_and_says_how_many_more(store: RunStore) -> None:
    store.set_partition(1, [(k, f"client-number-{k}", str(c), k + c + 1) for k in range(70) for c in (10, 9)])
    store.add_facts(1, {"partition": {"clients": 2000}})
    axes = plots.plot(Results(store, store.runs()), "partition").axes[0]
    assert len(axes.get_yticks()) == 60
    assert [label.get_text() for label in axes.get_xticklabels()] == ["9", "10"]
    assert axes.get_xlabel() == "and 1940 more clients"
    totals = [text.get_text() for text in axes.texts]
    assert totals[0] == str(0 + 9 + 1 + 0 + 10 + 1)


def test_partition_prints_counts_where_there_is_room(store: RunStore) -> None:
    texts = [text.get_text() for text in plots.plot(Results(store, store.runs()), "partition").axes[0].texts]
    assert texts == ["30", "2", "5", "32", "5", "rows"]


def test_differences_show_dot_interval_zero_and_verdict_of_each_method(store: RunStore) -> None:
    summary = Results(store, store.runs()).summary
    figure = plots.plot(Results(store, store.runs()), "differences")
    [axes] = figure.axes
    line, dot = axes.get_lines()  # scaffold has no finished run
    [zero] = axes.collections[0].get_segments()
    row = summary.iloc[1]
    half = 100 * row.difference_half
    assert [x for x, _ in zero] == [0, 0]
    assert axes.texts[0].get_position()[1] < min(y for _, y in zero), "the zero line crosses no name"
    assert list(line.get_xdata()) == pytest.approx([100 * row.difference - half, 100 * row.difference + half])
    assert list(dot.get_xdata()) == [100 * row.difference]
    assert dot.get_color() == SERIES[1]
    assert [text.get_text() for text in axes.texts] == ["FedProx mu = 0.1", "undecided, +2.67 points"]


def test_differences_end_at_possible_values(tmp_path: Path) -> None:
    store = compared(tmp_path, {"a": {0: 0.452, 1: 0.702}, "b": {0: 0.99, 1: 0.20}})
    line, _ = plots.plot(Results(store, store.runs()), "differences").axes[0].get_lines()
    assert list(line.get_xdata()) == [-100, 100]
    store = compared(tmp_path / "none", {"a": {0: 0.5}, "b": {1: 0.6}})
    with pytest.raises(BadInput, match="no method has a seed in common with the first one"):
        plots.plot(Results(store, store.runs()), "differences")


def test_bands_end_at_possible_values(tmp_path: Path) -> None:
    store = compared(tmp_path, {"a": {0: 0.99, 1: 0.90}, "b": {0: 0.02, 1: 0.15}})
    bands = plots.plot(Results(store, store.runs()), "accuracy").axes[0].collections
    heights = [y for band in bands for path in band.get_paths() for _, y in path.vertices]
    assert min(heights) >= 0
    assert max(heights) <= 1


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_eight_colours_stay_apart_for_all_readers(dark: bool) -> None:
    """Distances are measured in Oklab, also as seen with colour blindness (Machado et al. 2009). Contrast to the page is 3 to 1."""
    css = (files("fedskew.report") / "page.css").read_text(encoding="utf-8")
    light, _, rest = css.partition("prefers-color-scheme: dark")
    colours = [to_rgb(c) for c in re.findall(r"--series-\d: (#\w{6});", rest.partition("\n}\n")[0] if dark else light)]
    assert len(colours) == 8
    assert dark or [to_hex(c) for c in colours] == list(SERIES)
    linear = np.where(
        np.array(colours) <= 0.04045, np.array(colours) / 12.92, ((np.array(colours) + 0.055) / 1.055) ** 2.4
    )
    for sight in SIGHTS:
        seen = oklab(np.clip(linear @ np.array(sight).T, 0, 1))
        assert min(float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2)) > 0.065
    bright = linear @ np.array([0.2126, 0.7152, 0.0722])
    page = 0.0086 if dark else 1.0  # luminance of the background
    ratios = (np.maximum(bright, page) + 0.05) / (np.minimum(bright, page) + 0.05)
    assert ratios.min() >= 3


SIGHTS = (
    ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
)


def oklab(linear: np.ndarray) -> np.ndarray:
    lms = (
        linear
        @ np.array(
            [[0.4122215, 0.5363325, 0.0514460], [0.2119035, 0.6806995, 0.1073970], [0.0883025, 0.2817188, 0.6299787]]
        ).T
    )
    return (
        np.cbrt(lms)
        @ np.array(
            [[0.2104543, 0.7936178, -0.0040720], [1.9779985, -2.4285922, 0.4505937], [0.0259040, 0.7827718, -0.8086758]]
        ).T
    )
