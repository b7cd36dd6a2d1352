"""The warm-up of the initial model on the server's rows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedskew.core.component import build
from fedskew.experiment.build import assemble
from fedskew.models import MODELS
from fedskew.models.mixed import MixedNet
from tests.algorithms.test_fedmd import experiment, small_data


@pytest.mark.parametrize(
    ("solver", "optimiser_of"),
    [
        ("sgd", lambda p: torch.optim.SGD(p, lr=0.1)),
        ("sgd:momentum=0.5,weight_decay=0.3", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5, weight_decay=0.3)),
        ("adamw:lr=0.1,weight_decay=0.3", lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.3)),
    ],
    ids=["sgd", "decay", "adamw"],
)
def test_warm_up_equals_torch_optim_on_the_servers_rows(solver: str, optimiser_of) -> None:
    """Of every architecture, as `torch.optim` does it, weight decay included."""
    cold, warm = (
        assemble(experiment(solver=solver, server_data={"share": 0.2, "warm_up": w}), small_data()) for w in (0, 6)
    )
    fed, data = cold.federation, cold.federation.server_data
    net = fed.task.model.using(0)
    for g in (0, 1):
        used = MixedNet(
            [build("model", MODELS, s).build((5,), 3, torch.Generator()) for s in cold.experiment.model.models]
        )
        used = used.using(g).double()
        nn.utils.vector_to_parameters(cold.x0.clone(), used.parameters())
        optimiser = optimiser_of(used.nets[g].parameters())
        for _ in range(6):
            optimiser.zero_grad()
            nn.functional.cross_entropy(used(data.x)[1], data.y).backward()
            optimiser.step()
        trained = nn.utils.parameters_to_vector(used.nets[g].parameters())
        first = sum(p.numel() for p in net.nets[0].parameters())
        place = slice(None, first) if g == 0 else slice(first, None)
        torch.testing.assert_close(warm.x0[place], trained.detach(), rtol=1e-12, atol=1e-12)
