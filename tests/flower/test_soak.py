"""A long run whose nodes go wrong in every way, one answer in ten: accuracy, memory, file handles and rounds stay."""

import gc
import os
import random
import sys
from collections import deque
from pathlib import Path

import pytest

from fedskew.api.functions import run
from fedskew.execution.run import Progress
from fedskew.flower.server import serve
from fedskew.flower.wire import Kind
from fedskew.measure.statistics import mean_interval
from fedskew.store.runs import RunStore
from tests.flower.test_broken_nodes import FAULTS
from tests.flower_nodes import VERSIONS, Direct, configuration, nodes_of, small

ROUNDS, SHARE, MIB = 200, 0.1, 1 << 20


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory and handles are read where Linux shows them")
def test_two_hundred_rounds_of_faults_end_as_without(tmp_path: Path) -> None:
    experiment = small(rounds=ROUNDS).replace(evaluation__every=ROUNDS)

    def accuracy(seed: int) -> float:
        frame = run(experiment.replace(training__seed=seed), runs=tmp_path / f"plain-{seed}").measurements()
        return float(frame[(frame["split"] == "test") & (frame["name"] == "accuracy")]["value"].iloc[-1])

    # scores are sent in the last round only
    luck, names, injected = random.Random(0), sorted(set(FAULTS) - {"out_of_range"}), []

    def spoil(client: int, kind: Kind, round_: int, data: bytes) -> bytes | None:
        if kind != "train" or luck.random() >= SHARE:
            return data
        injected.append(luck.choice(names))
        return FAULTS[injected[-1]](data)

    used: dict[int, tuple[float, int]] = {}

    def listen(progress: Progress) -> None:
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        used[progress.round] = pages * os.sysconf("SC_PAGE_SIZE") / MIB, len(list(Path("/proc/self/fd").iterdir()))

    channel = Direct(nodes_of(experiment, tmp_path), spoil, deque(maxlen=1))  # type: ignore[arg-type]
    options = configuration(experiment, tmp_path, longest=1e3, measure=False)
    number = serve(channel, options, VERSIONS, listen)
    store = RunStore(tmp_path / "runs")
    frame = store.measurements([number])
    assert store.run(number).status == "finished"
    assert sorted(used) == list(range(ROUNDS + 1))
    faults = frame[frame["split"] == "fault"]
    assert set(injected) == set(names)
    assert {n: injected.count(n) for n in names} == faults.groupby("name")["value"].sum().to_dict()
    reached = float(frame[(frame["split"] == "test") & (frame["name"] == "accuracy")]["value"].iloc[-1])
    mean, half = mean_interval([accuracy(seed) for seed in range(5)])
    print(
        f"{len(injected)} faults; accuracy {reached:.4f}, without {mean:.4f} +- {half:.4f}; {used[50]} then {used[ROUNDS]}"
    )
    # the interval of one more run, not of the mean
    assert abs(reached - mean) <= half * 6**0.5
    assert used[ROUNDS][0] - used[50][0] < 16
    assert used[ROUNDS][1] == used[50][1]
