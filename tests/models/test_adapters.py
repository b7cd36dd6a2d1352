"""Adapters of low rank: their start, and the error of averaging A and B separately."""

import pytest
import torch

from fedskew.execution.build import assemble
from fedskew.models.encoder import HuggingFaceEncoder, cut
from tests.models.encoders import DATA, needs_text, rounds, small

pytestmark = [needs_text, pytest.mark.usefixtures("cache")]


def adapters(assembly, vector) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The pairs (A, B) in a vector; an A that is not in it is the module's."""
    named = {
        **dict(assembly.federation.task.model.named_parameters()),
        **assembly.federation.task.space.unflatten(vector),
    }
    names = sorted(name for name in named if "lora_A" in name)
    return [(named[name].detach(), named[name.replace("lora_A", "lora_B")].detach()) for name in names]


def test_new_adapters_change_nothing(bert):
    plain, adapted = (HuggingFaceEncoder(source=bert, lora=rank).build((9,), 3, torch.Generator()) for rank in (0, 2))
    ids = torch.as_tensor(HuggingFaceEncoder(source=bert).tokens(DATA.texts[1]))
    ids, mask = cut(ids)
    with torch.no_grad():
        torch.testing.assert_close(plain.hidden(ids, mask), adapted.hidden(ids, mask), rtol=0, atol=0)


def errors(assembly) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """For each pair, after two rounds: product of the averages minus average of the products, and its expected value."""
    outcome = rounds(assembly)[1]
    p = outcome.work.view.info.num_examples / outcome.work.view.info.num_examples.sum()
    local = [adapters(assembly, outcome.work.view.x + delta) for delta in outcome.done.uploads.delta]
    found = []
    for i, (a_mean, b_mean) in enumerate(adapters(assembly, outcome.server.x)):
        pairs = [client[i] for client in local]
        product = sum(w * b @ a for w, (a, b) in zip(p, pairs, strict=True))
        covariance = sum(w * (b - b_mean) @ (a - a_mean) for w, (a, b) in zip(p, pairs, strict=True))
        found.append((b_mean @ a_mean - product, -covariance))
    return found


def test_the_product_of_averaged_adapters_differs_from_the_averaged_product_by_their_covariance(bert):
    for error, expected in errors(assemble(small(bert, lora=2, solver="adamw:lr=0.05"), DATA)):
        torch.testing.assert_close(error, expected, rtol=1e-9, atol=1e-14)
        assert expected.abs().max() > 1e-9


def test_with_a_frozen_a_the_average_is_exact(bert):
    assembly = assemble(small(bert, lora=2, adapt="b", solver="adamw:lr=0.05"), DATA)
    for error, _ in errors(assembly):
        assert error.abs().max() < 1e-15
    assert all(b.abs().max() > 1e-6 for _, b in adapters(assembly, rounds(assembly)[1].server.x))


def test_a_frozen_a_is_the_same_for_every_seed(bert):
    model = HuggingFaceEncoder(source=bert, lora=2, adapt="b")
    one, two = (dict(model.build((9,), 3, torch.Generator().manual_seed(s)).named_parameters()) for s in (1, 2))
    names = [name for name in one if "lora_A" in name]
    assert len(names) == 6
    assert all(torch.equal(one[name], two[name]) and one[name].abs().max() > 0 for name in names)
