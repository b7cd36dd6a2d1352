"""What tests keep, they keep for themselves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing that a user's machine remembers of its engines and of trusted code, or keeps of frozen layers, is read or written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSKEW_CACHE", str(tmp_path_factory.mktemp("computed")))
        patch.setenv("FEDSKEW_CONFIG", str(tmp_path_factory.mktemp("configuration")))
        yield
