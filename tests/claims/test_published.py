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

from fedskew.cli import reproduce
from fedskew.cli.main import main
from fedskew.measure.statistics import LEVEL, decided, holm, interval_p
from tests.experiment.test_results import two_arms

ROOT = Path(__file__).parents[2]
SEPARATION = sorted((ROOT / "docs" / "results").glob("separation-*.md"))

Load = Callable[[str], ModuleType]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Load:
    """Loads a script by its path; what it writes goes to the test's folder."""

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
    assert all(re.search(r"[+-][\d.]+ ± [\d.]+ (higher|lower|undecided), p [\d.]+", row) for row in rows[1:])


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
    """As the files in docs/results, from a document of six short runs."""
    tiny = dataclasses.replace(two_arms(), name="fedpbs")
    monkeypatch.setattr(reproduce, "load", lambda name: tiny)
    words = ["reproduce", "fedpbs", "--jobs", "1", "--runs", str(tmp_path), "--export", str(tmp_path / "x.json")]
    assert main(words) == 0
    runs = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))["runs"]
    assert {arm: sorted(seeds) for arm, seeds in runs.items()} == {"a": ["0", "1", "2"], "b": ["0", "1", "2"]}


@pytest.mark.parametrize("page", SEPARATION, ids=lambda page: page.stem)
def test_published_verdicts_follow_from_the_printed_differences(page: Path) -> None:
    """With five pairs, mean and half-width give p; near the level the printed digits do not suffice."""
    found = re.findall(r"\| ([+-][\d.]+) ± ([\d.]+) (\w+), p [\d.e-]+ \|", page.read_text(encoding="utf-8"))
    assert len(found) > 40
    corrected = holm([interval_p(float(mean), float(half), 5) for mean, half, _ in found])
    for (mean, _, verdict), p in zip(found, corrected, strict=True):
        if not 0.9 * LEVEL < p < 1.1 * LEVEL:
            assert verdict == decided(p, float(mean))
