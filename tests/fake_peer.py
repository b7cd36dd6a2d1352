"""A peer of the benchmark that is the plain loop in disguise."""

import sys

from benchmarks.rounds.peers import requests
from benchmarks.rounds.work import cohort, plain
from torch import Tensor


def main() -> None:
    with requests() as (work, processes, rounds):
        assert processes == 2
        if work.name == "not for me":
            raise ValueError(work.name)
        fed = work.federation()

        def play(x0: Tensor) -> Tensor:
            if not x0.isfinite().all():
                raise ValueError("not a finite model")
            if x0.abs().max() > 1e6 and sys.argv[-1] == "1":
                raise ValueError("too large for the second process")
            return plain(fed, x0, cohort(fed), None)

        rounds(play)
