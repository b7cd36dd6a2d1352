"""Models as vectors, and the loss and scores of classification."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedskew.core.records import Batch
from fedskew.core.task import one_hot, score
from fedskew.core.trees import ParameterSpace
from tests.small import TASK, X0, TinyNet, classifier

# vectors


def test_views_share_the_vector():
    w = X0.clone()
    TASK.space.unflatten(w)["a.bias"][2] = 99
    assert 99 in w


def test_buffers_are_not_in_the_vector():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    space = ParameterSpace(net)
    assert space.names == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert space.size == 12 + 4 + 4 + 4
    assert space.layers() == {"0": [slice(0, 12), slice(12, 16)], "1": [slice(16, 20), slice(20, 24)]}


def test_flatten_is_a_copy():
    net = TinyNet()
    w = ParameterSpace(net).flatten(net)
    w.zero_()
    assert any(p.abs().sum() > 0 for p in net.parameters())
    assert not w.requires_grad


# the task


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
def test_loss_equals_cross_entropy(scale):
    g = torch.Generator().manual_seed(0)
    logits = scale * torch.randn(40, 3, generator=g, dtype=torch.float64)
    y = torch.randint(0, 3, (40,), generator=g)
    expected = F.cross_entropy(logits, y, reduction="none")
    torch.testing.assert_close(TASK.loss(logits, y), expected, rtol=1e-12, atol=1e-12)


def test_scores_of_known_logits():
    logits = torch.tensor([[0.0, 0.0, 0.0], [2.0, 1.0, 0.0], [0.0, 5.0, 9.0]], dtype=torch.float64)
    scores = TASK.scores(logits, torch.tensor([1, 0, 1]))
    assert set(scores) == {"loss", "accuracy"}
    assert scores["accuracy"].tolist() == [0, 1, 0]
    expected = [math.log(3), math.log(1 + math.exp(-1) + math.exp(-2)), math.log(math.exp(-5) + 1 + math.exp(4))]
    assert scores["loss"].tolist() == pytest.approx(expected, rel=1e-12)


def test_the_skeletons_own_parameters_are_never_read():
    net = TinyNet().double()
    task, x = classifier(net, 3), torch.ones(2, 6, dtype=torch.float64)
    before = task.outputs(X0, x)
    with torch.no_grad():
        for p in net.parameters():
            p.fill_(float("nan"))
    for one, two in zip(before, task.outputs(X0, x), strict=True):
        assert torch.equal(one, two)
    assert torch.equal(task.logits(X0, x), before[1])


class Tied(TinyNet):
    """The output layer has the hidden layer's weights, under a second name."""

    def __init__(self) -> None:
        super().__init__(outputs=8)
        self.a = nn.Linear(8, 8)
        self.b.weight = self.a.weight


def test_tied_weights_are_one_parameter():
    task = classifier(Tied().double(), 8)
    assert task.space.names == ["a.weight", "a.bias", "b.bias"]
    w, x = torch.randn(80, dtype=torch.float64), torch.randn(3, 8, dtype=torch.float64)
    weight, a, b = w.split([64, 8, 8])
    expected = torch.tanh(x @ weight.view(8, 8).T + a) @ weight.view(8, 8).T + b
    torch.testing.assert_close(task.logits(w, x), expected)


def test_one_hot():
    assert one_hot(torch.tensor([2, 0]), 3, torch.float64).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert one_hot(torch.tensor(1), 2, torch.float32).tolist() == [0, 1]


def test_a_batch_counts_its_real_rows_only():
    batch = Batch(x=torch.zeros(4, 6), y=torch.zeros(4), mask=torch.tensor([1.0, 0.0, 1.0, 1.0]))
    values = torch.tensor([1.0, 100.0, 2.0, 6.0])
    assert float(batch.sum(values)) == 9
    assert float(batch.mean(values)) == 3
    assert batch.sum(torch.stack([values, -values], 1)).tolist() == [9, -9]
    empty = batch._replace(mask=torch.zeros(4))
    assert float(empty.mean(values)) == 0


def test_score_sums_over_the_real_rows():
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(5, 6, generator=g, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1])
    mask = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    got = score(TASK, X0, Batch(x, y, mask))
    kept = mask.bool()
    logits = TASK.logits(X0, x)[kept]
    assert float(got["loss"]) == pytest.approx(float(F.cross_entropy(logits, y[kept], reduction="sum")))
    assert float(got["accuracy"]) == int((logits.argmax(1) == y[kept]).sum())
