"""Scripts that make a published page or a packaged file run, at a small scale; published verdicts follow from their numbers."""

import dataclasses
import importlib.util
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from fedskew.claims.document import load
from fedskew.claims.export import results_of
from fedskew.claims.verdicts import verdicts
from fedskew.cli import reproduce
from fedskew.cli.main import main
from fedskew.measure.statistics import LEVEL, decided, holm
from tests.claims.test_results import two_arms

ROOT = Path(__file__).parents[2]
SEPARATION = sorted((ROOT / "docs" / "results").glob("separation-*.md"))

VERDICT = re.compile(
    r"\| ([+-][\d.]+) (?:± ([\d.]+)|\(([+-]?[\d.]+) to ([+-]?[\d.]+)\)) (higher|lower|undecided), p ([\d.e-]+) \|"
)
"""Mean, half-width or ends of its interval, verdict, corrected p."""

Load = Callable[[str], ModuleType]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Load:
    """Return a function that loads a script by its path. The script's output goes to the test's folder."""

    def load(path: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        monkeypatch.setattr(module, "DOCS", tmp_path, raising=False)
        return module

    return load


@pytest.mark.slow
def test_the_page_of_separation_is_made(script: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = script("experiments/separation.py")
    monkeypatch.setattr(made, "RATES", {"digits": (0.1,)})
    monkeypatch.setattr(made, "TUNING_SEEDS", {"digits": (100,)})
    monkeypatch.setattr(made, "SEEDS", (0, 1))
    monkeypatch.setitem(made.SETTINGS["digits"], "training", {"rounds": 2})
    stragglers = "fedavg, half are stragglers"
    made.main(["digits", "--methods", "fedavg", "local-only", stragglers, "--runs", str(tmp_path), "--jobs", "1"])
    text = (tmp_path / "separation-digits.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) == 3
    assert rows[1].startswith("| `local-only` | 0.1 | – |  |")  # no shared model, so nothing to compare
    assert VERDICT.search(rows[2])
    assert "cover the seeds and the choice of the test rows" in text


@pytest.mark.slow
def test_the_page_of_attacks_is_made(script: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = script("experiments/attacks.py")
    monkeypatch.setattr(made, "SEEDS", (0, 1))
    monkeypatch.setattr(made, "ROUNDS", 1)
    monkeypatch.setattr(made, "ATTACKS", ("none", "scaled"))
    monkeypatch.setattr(made, "DEFENCES", dict(list(made.DEFENCES.items())[:2]))
    made.main()
    assert "| fedavg, updates clipped to 1 |" in (tmp_path / "attacks.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_page_of_published_shapes_is_made(script: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = script("experiments/published_shapes.py")
    monkeypatch.setattr(made, "SEEDS", (0,))
    monkeypatch.setattr(made, "ROUNDS", 2)
    made.main()
    assert "| `scaffold` | 100 % |" in (tmp_path / "published-shapes.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_generated_pages_are_written(script: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = script("docs/generate.py")
    monkeypatch.setattr(made, "performance", lambda: "# Performance")
    monkeypatch.setattr(made, "HERE", tmp_path)
    made.main(tmp_path)
    assert all(path.read_text(encoding="utf-8").startswith("# ") for path in tmp_path.rglob("*.md"))
    assert len(list(tmp_path.rglob("*.md"))) > 60


@pytest.mark.slow
def test_an_export_of_results_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The export has the same files as docs/results. Its document has six short runs."""
    tiny = dataclasses.replace(two_arms(), name="fedpbs")
    monkeypatch.setattr(reproduce, "load", lambda name: tiny)
    words = ["reproduce", "fedpbs", "--jobs", "1", "--runs", str(tmp_path), "--export", str(tmp_path / "x.json")]
    assert main(words) == 0
    runs = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))["runs"]
    assert {arm: sorted(seeds) for arm, seeds in runs.items()} == {"a": ["0", "1", "2"], "b": ["0", "1", "2"]}


@pytest.mark.parametrize("page", SEPARATION, ids=lambda page: page.stem)
def test_published_verdicts_follow_from_the_printed_p(page: Path) -> None:
    """A decided difference has a corrected p below the level, and an interval without 0."""
    text = page.read_text(encoding="utf-8")
    found = VERDICT.findall(text)
    assert len(found) > 35
    assert "cover the seeds and the choice of the test rows" in text
    for mean, half, low, high, verdict, p in found:
        assert verdict == decided(float(p), float(mean))
        ends = (float(low), float(high)) if low else (float(mean) - float(half), float(mean) + float(half))
        assert verdict == "undecided" or not ends[0] < 0 < ends[1]


def test_claims_of_a_document_are_corrected_together() -> None:
    only_alone = []
    for name in ("drift-demo-quick", "fedpbs-quick"):
        export = json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text(encoding="utf-8"))
        judged = verdicts(load(export["document"]).at(export["scale"]), results_of(export))
        by_chance = [one for one in judged if one.evidence.p > 0]
        assert [one.p for one in by_chance] == holm([one.evidence.p for one in by_chance])
        only_alone += [one.verdict for one in by_chance if one.evidence.p < LEVEL <= one.p]
    assert set(only_alone) == {"undecided"}
