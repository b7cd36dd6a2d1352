"""A recorded step is the step; its gradient is PyTorch's; and neither imports what a run does not need."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch.func import grad_and_value as by_torch
from torch.func import vmap

from fedskew.engine import gradient
from fedskew.engine.trace import Traced, recorded


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_recorded_function_repeats_itself_on_other_numbers():
    constant = numbers(3, seed=7)

    def f(x, y):
        parts = (x @ y).split([1, 2], dim=1)
        changed = torch.zeros(2, 1, dtype=torch.float64)
        changed += parts[0]  # in place, on a tensor of its own
        return [torch.cat([changed, parts[1]], 1) + constant, x.detach().view(-1).t() * torch.tensor(2.0)]

    graph = recorded(f, (numbers(2, 4), numbers(4, 3, seed=1)))
    for seed in (5, 6):
        inputs = numbers(2, 4, seed=seed), numbers(4, 3, seed=seed + 10)
        for mine, direct in zip(graph(*inputs), f(*inputs), strict=True):
            assert torch.equal(mine, direct)


def test_two_inputs_that_are_one_tensor_stay_two():
    x = numbers(3)
    graph = recorded(lambda a, b: [a - 2 * b, b], (x, x))
    a, b = numbers(3, seed=1), numbers(3, seed=2)
    first, second = graph(a, b)
    assert torch.equal(first, a - 2 * b)
    assert torch.equal(second, b)


def test_a_changed_constant_is_fresh_each_time():
    def f(x):
        total = torch.tensor([1.0, 2.0], dtype=torch.float64)
        return [total.add_(x).clone()]

    graph, x = recorded(f, (numbers(2),)), numbers(2, seed=3)
    graph(x)
    assert torch.equal(graph(x)[0], f(x)[0])


def test_idle_calls_leave_nothing_behind():
    graph = recorded(lambda x: [x.detach().view(2, 2).expand(2, 2).exp()], (numbers(2, 2),))
    assert [str(node.target) for node in graph.graph.nodes if node.op == "call_function"] == ["aten.exp.default"]


@pytest.mark.parametrize("reads", [lambda x: x.sum().item(), lambda x: 1.0 if (x > 0).all() else 2.0])
def test_a_value_cannot_be_frozen_into_a_graph(reads):
    with pytest.raises(TypeError, match="where and masks"):
        recorded(lambda x: [x * reads(x)], (numbers(2),))


def test_a_step_is_traced_once_for_each_combination_of_shapes():
    traced = Traced(lambda view, carry, x: {"w": carry["w"] * 2 + x})
    for rows in (2, 3, 2):
        carry = traced.repeat({}, {"w": torch.ones(rows)}, ((torch.ones(rows),) for _ in range(3)))
        assert torch.equal(carry["w"], torch.full((rows,), 15.0))  # 1 -> 3 -> 7 -> 15
    assert len(traced.graphs) == 2


def loss(w):
    return (w.exp() * torch.arange(3.0, dtype=w.dtype)).sum() + w.prod()


def slope_of_slope(grad_and_value):
    return lambda w: grad_and_value(lambda w: grad_and_value(loss)(w)[0].square().sum())(w)


@pytest.mark.parametrize(
    "use",
    [
        lambda how: how(loss),
        slope_of_slope,
        lambda how: how(lambda w: how(loss)(w)[1]),
        lambda how: how(lambda w: torch.ones((), dtype=w.dtype)),  # no way leads to the parameters
    ],
    ids=["plain", "second derivative", "through the value", "constant"],
)
@pytest.mark.parametrize("stacked", [False, True])
def test_the_gradient_is_that_of_torch_func(use, stacked):
    mine, theirs = use(gradient.grad_and_value), use(by_torch)
    w = numbers(4, 3) if stacked else numbers(3)
    if stacked:
        mine, theirs = vmap(mine), vmap(theirs)
    with torch.no_grad():
        for a, b in zip(mine(w), theirs(w), strict=True):
            assert torch.equal(a, b)
            assert not a.requires_grad


def test_without_its_parts_torch_func_takes_over(monkeypatch):
    monkeypatch.setattr(gradient, "OWN", False)
    g, value = gradient.grad_and_value(lambda w: w.square().sum())(torch.tensor([3.0]))
    assert (g.item(), value.item()) == (6.0, 9.0)


def test_a_stacked_run_imports_nothing_that_it_does_not_need(tmp_path):
    """The compiler alone takes longer to import than a small run takes; the rest belongs to reports and other data."""
    code = f"""
import sys
from fedskew.experiment.config import Experiment
from fedskew.experiment.results import run
run(Experiment().replace(engine="stacked", training={{"rounds": 1}}), folder={str(tmp_path)!r})
heavy = ["torch._dynamo", "sympy", "pandas", "scipy", "pyarrow", "matplotlib", "transformers", "jinja2"]
print([name for name in heavy if name in sys.modules])
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100)
    assert told.stdout.strip() == "[]"
