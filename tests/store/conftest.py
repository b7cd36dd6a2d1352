from collections.abc import Iterator
from pathlib import Path

import pytest

from fedskew.store.runs import RunStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    made = RunStore(tmp_path / "runs")
    yield made
    made.close()
