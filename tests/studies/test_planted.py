"""What `fedskew study` says of federations with one planted difference. The script `tests.studies.planted` has more seeds."""

from pathlib import Path

import pytest

from tests.studies.planted import UNDONE_BY, is_right, said_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", UNDONE_BY)
def test_the_cause_is_named_and_its_remedy_is_decided(kind: str, tmp_path: Path) -> None:
    said = said_of(kind, 0, tmp_path, minutes=5)
    assert said.named
    assert is_right(kind, said)
    assert said.verdict == "higher"
    assert said.decision == said.top
