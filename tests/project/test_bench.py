"""The benchmark: its sides do the same work, its ratio is the one it claims, its table and page say what was measured."""

import dataclasses
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch
from benchmarks.rounds import __main__ as command, limits, peers, work as bench
from benchmarks.rounds.page import distances, draw, markdown, rows
from benchmarks.rounds.peers import Peer
from benchmarks.rounds.work import WORKLOADS, measure, ratio

from fedskew.core.errors import FedskewError

pytestmark = pytest.mark.slow
"""The benchmark is for maintainers; no user waits for it."""

SMALL = [dataclasses.replace(work, clients=3, rows=20, batch=8, epochs=2) for work in (WORKLOADS[0], WORKLOADS[3])]


@pytest.mark.parametrize("work", SMALL, ids=lambda work: work.name)
def test_all_sides_make_the_same_model(work):
    before = torch.get_num_threads()
    found = measure(work, repeats=2, processes=2)
    assert {"plain", "plain, 2 processes", "fedskew"} <= set(found["seconds"])
    assert ("plain, channels last" in found["seconds"]) == (len(work.shape) == 3)
    assert all(len(taken) == 2 for taken in found["seconds"].values())
    assert found["largest_difference"] < 1e-6
    assert torch.get_num_threads() == before


def test_check_detects_a_side_with_different_work(monkeypatch):
    plain = bench.plain
    monkeypatch.setattr(bench, "plain", lambda *arguments: plain(*arguments) + 0.01)
    assert measure(SMALL[0], repeats=1, processes=1)["largest_difference"] > 0.009


RESULT = {
    "torch": "2.9",
    "cores": 2,
    "processes": 2,
    "rates": {"float32": 2e11, "bf16": 5e11, "memory": 4e10},
    "works": [
        {
            "work": "a model",
            "engine": "stacked",
            "seconds": {"plain": [3.0, 1.0, 2.0], "plain, 2 processes": [1.0, 1.0, 9.0], "fedskew": [0.5, 0.25, 0.1]},
            "ratio": 4.0,
            "wanted": 8.0,
            "largest_difference": 1e-7,
            "limit": {"operations": 4e9, "bytes": 2e8, "steps": 1000, "seconds": 0.02},
        }
    ],
}


def test_the_page_has_the_fastest_first_and_a_peer_counts_for_the_ratio():
    works = RESULT["works"]
    assert ratio(works[0]["seconds"]) == 1.0 / 0.25
    assert rows(works) == [
        ("a model", "fedskew", "250.0", "1.00"),
        ("", "plain, 2 processes", "1000.0", "4.00"),
        ("", "plain", "2000.0", "8.00"),
    ]
    assert [label.get_text() for label in draw(works).axes[0].get_yticklabels()] == [row[1] for row in rows(works)][
        ::-1
    ]
    assert distances(works) == [
        "a model: arithmetic and memory take at least 20 ms a round, our best 12.5 times that, 250 µs a client's step"
    ]
    text = markdown(RESULT)
    assert "python -m benchmarks.rounds --processes 2 --repeats 3" in text
    assert "4.00 times as fast as the best other side, wanted 8" in text
    assert "| a model | 4 | 200 | 20 | 250 | 12.5 | 250 |" in text
    beside = [{**works[0], "seconds": {**works[0]["seconds"], "pfl, 2 processes": [0.5, 0.5]}}]
    assert ratio(beside[0]["seconds"]) == 2.0
    assert ("", "pfl, 2 processes", "500.0", "2.00") in rows(beside)
    assert "python -m benchmarks.rounds --peers --processes 2" in markdown({**RESULT, "works": beside})


def test_the_command_prints_json_and_draws(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command, "WORKLOADS", SMALL[:1])
    picture = tmp_path / "bench.svg"
    command.main(["--repeats", "1", "--processes", "1", "--json", "--output", str(picture)])
    assert {"plain", "fedskew"} <= set(json.loads(capsys.readouterr().out)["works"][0]["seconds"])
    assert picture.read_text().startswith("<?xml")


@pytest.mark.parametrize("wrong", ["--only=nothing of this name", "--repeats=0", "--processes=-1", "--processes=99999"])
def test_a_wrong_option_is_refused(monkeypatch, capsys, wrong):
    monkeypatch.setattr(command, "measure", lambda *_: pytest.fail("was measured"))
    with pytest.raises(SystemExit) as ended:
        command.main([wrong])
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err


# a process of ours stands in for other simulators


FAKE = Peer("Fake", "fake==1", "tests.fake_peer", alone=False)


@pytest.fixture
def fake(monkeypatch):
    """Its environment is this one."""
    monkeypatch.setattr(peers, "interpreter", lambda peer: Path(sys.executable))
    monkeypatch.setattr(peers, "environment", lambda *_: {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})


def test_a_peer_plays_the_same_rounds_and_its_end_gives_a_one_line_error(fake):
    work = SMALL[0]
    fed = work.federation()
    x0 = fed.task.space.flatten(fed.task.model)
    with peers.started(FAKE, work, 2) as side:
        # up to rounding: sums depend on how a process's memory happens to be aligned
        torch.testing.assert_close(side(x0), bench.plain(fed, x0, bench.cohort(fed), None), rtol=1e-5, atol=1e-7)
        with pytest.raises(FedskewError, match=r"^Fake: ended unexpectedly: ValueError: not a finite model$"):
            side(x0 * torch.nan)


