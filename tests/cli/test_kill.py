"""`kill -9` at random moments: only the round in progress is lost, and the numbers equal an uninterrupted run's."""

import multiprocessing
import random
from pathlib import Path

import pytest

from fedskew.api.functions import run
from fedskew.execution.run import execute, register
from fedskew.store import checkpoints
from fedskew.store.runs import RunStore
from tests.flower_nodes import small
from tests.stored import numbers

KILLS, LONGEST = 50, 1.5


def carry_out(folder: str, number: int) -> None:
    store = RunStore(Path(folder))
    execute(store, number)
    store.close()


@pytest.mark.slow
def test_each_of_fifty_kills_loses_one_round_at_most(tmp_path: Path) -> None:
    experiment = small("scaffold", rounds=40).replace(checkpoint__every=1)
    whole = run(experiment, runs=tmp_path / "whole")
    expected = numbers(whole.store, whole.ids[0])
    context, luck = multiprocessing.get_context("forkserver"), random.Random(0)
    context.set_forkserver_preload(["tests.cli.test_kill"])
    store = RunStore(tmp_path / "killed")
    kills, killed, finished, current = 0, 0, 0, register(store, experiment)
    while kills < KILLS or killed:
        process = context.Process(target=carry_out, args=(str(store.folder), current))
        process.start()
        process.join(luck.uniform(0, LONGEST) if kills < KILLS else 600)
        if process.is_alive():
            process.kill()
            process.join(10)
            kills, killed = kills + 1, killed + 1
        record, kept = store.run(current), checkpoints.newest(store.run_folder(current))
        assert (kept[1]["round"] if kept else 0) >= record.rounds_done - 1
        assert kept or record.rounds_done <= 1
        if process.exitcode == 0:
            assert record.status == "finished"
            assert numbers(store, current) == expected
            finished, killed, current = finished + 1, 0, register(store, experiment)
    assert finished >= 1
    print(f"{kills} kills, {finished} runs finished")
