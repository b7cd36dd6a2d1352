"""Fixtures of this folder."""

from pathlib import Path

import pytest

from fedskew.store.runs import RunStore
from tests.report import mixed_store, report


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return mixed_store(tmp_path / "runs")


@pytest.fixture(scope="package")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report on `mixed_store`."""
    folder = tmp_path_factory.mktemp("report")
    return report(mixed_store(folder / "runs"), folder)
