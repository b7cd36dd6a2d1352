"""Every kind of target goes through data, engines and evaluation; a task from a file may use all of it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

import fedskew as fs
from fedskew.algorithms import FedAvg
from fedskew.core.errors import BadInput
from fedskew.core.metrics import TaskMetric
from fedskew.core.task import Task, without_padding
from fedskew.core.trees import ParameterSpace
from fedskew.data.dataset import Dataset
from fedskew.experiment.combinations import suited
from fedskew.experiment.components import check
from fedskew.experiment.config import Experiment
from fedskew.loop.evaluate import evaluate, evaluate_clients
from fedskew.loop.federation import Federation
from fedskew.report.answer import remarks
from fedskew.tasks.classification import MultiLabel
from tests.methods import federation
from tests.small import TinyNet

ROWS = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
TARGETS = {
    "classes": np.arange(40) % 3,
    "number": ROWS[:, 0].astype(np.float64),
    "labels": (ROWS[:, :3] > 0).astype(np.int64),
    "survival": np.stack([np.exp(ROWS[:, 0]), np.arange(40) % 2], 1).astype(np.float64),
    "symbols": np.where(np.arange(5) < 3 + np.arange(40)[:, None] % 3, np.arange(40)[:, None] % 3, -1),
}


def data(kind: str, **changes: object) -> Dataset:
    y = TARGETS[kind]
    names = ("a", "b", "c") if kind in ("classes", "labels", "symbols") else ()
    return Dataset(**{"x": ROWS, "y": y, "x_test": ROWS[:9], "y_test": y[:9], "classes": names, **changes})


@pytest.mark.parametrize("kind", TARGETS)
def test_the_kind_of_target_is_found_from_type_and_shape(kind: str) -> None:
    made = data(kind)
    assert made.target == kind
    assert data(kind, target=kind).target == kind
    strata, names = made.strata
    assert strata.shape == (40,)
    assert set(strata.tolist()) == set(range(len(names)))


def test_strata_of_label_sets_count_rows() -> None:
    strata, names = data("labels").strata
    wanted = (TARGETS["labels"] == [1, 0, 1]).all(1)
    assert (strata == names.index("a + c")).tolist() == wanted.tolist()
    assert data("symbols").strata[0].tolist() == TARGETS["symbols"][:, 0].tolist()


def test_symbols_may_have_a_vocabulary_without_names() -> None:
    made = data("symbols", classes=(), vocabulary=3)
    assert (made.target, made.num_categories, made.num_classes) == ("symbols", 3, 0)


@pytest.mark.parametrize(
    ("kind", "y", "message"),
    [
        ("labels", 2 * TARGETS["labels"], "training targets must be 0 or 1, found 0..2"),
        ("labels", np.zeros((40, 3), dtype=int), "no training row has a label"),
        ("labels", TARGETS["labels"][:, :2], r"must be 3 a row, one for each label; their shape is \(40, 2\)"),
        ("survival", -TARGETS["survival"], "times must be above 0"),
        ("survival", TARGETS["survival"] * [1, 0], "no training row has an event"),
        ("survival", TARGETS["survival"] * [1, 2], "events must be 0 or 1, found 2"),
        ("symbols", TARGETS["symbols"] + 3, "must lie in 0..2, or be -1 where a row has ended, found 2..5"),
        ("number", np.array(["high"] * 40), "must be floating-point numbers, not <U4"),
        ("number", np.full(40, 2.5), "all training targets are 2.5; there is nothing to predict"),
        ("number", np.array([1.0, np.inf, 2.0, np.nan] * 10), "training targets: 20 are not finite"),
        (
            "",
            np.arange(40),
            r"must be floating-point numbers, not int64; for classes give their names, classes=\(...\)",
        ),
        ("", np.zeros((40, 3)), "are none of: classes"),
        ("size", TARGETS["number"], "unknown target 'size'"),
    ],
)
def test_bad_targets_give_one_line_errors(kind: str, y: np.ndarray, message: str) -> None:
    names = ("a", "b", "c") if kind in ("labels", "symbols") else ()
    with pytest.raises(BadInput, match=f"^own data: .*{message}"):
        Dataset(x=ROWS, y=y, x_test=ROWS, y_test=y, target=kind, classes=names)


def test_a_vocabulary_of_one_symbol_is_refused() -> None:
    y = np.zeros((40, 2), dtype=int)
    with pytest.raises(BadInput, match="a vocabulary of 1 leaves nothing to predict"):
        Dataset(x=ROWS, y=y, x_test=ROWS, y_test=y, vocabulary=1)


# the task that is used when none is given


def test_the_targets_choose_the_task() -> None:
    assert Experiment().default_task
    assert not Experiment(task="classification").default_task
    assert suited(Experiment(), data("number")).task == Experiment(task="regression").task
    assert suited(Experiment(rounds=3).replace(lr=0.5), data("number")).task.target == "number"
    assert suited(Experiment(task="classification"), data("number")).task.target == "classes"
    assert Experiment().replace(dataset="parkinsons").task.target == "number"


def test_own_arrays_choose_the_task(tmp_path: Path) -> None:
    runs = fs.run(data=data("number"), rounds=1, clients=2, runs=tmp_path, progress=False)
    assert runs.records[0].facts["primary"] == "rmse"


# a task with scores of several values, targets of two dimensions, and metrics of all rows


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """Pairs of numbers; a row's loss is its share of the batch's pairs that are in the wrong order."""

    idea: ClassVar[str] = "an example"
    target: ClassVar[str] = "survival"
    joint: ClassVar[bool] = True
    metrics: ClassVar[tuple[TaskMetric, ...]] = (
        TaskMetric(name="order", title="order", better="higher", low=0, high=1, pooled=True),
        TaskMetric(name="gap", title="gap", better="lower"),
    )
    primary: ClassVar[str] = "order"

    def num_outputs(self, num_categories: int) -> int:
        return 1

    def fitted(self, y: np.ndarray) -> "Ranked":
        return self

    def predictions(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs[..., 0]

    def loss(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        s, time = outputs[..., 0], y[..., 0]
        later = (time[..., None, :] > time[..., :, None]) & (time[..., :, None] > 0)
        wrong = torch.nn.functional.softplus(s[..., None, :] - s[..., :, None])
        return (wrong * later.to(wrong)).sum(-1)

    def scores(self, outputs: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.loss(outputs, y), "both": torch.stack([outputs[..., 0], y[..., 0]], -1)}

    def measured(self, means: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"loss": means["loss"], "gap": (means["both"][..., 0] - means["both"][..., 1]).abs()}

    def pooled(self, outputs: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
        s, time = outputs[..., 0], y[..., 0]
        later = time[None, :] > time[:, None]
        right = (s[None, :] < s[:, None]) & later
        return {"order": float(right.sum() / later.sum())}


def of_pairs(**changes: object) -> Federation:
    """The ragged clients of other tests, with a time and an event for each row."""
    fed = federation("fedavg", **changes)
    net = TinyNet(outputs=1).double()
    y = torch.stack([fed.x[:, 0].exp(), (fed.x[:, 1] > 0).double()], 1)
    return replace(fed, algorithm=FedAvg(), task=Task(Ranked(), net, ParameterSpace(net), 1), y=y, server_data=None)


START = torch.randn(65, generator=torch.Generator().manual_seed(5), dtype=torch.float64) / 2


def test_padding_sets_numbers_to_0_and_leaves_integers() -> None:
    mask = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    assert without_padding(torch.ones(2, 2, 2), mask)[:, :, 1].tolist() == mask.tolist()
    assert without_padding(torch.ones(2, 2, dtype=torch.long), mask).sum() == 4


def test_a_client_is_measured_on_its_own_rows_only() -> None:
    fed = of_pairs()
    means = evaluate_clients(fed.task, START, fed.x, fed.y, fed.partition, fed.clients)
    assert means["both"].shape == (len(fed.partition), 2)
    found = fed.task.measured(means)
    for k in (0, 3):
        rows = torch.as_tensor(fed.partition.measured_rows(k))
        alone = evaluate(fed.task, START, fed.x[rows], fed.y[rows])
        assert {name: float(values[k]) for name, values in found.items()} == pytest.approx(
            alone, rel=1e-12, nan_ok=True
        )


def test_a_task_of_a_file_brings_its_metrics(tmp_path: Path) -> None:
    head = "from dataclasses import dataclass\nfrom typing import ClassVar\nimport numpy as np\nimport torch\n"
    source = Path(__file__).read_text(encoding="utf-8")
    body = source[source.index("@dataclass(frozen=True, kw_only=True)\nclass Ranked") : source.index("def of_pairs")]
    (tmp_path / "mine.py").write_text(head + "from fedskew.core.metrics import TaskMetric\n\n" + body)
    spec = f"{tmp_path}/mine.py::Ranked"
    broken = [v for v in check(spec)[1] if not v.kept]
    assert broken == []
    runs = fs.compare(
        ["fedavg", "ditto"], data=data("survival"), task=spec, rounds=2, clients=2, seeds=2, runs=tmp_path / "runs",
        evaluation__every=1, held_out=0.3, progress=False,
    )  # fmt: skip
    table = runs.table()
    assert {"order", "worst_client_order", "personal_order", "gap"} <= set(table.columns)
    stored = runs.store.measurements(runs.ids)
    measured = set(zip(stored["split"], stored["name"], strict=True))
    assert {("test", "order"), ("global-model", "order"), ("clients", "order_worst")} <= measured


def test_each_label_has_its_metrics(tmp_path: Path) -> None:
    runs = fs.run(data=data("labels"), rounds=1, clients=2, evaluation__classes=True, runs=tmp_path, progress=False)
    found = runs.measurements()
    last = found[(found["split"] == "class") & (found["round"] == 1)].pivot(
        index="client", columns="name", values="value"
    )
    assert sorted(last) == ["auc", "f1"]
    assert len(last) == 3
    mean = found[(found["split"] == "test") & (found["round"] == 1)].set_index("name")["value"]
    assert (last["auc"].mean(), last["f1"].mean()) == pytest.approx((mean["auc"], mean["f1_macro"]), rel=1e-12)
    assert runs.records[0].facts["classes"] == ["a", "b", "c"]
    assert runs.plot("labels").axes[0].get_xlabel() == "class or label"
    assert "F1 by class or label" in runs.report(tmp_path / "report.html").read_text(encoding="utf-8")


def test_numbers_have_no_metrics_of_classes(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="classes: the targets are neither classes nor labels; leave it out"):
        fs.run(data=data("number"), rounds=1, clients=2, evaluation__classes=True, runs=tmp_path, progress=False)


# answers without a model


@pytest.mark.parametrize(
    ("kind", "metric", "wanted"),
    [
        ("classes", "accuracy", 3 / 9),
        ("number", "rmse", np.sqrt(np.square(ROWS[:9, 0] - ROWS[:, 0].mean(dtype=float)).mean())),
        ("survival", "c_index", 0.5),
        ("symbols", "accuracy", 15 / 36),
    ],
)
def test_runs_store_the_metrics_of_the_best_constant_answer(
    kind: str, metric: str, wanted: float, tmp_path: Path
) -> None:
    y, model = TARGETS["symbols"], "transformer:width=8" if kind == "symbols" else "softmax"
    rows = {"x": y, "x_test": y[:9]} if kind == "symbols" else {}
    made = data(kind, baselines={"my rule": {metric: 0.25}}, **rows)
    runs = fs.run(data=made, model=model, rounds=1, clients=2, runs=tmp_path, progress=False)
    assert runs.records[0].facts["baselines"]["always the same answer"][metric] == pytest.approx(wanted, rel=1e-6)
    [line] = remarks(runs.records) if metric == "accuracy" else [""]
    assert metric != "accuracy" or line.endswith(
        f"accuracy % without a model: always the same answer {100 * wanted:.1f}, my rule 25.0"
    )


def test_the_constant_answer_of_labels_is_each_labels_more_frequent_answer() -> None:
    y = np.array([[1, 0, 1], [1, 0, 0], [0, 0, 1]])
    assert (MultiLabel().constant(y, 3) >= 0).tolist() == [True, False, True]


@pytest.mark.parametrize(("spec", "wanted"), [("squared", 3.0), ("absolute", 2.0), ("quantile,q=0.75", 4.0)])
def test_the_constant_answer_of_numbers_has_the_smallest_loss(spec: str, wanted: float) -> None:
    y = np.array([0.0, 1.0, 2.0, 4.0, 8.0])
    task = Experiment(task=f"regression:error={spec}").task.fitted(y)
    assert float(task.predictions(task.constant(y, 1))) == pytest.approx(wanted, abs=1e-12)
