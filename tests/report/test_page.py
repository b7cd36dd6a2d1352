"""The page is complete, safe and self-contained, and says on which rows clients are measured."""

import base64
import csv
import hashlib
import json
import math
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fedskew.core.errors import BadInput, FedskewError
from fedskew.report import draw, html, plots
from fedskew.report.files import texts_of
from fedskew.report.html import write_report
from fedskew.report.series import Layout, Results
from fedskew.report.style import inline
from fedskew.store.runs import RunStore
from tests.report import OF_ONE_DATA_SET, add, compared, report


class Outline(HTMLParser):
    """Reads the ids, references and nesting of a page."""

    VOID = ("meta", "link", "br", "wbr", "path", "use")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.references: list[str] = []
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            outside = re.match("https?:|//", value or "") and not name.startswith("xmlns")
            if outside or name in ("src", "href", "xlink:href", "srcset", "action", "data"):
                self.references.append(value or "")
            self.references += re.findall(r"url\(([^)]*)\)", value or "")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


@pytest.mark.first
def test_page_is_complete(page: str) -> None:
    outline = Outline(page)
    assert outline.open == []
    parts = {"answer", "differences", "settings", "summary", "figures", "partition", "unfinished", "repeat"}
    assert parts <= set(outline.ids)
    assert page.count("<figure") == len(OF_ONE_DATA_SET)


def test_page_needs_no_network_and_its_ids_are_unique(page: str) -> None:
    outline = Outline(page)
    assert len(outline.ids) == len(set(outline.ids))
    assert len(outline.references) > 50
    assert all(reference.startswith("#") for reference in outline.references)
    assert {reference[1:] for reference in outline.references} <= set(outline.ids)
    assert "@import" not in page
    assert not {"img", "link", "iframe", "object"} & outline.tags
    assert "default-src 'none'" in page


