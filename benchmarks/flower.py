"""Time of a deployed round beyond training and beyond Flower itself: python benchmarks/flower.py.

A model of about a million parameters, four nodes in this process that take one local step of one row, no Flower between them; CPU
time of one thread. The server's part is what lies between its nodes' answers of one round and its requests of the next: checking,
aggregation, store, requests. A node's part is one answer: reading its rows, training, keeping its state, packing.
"""

import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from fedskew.execution.build import assemble
from fedskew.experiment.config import Experiment
from fedskew.flower.node import Node
from fedskew.flower.server import serve
from fedskew.flower.tables import rows_of, write_rows
from fedskew.flower.wire import Kind

ROUNDS, NODES = 12, 4


class Timed:
    """Nodes that answer at once, and the time that they took."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.clients = nodes
        self.answers: list[float] = []
        self.begun: list[float] = []
        self.ended: list[float] = []
        self.sent: dict[int, bytes] = {}

    def nodes(self) -> Sequence[int]:
        return range(len(self.clients))

    def ask(self, requests: Mapping[int, bytes], kind: Kind, round_: int, timeout: float) -> dict[int, bytes]:
        replies, marks = {}, [time.process_time()]
        for node, request in requests.items():
            replies[node] = self.clients[node].answer(request)
            marks.append(time.process_time())
        if kind == "train":
            self.answers += [later - earlier for earlier, later in pairwise(marks)]
            self.begun.append(marks[0])
            self.ended.append(marks[-1])
        return replies

    def send(self, requests: Mapping[int, bytes], kind: Kind, timeout: float) -> None:
        self.sent = self.ask(requests, kind, 0, timeout)

    def received(self) -> dict[int, bytes]:
        replies, self.sent = self.sent, {}
        return replies


def main() -> None:
    experiment = Experiment(model="mlp:hidden=[1000,900]", skew="iid", engine="sequential").replace(
        clients__number=NODES,
        local__steps=1,
        local__batch_size=1,
        training__rounds=ROUNDS,
        training__threads=1,
        evaluation__every=ROUNDS,
    )
    assembly = assemble(experiment, experiment.dataset.load())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        nodes = [Node(k, folder / f"{k}.npz", folder / f"states-{k}") for k in range(NODES)]
        for node in nodes:
            write_rows(node.rows, rows_of(assembly, node.client))
        channel = Timed(nodes)
        config = {"recipe": experiment.toml(), "runs": str(folder / "runs"), "deployment.measure": False}
        serve(channel, config, {})
    # the first round warms up
    server = [begun - ended for ended, begun in zip(channel.ended[1:], channel.begun[2:], strict=False)]
    print(f"{assembly.x0.numel():,} parameters, {NODES} nodes, median of {len(server)} rounds")
    print(f"server, without its nodes   {1000 * statistics.median(server):7.1f} ms a round")
    print(f"node, one step of one row   {1000 * statistics.median(channel.answers[NODES:]):7.1f} ms a round")


if __name__ == "__main__":
    main()
