"""A rewritten step is the step: whatever is returned, read late, drawn at random or changed in place."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.func import vmap

from fedskew.engine.gradient import grad_and_value
from fedskew.engine.trace import Traced, recorded

C, B, D, K, STEPS = 3, 5, 4, 3, 6
WEIGHTS = 0


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def plain(w, g, view, carry):
    return torch.addcmul(w, g, view["lr"], value=-1), carry["kept"]


def keeps_the_old(w, g, view, carry):
    return torch.addcmul(w, g, view["lr"], value=-1), w


def keeps_the_new(w, g, view, carry):
    new = torch.addcmul(w, g, view["lr"], value=-1)
    return new, new


def keeps_a_part(w, g, view, carry):
    new = torch.addcmul(w, g, view["lr"], value=-1)
    return new, torch.cat([new[:4], carry["kept"][4:]])


def keeps_the_move(w, g, view, carry):
    new = torch.addcmul(w, g, view["lr"], value=-1)
    return new, new - w


def sums_the_new(w, g, view, carry):
    new = torch.addcmul(w, g, view["lr"], value=-1)
    return new, carry["kept"] + new.exp()


def swaps(w, g, view, carry):
    """The gradient's parts are the weights' own, in another order."""
    return torch.addcmul(w, torch.cat([w[8:], w[:8]]), view["lr"], value=-1), carry["kept"]


def towards_itself(w, g, view, carry):
    return torch.addcmul(w, w, view["lr"], value=-1), carry["kept"]


def adds_ones(w, g, view, carry):
    return torch.addcmul(w, g, view["lr"], value=-1), carry["kept"] + view["lr"] * torch.ones_like(w)


def step_of(ends, classes=K):
    """One client's step of softmax regression on D * K weights and K biases."""

    def loss(w, x, y, mask):
        logits = F.linear(x, w[: D * classes].view(classes, D), w[D * classes :])
        rows = -(F.log_softmax(logits, -1) * (y[:, None] == torch.arange(classes))).sum(-1)
        return (rows * mask).sum() / mask.sum().clamp(min=1)

    def step(view, carry, x, y, mask):
        g, _ = grad_and_value(lambda w: loss(w, x, y, mask))(carry["w"])
        w, kept = ends(carry["w"], g, view, carry)
        return {"w": w, "kept": kept}

    return vmap(step, ({"lr": None}, 0, 0, 0, 0))


def parts(classes=K):
    generator = torch.Generator().manual_seed(1)
    for t in range(STEPS):
        labels = torch.randint(0, classes, (C, B), generator=generator)
        yield numbers(C, B, D, seed=t), labels, (torch.arange(B) < B - t % 2).double().expand(C, B)


def start(classes=K):
    w = numbers((D + 1) * classes, seed=9)
    return {"lr": torch.tensor(0.3, dtype=torch.float64)}, {
        "w": w.expand(C, -1),
        "kept": torch.zeros(C, len(w)).double(),
    }


def by_hand(step, classes=K):
    view, carry = start(classes)
    with torch.no_grad():
        for part in parts(classes):
            carry = step(view, carry, *part)
    return carry


ENDS = [
    plain,
    keeps_the_old,
    keeps_the_new,
    keeps_a_part,
    keeps_the_move,
    sums_the_new,
    swaps,
    towards_itself,
    adds_ones,
]


@pytest.mark.parametrize("ends", ENDS, ids=lambda ends: ends.__name__)
def test_steps_are_those_by_hand(ends):
    step = step_of(ends)
    view, carry = start()
    before = {name: leaf.clone() for name, leaf in carry.items()}
    with torch.no_grad():
        after = Traced(step).repeat(view, carry, parts())
    for name, expected in by_hand(step).items():
        torch.testing.assert_close(after[name], expected, rtol=1e-13, atol=1e-13)
        assert torch.equal(carry[name], before[name])  # what the caller handed in is the caller's


@pytest.mark.parametrize("ends", [plain, sums_the_new, towards_itself])
def test_weights_change_in_place_where_nothing_else_needs_them(ends):
    assert traced(ends).owned == {WEIGHTS}


@pytest.mark.parametrize("ends", [keeps_the_old, keeps_the_new, keeps_the_move])
def test_weights_that_are_needed_stay(ends):
    assert traced(ends).owned == frozenset()


