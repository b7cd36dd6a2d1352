"""The report of a large store in a real Chromium: small, quick, drawn whole, accessible, on phone and desk, in light and dark.

axe-core is no part of this repository: ``npm install axe-core`` in its root, or name the file in the environment variable AXE.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedskew as fs
from fedskew.report.diagnosis import write_diagnosis
from fedskew.report.experiments import name_of
from fedskew.report.html import write_report
from fedskew.report.series import Results
from fedskew.studies import study
from tests.browser import CHROMIUM, Browser, browser
from tests.report import diagnosed, mixed_store
from tests.studies.planted import federation
from tests.synthetic import METHODS, synthetic_store

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium on the PATH (Debian: apt-get install chromium)"),
]

MEGABYTES, SECONDS = 6, 2
"""Limits for 60 runs of 200 rounds with 30 clients."""

PARTITION, SHADES = "rows of each client by label", 8
"""The figure whose cells are one path a shade."""

DIFFERENCES = "difference from FedAvg"
"""The figure without the first method."""

DRAWN = """
[...document.querySelectorAll('figure svg[role=img]')].map(svg => ({
  name: svg.getAttribute('aria-label'),
  marks: [...svg.querySelectorAll('path, use, image')].filter(mark => {
    const box = mark.getBoundingClientRect();
    return (box.width > 0 || box.height > 0) && getComputedStyle(mark).visibility === 'visible';
  }).length,
  empty: svg.getBoundingClientRect().width === 0,
  broken: [...svg.querySelectorAll('use')].filter(u => !document.querySelector(u.getAttribute('xlink:href'))).length,
}))
"""

OVERFLOWING = """
[...document.querySelectorAll('body *')].filter(e => !e.closest('svg, .scroll') &&
  e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map(e => e.outerHTML.slice(0, 80))
"""


AXE = Path(os.environ.get("AXE") or Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js")
needs_axe = pytest.mark.skipif(
    not AXE.exists(), reason="needs axe-core: npm install axe-core, or AXE=/path/to/axe.min.js"
)

FAULTS = """
axe.run().then(found => found.violations.filter(fault => ['serious', 'critical'].includes(fault.impact))
  .map(fault => `${fault.id}: ${fault.nodes.map(node => node.html).join(' ')}`))
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    store = synthetic_store(folder / "runs")
    path = write_report(Results(store, store.runs()), folder / "report.html")
    store.close()
    return path


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def test_report_file_is_small(page: Path) -> None:
    assert page.stat().st_size < MEGABYTES * 1e6


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_report_opens_in_a_browser(page: Path, chromium: Browser, width: int, dark: bool) -> None:
    assert min(seconds_to_open(page, chromium, width, dark) for _ in range(3)) < SECONDS
    assert chromium.complaints() == []
    assert chromium.ask("innerWidth") == width
    assert chromium.ask("matchMedia('(prefers-color-scheme: dark)').matches") is dark
    figures = chromium.ask(DRAWN)
    assert len(figures) >= 6
    for figure in figures:
        fewest = {PARTITION: SHADES, DIFFERENCES: len(METHODS) - 1}
        assert figure["marks"] >= fewest.get(figure["name"], len(METHODS))
        assert not figure["empty"]
        assert not figure["broken"]
    assert chromium.ask("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
    assert chromium.ask("document.documentElement.scrollWidth") <= width
    assert chromium.ask(OVERFLOWING) == []
    light, ink = (chromium.ask(f"getComputedStyle(document.body).{what}") for what in ("backgroundColor", "color"))
    assert brightness(light) < brightness(ink) if dark else brightness(light) > brightness(ink)


def test_values_are_shown_under_the_pointer_and_by_keys(page: Path, chromium: Browser) -> None:
    chromium.open(page.as_uri(), 1440, dark=False)
    chart = "document.querySelector('#figures .chart[data-tips]')"
    place = chromium.ask(f"{chart}.scrollIntoView(), {chart}.getBoundingClientRect().toJSON()")
    x, y = place["x"] + 0.99 * place["width"], place["y"] + 0.5 * place["height"]
    chromium.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    said = chromium.ask(f"{chart}.querySelector('.tip').innerText")
    assert "round 200" in said
    assert all(f"{name_of(method)}: " in said for method in METHODS)
    assert chromium.ask(f"{chart}.querySelectorAll('.dot').length") == len(METHODS)
    chromium.call("Input.dispatchMouseEvent", type="mouseMoved", x=0, y=0)
    assert not chromium.ask("document.querySelectorAll('.tip, .dot').length")
    chromium.ask(f"{chart}.focus()")
    for key, expected in (("Home", "round 0"), ("ArrowRight", "round 1"), ("End", "round 200")):
        chromium.call("Input.dispatchKeyEvent", type="keyDown", key=key)
        assert expected in chromium.ask(f"{chart}.querySelector('.tip').innerText")
    chromium.call("Input.dispatchKeyEvent", type="keyDown", key="Escape")
    assert not chromium.ask("document.querySelectorAll('.tip').length")


@pytest.mark.parametrize("width", [390, 768, 1440])
def test_verdicts_are_on_screen_and_wide_tables_say_so(page: Path, chromium: Browser, width: int) -> None:
    chromium.open(page.as_uri(), width, dark=False)
    outside = """[...document.querySelectorAll('#summary .verdict')].filter(word => {
      const box = word.getBoundingClientRect(); return box.width === 0 || box.right > innerWidth; }).length"""
    assert chromium.ask(outside) == 0
    silent = """[...document.querySelectorAll('.scroll')].filter(
      place => place.scrollWidth > place.clientWidth + 2 && !place.classList.contains('more')).length"""
    assert chromium.ask(silent) == 0


def test_a_complaint_and_an_overflow_are_seen(tmp_path: Path, chromium: Browser) -> None:
    bad = tmp_path / "bad.html"
    scripts = "<script>console.error('no'); f()</script>"
    bad.write_text(
        f"<meta name=viewport content='width=device-width'>{scripts}<div style='width:900px'>x</div>", encoding="utf-8"
    )
    chromium.open(bad.as_uri(), 390, dark=False)
    assert len(chromium.complaints()) == 2
    assert len(chromium.ask(OVERFLOWING)) == 1


def seconds_to_open(page: Path, chromium: Browser, width: int, dark: bool) -> float:
    began = time.perf_counter()
    chromium.open(page.as_uri(), width, dark)
    return time.perf_counter() - began


def brightness(colour: str) -> int:
    """Return the brightness of a colour ``rgb(r, g, b)``."""
    return sum(map(int, colour.removeprefix("rgb(").rstrip(")").split(",")))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the addresses of the pages."""
    folder = tmp_path_factory.mktemp("pages")
    store = mixed_store(folder / "runs")
    found = {
        "report": write_report(Results(store, store.runs()), folder / "report.html").as_uri(),
        "diagnosis": write_diagnosis(diagnosed(), folder / "diagnosis.html").as_uri(),
    }
    store.close()
    federation("offset", 0).groupby("site").head(80).to_csv(folder / "visits.csv", index=False)
    options = {"label": "outcome", "client": "site", "by": "sex,age", "rounds": 2, "minutes": 60, "jobs": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "PLANS", ((1.0, 2),))
        patch.setattr(study, "PARTITIONS", (2,))
        decided = fs.study(folder / "visits.csv", runs=folder / "study", progress=False, **options)
    return {**found, "study": decided.report(folder / "study.html").as_uri()}


@needs_axe
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 768, 1440])
@pytest.mark.parametrize("name", ["report", "diagnosis", "study"])
def test_page_has_no_serious_accessibility_fault(
    pages: dict[str, str], chromium: Browser, name: str, width: int, dark: bool
) -> None:
    chromium.open(pages[name], width, dark)
    chromium.ask("document.querySelectorAll('details').forEach(part => { part.open = true })")
    chromium.ask(f"{AXE.read_text(encoding='utf-8')}; 0")
    assert chromium.ask(FAULTS) == []
    assert chromium.ask(OVERFLOWING) == []


@needs_axe
def test_a_fault_is_found(chromium: Browser, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text("<img src=x><p style='color:#eee;background:#fff'>pale words</p>", encoding="utf-8")
    chromium.open(bad.as_uri(), 390, dark=False)
    chromium.ask(f"{AXE.read_text(encoding='utf-8')}; 0")
    found = " ".join(chromium.ask(FAULTS))
    assert "image-alt" in found
    assert "color-contrast" in found
