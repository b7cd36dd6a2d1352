"""Parts of epochs, and local work of named clients."""

import math
from pathlib import Path

import numpy as np
import pytest

from fedskew.api.functions import run
from fedskew.core.errors import BadInput
from fedskew.execution.build import assemble
from fedskew.experiment.config import Experiment, from_toml
from fedskew.loop.plan import Local, SeededPlanner, partial
from tests.blobs import DATA, numbers, small


@pytest.mark.parametrize(("epochs", "steps"), [(0.25, 3), (0.01, 1), (0.3, 3), (1.5, 15), (2.0, 20), (2, 20)])
def test_a_part_of_an_epoch_is_the_first_part_of_its_batches(epochs: float, steps: int) -> None:
    """40 rows in batches of 4 are 10 batches."""
    rows = np.arange(100, 140)
    plan = SeededPlanner(Local(epochs=epochs, batch_size=4), 7).train(3, 1, rows)
    whole = SeededPlanner(Local(epochs=math.ceil(epochs), batch_size=4), 7).train(3, 1, rows)
    assert len(plan.index) == steps
    np.testing.assert_array_equal(plan.index, whole.index[:steps])


def test_rounding_adds_no_batch() -> None:
    assert 0.07 * 100 > 7
    assert SeededPlanner(Local(epochs=0.07, batch_size=1), 0).extent(0, 100) == (7, 1)


def test_a_straggler_does_a_part_of_its_epochs() -> None:
    planner = SeededPlanner(Local(epochs=2.5, batch_size=4), 7)
    plan = planner.train(0, 0, np.arange(40))
    assert (len(plan.index), len(partial(plan, planner.parts(0), 0.9).index)) == (25, 12)
    with pytest.raises(BadInput, match="a straggler does fewer than all local epochs, and there is only 1"):
        run(small(epochs=1.5, system="stragglers=0.5"), data=DATA)


def test_whole_numbers_of_epochs_stay_as_they_are_in_the_file() -> None:
    assert "epochs = 5\n" in Experiment().toml()
    experiment = Experiment(epochs=0.25)
    assert "epochs = 0.25\n" in experiment.toml()
    assert from_toml(experiment.toml()) == experiment


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_named_client_has_its_own_work(engine: str, tmp_path: Path) -> None:
    own = ["2:epochs=1,batch_size=4", "4:steps=3"]
    settings = {"selection": "everyone", "engine": engine}
    runs = run(small(clients__own=own, **settings), data=DATA, runs=tmp_path / "own")
    usual = run(small(**settings), data=DATA, runs=tmp_path / "usual")
    curves = [each.store.curves([1], ["client/steps"], per_client=True) for each in (runs, usual)]
    steps, others = ({(m.client, m.round): m.value for m in curve} for curve in curves)
    rows = usual.store.partition(1).groupby("client")["rows"].sum()
    assert all(steps[2, r] == math.ceil(rows[2] / 4) and steps[4, r] == 3 for r in range(1, 5))
    assert {k: v for k, v in steps.items() if k[0] not in (2, 4)} == {
        k: v for k, v in others.items() if k[0] not in (2, 4)
    }
    assert from_toml(runs.records[0].experiment).clients.own == tuple(own)


def test_own_work_like_all_others_changes_no_number(tmp_path: Path) -> None:
    runs = [
        run(small(**changes), data=DATA, runs=tmp_path / name)
        for name, changes in {"a": {}, "b": {"clients__own": ["2:epochs=2,batch_size=8"]}}.items()
    ]
    assert numbers(runs[0]) == numbers(runs[1])
    assert "own" not in runs[0].records[0].experiment.partition("[clients]")[2].partition("[")[0]


def test_own_epochs_count_where_the_others_take_steps() -> None:
    assembly = assemble(small(clients__own=["2:epochs=1,batch_size=4"], steps=9), DATA)
    assert [assembly.federation.planner.extent(k, 20)[0] for k in (1, 2)] == [9, 5]


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (["9:epochs=1"], "clients: own: there is no client '9'; "),
        (["2:epoch=1"], "clients: own: 2: unknown option 'epoch'; did you mean 'epochs'"),
        (["2:epochs=0"], "clients: own: 2: epochs must be"),
        (["2:epochs"], "clients: own: cannot read 'epochs'"),
        (["2:batch_size=4"], "clients: own: 2: system.variance sets the size of every batch"),
    ],
)
def test_own_work_that_does_not_fit_is_refused(own: list[str], message: str) -> None:
    with pytest.raises(BadInput, match=f"^{message}"):
        assemble(small(clients__own=own, system="variance=loss"), DATA)