def test_weights_of_one_client_change_in_place_part_by_part():
    made = Traced(
        lambda view, carry, x: {"w": torch.addcmul(carry["w"], torch.cat([x[:2], 3 * x[2:]]), view, value=-1)}
    )
    w, rate = numbers(5), torch.tensor(0.5, dtype=torch.float64)
    after = made.repeat(rate, {"w": w}, [(numbers(5, seed=1),), (numbers(5, seed=2),)])["w"]
    (step,) = made.graphs.values()
    assert step.owned == {0}
    assert "cat" not in step.each.__self__.code
    total = numbers(5, seed=1) + numbers(5, seed=2)
    torch.testing.assert_close(after, w - 0.5 * total * torch.tensor([1, 1, 3, 3, 3]), rtol=1e-13, atol=1e-13)


def test_a_gradient_joined_of_rows_is_not_taken_for_one_of_columns():
    made = Traced(
        lambda view, carry, x: {"w": torch.addcmul(carry["w"], torch.cat([x[:1], 3 * x[1:]]), view, value=-1)}
    )
    w, x, rate = numbers(3, 4), numbers(3, 4, seed=1), torch.tensor(0.5, dtype=torch.float64)
    after = made.repeat(rate, {"w": w}, [(x,)])["w"]
    torch.testing.assert_close(after, w - 0.5 * x * torch.tensor([[1], [3], [3]]), rtol=1e-13, atol=1e-13)


def traced(ends, classes=K):
    made = Traced(step_of(ends, classes))
    with torch.no_grad():
        made.repeat(*start(classes), parts(classes))
    (step,) = made.graphs.values()
    return step


def test_only_what_the_step_needs_is_called():
    """No loss, no copy of the weights, no constant made anew."""
    calls = traced(plain).each.__self__.code
    assert "addcmul_" in calls
    for gone in ("cat(", "split_with_sizes(", "arange(", "ones(", "addcmul("):
        assert gone not in calls
    assert calls.count("torch.sum(") == 2  # the mask, and the gradient of the bias


@pytest.mark.parametrize(("classes", "turned"), [(3, True), (16, True), (17, False)])
def test_a_softmax_over_few_classes_is_taken_by_columns(classes, turned):
    calls = traced(plain, classes).each.__self__.code
    assert ("contiguous" in calls) == turned
    after = Traced(step_of(plain, classes)).repeat(*start(classes), parts(classes))
    torch.testing.assert_close(after["w"], by_hand(step_of(plain, classes), classes)["w"], rtol=1e-13, atol=1e-13)


def test_random_numbers_are_drawn_in_every_step():
    drawn = Traced(lambda view, carry, x: {"w": carry["w"] + torch.rand(2)})
    after = drawn.repeat({}, {"w": torch.zeros(2)}, ((x,) for x in torch.zeros(4, 2)))["w"]
    more = drawn.repeat({}, {"w": torch.zeros(2)}, ((x,) for x in torch.zeros(1, 2)))["w"]
    assert not torch.allclose(after, 4 * more)


def test_random_numbers_in_the_shape_of_what_never_changes_are_drawn_in_every_step():
    drawn = Traced(lambda view, carry, x: {"w": carry["w"] + x * torch.rand_like(view["lr"])})
    after = drawn.repeat({"lr": torch.tensor(0.1)}, {"w": torch.zeros(4)}, ((x,) for x in torch.eye(4)))["w"]
    assert len(set(after.tolist())) == 4


def test_a_step_that_changes_a_tensor_of_its_own_stays_as_it_is():
    def step(view, carry, x):
        total = torch.ones_like(carry["w"])
        total += x
        return {"w": carry["w"] * total}

    made = Traced(step)
    after = made.repeat({}, {"w": torch.ones(2)}, ((x,) for x in torch.ones(3, 2)))["w"]
    assert torch.equal(after, torch.full((2,), 8.0))
    (taken,) = made.graphs.values()
    assert taken.owned == frozenset()


def test_ones_in_the_shape_of_a_value_need_not_know_it():
    graph = recorded(lambda x: [torch.ones_like(x.exp()) + x], (numbers(2),))
    x = numbers(2, seed=3)
    assert torch.equal(graph(x)[0], 1 + x)
