"""The runner: what the store lacks is run, an unfinished run continues, and a finished one is read."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedskew.api.caller import Caller
from fedskew.api.execute import complete
from fedskew.core.errors import BadInput, FedskewError
from fedskew.execution.run import Ended, register
from fedskew.experiment.config import Experiment
from fedskew.store.runs import RunStore
from fedskew.studies.runner import records_of, stored_runs, to_execute, worst_error

EXPERIMENTS = [Experiment(name="a"), Experiment(name="b"), Experiment(name="c")]


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """Run 1 is finished, run 2 was interrupted; the third experiment has no run."""
    made = RunStore(tmp_path)
    for experiment, status in zip(EXPERIMENTS, ("finished", "interrupted"), strict=False):
        made.update(register(made, experiment), status=status)
    return made


def test_only_what_is_not_done_is_executed(store: RunStore) -> None:
    runs = to_execute(store, EXPERIMENTS, "three")
    assert runs[2] is None  # it continues from its checkpoint
    [new] = runs.keys() - {2}
    assert runs[new].experiment == EXPERIMENTS[2]
    assert to_execute(store, EXPERIMENTS, "three") == {2: None, new: None}


def test_a_run_that_diverged_is_done(store: RunStore) -> None:
    store.update(2, status="diverged")
    assert 2 not in to_execute(store, EXPERIMENTS, "three")


def test_of_several_runs_of_an_experiment_a_done_one_counts(store: RunStore) -> None:
    """Else the oldest: run 4 was interrupted, run 5 is finished."""
    numbers = [register(store, EXPERIMENTS[2]) for _ in range(3)]
    assert stored_runs(store, EXPERIMENTS)[EXPERIMENTS[2].hash()].id == numbers[0]
    store.update(numbers[1], status="interrupted")
    store.update(numbers[2], status="finished")
    assert stored_runs(store, EXPERIMENTS)[EXPERIMENTS[2].hash()].id == numbers[2]


def test_a_run_with_a_chosen_engine_is_found_by_the_experiment_that_was_requested(store: RunStore) -> None:
    filled = EXPERIMENTS[2].replace(engine="sequential")
    store.add_facts(register(store, filled), {"asked": EXPERIMENTS[2].hash()})
    assert to_execute(store, EXPERIMENTS[2:], "one") == {3: None}
    assert filled.hash() not in stored_runs(store, [filled])


@pytest.mark.parametrize("changed", ["rows.csv", "rows.columns.toml"])
def test_runs_on_rows_that_have_changed_do_not_count(changed: str, tmp_path: Path) -> None:
    """Else a study that says to mend the data would print the old numbers for the mended data."""
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"age": rng.normal(50, 9, 60), "ill": rng.choice(["no", "yes"], 60), "site": ["a", "b"] * 30})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    table = {"name": "table", "path": str(tmp_path / "rows.csv"), "label": "ill", "client": "site"}
    experiments = [Experiment(dataset=table, training__rounds=1, engine="sequential")]
    store = RunStore(tmp_path / "runs")
    assert complete(store, experiments, "first", 1, Caller(False)) == 1
    assert complete(store, experiments, "the same rows", 1, Caller(False)) == 0
    (tmp_path / "rows.columns.toml").write_text("[units.site.a]\nage = 2.0\n")
    if changed == "rows.csv":
        (tmp_path / "rows.columns.toml").unlink()
        rows.assign(age=rows["age"] ** 2).to_csv(tmp_path / "rows.csv", index=False)
    assert complete(store, experiments, "other rows", 1, Caller(False)) == 1
    assert complete(store, experiments, "the same rows", 1, Caller(False)) == 0
    assert records_of(store, experiments)[0].id == 2
    loaded = experiments[0].dataset.load()
    (tmp_path / "rows.csv").write_text(rows.head(50).to_csv(index=False))
    assert records_of(store, experiments, loaded)[0].id == 2, "rows that are loaded already are not read again"
    with pytest.raises(BadInput, match="the rows have changed since they were read; repeat the command"):
        records_of(store, experiments)


def test_an_experiment_that_is_named_twice_is_run_once(store: RunStore) -> None:
    assert len(to_execute(store, [EXPERIMENTS[2]] * 2, "one")) == 1


def test_any_other_error_comes_before_a_divergence() -> None:
    from fedskew.core.errors import Diverged

    errors = [Diverged("d"), FedskewError("f")]
    assert worst_error([Ended(at, error) for at, error in enumerate(errors)]) is errors[1]
    assert worst_error([Ended(1, None)]) is None
