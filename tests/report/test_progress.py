"""Progress: the speed counts new units only, plain lines are few, and a terminal's bars vanish."""

import io

import pytest

from fedskew.report import progress
from fedskew.report.console import Console
from fedskew.report.progress import Board, Lines, Part, ProgressFace, Terminal, board_of_one, face_for, render_board


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


def rounds(total: int, face: ProgressFace | None = None) -> Board:
    return Board({"fedavg": Part("FedAvg", total, "1 run")}, face or ProgressFace(), "rounds", "Ctrl-C stops")


def text_of(board: Board) -> list[str]:
    screen = io.StringIO()
    Console(file=screen, width=100).print(render_board(board))
    return [" ".join(line.split()) for line in screen.getvalue().splitlines()]


def test_the_rate_is_right_from_the_first_round(clock: Clock) -> None:
    board = rounds(100)
    assert board.pace() == "starting"
    clock.now += 60  # data are read, engines are tried
    board.advance("fedavg", 0, new=False)
    assert board.pace() == "starting"
    clock.now += 2
    board.advance("fedavg", 1)
    assert board.pace() == "2.0 s a round, 3 min 18 s left"
    clock.now += 0.5
    board.advance("fedavg", 9)
    assert board.pace() == "4.0 rounds/s, 22 s left"


def test_rounds_of_an_earlier_process_do_not_count_for_the_speed(clock: Clock) -> None:
    board = rounds(100)
    board.advance("fedavg", 90, new=False)
    clock.now += 1
    board.advance("fedavg", 1)
    assert board.pace() == "1.0 s a round, 9 s left"


def test_an_hour_into_a_pipe_is_few_lines(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with rounds(3600, Lines()) as board:
        board.advance("fedavg", 0, new=False)
        for _ in range(3600):
            clock.now += 1
            board.advance("fedavg", 1, "accuracy 81.0 %")
        board.face.print("run 1: it diverged", "red")
    lines = capsys.readouterr().err.splitlines()
    assert 10 < len(lines) < 40
    assert lines[0] == "FedAvg: 6/3600 rounds, accuracy 81.0 %; 1.0 s a round, 59 min 54 s left"
    assert lines[-1] == "run 1: it diverged"


def test_each_stage_has_its_own_speed(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with board_of_one("reading") as board:
        clock.now += 6
        board.stage("reading", 0.6)
        clock.now += 10
        board.stage("permutations", 0.0)
        assert board.pace() == "starting"
        clock.now += 3
        board.stage("permutations", 0.25)
        assert board.pace() == "9 s left"
    assert capsys.readouterr().err.splitlines()[0] == "reading: 60 %; 4 s left"


def test_work_without_an_end_says_how_long_it_takes(clock: Clock) -> None:
    board = Board({"": Part("tuning", 0)}, ProgressFace())
    clock.now += 7
    board.advance("", 0, "FedAvg, seed 0: round 3/10")
    assert "FedAvg, seed 0: round 3/10" in text_of(board)[0]
    assert text_of(board)[1] == "7 s so far"


def test_a_terminal_shows_a_bar_for_each_part_and_clears_them(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda **_: Console(file=screen, force_terminal=True, width=100))
    with rounds(100, Terminal()) as board:
        board.advance("fedavg", 58, "accuracy [81.0 %]")  # words in brackets are no markup
        line = text_of(board)[0]
        assert line.startswith("FedAvg 58/100 ")
        assert line.endswith(" 1 run accuracy [81.0 %]")
        board.face.print("run 1: it diverged", "red")
    assert "run 1: it diverged" in screen.getvalue()
    assert screen.getvalue().endswith("\x1b[2K")


def test_a_notebook_shows_bars_then_only_what_is_drawn(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    pages: list[str] = []
    output = type("Output", (), {"show": lambda _, html: pages.append(html)})
    monkeypatch.setattr(progress, "Output", output)
    monkeypatch.setattr(progress, "running", lambda: True)
    with rounds(100, face_for(draw=lambda: "<img>")) as board:
        board.advance("fedavg", 58, "<b>")
        board.face.print("run 1: it diverged", "red")
    assert pages[-1] == "<img>"
    assert "<progress value=58.0 max=100></progress></td><td>58/100</td><td>&lt;b&gt;</td>" in pages[0]
    assert capsys.readouterr().err == "run 1: it diverged\n"
