"""A whole comparison, from the command to the report, against three plain PyTorch loops: wall clock and processor time.

    python benchmarks/compare.py [--rounds 30] [--repeats 3] [--engine auto]

FedAvg, FedProx and SCAFFOLD over three seeds on the digits. A plain loop is a program of its own for one method: it trains the same
clients on the same batches over the three seeds, tests after every round, and keeps nothing. The loops run one after another; ours
measures drift, evaluates every client, stores, tests for significance and writes the report as well.
"""

import argparse
import copy
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

METHODS = ("fedavg", "fedprox:mu=0.1", "scaffold")
SEEDS = 3


def plain(method: str, rounds: int) -> None:
    """One method over the seeds in plain PyTorch; prints the accuracy of each seed."""
    import torch
    import torch.nn.functional as F

    from fedskew.execution.build import assemble
    from fedskew.experiment.combinations import with_method
    from fedskew.experiment.config import Experiment

    data = Experiment().dataset.load()
    for seed in range(SEEDS):
        experiment = with_method(Experiment(held_out=0.0), method).replace(
            training__seed=seed, clients__partition_seed=seed
        )
        made = assemble(experiment, data)
        fed: Any = made.federation
        net, lr = copy.deepcopy(fed.task.model), experiment.solver.lr
        with torch.no_grad():
            for p, value in zip(net.parameters(), fed.task.space.unflatten(made.x0).values(), strict=True):
                p.copy_(value)
        clients, sizes = fed.clients.tolist(), fed.partition.sizes
        control = [torch.zeros_like(p) for p in net.parameters()]
        own = {k: [torch.zeros_like(p) for p in net.parameters()] for k in clients}
        total, share = sum(sizes[k] for k in clients), 1 / len(clients)
        for round_ in range(rounds):
            start = [p.detach().clone() for p in net.parameters()]
            mean = [torch.zeros_like(p) for p in start]
            moved = [torch.zeros_like(p) for p in start]
            for k in clients:
                local = copy.deepcopy(net)
                optimiser = torch.optim.SGD(local.parameters(), lr=lr)
                plan = fed.planner.train(round_, k, fed.partition.rows(k))
                for rows, mask in zip(plan.index, plan.mask, strict=True):
                    at = torch.as_tensor(rows[mask > 0])
                    optimiser.zero_grad()
                    F.cross_entropy(local(fed.x[at])[1], fed.y[at]).backward()
                    for i, p in enumerate(local.parameters()):
                        if method.startswith("fedprox"):
                            p.grad.add_(p.detach() - start[i], alpha=0.1)
                        elif method == "scaffold":
                            p.grad.add_(control[i] - own[k][i])
                    optimiser.step()
                weight = share if method == "scaffold" else sizes[k] / total
                for i, p in enumerate(local.parameters()):
                    mean[i] += weight * p.detach()
                    if method == "scaffold":
                        new = own[k][i] - control[i] + (start[i] - p.detach()) / (len(plan.index) * lr)
                        moved[i] += share * (new - own[k][i])
                        own[k][i] = new
            with torch.no_grad():
                for i, p in enumerate(net.parameters()):
                    p.copy_(mean[i])
                    control[i] += moved[i]
                x, y = torch.as_tensor(made.dataset.x_test, dtype=made.x0.dtype), torch.as_tensor(made.dataset.y_test)
                accuracy = float((net(x)[1].argmax(1) == y).float().mean())
        print(f"{method} seed {seed}: accuracy {accuracy:.4f}")


def timed(*commands: list[str]) -> tuple[float, float, str]:
    """Seconds of wall clock and of processor time of the commands, one after another, and their output."""
    began, before, said = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN), ""
    for command in commands:
        said += subprocess.run(command, check=True, capture_output=True, text=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - began, used, said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=3, help="interleaved runs of both sides")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--plain", metavar="METHOD", help="only this plain loop")
    parsed = parser.parse_args()
    if parsed.plain:
        plain(parsed.plain, parsed.rounds)
        return
    rounds = ["--rounds", str(parsed.rounds)]
    ours = [sys.executable, "-m", "fedskew", "compare", "--algorithms", *METHODS, "--seeds", str(SEEDS), *rounds]
    loops = [[sys.executable, __file__, "--plain", method, *rounds] for method in METHODS]
    pairs = []
    for _ in range(parsed.repeats):
        with tempfile.TemporaryDirectory() as folder:
            one = timed([*ours, "--engine", parsed.engine, "--runs", folder])
        three = timed(*loops)
        pairs.append((*one[:2], *three[:2]))
    print(one[2], three[2], sep="\n")
    wall, used, wall_plain, used_plain = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(
        f"fedskew {wall:.1f} s ({used:.1f} s of processor time), three plain loops {wall_plain:.1f} s ({used_plain:.1f} s)"
    )
    print(f"{wall_plain / wall:.2f} times as fast by wall clock, {used_plain / used:.2f} times by processor time")


if __name__ == "__main__":
    main()
