"""Folders with tiny encoders, and a cache of each test's own."""

import pytest

from fedskew.data.find import CACHE
from fedskew.execution import prepare
from tests.texts import tiny_encoder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of each test's own."""
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    monkeypatch.setattr(prepare, "MEMORY", {})
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    return {kind: tiny_encoder(tmp_path_factory.mktemp(kind), kind) for kind in ("bert", "distilbert", "roberta")}


@pytest.fixture(scope="module")
def bert(folders) -> str:
    return folders["bert"]
