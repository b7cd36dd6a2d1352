"""Errors that users see."""

import pytest

from fedskew.core.errors import BadInput, FedskewError


@pytest.mark.parametrize("kind", [FedskewError, BadInput])
def test_each_message_is_one_line(kind: type[FedskewError]) -> None:
    """Therefore no other test of a message asks for it. A library's message may have several lines."""
    assert str(kind("near 'x':\n  syntax error\r\n\x1b[31m")) == "near 'x': syntax error \\x1b[31m"
    assert kind.__init__ is FedskewError.__init__
