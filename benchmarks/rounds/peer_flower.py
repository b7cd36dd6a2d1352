"""Flower's simulation as a side of the benchmark: its FedAvg, messages and processes around the plain loop over our batches."""

from typing import Any

import torch
from benchmarks.rounds.peers import requests
from benchmarks.rounds.work import Workload, cohort, module, trained
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor


def client_app(work: Workload) -> ClientApp:
    """Each node trains one of the round's clients."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        fed = work.federation()
        k = int(cohort(fed)[int(context.node_config["partition-id"])])
        net = module(fed, torch.zeros(fed.task.space.size))
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
        done = trained(fed, net, k, work.memory_format)
        metrics = MetricRecord({"num-examples": int(fed.partition.sizes[k])})
        content = RecordDict({"arrays": ArrayRecord(done.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    return app


def main() -> None:
    with requests() as (work, processes, rounds):
        fed = work.federation()
        task: Any = fed.task
        app = ServerApp()

        @app.main()
        def serve(grid: Grid, context: Context) -> None:
            strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=work.clients, min_available_nodes=work.clients)

            def play(x0: Tensor) -> Tensor:
                arrays = ArrayRecord(module(fed, x0).state_dict())
                result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=1)
                net = module(fed, x0)
                net.load_state_dict(result.arrays.to_torch_state_dict())
                flat: Tensor = task.space.flatten(net)
                return flat.detach()

            rounds(play)

        init = {"num_cpus": processes, "_node_ip_address": "127.0.0.1", "include_dashboard": False}
        backend: Any = {"client_resources": {"num_cpus": 1}, "init_args": init}
        run_simulation(app, client_app(work), num_supernodes=work.clients, backend_config=backend)
