"""Progress of runs where nothing can be redrawn: few lines, and a rate that counts rounds only."""

import pytest

from fedskew.execution.run import Progress
from fedskew.studies import progress
from fedskew.studies.progress import Board


class Clock:
    """A clock with a time that tests set."""

    now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


def at(round_: int, rounds: int) -> Progress:
    return Progress(run=1, name="fedavg", seed=0, round=round_, rounds=rounds, seconds=1.0, values={})


def test_the_rate_is_right_from_the_first_round(clock: Clock) -> None:
    board = Board(["fedavg"], [100])
    assert board.pace() == "starting"
    clock.now += 60  # data are read, engines are tried
    board.on_progress(at(0, 100))
    assert board.pace() == "starting"
    clock.now += 2
    board.on_progress(at(1, 100))
    assert board.pace() == "2.0 s a round, 3 min 18 s left"
    clock.now += 0.5
    board.on_progress(at(10, 100))
    assert board.pace() == "4.0 rounds/s, 22 s left"


def test_an_hour_into_a_pipe_is_few_lines(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    board = Board(["fedavg"], [3600])
    for round_ in range(3600):
        clock.now += 1
        board.on_progress(at(round_, 3600))
    lines = capsys.readouterr().err.splitlines()
    assert 10 < len(lines) < 40
    assert lines[0].startswith("FedAvg seed 0: round 5/3600; 1.0 s a round, ")
