"""Data folders for the tests of this room."""

from pathlib import Path

import pytest

from fedskew.data.find import VARIABLE


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty data folder. Data sets are searched there and then in an empty cache folder."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"
