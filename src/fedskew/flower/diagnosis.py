"""The server's part of a diagnosis: it sends its questions to all nodes, and measures from their answers."""

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec

from fedskew.core.errors import BadInput, FedskewError
from fedskew.core.files import write_whole
from fedskew.core.text import count
from fedskew.core.trees import Tree
from fedskew.diagnosis.questions import Answer, Question, Step
from fedskew.diagnosis.server import Ask, Facts, federated
from fedskew.flower.answers import carried, carried_bytes
from fedskew.flower.nodes import Channel, Deployment, Nodes
from fedskew.flower.wire import Rejected, Request, body, first_line

CLIENTS, OUTPUT = "diagnosis.clients", "diagnosis.output"
"""Keys of the app's configuration: the number of sites, and the file of the result."""

LONGEST = 1 << 28
"""Bytes of an answer at most: the products of 5,000 inputs."""


def write_diagnosis(channel: Channel, config: Mapping[str, object], deployment: Deployment) -> None:
    """Diagnose the sites, and write the result as JSON, or ``{"error": line}`` before the error is raised."""
    output = Path(str(config[OUTPUT])).expanduser()
    try:
        found = diagnosed(channel, int(str(config[CLIENTS])), deployment)
    except FedskewError as error:
        write_whole(output, json.dumps({"error": str(error)}), "diagnosis")
        raise
    write_whole(output, json.dumps(found), "diagnosis")


def diagnosed(channel: Channel, clients: int, deployment: Deployment) -> dict[str, Any]:
    """The diagnosis of this many sites, at least two.

    Raises `TooFew` if a site does not connect, and `BadInput`, which names the site, if one does not answer or refuses.
    """
    first = Request(
        kind="meet",
        purpose="diagnosis",
        run=uuid.uuid4().hex,
        round=0,
        client=-1,
        clients=clients,
        recipe="",
        classes=0,
        shape=(),
    )
    nodes = Nodes(channel, first, deployment, most_rows=1)
    nodes.await_clients(clients)

    def say(stage: str, fraction: float) -> None:
        print(stage, flush=True)

    return federated([name_of(k) for k in range(clients)], by_nodes(nodes), Facts(count(clients, "site")), 0, say)


def name_of(client: int) -> str:
    return f"client {client}"


def by_nodes(nodes: Nodes) -> Ask:
    """Questions and answers as messages. A site that does not answer ends the diagnosis."""

    def ask(questions: Mapping[str, Question]) -> dict[str, Answer]:
        requests, answers, steps = {}, {}, get_args(Step)

        def accept(client: int, tensors: Tree) -> Tree:
            answers[name_of(client)] = read(tensors)
            return {}

        for client, question in enumerate(questions.values()):
            request = nodes.request("diagnose", steps.index(question.step), client)
            requests[client] = (request, body(carried(msgspec.msgpack.encode(question))))
        nodes.ask(requests, accept, LONGEST)
        for client, _, reason in reversed(nodes.faults):
            if client in requests and name_of(client) not in answers:
                raise BadInput(f"{name_of(client)}: {reason}")
        return answers

    return ask


def read(tensors: Tree) -> Answer:
    """The answer in a reply. Raises `Rejected` for other bytes."""
    try:
        return msgspec.msgpack.decode(carried_bytes(tensors), type=Answer)
    except msgspec.MsgspecError as error:
        raise Rejected("garbage", f"its answer cannot be read: {first_line(error)}") from None
