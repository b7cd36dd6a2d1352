"""Fixtures of this folder."""

from pathlib import Path

import pytest

from fedskew.report import html
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


@pytest.fixture(scope="package")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the report on `mixed_store`."""
    folder = tmp_path_factory.mktemp("report")
    return report(mixed_store(folder / "runs"), folder)
