"""What tests keep, they keep for themselves; slow tests may take longer."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

# a busy machine must not fail a test, and each run tries the same examples
settings.register_profile("fedskew", deadline=None, derandomize=True, database=None)
settings.load_profile("fedskew")

SLOW_SECONDS = 1800
"""Time limit of a test marked as slow; of the others it is in pyproject.toml."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS))


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing that a user's machine remembers of its engines and of trusted code, or keeps of frozen layers, is read or written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSKEW_CACHE", str(tmp_path_factory.mktemp("computed")))
        patch.setenv("FEDSKEW_CONFIG", str(tmp_path_factory.mktemp("configuration")))
        yield
