"""Class weights of the classification task."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedskew.api.functions import run
from fedskew.core.errors import BadInput
from fedskew.experiment.config import from_toml
from fedskew.tasks.classification import Classification
from tests.blobs import DATA, numbers, small

OUTPUTS = torch.randn(50, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = torch.arange(50) % 3


def test_the_loss_is_torchs_and_the_measured_loss_has_no_weights() -> None:
    weights = (1.0, 5.0, 0.25)
    task = Classification(weights=weights)
    expected = F.cross_entropy(OUTPUTS, Y, torch.tensor(weights).double(), reduction="none")
    torch.testing.assert_close(task.loss(OUTPUTS, Y), expected)
    plain = Classification()
    assert torch.equal(task.scores(OUTPUTS, Y)["loss"], plain.loss(OUTPUTS, Y))
    assert torch.equal(Classification(weights=(1.0, 1.0, 1.0)).loss(OUTPUTS, Y), plain.loss(OUTPUTS, Y))


def test_balanced_weights_give_each_class_the_same_sum() -> None:
    y = np.repeat([0, 1, 2], [60, 30, 10])
    task = Classification(weights="balanced").fitted(y)
    assert task.weights == pytest.approx((100 / 180, 100 / 90, 100 / 30))
    assert np.bincount(y) * np.array(task.weights) == pytest.approx(100 / 3)


def test_weights_of_1_change_no_bit_of_a_run(tmp_path: Path) -> None:
    runs = [
        run(small("scaffold", task=task), data=DATA, runs=tmp_path / str(i))
        for i, task in enumerate(["classification", "classification:weights=[1,1,1]"])
    ]
    assert numbers(runs[0]) == numbers(runs[1])
    assert "weights" not in runs[0].records[0].experiment.partition("[task]")[2].partition("[")[0]
    assert from_toml(runs[1].records[0].experiment).task == Classification(weights=(1.0, 1.0, 1.0))


def test_both_engines_train_with_the_same_weights_and_they_matter(tmp_path: Path) -> None:
    losses = []
    for name, engine, task in [
        ("a", "sequential", "classification:weights=[20,1,1]"),
        ("b", "stacked", "classification:weights=[20,1,1]"),
        ("c", "stacked", "classification:weights=balanced"),
        ("d", "stacked", "classification"),
    ]:
        runs = run(small(task=task, engine=engine, dtype="float64"), data=DATA, runs=tmp_path / name)
        losses.append([m.value for m in runs.store.curves([1], ["test/loss"])])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-10)
    assert losses[0][0] == losses[3][0]  # before training: the measured loss has no weights
    assert len({values[-1] for values in losses[1:]}) == 3


def test_as_many_weights_as_classes(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="task classification: 2 weights for 3 classes; write one for each class"):
        run(small(task="classification:weights=[1,2]"), data=DATA, runs=tmp_path)
    with pytest.raises(BadInput, match="weights must be a list, each a finite number above 0 or balanced, got 'x'"):
        small(task="classification:weights=x")
