"""Models of symbols: places do not see later ones, padding changes nothing, they can be stacked, sizes by hand."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from fedskew.core.errors import BadInput
from fedskew.core.trees import ParameterSpace
from fedskew.models.sequences import SymbolLstm, Transformer, positions
from fedskew.tasks.classification import NextToken

V, T = 7, 9
SMALL = [SymbolLstm(embedding=3, hidden=5, layers=2), Transformer(width=8, layers=2, heads=2)]
every_model = pytest.mark.parametrize("model", SMALL, ids=["lstm", "transformer"])


def made(model, symbols: int = V) -> nn.Module:
    return model.build((T,), symbols, torch.Generator().manual_seed(0)).double()


def rows(count: int = 4, length: int = T) -> torch.Tensor:
    return torch.randint(0, V, (count, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("model", "parameters", "features"),
    [
        (SymbolLstm(embedding=3, hidden=5), V * 3 + 4 * (5 * 3 + 5 * 5 + 2 * 5) + V * 6, 5),
        (SMALL[0], V * 3 + 4 * (5 * 3 + 5 * 5 + 2 * 5) + 4 * (5 * 5 + 5 * 5 + 2 * 5) + V * 6, 5),
        (SMALL[1], V * 8 + 2 * (4 * 8 + 8 * 24 + 24 + 8 * 8 + 8 + 2 * 8 * 32 + 32 + 8) + 2 * 8 + V * 9, 8),
    ],
)
def test_sizes_by_hand(model, parameters, features):
    net = made(model)
    assert sum(p.numel() for p in net.parameters()) == ParameterSpace(net).size == parameters
    z, outputs = net(rows())
    assert (z.shape, outputs.shape) == ((4, features), (4, T, V))
    last = [m for m in net.modules() if isinstance(m, nn.Linear)][-1]
    assert (last.in_features, last.out_features) == (features, V)


@every_model
@pytest.mark.parametrize("place", [0, 4, T - 1])
def test_a_change_leaves_earlier_outputs_as_they_were(model, place):
    net, x = made(model), rows()
    other = x.clone()
    other[:, place:] = (other[:, place:] + 1) % V
    before, after = net(x)[1], net(other)[1]
    assert torch.equal(before[:, :place], after[:, :place]), "bit for bit"
    assert (before[:, place] != after[:, place]).any()


@every_model
def test_longer_padding_changes_no_output_feature_or_gradient(model):
    net, x, y = made(model), rows(), rows().flip(1)
    x[1, 4:] = y[1, 4:] = -1
    task = NextToken()
    nothing = torch.full((4, 5), -1)
    found = []
    for ids, targets in ((x, y), (torch.cat([x, nothing], 1), torch.cat([y, nothing], 1))):
        z, outputs = net(ids)
        loss = (task.loss(outputs, targets) + z.square().sum(1)).mean()
        found.append((z, outputs[:, :T], *torch.autograd.grad(loss, list(net.parameters()))))
    for here, there in zip(*found, strict=True):
        torch.testing.assert_close(there, here, rtol=1e-13, atol=1e-15)
    alone = net(x[1:2, :4])
    torch.testing.assert_close(found[0][0][1:2], alone[0], rtol=1e-13, atol=1e-15)


@every_model
def test_a_row_without_symbols_is_finite(model):
    z, outputs = made(model)(torch.full((2, T), -1))
    assert outputs.isfinite().all()
    assert not z.any()


def test_stacked_gradients_equal_each_transformers():
    net = made(SMALL[1])
    space = ParameterSpace(net)
    w = torch.stack([space.flatten(made(SMALL[1])), space.flatten(net) / 2])
    x, y = rows(6).view(2, 3, T), rows(6).flip(0).view(2, 3, T)

    def loss(w: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return NextToken().loss(functional_call(net, space.unflatten(w), (x,))[1], y).mean()

    stacked = vmap(grad(loss))(w, x, y)
    for k in range(2):
        torch.testing.assert_close(stacked[k], grad(loss)(w[k], x[k], y[k]), rtol=1e-12, atol=1e-15)


def test_positions_are_sines_and_cosines():
    found = positions(torch.zeros(1, 3, 4, dtype=torch.float64))
    angle = torch.tensor([[0.0, 0.0], [1.0, 0.01], [2.0, 0.02]], dtype=torch.float64)
    torch.testing.assert_close(found[:, 0::2], angle.sin(), rtol=1e-14, atol=0)
    torch.testing.assert_close(found[:, 1::2], angle.cos(), rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    ("build", "line"),
    [
        (lambda: SymbolLstm().build((2, 3), V, torch.Generator()), "symbol-lstm needs rows of symbols, .* shape"),
        (lambda: made(Transformer(), 1), "transformer needs at least 2 symbols, these are 1"),
    ],
)
def test_wrong_rows_give_one_line_errors(build, line):
    with pytest.raises(BadInput, match=line):
        build()
