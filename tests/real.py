"""The real data sets, for tests that need them."""

import os
from functools import cache
from pathlib import Path

import pytest

from fedskew.data import DATASETS
from fedskew.data.dataset import Dataset


def real_data() -> Path:
    """The folder of real data sets; skips the test without one, and fails it in CI."""
    folder = os.environ.get("FEDSKEW_DATA")
    if folder:
        return Path(folder)
    message = "FEDSKEW_DATA does not name the folder of the data sets"
    if os.environ.get("CI"):
        pytest.fail(f"{message}, and CI must run the tests on real data")
    pytest.skip(message)


@cache
def loaded(name: str) -> Dataset:
    real_data()
    return DATASETS[name]().load()
