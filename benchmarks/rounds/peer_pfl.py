"""pfl-research as a side of the benchmark: its FedAvg on its simulated backend, its training loop over our rows and batches."""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.rounds.peers import requests
from benchmarks.rounds.work import Workload, batches, cohort, module
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from fedskew.loop.federation import Federation


class Net(nn.Module):
    """A module with the loss that pfl asks for."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.inner(x)[1], y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """Return nothing: the benchmark evaluates no model."""
        return {}


class Planned(Dataset):  # type: ignore[misc]
    """A client's rows; one pass over them is all local steps of our plan."""

    def __init__(self, fed: Federation, memory_format: Any, k: int) -> None:
        rows = torch.as_tensor(fed.partition.rows(k))
        super().__init__((fed.x[rows], fed.y[rows]), user_id=str(k))
        self.steps = partial(batches, fed, k, memory_format)

    def iter(self, batch_size: int | None) -> Any:
        return self.steps()


def main() -> None:
    with requests() as (work, _, rounds):
        fed = work.federation()
        task: Any = fed.task
        rounds(partial(play, work, fed, task.space.flatten, Simulation(work, fed)))


class Simulation:
    """The clients of the round, in the same order in every round."""

    def __init__(self, work: Workload, fed: Federation) -> None:
        users = FederatedDataset(
            partial(Planned, fed, work.memory_format), get_user_sampler("minimize_reuse", cohort(fed).tolist())
        )
        self.backend = SimulatedBackend(users, users)
        self.training = NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=fed.solver.lr, local_batch_size=work.batch
        )
        self.algorithm = NNAlgorithmParams(1, 2, work.clients, None)


def play(work: Workload, fed: Federation, flatten: Any, of: Simulation, x0: Tensor) -> Tensor:
    """One round from the model x0 (P,)."""
    inner = module(fed, x0)
    if work.memory_format is not None:
        inner = inner.to(memory_format=work.memory_format)  # type: ignore[call-overload]
    net = Net(inner)
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    FederatedAveraging().run(of.algorithm, of.backend, model, of.training, send_metrics_to_platform=False)
    return torch.as_tensor(flatten(inner)).detach()
