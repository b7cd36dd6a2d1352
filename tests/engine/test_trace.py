"""A recorded step is the step: whatever is returned, read late, drawn at random or changed in place."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad_and_value as public_grad_and_value, vmap

from fedskew.engine import trace
from fedskew.engine.trace import Traced, grad_and_value

CLIENTS, ROWS, INPUTS, CLASSES, STEPS = 3, 5, 4, 3, 6


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def update(w, g, view):
    return torch.addcmul(w, g, view["lr"], value=-1)


def keeps_a_part(w, g, view, kept):
    new = update(w, g, view)
    return new, torch.cat([new[:4], kept[4:]])


def changes_its_own(w, g, view, kept):
    total = torch.ones_like(w)
    total += w
    constant = torch.tensor([1.0, 2.0, 3.0], dtype=w.dtype)
    constant.add_(view["lr"])  # fresh in every step
    turned = w.view(3, -1)
    turned.unsqueeze_(0)  # its shape, not its numbers
    return update(w, g, view), kept + total + constant.sum() + (turned * w.view(3, -1)).sum()


ENDS = {
    "plain": lambda w, g, view, kept: (update(w, g, view), kept),
    "keeps the old weights": lambda w, g, view, kept: (update(w, g, view), w),
    "keeps a view of the old weights": lambda w, g, view, kept: (update(w, g, view), w.flip(0).flip(0) + w.view(-1)),
    "keeps the new weights": lambda w, g, view, kept: (update(w, g, view),) * 2,
    "keeps the move": lambda w, g, view, kept: (update(w, g, view), update(w, g, view) - w),
    "keeps a part": keeps_a_part,
    "swaps parts of the weights": lambda w, g, view, kept: (update(w, torch.cat([w[8:], w[:8]]), view), kept),
    "moves towards itself": lambda w, g, view, kept: (update(w, w, view), kept),
    "returns what never changes": lambda w, g, view, kept: (update(w, g, view), view["lr"] * torch.ones_like(w)),
    "changes its own tensors": changes_its_own,
}
"""What a step returns: the weights (P,) and a second leaf (P,)."""


def step_of(end, classes=CLASSES):
    """Return a stacked step of softmax regression for one client."""

    def loss(w, x, y, mask):
        logits = F.linear(x, w[: INPUTS * classes].view(classes, INPUTS), w[INPUTS * classes :])
        rows = -(F.log_softmax(logits, -1) * (y[:, None] == torch.arange(classes))).sum(-1)
        return (rows * mask).sum() / mask.sum().clamp(min=1)

    def step(view, carry, x, y, mask):
        g, _ = grad_and_value(lambda w: loss(w, x, y, mask))(carry["w"])
        w, kept = ENDS[end](carry["w"], g, view, carry["kept"])
        return {"w": w, "kept": kept}

    return vmap(step, ({"lr": None}, 0, 0, 0, 0))


def batches(classes=CLASSES):
    generator = torch.Generator().manual_seed(1)
    for t in range(STEPS):
        labels = torch.randint(0, classes, (CLIENTS, ROWS), generator=generator)
        mask = (torch.arange(ROWS) < ROWS - t % 2).double().expand(CLIENTS, ROWS)
        yield numbers(CLIENTS, ROWS, INPUTS, seed=t), labels, mask


def start(classes=CLASSES):
    w = numbers((INPUTS + 1) * classes, seed=9).expand(CLIENTS, -1)
    return {"lr": torch.tensor(0.3, dtype=torch.float64)}, {"w": w, "kept": torch.zeros(w.shape).double()}


def by_loop(step, classes=CLASSES):
    view, carry = start(classes)
    with torch.no_grad():
        for batch in batches(classes):
            carry = step(view, carry, *batch)
    return carry


def by_record(step, classes=CLASSES):
    """Return the carry after the steps, and the traced graph."""
    traced = Traced(step)
    with torch.no_grad():
        carry = traced.repeat(*start(classes), batches(classes))
    (graph,) = traced.graphs.values()
    return carry, graph


def code_of(graph) -> str:
    return graph.each.__self__.code


@pytest.mark.parametrize("end", ENDS)
def test_recorded_steps_equal_the_loop_and_leave_the_callers_tensors(end):
    view, carry = start()
    before = {name: leaf.clone() for name, leaf in carry.items()}
    with torch.no_grad():
        after = Traced(step_of(end)).repeat(view, carry, batches())
    for name, expected in by_loop(step_of(end)).items():
        torch.testing.assert_close(after[name], expected, rtol=1e-13, atol=1e-13)
        assert torch.equal(carry[name], before[name])


@pytest.mark.parametrize("end", ENDS)
def test_weights_change_in_place_only_where_nothing_else_needs_them(end):
    needed = {
        "keeps the old weights",
        "keeps the new weights",
        "keeps a part",
        "swaps parts of the weights",
        "moves towards itself",
        "changes its own tensors",
    }
    assert by_record(step_of(end))[1].in_place == (set() if end in needed else {0})


def test_a_step_calls_only_what_it_needs():
    """A step computes no loss and makes no constant again."""
    code = code_of(by_record(step_of("plain"))[1])
    assert "addcmul_" in code
    assert not any(f"{gone}(" in code for gone in ("arange", "ones", "addcmul", "detach", "alias"))
    assert code.count("torch.sum(") == 2  # the mask, and the gradient of the bias


@pytest.mark.parametrize(("classes", "turned"), [(3, True), (16, True), (17, False)])
def test_a_softmax_over_few_classes_is_taken_by_columns(classes, turned):
    step = step_of("plain", classes)
    after, graph = by_record(step, classes)
    assert ("contiguous" in code_of(graph)) == turned
    torch.testing.assert_close(after["w"], by_loop(step, classes)["w"], rtol=1e-13, atol=1e-13)


def test_two_inputs_that_are_one_tensor_stay_two():
    traced = Traced(lambda view, carry, x: {"a": carry["a"] - 2 * carry["b"], "b": carry["b"] + x})
    one, zero = torch.ones(2), torch.zeros(2)
    after = traced.repeat({}, {"a": one, "b": one}, [(one,), (zero,)])
    assert after["a"].tolist() == [1 - 2 - 4] * 2
    assert after["b"].tolist() == [2.0] * 2


def test_random_numbers_are_drawn_in_every_step():
    """This holds even if the numbers have the shape of a constant tensor."""
    traced = Traced(lambda view, carry, x: {"w": carry["w"] + x * (torch.rand(()) + torch.rand_like(view["lr"]))})
    after = traced.repeat({"lr": torch.tensor(0.1)}, {"w": torch.zeros(4)}, ((x,) for x in torch.eye(4)))["w"]
    assert len(set(after.tolist())) == 4


@pytest.mark.parametrize("reads", [lambda x: x.sum().item(), lambda x: 1.0 if (x > 0).all() else 2.0])
def test_a_step_that_reads_a_value_is_refused(reads):
    with pytest.raises(TypeError, match="where and masks"):
        Traced(lambda view, carry, x: x * reads(x)).repeat({}, numbers(2), [(numbers(2),)])


def test_a_step_is_recorded_once_for_each_combination_of_shapes():
    traced = Traced(lambda view, carry, x: {"w": carry["w"] * 2 + x})
    for rows in (2, 3, 2):
        carry = traced.repeat({}, {"w": torch.ones(rows)}, ((torch.ones(rows),) for _ in range(3)))
        assert torch.equal(carry["w"], torch.full((rows,), 15.0))  # 1 -> 3 -> 7 -> 15
    assert len(traced.graphs) == 2


def loss(w):
    return (w.exp() * torch.arange(3.0, dtype=w.dtype)).sum() + w.prod()


USES = {
    "plain": lambda how: how(loss),
    "second derivative": lambda how: lambda w: how(lambda w: how(loss)(w)[0].square().sum())(w),
    "through the value": lambda how: how(lambda w: how(loss)(w)[1]),
    "constant": lambda how: how(lambda w: torch.ones((), dtype=w.dtype)),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("stacked", [False, True])
def test_the_gradient_equals_torch_funcs(use, stacked):
    ours, public = USES[use](grad_and_value), USES[use](public_grad_and_value)
    w = numbers(4, 3) if stacked else numbers(3)
    if stacked:
        ours, public = vmap(ours), vmap(public)
    with torch.no_grad():
        for a, b in zip(ours(w), public(w), strict=True):
            assert torch.equal(a, b)
            assert not a.requires_grad


def test_without_private_parts_of_pytorch_steps_run_unrecorded(monkeypatch):
    expected, _ = by_record(step_of("plain"))
    monkeypatch.setattr(trace, "PRIVATE", False)
    traced = Traced(step_of("plain"))
    with torch.no_grad():
        after = traced.repeat(*start(), batches())
    assert not traced.graphs
    torch.testing.assert_close(after, expected, rtol=1e-13, atol=1e-13)


def test_a_stacked_run_imports_no_compiler_and_no_reports(tmp_path):
    """The compiler alone takes longer to import than a small run takes; the rest belongs to reports and other data."""
    code = f"""
import sys
from fedskew.experiment.combinations import with_method
from fedskew.experiment.config import Experiment
from fedskew.api.functions import run
quick = {{"engine": "stacked", "training": {{"rounds": 1}}, "server_data": {{"share": 0.1}}}}
run(with_method(Experiment(), "feddf:steps=2").replace(**quick), runs={str(tmp_path)!r})
heavy = ["torch._dynamo", "sympy", "pandas", "scipy", "pyarrow", "matplotlib", "transformers", "peft", "jinja2"]
print([name for name in heavy if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout.strip() == "[]"
