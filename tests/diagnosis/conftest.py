"""Diagnoses that take little time."""

import pytest


@pytest.fixture
def few_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimate chance from few random tables, for tests that are not about it."""
    monkeypatch.setattr("fedskew.measure.heterogeneity.faces.TABLES", 99)
