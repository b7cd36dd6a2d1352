"""Independent counterparts for exact tests: plain training, matrix quadratics, selections with a fixed answer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedskew.core.algorithm import Algorithm
from fedskew.engine.states import ClientStates
from fedskew.loop.federation import Federation
from fedskew.loop.plan import Local
from fedskew.loop.work import Outcome
from fedskew.slots import Sgd
from tests import small
from tests.small import Quadratic, TinyNet, exact_clients, play

PAIR = [[1.0, 0.0], [4.0, 3.0]]
"""The two clients h/2 (w - b)^2 with h = (1, 4), b = (0, 3): uniform optimum 2.4."""


def f64(values: object) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float64)


def assert_close(actual: Tensor, expected: object, tol: float = 1e-12) -> None:
    """Equal in type and shape, and in value to ``tol``, relative and absolute."""
    # torch.testing would take a second to import SymPy
    wanted = f64(expected)
    assert (actual.dtype, actual.shape) == (wanted.dtype, wanted.shape)
    np.testing.assert_allclose(actual.detach().numpy(), wanted.numpy(), rtol=tol, atol=tol, equal_nan=False)


def apart(a: Tensor, b: Tensor, by: float = 1e-6) -> bool:
    """Whether two results differ by more than rounding could explain."""
    return float((a - f64(b)).abs().max()) > by


def trajectory(outcomes: list[Outcome]) -> Tensor:
    """The global model after each round, (R, P)."""
    return torch.stack([outcome.server.x for outcome in outcomes])


def local_models(outcome: Outcome) -> Tensor:
    """w_k at the end of the round, (C, P)."""
    return outcome.work.view.x + outcome.done.uploads.delta


def state_of(states: ClientStates, key: str, num_clients: int, like: Tensor) -> Tensor:
    """One entry of the state of every client, (K, P); zero for those that never took part."""
    ids, tree = states.export()
    table = torch.zeros(num_clients, *like.shape, dtype=torch.float64)
    table[torch.as_tensor(ids)] = tree[key]
    return table


# exact federations


@dataclass(frozen=True)
class MatrixQuadratic(Quadratic):
    """f(w) = 1/2 (w - b)' A (w - b) for a row (A flattened, b)."""

    dim: int = 2

    def outputs(self, w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        a = x[:, : self.dim**2].reshape(-1, self.dim, self.dim)
        e = w - x[:, self.dim**2 :]
        value = torch.einsum("ni,nij,nj->n", e, a, e) / 2
        return value[:, None], value[:, None]


def matrices(num_clients: int, dim: int = 2, *, common: bool = False) -> tuple[Tensor, Tensor]:
    """Positive definite A (K, d, d) with eigenvalues of about 0.5 to 3, and b (K, d)."""
    g = torch.Generator().manual_seed(11)
    root = torch.randn(num_clients, dim, dim, generator=g, dtype=torch.float64) * 0.7
    a = root @ root.mT + 0.5 * torch.eye(dim, dtype=torch.float64)
    b = torch.randn(num_clients, dim, generator=g, dtype=torch.float64)
    return (a[:1].expand(num_clients, dim, dim).clone() if common else a), b


def matrix_clients(a: Tensor, b: Tensor, steps: Sequence[int], algorithm, *, sizes=None, **rest) -> Federation:
    """One client for each (A_k, b_k), its row repeated ``sizes[k]`` times."""
    sizes = list(sizes or [1] * len(b))
    rows = torch.cat([a.reshape(len(b), -1), b], dim=1).repeat_interleave(torch.tensor(sizes), dim=0)
    return exact_clients(MatrixQuadratic(dim=b.shape[1]), rows.tolist(), steps, algorithm, sizes=sizes, **rest)


def optimum(a: Tensor, b: Tensor, p: Tensor) -> Tensor:
    """(sum p A)^-1 sum p A b."""
    return torch.linalg.solve(
        torch.einsum("k,kij->ij", p, a),
        torch.einsum("k,kij,kj->i", p, a, b),
    )


def sized_pair(algorithm, steps=(2, 2), *, lr=0.1, sizes=(1, 3), **rest) -> Federation:
    """`PAIR` with client k's row repeated ``sizes[k]`` times: full-batch gradients stay w and 4 (w - 3)."""
    rows = [row for row, n in zip(PAIR, sizes, strict=True) for _ in range(n)]
    return exact_clients(Quadratic(), rows, steps, algorithm, lr=lr, sizes=list(sizes), **rest)


def ragged(algorithm: Algorithm, *, local: Local | None = None, **rest) -> Federation:
    """`tests.small.ragged` with one local epoch of batches of 7.

    With 8 every last batch is full or a single row, which padding repeats: a mean over padded rows would be right.
    """
    return small.ragged(algorithm, local=local or Local(epochs=1, batch_size=7), **rest)


def run(fed: Federation, x0, rounds: int) -> tuple[list[Outcome], ClientStates]:
    """The outcomes, and the client states after the last round."""
    states = ClientStates()
    return play(fed, x0, rounds, states=states), states


# selections with a fixed answer


@dataclass(frozen=True)
class Only:
    """Always the same clients."""

    members: tuple[int, ...]

    def select(self, clients, rng):
        return np.asarray(self.members)


# plain training of the tiny network, with autograd and torch.optim


def real_batches(fed: Federation, round_: int, client: int) -> list[tuple[Tensor, Tensor]]:
    """The rows of the planned batches, without padding."""
    plan = fed.planner.train(round_, client, fed.partition.rows(client))
    picked = [torch.as_tensor(index[mask == 1]) for index, mask in zip(plan.index, plan.mask, strict=True)]
    return [(fed.x[rows], fed.y[rows]) for rows in picked]


def network(w: Tensor) -> TinyNet:
    net = TinyNet().double()
    vector_to_parameters(w.detach().clone(), net.parameters())
    return net


def flat(net: nn.Module) -> Tensor:
    return parameters_to_vector(net.parameters()).detach().clone()


def flat_gradient(net: nn.Module) -> Tensor:
    return torch.cat([p.grad.reshape(-1) for p in net.parameters()])


def full_gradient(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of the mean loss over the rows, (P,)."""
    net = network(w)
    F.cross_entropy(net(x)[1], y).backward()
    return flat_gradient(net)


def train_plain(
    w: Tensor,
    batches: list[tuple[Tensor, Tensor]],
    optimiser: Callable[..., torch.optim.Optimizer],
    *,
    extra: Callable[[TinyNet, Tensor], Tensor] | None = None,
    correction: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """An ordinary training loop with a fresh optimiser: the final parameters (P,), and the loss gradients (T, P).

    ``extra`` adds to the loss of a batch, ``correction`` to the gradient that the optimiser sees.
    """
    net = network(w)
    opt = optimiser(net.parameters())
    gradients = []
    for x, y in batches:
        opt.zero_grad()
        loss = F.cross_entropy(net(x)[1], y)
        if extra is not None:
            loss = loss + extra(net, x)
        loss.backward()
        gradients.append(flat_gradient(net))
        if correction is not None:
            parts = correction.split([p.numel() for p in net.parameters()])
            for p, part in zip(net.parameters(), parts, strict=True):
                p.grad += part.view_as(p)
        opt.step()
    return flat(net), torch.stack(gradients)


def torch_sgd(solver: Sgd, round_: int = 0) -> Callable[..., torch.optim.Optimizer]:
    lr = solver.lr * solver.lr_decay**round_
    return lambda p: torch.optim.SGD(p, lr=lr, momentum=solver.momentum, weight_decay=solver.weight_decay)


def square_distance(net: nn.Module, anchor: Tensor) -> Tensor:
    return (parameters_to_vector(net.parameters()) - anchor).pow(2).sum()
