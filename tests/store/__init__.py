"""What the tests of the store share."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fedskew.core.errors import FedskewError
from fedskew.store.runs import RunStore

ROUND = [(None, "test", "accuracy", 0.5), (2, "client", "steps", 7.0), (0, "client", "steps", 3.0)]


def add(store: RunStore, name: str = "fedavg", **changes) -> int:
    facts = {"experiment": "a = 1\n", "experiment_hash": "f00", "seed": 3, "partition_seed": 4, "rounds": 9}
    return store.add_run(name=name, **(facts | changes))


@contextmanager
def refused(error: type[FedskewError], *words: str) -> Iterator[None]:
    """Expect exactly this class of error, in one line that contains the ``words``."""
    with pytest.raises(error) as caught:
        yield
    assert caught.type is error
    assert all(word in str(caught.value) for word in words), str(caught.value)
