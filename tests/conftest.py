"""What tests keep, they keep for themselves; slow tests may take longer."""

import gc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import settings

from fedskew.core.errors import BadInput
from tests.durations import dear_functions, function_of

# a busy machine must not fail a test, and each run tries the same examples
settings.register_profile("fedskew", deadline=None, derandomize=True, database=None)
settings.load_profile("fedskew")

# half a million objects of libraries and tests stay: looking for garbage among them takes a tenth of the time
gc.set_threshold(20_000)

LOOKING = (
    *("dp_fedavg", "metrics", "private"),
    *("browser", "decisions", "growth", "page", "plots", "registry", "targets", "views"),
)
DRAWN = {"tasks", *(f"test_{what}.py" for what in LOOKING)}
"""Folders and files whose tests look at every figure of a page."""

SLOW_SECONDS = 1800
"""Time limit of a test marked as slow; of the others it is in pyproject.toml."""


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    dear = dear_functions()
    for item in items:
        if function_of(item.nodeid) in dear and not item.get_closest_marker("first"):
            item.add_marker("thorough")
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS))


def pytest_collection_finish() -> None:
    gc.freeze()


def few_pictures(results: Any, most_points: int = 0) -> dict[str, Any]:
    """Build the figures of a page that take little time."""
    from fedskew.report.plots import builders

    few = {}
    for what, build in builders(results, most_points).items():
        if what in ("differences", "clients", "partition", "ranks"):
            with suppress(BadInput):
                few[what] = build()
    return few


@pytest.fixture(autouse=True, scope="module")
def few_figures(request: pytest.FixtureRequest) -> Iterator[None]:
    """Other pages have no figures over rounds, which take most of a page's time."""
    with pytest.MonkeyPatch.context() as patch:
        if not DRAWN & {request.path.parent.name, request.path.name}:
            patch.setattr("fedskew.report.html.pictures", few_pictures)
        yield


@pytest.fixture(autouse=True, scope="session")
def one_core() -> Iterator[None]:
    """Tests execute their runs in this process unless they name ``jobs``: to start others takes longer than most runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedskew.execution.plan.cores", lambda: 1)
        yield


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use an empty cache: tests do not use the user's engine choices, trusted code and frozen layers' results."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSKEW_CACHE", str(tmp_path_factory.mktemp("computed")))
        patch.setenv("FEDSKEW_CONFIG", str(tmp_path_factory.mktemp("configuration")))
        yield
