"""A Flower app: `write_app` writes its three small files, and its server executes the run of its configuration.

The client's side is in `fedskew.flower.client`, which does not load PyTorch.
"""

import dataclasses
import re
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import tomli_w
from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from fedskew.core.errors import require
from fedskew.core.files import write_whole
from fedskew.execution.run import Progress
from fedskew.experiment.config import Experiment
from fedskew.flower.client import content, data_of
from fedskew.flower.diagnosis import CLIENTS, OUTPUT, write_diagnosis
from fedskew.flower.events import event
from fedskew.flower.nodes import POLL, PREFIX, Deployment, deployment_of
from fedskew.flower.server import deployable, serve
from fedskew.flower.wire import Kind, Reply, pack

TYPES: dict[Kind, str] = {"train": "train", "measure": "evaluate"}
"""Flower's types of messages. All other kinds are queries."""

MARGIN = 60.0
"""Seconds that Flower keeps a message longer than the server waits. A message that expires gives an error, like a refusal."""


class GridChannel:
    """Reaches nodes through Flower's grid. It looks for replies every 0.25 s. Flower's own loop would only look every 3 s."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.sent: dict[str, int] = {}  # messages of `send` to their nodes

    def nodes(self) -> Sequence[int]:
        return list(self.grid.get_node_ids())

    def ask(self, requests: Mapping[int, bytes], kind: Kind, round_: int, timeout: float) -> dict[int, bytes]:
        open_ = self.push(requests, kind, round_, timeout)
        replies: dict[int, bytes] = {}
        end = time.monotonic() + timeout
        while open_ and time.monotonic() < end:
            replies.update(self.pull(open_))
            time.sleep(POLL if open_ else 0)
        return replies

    def send(self, requests: Mapping[int, bytes], kind: Kind, timeout: float) -> None:
        self.sent = {i: node for i, node in self.sent.items() if node not in requests}
        self.sent |= self.push(requests, kind, 0, timeout)

    def received(self) -> dict[int, bytes]:
        return self.pull(self.sent)

    def push(self, requests: Mapping[int, bytes], kind: Kind, round_: int, timeout: float) -> dict[str, int]:
        """Give the requests to Flower. Returns the node of each message."""
        messages = [
            Message(content(data), node, TYPES.get(kind, "query"), group_id=str(round_), ttl=timeout + MARGIN)
            for node, data in requests.items()
        ]
        ids = self.grid.push_messages(messages) if messages else []
        return {i: node for i, node in zip(ids, requests, strict=False) if i}

    def pull(self, open_: dict[str, int]) -> dict[int, bytes]:
        """Return the new replies by node. Their messages are removed from ``open_``."""
        replies: dict[int, bytes] = {}
        for message in self.grid.pull_messages(list(open_)) if open_ else ():
            node = open_.pop(message.metadata.reply_to_message_id, None)
            if node is None:
                continue
            if message.has_error():
                reason = f"Flower: {message.error.reason}"
                replies[node] = pack(Reply(kind="refused", run="", round=0, client=-1, reason=reason))
            else:
                replies[node] = data_of(message)
        return replies


def print_progress(progress: Progress) -> None:
    """Write one line per round to Flower's log, and as an event."""
    accuracy = "" if progress.accuracy is None else f", accuracy {100 * progress.accuracy:.1f} %"
    rounds = f"round {progress.round}/{progress.rounds}, {progress.seconds:.1f} s"
    line = f"run {progress.run}: {rounds}{accuracy}"
    print(line, flush=True)
    numbers = {"round": progress.round, "rounds": progress.rounds, "seconds": progress.seconds}
    event(line, {"run": str(progress.run)}, numbers)


def server_app() -> ServerApp:
    """Execute the server's app. The configuration names the run store, or the file of a diagnosis, for the results."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        channel, config = GridChannel(grid), context.run_config
        if OUTPUT in config:
            write_diagnosis(channel, config, deployment_of(config))
        else:
            serve(channel, config, {"flwr": version("flwr")}, print_progress)

    return app


SERVER = '''"""The server: the rounds of the experiment in this app's configuration, into a fedskew run store."""

from fedskew.flower.app import server_app

app = server_app()
'''
CLIENT = '''"""A client: it asks the node that runs on its machine, which holds the rows."""

from fedskew.flower.client import client_app

app = client_app()
'''


def write_app(folder: Path, experiment: Experiment, runs: str = "runs") -> Path:
    """Write the app of an experiment. Raises `BadInput` if it cannot run on nodes, or if the folder is not empty."""
    experiment = deployable(experiment, Deployment(labels=True))
    about = f"{experiment.name} on {experiment.table()['dataset']['name']}, by fedskew"
    return write_files(folder, about, Deployment(), {"recipe": experiment.toml(), "runs": runs, "resume": 0})


def write_diagnosis_app(folder: Path, clients: int, output: Path, deployment: Deployment) -> Path:
    """Write an app. It diagnoses ``clients`` sites, and writes the result to ``output``."""
    return write_files(folder, "a diagnosis by fedskew", deployment, {CLIENTS: clients, OUTPUT: str(output)})


def write_files(folder: Path, about: str, deployment: Deployment, config: Mapping[str, object]) -> Path:
    """Write an app with this configuration. Raises `BadInput` if the folder is not empty."""
    empty = folder.is_dir() and not any(folder.iterdir())
    require(empty or not folder.exists(), f"{folder} exists and is not empty")
    package = f"{re.sub(r'[^a-z0-9]+', '_', folder.resolve().name.lower()).strip('_') or 'app'}_app"
    options = {f"{PREFIX}{key}": value for key, value in dataclasses.asdict(deployment).items()}
    app = {
        "publisher": "fedskew",
        "components": {"serverapp": f"{package}.server:app", "clientapp": f"{package}.client:app"},
        # `flwr run --run-config` overrides it
        "config": {**config, **options},
    }
    table = {
        "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
        "project": {
            "name": package.replace("_", "-"),
            "version": "1.0.0",
            "description": about,
            "license": "Apache-2.0",
            "dependencies": [f"flwr=={version('flwr')}", f"fedskew>={version('fedskew')}"],
        },
        "tool": {"hatch": {"build": {"targets": {"wheel": {"packages": ["."]}}}}, "flwr": {"app": app}},
    }
    files = {
        "pyproject.toml": tomli_w.dumps(table, multiline_strings=True),
        f"{package}/__init__.py": "",
        f"{package}/server.py": SERVER,
        f"{package}/client.py": CLIENT,
    }
    for name, text in files.items():
        write_whole(folder / name, text, "app")
    return folder
