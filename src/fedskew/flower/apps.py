"""Flower's two apps: what a run's server and a node's client do with Flower's messages."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedskew.core.errors import require
from fedskew.experiment.run import Progress
from fedskew.flower.node import Node
from fedskew.flower.remote import POLL
from fedskew.flower.server import serve
from fedskew.flower.wire import Kind, Reply, pack

NAME = "fedskew"
TYPES: dict[Kind, str] = {"meet": "query", "survey": "query", "train": "train", "measure": "evaluate"}


def content(data: bytes) -> RecordDict:
    """Bytes as Flower carries arrays, in pieces where they are many."""
    array = Array(dtype="uint8", shape=(len(data),), stype=NAME, data=data)
    return RecordDict({NAME: ArrayRecord({NAME: array})})


def data_of(message: Message) -> bytes:
    """Inverse of `content`; no bytes for anything else."""
    record = message.content.get(NAME)
    array = record.get(NAME) if isinstance(record, ArrayRecord) else None
    return array.data if array is not None and array.stype == NAME else b""


class GridChannel:
    """Nodes by Flower's grid. Flower's own loop looks for replies every three seconds; this one every quarter of a second."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def nodes(self) -> Sequence[int]:
        return list(self.grid.get_node_ids())

    def ask(self, requests: Mapping[int, bytes], kind: Kind, round_: int, timeout: float) -> dict[int, bytes]:
        messages = [
            Message(content(data), dst_node_id=node, message_type=TYPES[kind], group_id=str(round_), ttl=timeout)
            for node, data in requests.items()
        ]
        replies: dict[int, bytes] = {}
        if not messages:
            return replies
        open_ = {i: node for i, node in zip(self.grid.push_messages(messages), requests, strict=False) if i}
        end = time.monotonic() + timeout
        while open_ and time.monotonic() < end:
            for message in self.grid.pull_messages(list(open_)):
                node = open_.pop(message.metadata.reply_to_message_id, None)
                if node is None:
                    continue
                if message.has_error():
                    reason = f"Flower: {message.error.reason}"
                    replies[node] = pack(Reply(kind="refused", run="", round=round_, client=-1, reason=reason))
                else:
                    replies[node] = data_of(message)
            time.sleep(POLL if open_ else 0)
        return replies


def say(progress: Progress) -> None:
    """A line a round in Flower's log."""
    accuracy = "" if progress.accuracy is None else f", accuracy {100 * progress.accuracy:.1f} %"
    print(
        f"run {progress.run}: round {progress.round}/{progress.rounds}, {progress.seconds:.1f} s{accuracy}", flush=True
    )


def server_app() -> ServerApp:
    """The server's app: the run that the app's configuration describes."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        versions = {"flwr": version("flwr")}
        serve(GridChannel(grid), context.run_config, versions, say)

    return app


def client_app() -> ClientApp:
    """The client's app: the node that the SuperNode's configuration describes."""
    app = ClientApp()

    def handle(message: Message, context: Context) -> Message:
        return Message(content(node_from(context.node_config).answer(data_of(message))), reply_to=message)

    for register in (app.query(), app.train(), app.evaluate()):
        register(handle)
    return app


def node_from(config: Mapping[str, Any]) -> Node:
    """``client`` (a number from 0), ``rows`` (its file) and ``folder`` (for its states; by default beside the rows)."""
    require("client" in config and "rows" in config, '--node-config: write client=0 and rows="PATH.npz"')
    rows = Path(str(config["rows"])).expanduser()
    folder = Path(str(config.get("folder", rows.with_suffix("")))).expanduser()
    return Node(int(cast(int, config["client"])), rows, folder)
