"""``engine = "auto"``: processes are started only where they pay, and what was measured is remembered."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedskew.algorithms import ALGORITHMS
from fedskew.cli.train import told as printed
from fedskew.core.component import build
from fedskew.engine.choose import next_work
from fedskew.experiment import choice, remembered
from fedskew.experiment.build import assemble
from fedskew.experiment.choice import Limits, chosen
from fedskew.loop.plan import Local
from fedskew.loop.round import start
from tests.small import X0, ragged
from tests.test_experiment import DATA, small

torch.set_num_threads(1)

FED = ragged(
    build("algorithm", ALGORITHMS, "fedavg")
)  # 7 clients of 5, 17, 40, 3, 1, 9, 24 rows, two epochs in batches of 7
LENGTHS = [2, 6, 12, 2, 2, 4, 8]


def work_of(fed=FED):
    work = next_work(fed, start(fed, X0), measure_local=False)
    assert work is not None
    return work


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("FEDSKEW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "engines.json"


def test_limits_count_up_in_powers_of_two() -> None:
    assert [Limits(n).counts for n in (1, 2, 4, 6)] == [[1], [1, 2], [1, 2, 4], [1, 2, 4, 6]]
    assert Limits(6, given=True).counts == [6]


# what is remembered


def again_measured(*_):
    raise AssertionError("measured again")


def test_what_was_measured_is_remembered_and_printed(cache, monkeypatch) -> None:
    monkeypatch.setattr(choice, "busy", lambda: False)
    option, facts = chosen(FED, X0, True, Limits(1))
    assert facts["remembered"] is False
    assert list(json.loads(cache.read_text()).values()) == [facts["estimated_seconds_a_round"]]
    monkeypatch.setattr(choice, "measured", again_measured)
    again, known = chosen(FED, X0, True, Limits(1))
    assert (again, known) == (option, facts | {"remembered": True})
    assert printed([known]).startswith(f"remembered in {cache}, s a round: sequential ")
    assert printed([facts]).startswith("trial, s a round: sequential ")
    cache.unlink()
    with pytest.raises(AssertionError, match="measured again"):
        chosen(FED, X0, True, Limits(1))


def test_nothing_measured_on_a_busy_machine_is_remembered(cache, monkeypatch) -> None:
    monkeypatch.setattr(choice, "busy", lambda: True)
    chosen(FED, X0, False, Limits(1))
    assert not cache.exists()


DAMAGED = [b"", b"{", b"[]", b'{"a": 1}', b'{"a": {"b": "c"}}', b"\xff\xfe", b'{"a": {"b": 1e999}}', b"[" * 10**5]


@pytest.mark.parametrize("content", DAMAGED, ids=lambda content: repr(content[:12]))
def test_a_damaged_file_is_none(cache, content: bytes) -> None:
    cache.parent.mkdir()
    cache.write_bytes(content)
    assert remembered.recall("a") == {}
    remembered.remember("a", {"stacked": 0.123456})
    assert remembered.recall("a") == {"stacked": 0.1235}


def test_seconds_that_cannot_be_are_left_out(cache) -> None:
    cache.parent.mkdir()
    cache.write_text('{"a": {"stacked": -1, "sequential": 0, "stacked 2 threads": 2}}')
    assert remembered.recall("a") == {"stacked 2 threads": 2}


def test_a_file_that_cannot_be_written_is_none(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FEDSKEW_CACHE", str(tmp_path / "file"))
    (tmp_path / "file").write_text("not a folder")
    remembered.remember("a", {"stacked": 1.0})
    assert remembered.recall("a") == {}


def test_the_file_stays_small_and_whole(cache, monkeypatch) -> None:
    monkeypatch.setattr(remembered, "MOST", 2)
    for key in ("a", "b", "a", "c"):
        remembered.remember(key, {"stacked": 1.0})
    assert list(remembered.entries()) == ["a", "c"]
    assert list(cache.parent.iterdir()) == [cache]


def test_a_key_tells_what_time_depends_on(monkeypatch) -> None:
    def key(**changes) -> str:
        experiment = small("fedprox:mu=0.1").replace(**changes)
        made = assemble(experiment, DATA)
        work = next_work(made.federation, start(made.federation, made.x0), measure_local=False)
        assert work is not None
        return remembered.key_of(made.federation, work)

    same = [
        {"training__seed": 5, "skew": "iid"},
        {"solver": "sgd:lr=0.5"},
        {"algorithm": "fedprox:mu=0.7"},
        {"name": "mine"},
    ]
    other = [
        {"solver": "sgd:momentum=0.9"},
        {"algorithm": "fedprox:mu=0"},
        {"algorithm": "scaffold"},
        {"model": "mlp:hidden=[7]"},
        {"selection": "everyone"},
        {"local": Local(epochs=2, batch_size=4)},
        {"local": Local(epochs=9, batch_size=8)},
        {"training__dtype": "float64"},
        {"codec": "int8"},
    ]
    iid = key(skew="iid")
    assert {key(**{"skew": "iid"} | changes) for changes in same} == {iid}
    assert len({iid, *(key(**{"skew": "iid"} | changes) for changes in other)}) == len(other) + 1
    monkeypatch.setattr(torch, "__version__", "another")
    assert key(skew="iid") != iid


def test_a_round_that_takes_a_little_longer_is_the_same_workload() -> None:
    assert remembered.about(1000) == remembered.about(1040)
    assert remembered.about(1000) != remembered.about(1500)
    fed = replace(FED, rounds=50)
    assert remembered.key_of(fed, work_of(fed)) == remembered.key_of(FED, work_of())
