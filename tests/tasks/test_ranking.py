"""Metrics that are no sums over rows, by hand and against scikit-learn."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score, recall_score, roc_auc_score

from fedskew.core.task import PoolingWithout
from fedskew.tasks.classification import LARGEST, Classification, MultiLabel
from fedskew.tasks.ranking import areas, calibration_error, f1, mean_of_defined
from fedskew.tasks.survival import Survival

RNG = np.random.default_rng(0)


def test_areas_agree_with_scikit_learn_where_scores_tie() -> None:
    scores, positive = RNG.integers(0, 5, (60, 3)).astype(float), RNG.random((60, 3)) < 0.3
    wanted = [roc_auc_score(positive[:, k], scores[:, k]) for k in range(3)]
    assert areas(scores, positive).tolist() == pytest.approx(wanted, abs=1e-15)


def test_f1_by_hand() -> None:
    right, predicted, positive = np.array([2, 0, 0]), np.array([3, 1, 0]), np.array([4, 0, 0])
    found = f1(right, predicted, positive)
    assert found[:2].tolist() == [4 / 7, 0]
    assert math.isnan(found[2])
    assert mean_of_defined(found) == 2 / 7


def test_calibration_error_by_hand() -> None:
    confidence, right = np.array([0.9, 0.91, 0.5, 1.0]), np.array([True, False, False, True])
    # bins of 1/15: 0.9 and 0.91 lie in one, 0.5 and 1 alone
    assert calibration_error(confidence, right) == pytest.approx((0.81 + 0.5 + 0) / 4, abs=1e-15)


def test_classification_agrees_with_scikit_learn() -> None:
    y, outputs = torch.tensor(RNG.integers(0, 4, 80)), torch.tensor(RNG.normal(size=(80, 4)))
    found, p = Classification().pooled(outputs, y), outputs.softmax(1).numpy()
    wanted = {
        "balanced_accuracy": balanced_accuracy_score(y, p.argmax(1)),
        "f1_macro": f1_score(y, p.argmax(1), average="macro"),
        "auc": roc_auc_score(y, p, multi_class="ovr"),
    }
    assert {name: found[name] for name in wanted} == pytest.approx(wanted, abs=1e-15)


def test_pooled_metrics_without_each_row_equal_metrics_of_the_other_rows() -> None:
    rows, numbers = 30, torch.tensor(RNG.integers(-2, 3, (30, 4)))
    cases = [
        (Classification(), numbers / 2, torch.tensor([3, *RNG.integers(0, 3, rows - 1)])),
        (MultiLabel(), numbers / 2, torch.tensor(RNG.integers(0, 2, (rows, 4)))),
        (Survival(), numbers[:, :1] / 2, torch.tensor(np.stack([RNG.integers(1, 9, rows), np.arange(rows) % 2], 1))),
    ]
    tried = 0
    for task, outputs, y in cases:
        assert isinstance(task, PoolingWithout)
        for name in task.pooled(outputs, y):
            found = task.pooled_without(name, outputs, y)
            for i in range(rows):
                others = torch.arange(rows) != i
                assert found[i] == pytest.approx(task.pooled(outputs[others], y[others])[name], abs=1e-12), name
            tried += 1
    assert tried == 4 + 2 + 1


def test_metrics_of_each_class_and_label_agree_with_scikit_learn() -> None:
    y, outputs = torch.tensor(RNG.integers(0, 4, 80)), torch.tensor(RNG.normal(size=(80, 4)))
    answer, of_classes = outputs.argmax(1), Classification().by_category(outputs, y)
    assert of_classes["accuracy"].tolist() == recall_score(y, answer, average=None).tolist()
    assert of_classes["f1"].tolist() == pytest.approx(f1_score(y, answer, average=None), abs=1e-15)
    labels = torch.tensor(RNG.integers(0, 2, (80, 4)))
    of_labels = MultiLabel().by_category(outputs, labels)
    assert of_labels["f1"].tolist() == pytest.approx(f1_score(labels, outputs >= 0, average=None), abs=1e-15)
    assert of_labels["auc"].tolist() == pytest.approx(roc_auc_score(labels, outputs, average=None), abs=1e-15)


def test_classes_without_rows_are_left_out() -> None:
    found = Classification().pooled(torch.eye(4)[:2], torch.tensor([0, 1]))
    assert (found["balanced_accuracy"], found["f1_macro"], found["auc"]) == (1, 1, 1)
    assert Classification().pooled(torch.full((2, 4), math.nan), torch.tensor([0, 1])) == {}
    assert "auc" not in Classification().pooled(torch.zeros(LARGEST // 4 + 1, 4), torch.zeros(LARGEST // 4 + 1).long())


def test_multi_label_by_hand_and_against_scikit_learn() -> None:
    y, outputs = torch.tensor(RNG.integers(0, 2, (50, 3))), torch.tensor(RNG.normal(size=(50, 3)))
    task, yes = MultiLabel(), outputs.numpy() >= 0
    loss = torch.nn.functional.binary_cross_entropy_with_logits(outputs, y.double(), reduction="none").mean(1)
    torch.testing.assert_close(task.loss(outputs, y), loss, rtol=1e-14, atol=1e-14)
    parts = [task.scores(outputs[part], y[part]) for part in (slice(0, 7), slice(7, 50))]
    means = {name: sum(part[name].sum() for part in parts) / 50 for name in parts[0]}
    found = {**task.pooled(outputs, y), "f1_micro": float(task.measured(means)["f1_micro"])}
    wanted = {
        "auc": roc_auc_score(y, outputs),
        "f1_macro": f1_score(y, yes, average="macro"),
        "f1_micro": f1_score(y, yes, average="micro"),
    }
    assert found == pytest.approx(wanted, abs=1e-15)
    assert float(task.measured({"loss": loss[0], "right": 0 * loss[0], "both": 0 * loss[0]})["f1_micro"].isnan())
