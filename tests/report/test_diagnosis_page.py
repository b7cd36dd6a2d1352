"""The page of a diagnosis: its pictures, its quiet notes, and the values under the pointer."""

import json
import re
from html import unescape

import numpy as np
import pytest

from fedskew.report.diagnosis import draw_columns, page, title_of
from fedskew.report.draw import natural
from tests.report import diagnosed
from tests.report.test_page import Outline


@pytest.fixture(scope="module")
def text() -> str:
    return page(diagnosed())


def tips(text: str, label: str) -> list[str]:
    [attribute] = re.findall(rf"data-tips='([^']*)'>\s*<svg [^>]*aria-label=\"{label}\"", text)
    return [head for _, _, head, _ in json.loads(unescape(attribute))["tips"]]


def test_page_is_whole_and_needs_no_network(text: str) -> None:
    outline = Outline(text)
    assert outline.open == []
    assert {"answer", "faces", "columns", "advice", "partition", "measures"} <= set(outline.ids)
    assert all(reference.startswith("#") for reference in outline.references)
    assert "@import" not in text
    assert "prefers-color-scheme: dark" in text


def test_faces_and_columns_are_pictures_with_values(text: str) -> None:
    faces = tips(text, "the faces against chance")
    assert [line.partition(":")[0] for line in faces] == ["label", "feature", "quantity", "concept"]
    assert all("by chance 0." in line for line in faces)
    columns = tips(text, "columns that differ, by client")
    [far] = [line for line in columns if line.startswith("column 0 of a hospital with a rather long name: ")]
    assert re.search(r"[12]\.\d standard deviations above all other clients$", far)
    assert not [line for line in columns if line.startswith("column 1")]
    assert tips(text, "rows of each client by label")[0].startswith("client north, ")


def test_notes_are_quiet_and_the_command_stands_alone(text: str) -> None:
    assert 'class="warning"' not in text
    assert '<p class="note">One note.</p>' in text
    assert re.search(r"<pre tabindex=\"0\"><code>fedskew compare [^<]*</code></pre>", text)


def test_columns_are_drawn_only_where_some_differ() -> None:
    found = diagnosed() | {"columns": []}
    assert 'id="columns"' not in page(found)
    [axes] = draw_columns(np.array([[1.0, 0.0], [0.0, -2.0]]), ["a", "b"], ["x", "y"]).axes
    assert [(t.get_text(), t.get_position()) for t in axes.texts] == [("+1.0", (0, 0)), ("−2.0", (1, 1))]


def test_columns_of_the_picture_say_what_is_compared():
    def title(kind: str, word: str = "") -> str:
        return title_of({"column": "wind", "kind": kind, "word": word})

    assert [title("mean"), title("missing"), title("share", "N")] == ["wind", "wind missing", "wind N"]
    assert [title("word", "hi"), title("copied")] == ['word "hi"', "copied rows"]


def test_bins_of_numbers_are_in_their_order():
    bins = ["up to 9", "9 to 12.5", "12.5 to 100", "above 100"]
    assert sorted(sorted(bins), key=natural) == bins
    named = [*(f"event, time up to {n}" for n in (8, 90)), *(f"no event, time up to {n}" for n in (8, 90, 100))]
    assert sorted(sorted(named), key=natural) == named
    assert sorted(["b", "10", "9", "-1", "a"], key=natural) == ["-1", "9", "10", "a", "b"]


def test_one_huge_effect_does_not_fade_the_others():
    [axes] = draw_columns(np.array([[68.0, 2.0], [-1.0, 0.0]]), ["a", "b"], ["x", "y"]).axes
    depths = {patch.get_xy()[0] + patch.get_xy()[1]: patch.get_alpha() for patch in axes.patches}
    assert sorted(depths.values()) == pytest.approx([0.325, 0.55, 0.55])
