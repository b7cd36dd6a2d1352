"""The site is built without a warning, and needs nothing from elsewhere to be read."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_site_is_built_and_loads_no_foreign_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    monkeypatch.setenv("FEDSKEW_TUTORIALS", "false")  # tests/project/test_examples.py runs them
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stderr
    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(
            r'<(?:script|img|iframe)[^>]* src="https?://|<link[^>]* href="https?://[^"]*\.css', text
        ), page
        assert "<pre><span></span><code>" not in text, (
            f"{page}: a code block that scrolls cannot be reached with the keyboard"
        )
        plain = re.sub(r'<div class="scroll[^>]* tabindex="0"[^>]*>\s*<table>', "", text)
        assert "<table>" not in plain, f"{page}: a table that scrolls cannot be reached with the keyboard"
        if page.name == "evidence-table.html":
            continue  # it has no theme and no search
        assert 'role="dialog" aria-label="Search"' in text, f"{page}: the search has no name for screen readers"
    drift = (tmp_path / "explanations" / "client-drift" / "index.html").read_text(encoding="utf-8")
    blocks = drift.count('display="block"')
    assert blocks
    assert drift.count('class="formula" tabindex="0"><math') == blocks, "a long formula widens the page"
    beside = re.findall(r'href="([a-z_]+)/" class="md-nav__link"', (tmp_path / "gallery" / "index.html").read_text())
    assert beside.index("skews_side_by_side") < beside.index("attacks"), "the gallery's navigation is in its own order"
