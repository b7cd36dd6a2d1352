"""A diagnosis between sites: a node answers each step once from its own table, and the server measures from the answers."""

import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import msgspec
import torch
from torch import Tensor

from fedskew.core.errors import BadInput, FedskewError, first_line, require
from fedskew.core.files import write_whole
from fedskew.core.seeding import Secret
from fedskew.core.text import count
from fedskew.core.trees import Tree
from fedskew.data.datasets.table import TableData
from fedskew.diagnosis.questions import Answer, Question, Step
from fedskew.diagnosis.server import Ask, Inquiry, Source
from fedskew.diagnosis.site import AnsweringSite, targets_in
from fedskew.flower.limits import Limits
from fedskew.flower.nodes import Channel, Deployment, Nodes
from fedskew.flower.wire import Rejected, body, first_request

REFUSED = (
    "this node answers no diagnosis; `fedskew diagnose --list` shows its owner every number that would leave, "
    "and --share-diagnosis agrees"
)


def carried(data: bytes) -> Tree:
    """Convert bytes to a tensor for a message."""
    return {"bytes": torch.frombuffer(bytearray(data), dtype=torch.uint8)}


def carried_bytes(tensors: Tree) -> bytes:
    """Return the bytes of a tensor from `carried`. Raises `Rejected` for other tensors."""
    content = tensors.get("bytes")
    if not isinstance(content, Tensor) or content.dtype != torch.uint8 or len(tensors) != 1:
        raise Rejected("garbage", "a message of a diagnosis without its bytes")
    return content.numpy().tobytes()


IN_PROGRESS: dict[Path, tuple[str, AnsweringSite]] = {}
"""By the folder of a node: the run of its latest diagnosis, and the rows as that diagnosis found them."""


@dataclass(frozen=True)
class Answers:
    """The answers of the node whose states lie in ``folder``.

    A server cannot ask a step twice with different questions: the difference of the answers would reveal small counts. For the same
    reason all questions of a diagnosis are about the same rows: the node reads them once, and answers no question after it has
    restarted, or begun another diagnosis.
    """

    table: TableData | None
    folder: Path
    limits: Limits

    def check(self) -> TableData:
        """Return the node's table. Raises `BadInput` if the owner allows no diagnosis, or if the table has other targets."""
        require(self.limits.diagnosis, REFUSED)
        if self.table is None or not (self.table.label or self.table.target):
            raise BadInput(
                "a diagnosis needs a table with classes or numbers; start the node with --table FILE,label=COLUMN or "
                "FILE,target=COLUMN"
            )
        return self.table

    def answer(self, run: str, tensors: Tree) -> Tree:
        """Return the answer to a question. Raises `BadInput` if the question is not allowed."""
        table, question = self.check(), carried_bytes(tensors)
        if self.admit(run, question):
            IN_PROGRESS[self.folder] = run, self.site(table)
        begun, site = IN_PROGRESS.get(self.folder, ("", None))
        require(
            begun == run,
            "the node has restarted, or begun another diagnosis, and reads its rows once a diagnosis; start a new one",
        )
        assert site is not None
        return carried(site.reply(question))

    def site(self, table: TableData) -> AnsweringSite:
        """Read the table. If it names its persons, the first row of each counts."""
        survey = table.surveyed(once=True)
        return AnsweringSite(survey.table, targets_in(survey), self.limits.fewest, self.secret())

    def admit(self, run: str, question: bytes) -> bool:
        """Return True for a run's first question. Raise `BadInput` for a second one in the same step, and for too many runs.

        All steps have the same strata of numbers: the difference of other strata would reveal small counts, too.
        """
        try:
            read = msgspec.msgpack.decode(question, type=Question)
        except msgspec.MsgspecError as error:
            raise BadInput(f"the question cannot be read: {first_line(error)}") from None
        path = self.folder / "diagnoses.json"
        self.limits.check("classes", len(read.classes))
        steps_by_run: dict[str, dict[str, str]] = json.loads(path.read_text()) if path.exists() else {}
        first = run not in steps_by_run
        steps = steps_by_run.setdefault(run, {})
        self.limits.check("diagnoses", len(steps_by_run))
        same = [(name, read.numbers[name].data) for name in ("target edges", "strata") if name in read.numbers]
        for what, data in (*same, (read.step, question)):
            digest = hashlib.sha256(data).hexdigest()
            require(
                steps.setdefault(what, digest) == digest,
                f"the server asks for {what} twice, with two different questions",
            )
        write_whole(path, json.dumps(steps_by_run), "node")
        return first

    def secret(self) -> Secret:
        """Return the secret that rounds small counts. It never changes, because averages over many roundings would be exact."""
        path = self.folder / "secret"
        if not path.exists():
            write_whole(path, Secret.fresh(), "node", mode=0o600)
        return Secret(path.read_bytes())


CLIENTS, OUTPUT = "diagnosis.clients", "diagnosis.output"
"""Keys of the app's configuration: the number of sites, and the file of the result."""

LONGEST = 1 << 28
"""Bytes of an answer at most: the products of 5,000 inputs."""


def write_diagnosis(channel: Channel, config: Mapping[str, object], deployment: Deployment) -> None:
    """Diagnose the sites, and write the result as JSON, or ``{"error": line}`` before the error is raised."""
    output = Path(str(config[OUTPUT])).expanduser()
    try:
        diagnosis = diagnosed(channel, int(str(config[CLIENTS])), deployment)
    except FedskewError as error:
        write_whole(output, json.dumps({"error": str(error)}), "diagnosis")
        raise
    write_whole(output, json.dumps(diagnosis), "diagnosis")


def diagnosed(channel: Channel, clients: int, deployment: Deployment) -> dict[str, Any]:
    """The diagnosis of this many sites, at least two.

    Raises `TooFew` if a site does not connect, and `BadInput`, which names the site, if one does not answer or refuses.
    """
    nodes = Nodes(channel, first_request(uuid.uuid4().hex, clients, purpose="diagnosis"), deployment, most_rows=1)
    nodes.await_clients(clients)

    def say(stage: str, fraction: float) -> None:
        print(stage, flush=True)

    names = tuple(nodes.name(k) for k in range(clients))
    return Inquiry(names, by_nodes(nodes), on_progress=say).result(Source(count(clients, "site")))


def by_nodes(nodes: Nodes) -> Ask:
    """Questions and answers as messages. A site that does not answer ends the diagnosis."""

    def ask(questions: Mapping[str, Question]) -> dict[str, Answer]:
        requests, answers, steps = {}, {}, get_args(Step)

        def accept(client: int, tensors: Tree) -> Tree:
            answers[nodes.name(client)] = read(tensors)
            return {}

        for client, question in enumerate(questions.values()):
            request = nodes.request("diagnose", steps.index(question.step), client)
            requests[client] = (request, body(carried(msgspec.msgpack.encode(question))))
        nodes.ask(requests, accept, LONGEST)
        for client, _, reason in reversed(nodes.faults):
            if client in requests and nodes.name(client) not in answers:
                raise BadInput(f"{nodes.name(client)}: {reason}")
        return answers

    return ask


def read(tensors: Tree) -> Answer:
    """The answer in a reply. Raises `Rejected` for other bytes."""
    try:
        return msgspec.msgpack.decode(carried_bytes(tensors), type=Answer)
    except msgspec.MsgspecError as error:
        raise Rejected("garbage", f"its answer cannot be read: {first_line(error)}") from None
