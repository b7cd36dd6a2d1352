"""A peer of the benchmark that is the plain loop in disguise."""

from torch import Tensor

from fedskew.experiment.bench import cohort, plain
from fedskew.experiment.peers import asked


def main() -> None:
    with asked() as (work, processes, rounds):
        assert processes == 2
        fed = work.federation()

        def play(x0: Tensor) -> Tensor:
            if not x0.isfinite().all():
                raise ValueError("not a finite model")
            return plain(fed, x0, cohort(fed), None)

        rounds(play)
