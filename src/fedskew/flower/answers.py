"""A node's part of a diagnosis. It answers each step once, from its own table, and as many diagnoses as its owner allows."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from fedskew.core.errors import BadInput, require
from fedskew.core.files import write_whole
from fedskew.core.seeding import Secret
from fedskew.core.trees import Tree
from fedskew.data.datasets.table import Table
from fedskew.diagnosis.questions import Question
from fedskew.diagnosis.site import Site, targets_in
from fedskew.flower.limits import Limits
from fedskew.flower.wire import Rejected, first_line

REFUSED = (
    "this node answers no diagnosis; `fedskew diagnose --list` shows its owner every number that would leave, "
    "and --share-diagnosis agrees"
)


def carried(data: bytes) -> Tree:
    """Convert bytes to a tensor for a message."""
    return {"bytes": torch.frombuffer(bytearray(data), dtype=torch.uint8)}


def carried_bytes(tensors: Tree) -> bytes:
    """Return the bytes of a tensor from `carried`. Raises `Rejected` for other tensors."""
    held = tensors.get("bytes")
    if not isinstance(held, Tensor) or held.dtype != torch.uint8 or len(tensors) != 1:
        raise Rejected("garbage", "a message of a diagnosis without its bytes")
    return held.numpy().tobytes()


IN_PROGRESS: dict[Path, tuple[str, Site]] = {}
"""By the folder of a node: the run of its latest diagnosis, and the rows as that diagnosis found them."""


@dataclass(frozen=True)
class Answers:
    """The answers of the node whose states lie in ``folder``.

    A server cannot ask a step twice with different questions: the difference of the answers would reveal small counts. For the same
    reason all questions of a diagnosis are about the same rows: the node reads them once, and answers no question after it has
    restarted, or begun another diagnosis.
    """

    table: Table | None
    folder: Path
    limits: Limits

    def check(self) -> Table:
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

    def site(self, table: Table) -> Site:
        """Read the table. If it names its persons, the first row of each counts."""
        found = table.surveyed(table.path, once=True)
        return Site(found.table, targets_in(found), self.limits.fewest, self.secret())

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
        asked: dict[str, dict[str, str]] = json.loads(path.read_text()) if path.exists() else {}
        first = run not in asked
        steps = asked.setdefault(run, {})
        self.limits.check("diagnoses", len(asked))
        same: dict[str, bytes] = {
            name: read.numbers[name].data for name in ("target edges", "strata") if name in read.numbers
        }
        for what, data in (*same.items(), (read.step, question)):
            digest = hashlib.sha256(data).hexdigest()
            require(
                steps.setdefault(what, digest) == digest,
                f"the server asks for {what} twice, with two different questions",
            )
        write_whole(path, json.dumps(asked), "node")
        return first

    def secret(self) -> Secret:
        """Return the secret that rounds small counts. It never changes, because averages over many roundings would be exact."""
        path = self.folder / "secret"
        if not path.exists():
            write_whole(path, Secret.fresh(), "node", mode=0o600)
        return Secret(path.read_bytes())