@pytest.mark.parametrize(
    ("peer", "work", "reason"),
    [
        (FAKE, SMALL[0], "ValueError: too large for the second process"),  # its last line
        (FAKE, dataclasses.replace(SMALL[0], name="not for me"), "ValueError: not for me"),  # after its greeting
        (dataclasses.replace(FAKE, module="no_such_module"), SMALL[0], "ModuleNotFoundError: .*no_such_module.*"),
    ],
)
def test_a_peer_that_fails_gives_a_one_line_error(fake, peer, work, reason):
    task = work.federation().task
    with (
        pytest.raises(FedskewError, match=f"^Fake: ended unexpectedly: {reason}$"),
        peers.started(peer, work, 2) as side,
    ):
        side(task.space.flatten(task.model) + 1e7)


def test_peers_end_at_once_if_the_with_block_raises(fake, monkeypatch):
    made, start = [], peers.subprocess.Popen
    monkeypatch.setattr(peers.subprocess, "Popen", lambda *a, **o: made.append(start(*a, **o)) or made[-1])
    beside = peers.started(FAKE, SMALL[0], 2)
    beside.__enter__()
    began = time.monotonic()
    assert not beside.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert time.monotonic() - began < 10
    assert [process.returncode for process in made] == [0, 0]


def test_a_folder_too_long_for_a_socket_gives_a_one_line_error(fake, monkeypatch, tmp_path):
    folder = tmp_path / ("x" * 110)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with (
        pytest.raises(FedskewError, match=r"^Fake: no socket at .*too long; set TMPDIR to a shorter folder$"),
        peers.started(FAKE, SMALL[0], 1),
    ):
        pass


def test_a_peer_that_cannot_be_installed_is_left_out_with_a_note(monkeypatch, tmp_path, capsys):
    """No pip, no network: the index that it asks is not there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(command, "WORKLOADS", SMALL[:1])
    monkeypatch.setattr(command, "PEERS", (FAKE,))
    monkeypatch.setattr(peers.venv, "create", lambda *_, **__: None)
    command.main(["--peers", "--repeats", "1", "--processes", "1", "--json"])
    out, err = capsys.readouterr()
    assert (
        {"plain", "fedskew"} <= set(json.loads(out)["works"][0]["seconds"]) <= {"plain", "fedskew", "fedskew, 1 thread"}
    )
    assert [line[:42] for line in err.splitlines() if line.startswith("left out")] == [
        "left out: Fake: no environment in " + str(tmp_path)[:8]
    ]


def test_half_precision_is_measured_against_our_own_float32():
    work = next(work for work in WORKLOADS if work.bf16)
    small = dataclasses.replace(work, clients=2, rows=10, batch=5)
    found = measure(small, repeats=1, processes=2)
    assert set(found["seconds"]) == {"float32", "fedskew, bf16"}
    assert 0 < found["largest_difference"] < 0.01


def test_operations_and_parameters_of_a_round_by_hand():
    """Rows 3 x 20 in 2 epochs: a product of 30 by 6 forward, one for its weights backward, 2 operations each; 186 parameters."""
    assert limits.needs(SMALL[0]) == limits.Needs(
        operations=120 * 2 * 2 * 30 * 6, bytes=60 * 30 * 4 + 3 * 3 * 186 * 4, steps=3 * 2 * 3
    )


def test_a_convolutions_operations_by_hand():
    """5 x 5 windows: 3 to 32 channels at 32 x 32 without a gradient of the images, 32 to 64 at 16 x 16, and two linear layers."""
    first, second = 1024 * 75 * 32, 256 * 800 * 64
    linear = 4096 * 512 + 512 * 10
    rows = 3 * 20 * 2
    assert limits.needs(SMALL[1]).operations == rows * 2 * (2 * first + 3 * second + 3 * linear)


def test_the_limit_is_the_longer_of_arithmetic_and_memory():
    of = limits.Rates(float32=1e6, bf16=2e6, memory=1e9)
    needed = limits.needs(SMALL[0])
    assert limits.limit(SMALL[0], of)["seconds"] == needed.operations / 1e6
    assert limits.limit(dataclasses.replace(SMALL[0], bf16=True), of)["seconds"] == needed.operations / 2e6
    assert limits.limit(SMALL[0], dataclasses.replace(of, memory=1.0))["seconds"] == needed.bytes


def test_the_best_measured_rate_of_the_machine_counts():
    found = limits.rates()
    assert min(found.float32, found.bf16, found.memory) > 1e8
    assert limits.Rates(1, 5, 3).or_better(limits.Rates(2, 4, 3)) == limits.Rates(2, 5, 3)


def test_a_round_draws_its_clients_from_a_population():
    work = dataclasses.replace(WORKLOADS[1], clients=3, rows=20, population=12)
    fed = work.federation()
    assert (len(fed.partition), len(bench.cohort(fed))) == (12, 3)
    assert measure(work, repeats=1, processes=1)["largest_difference"] < 1e-6


def test_half_precision_is_left_out_where_the_processor_is_slower_in_it(monkeypatch, capsys):
    monkeypatch.setattr(command, "rates", lambda: limits.Rates(float32=126e9, bf16=19e9, memory=4e10))
    monkeypatch.setattr(command, "WORKLOADS", [dataclasses.replace(SMALL[0], name="half", bf16=True)])
    command.main(["--json"])
    out, err = capsys.readouterr()
    assert json.loads(out)["works"] == []
    assert "left out: half: this processor is slower in bf16, 19 instead of 126 GFLOP/s in a matrix product" in err
