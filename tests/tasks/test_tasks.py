"""Tasks in whole runs: the default one, targets that do not fit, tables, and tuning by the task's own metrics."""

import ast
import csv
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import fedskew
from fedskew.core.errors import BadInput
from fedskew.data.targets import TARGETS
from fedskew.execution.build import assemble, check_needs
from fedskew.execution.run import execute, register
from fedskew.experiment.config import Experiment
from fedskew.report.answer import answer
from fedskew.report.html import page
from fedskew.report.series import Results
from fedskew.store.runs import RunRecord, RunStore
from fedskew.studies.runner import Executor
from fedskew.studies.tune import Search, tune
from fedskew.tasks import TASKS
from tests.commands import output_of

torch.set_num_threads(1)
SOURCE = Path(fedskew.__file__).parent


@pytest.fixture(scope="module")
def air(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table of four stations with 60 hours each. The target depends on two columns and the station."""
    path, rng = tmp_path_factory.mktemp("air") / "air.csv", np.random.default_rng(0)
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["heat", "wind", "word", "pm25", "station"])
        for i in range(240):
            a, b = rng.normal(size=2)
            rows.writerow(
                [f"{a:.4f}", f"{b:.4f}", "ab"[i % 2], f"{80 + 20 * a - 9 * b + 5 * (i % 4):.2f}", f"s{i % 4}"]
            )
    return path


def experiment(air: Path, **changes: object) -> Experiment:
    spec = f"table:path={air},target=pm25,client=station"
    small = {"model": "mlp:hidden=[8]", "training": {"rounds": 4, "threads": 1}, "engine": "sequential"}
    return Experiment(**({"dataset": spec, "skew": "natural", **small} | changes))


def played(store: RunStore, planned: Experiment) -> int:
    run = register(store, planned)
    execute(store, run)
    return run


def test_the_target_decides_the_task_and_its_metric_everything_else(air, tmp_path) -> None:
    store = RunStore(tmp_path)
    made = experiment(air)
    assert made.task == TASKS["regression"]()
    runs = [played(store, made.replace(algorithm=name)) for name in ("fedavg", "scaffold")]
    record = store.run(runs[0])
    assert record.facts["primary"] == "rmse"
    frame = store.measurements(runs[:1])
    last = frame[(frame["round"] == 4) & frame["client"].isna()].set_index(["split", "name"])["value"]
    assert (
        0 < last["test", "rmse"] < 12 < float(frame[(frame["round"] == 0) & (frame["name"] == "rmse")]["value"].iloc[0])
    )
    assert last["test", "r2"] > 0.7
    assert last["clients", "rmse_worst"] >= last["clients", "rmse_mean"]
    assert not {"mae_worst", "accuracy_mean"} & set(last["clients"].index)
    text = page(Results(store, store.runs()))
    assert "RMSE" in text
    assert "accuracy" not in re.sub("<(style|script).*?</(style|script)>", "", text, flags=re.S)
    said, shown = in_views(store, store.runs())
    assert re.search("lower test RMSE|lowest mean test RMSE", said)
    assert shown[:4] == ["rmse", "mae", "r2", "worst_client_rmse"]
    assert not {"accuracy", "worst_client"} & set(shown)
    heads = output_of("watch", "1-2", "--runs", tmp_path).splitlines()[0]
    assert "RMSE" in heads
    assert "accuracy" not in heads


def in_views(store: RunStore, records: list[RunRecord]) -> tuple[str, list[str]]:
    """Return the answer and the columns of the table."""
    results = Results(store, records)
    assert set(results.summary["verdict"]) <= {"", "higher", "lower", "undecided"}
    return answer(results), [measure.key for measure in results.columns("table")]


def test_python_prints_differences_in_the_unit_of_the_target(air: Path, tmp_path: Path) -> None:
    runs = fedskew.compare(
        ["fedavg", "fedprox:mu=1"],
        dataset=f"table:path={air},target=pm25,client=station",
        rounds=1,
        seeds=1,
        runs=tmp_path,
    )
    table = runs.table()
    assert f"{table['difference'].iloc[1]:+.3g}".replace("-", "−") in repr(table)
    assert "accuracy" not in repr(table)


def test_runs_of_different_tasks_are_not_compared(air, tmp_path) -> None:
    store = RunStore(tmp_path)
    for made in (
        experiment(air),
        Experiment(model="softmax", training={"rounds": 1, "threads": 1}, engine="sequential"),
    ):
        played(store, made.replace(training__rounds=1))
    with pytest.raises(BadInput, match="these runs are compared by rmse and by accuracy; name runs of one task"):
        _ = Results(store, store.runs()).summary


def test_tuning_takes_the_smallest_error(air, tmp_path) -> None:
    tuned = tune(
        Executor(RunStore(tmp_path)), experiment(air), "fedavg", Search(space={"solver.lr": (1e-6, 0.1)}, seeds=(1,))
    )
    assert tuned.best.setting == {"solver.lr": 0.1}
    assert 0 < tuned.reached(tuned.best) < tuned.reached(tuned.tried[0])


def test_label_skews_deal_tenths_of_the_target(air) -> None:
    made = assemble(experiment(air, skew="label-sorted"), experiment(air).dataset.load())
    y, part = made.dataset.y, made.partition
    tops = [y[part.rows(k)].max() for k in range(len(part))]
    assert tops == sorted(tops)
    assert made.data.label_counts().shape == (10, 10)
    assert made.partition_facts()["label_distance"] > 0.5
    assert made.federation.info.label_counts.shape == (10, 0)
    assert made.dataset.strata[1][0].startswith("up to ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "target=word,client=station",
            "column 'word' is the target and holds words, such as 'a'; name a column of numbers",
        ),
        ("label=word,target=pm25", "needs one of label=COLUMN for classes, target=COLUMN for numbers"),
    ],
)
def test_tables_with_bad_targets_give_one_line(air, options, message) -> None:
    with pytest.raises(BadInput, match=message.replace("(", r"\(")):
        Experiment(dataset=f"table:path={air},{options}").dataset.load()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": "fedlc"}, "fedlc works on classes, but these targets are no classes"),
        ({"refine": "distillation", "server_data": {"share": 0.1}}, "refine distillation works on classes"),
        ({"availability": "blocks:phase=label"}, "use phase=random"),
        ({"skew": ["natural", "concept-swap"]}, "changes classes, but these targets are no classes"),
        ({"evaluation": {"classes": True}}, "the targets are neither classes nor labels"),
        ({"faults": {"attackers": 0.2, "attack": "label-flip"}}, "use attack=sign-flip"),
    ],
)
def test_components_that_need_classes_are_refused_before_data_are_loaded(air, changes, message) -> None:
    with pytest.raises(BadInput, match=message):
        check_needs(experiment(air, **changes))


def test_a_task_refuses_targets_of_another_kind(air) -> None:
    with pytest.raises(
        BadInput, match="task regression learns numbers, but the targets are classes; use --task classification"
    ):
        assemble(Experiment(task="regression"), Experiment().dataset.load())
    with pytest.raises(
        BadInput, match="task classification learns classes, but the targets are numbers; use --task regr"
    ):
        assemble(experiment(air, task="classification"), experiment(air).dataset.load())


def compared_with_names(tree: ast.AST, names: set[str]) -> Iterator[int]:
    """Return the lines of code that compare a value with the name of a task, or test for a task's class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare | ast.match_case):
            found = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            found = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        else:
            continue
        if found & names:
            yield getattr(node, "lineno", 0)


def test_no_branch_on_a_task_outside_its_file() -> None:
    # survival is a kind of target, too, on which others may branch
    names = {*TASKS, *(cls.__name__ for cls in TASKS.values())} - {*TARGETS}
    files = [path for path in SOURCE.rglob("*.py") if path.parent.name != "tasks"]
    found = {path.name: [*compared_with_names(ast.parse(path.read_text(encoding="utf-8")), names)] for path in files}
    assert {name: lines for name, lines in found.items() if lines} == {}
    assert [*compared_with_names(ast.parse("if task == 'regression': pass"), names)] == [1]
    assert [*compared_with_names(ast.parse("isinstance(task, Classification)"), names)] == [1]
