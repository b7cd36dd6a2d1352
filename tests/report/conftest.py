"""Fixtures of this folder."""

from pathlib import Path

import pytest

from fedskew.report import draw, html, style
from fedskew.store.runs import RunStore
from tests.conftest import few_pictures
from tests.report import mixed_store, report


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return mixed_store(tmp_path / "runs")


@pytest.fixture
def without_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pages without the figures over rounds, because these take most of the time."""
    monkeypatch.setattr(html, "pictures", few_pictures)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pages with the words of all figures and without their drawings, which take most of the time."""
    for name in [name for name in vars(draw) if name.startswith("draw_")]:
        monkeypatch.setattr(draw, name, lambda *_, **__: None)
    for name in ("inline", "attribute"):
        monkeypatch.setattr(style, name, lambda *_: "")


@pytest.fixture(scope="package")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the report on `mixed_store`."""
    folder = tmp_path_factory.mktemp("report")
    return report(mixed_store(folder / "runs"), folder)