def test_the_policy_of_the_page_allows_its_own_script_only(page: str) -> None:
    [script] = re.findall(r"<script[^>]*>(.*?)</script>", page, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    [allowed] = re.findall(r"script-src ([^;]*);", page)
    assert allowed == f"'sha256-{digest}'"


def values_of(page: str, figure: str) -> dict[str, Any]:
    """Return the values that a figure shows under the pointer."""
    [attribute] = re.findall(rf"data-tips='([^']*)'>\s*<svg [^>]*aria-label=\"{figure}\"", page)
    return json.loads(unescape(attribute))


def test_figures_hold_the_values_that_the_pointer_shows(page: str) -> None:
    accuracy = values_of(page, "test accuracy over rounds")
    x, _, head, lines = accuracy["tips"][-1]
    assert accuracy["methods"] == ["FedAvg", "FedProx mu = 0.1", "SCAFFOLD"]
    assert head == "round 2"
    assert [(method, text) for method, _, text in lines] == [(1, "84.7 ± 3.8\xa0%"), (0, "81.0 ± 4.1\xa0%")]
    assert accuracy["tips"][0][0] < accuracy["tips"][1][0] < x < 1000
    assert lines[0][1] < lines[1][1]  # measured from the top
    [(_, _, compared, _)] = values_of(page, "difference from FedAvg")["tips"]
    assert compared.startswith("FedProx mu = 0.1: undecided, +2.67 points, 95\xa0% interval −")
    by_class = values_of(page, "accuracy by class")
    tips = [(head, lines[0][2]) for _, _, head, lines in by_class["tips"]]
    assert tips == [("cat", "81.0 ± 4.1\xa0%"), ("dog", "79.0 ± 4.1\xa0%")]
    by_layer = values_of(page, "cosine by layer")  # mean of rounds 1 and 2
    tips = [(head, lines[0][2]) for _, _, head, lines in by_layer["tips"]]
    assert tips == [("hidden", "0.300 ± 0.000"), ("out", "0.500 ± 0.000")]
    assert values_of(page, "rows of each client by label")["tips"][0][2] == "client 0, 7: 30 rows"


@pytest.mark.usefixtures("without_curves")
def test_bands_and_lines_follow_the_interval_that_was_asked_for(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    for seed in range(4):
        add(store, "a", seed, [0.1, 0.5 + 0.01 * seed])
        add(store, "b", seed, [0.1, 0.6 + 0.02 * seed])
    texts = {
        name: texts_of(Results(store, store.runs(), layout=Layout(spread=name))) for name in ("ci95", "std", "sem")
    }
    wide = {}
    for name, files in texts.items():
        last = list(csv.DictReader(files["accuracy.csv"].splitlines()))[-1]
        wide[name] = float(last["high"]) - float(last["mean"])
    assert wide["std"] == pytest.approx(0.02 * math.sqrt(5 / 3))
    assert wide["sem"] == pytest.approx(wide["std"] / 2)
    assert wide["ci95"] == pytest.approx(3.182446305 * wide["sem"])
    page = write_report(Results(store, store.runs(), layout=Layout(spread="std")), tmp_path / "std.html").read_text(
        "utf-8"
    )
    tip = values_of(page, "difference from a")["tips"][0][2]
    assert "standard deviation" in tip
    assert "95" not in tip


def test_figures_take_their_colours_from_the_page(page: str) -> None:
    svgs = re.findall(r"<svg viewBox.*?</svg>", page, re.S)
    assert len(svgs) >= len(OF_ONE_DATA_SET)
    assert not [
        style for svg in svgs for style in re.findall(r'style="[^"]*"', svg) if "#" in style.replace("url(#", "")
    ]
    used = set(re.findall(r"var\((--[\w-]+)\)", page))
    assert {"--series-1", "--series-2", "--ink", "--muted", "--grid"} <= used
    light, dark = page.split("prefers-color-scheme: dark", 1)
    assert all(f"{name}:" in light and f"{name}:" in dark for name in used)


def test_text_from_the_store_is_escaped(tmp_path: Path) -> None:
    evil = "<script>alert('1')</script>&\"$x"
    store = RunStore(tmp_path / "runs")
    comparison = store.add_comparison(evil)
    add(store, evil, 0, [0.1, 0.5], comparison=comparison, experiment=f"[model]\nname = '''{evil}'''\n")
    add(store, "b", 0, [0.1], comparison=comparison, status="failed", message=evil, rounds=3, experiment=evil)
    store.set_partition(1, [(0, evil, evil, 3), (1, "$a$", "^", 2)])
    store.add_facts(1, {key: {"name": evil, evil: evil} for key in ("versions", "engine", "data")})
    store.add_facts(1, {"partition": {"clients": evil, "rows": None}})
    text = report(store, tmp_path) + inline(plots.plot(Results(store, store.runs()), "partition"), "figure", evil)
    assert text.count("<script") == 1  # the page's own
    assert "alert('1')" not in text
    assert text.count("&lt;script&gt;") > 10


@pytest.mark.usefixtures("without_curves")
def test_many_methods_with_long_names(tmp_path: Path) -> None:
    names = [f"a-rather-long-method-name:option={i},another_option=true,third=0.12345" for i in range(15)]
    store = compared(tmp_path, {name: {0: 0.5 + i / 100} for i, name in enumerate(names)})
    text = report(store, tmp_path)
    assert "and 14 other methods" in text
    assert all(name in text for name in names)
    looks = {str(draw.line_style(i, 99)) for i in range(32)}
    assert len(looks) == 32
    assert plots.plot(Results(store, store.runs()), "drift").get_axes()[0].get_position().height > 0.1


def test_report_is_replaced_in_one_step(store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(html, "page", lambda *_, **__: "the new one")
    assert write_report(Results(store, store.runs()), path).read_text() == "the new one"
    path.write_text("the one before")
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(FedskewError, match="No space left"):
        write_report(Results(store, store.runs()), path)
    assert path.read_text() == "the one before"
    assert [p.name for p in tmp_path.glob("report*")] == ["report.html"]


def test_report_without_runs_is_refused(store: RunStore, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no runs"):
        write_report(Results(store, []), tmp_path / "report.html")


@pytest.mark.usefixtures("without_curves")
def test_personal_models_are_shown_where_they_were_measured(tmp_path: Path, page: str) -> None:
    assert "personal models" in page
    assert "Accuracy of each client’s own model" in page
    bare = RunStore(tmp_path / "bare")
    add(bare, "fedavg", 0, [0.1, 0.5], clients=())
    assert math.isnan(Results(bare, bare.runs()).summary.iloc[0].personal)
    assert "personal" not in report(bare, tmp_path)
    with pytest.raises(BadInput, match="none of these runs has measured accuracy of the personal models"):
        plots.plot(Results(bare, bare.runs()), "personal")
