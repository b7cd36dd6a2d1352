"""axe-core finds no serious fault in the report and the diagnosis; a slow test.

axe-core is no part of this repository: ``npm install axe-core`` in its root, or name the file in the environment variable AXE.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedskew.report.diagnosis import write_diagnosis
from fedskew.report.html import write_report
from fedskew.report.series import Results
from tests.browser import CHROMIUM, Browser, browser
from tests.report import diagnosed, mixed_store

AXE = Path(os.environ.get("AXE") or Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium on the PATH (Debian: apt-get install chromium)"),
    pytest.mark.skipif(not AXE.exists(), reason="needs axe-core: npm install axe-core, or AXE=/path/to/axe.min.js"),
]

FAULTS = """
axe.run().then(found => found.violations.filter(fault => ['serious', 'critical'].includes(fault.impact))
  .map(fault => `${fault.id}: ${fault.nodes.map(node => node.html).join(' ')}`))
"""


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
    return found


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened_browser:
        yield opened_browser


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 768, 1440])
@pytest.mark.parametrize("name", ["report", "diagnosis"])
def test_page_has_no_serious_accessibility_fault(
    pages: dict[str, str], chromium: Browser, name: str, width: int, dark: bool
) -> None:
    chromium.open(pages[name], width, dark)
    chromium.ask("document.querySelectorAll('details').forEach(part => { part.open = true })")
    chromium.ask(f"{AXE.read_text(encoding='utf-8')}; 0")
    assert chromium.ask(FAULTS) == []


def test_a_fault_is_found(chromium: Browser, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text("<img src=x><p style='color:#eee;background:#fff'>pale words</p>", encoding="utf-8")
    chromium.open(bad.as_uri(), 390, dark=False)
    chromium.ask(f"{AXE.read_text(encoding='utf-8')}; 0")
    found = " ".join(chromium.ask(FAULTS))
    assert "image-alt" in found
    assert "color-contrast" in found
