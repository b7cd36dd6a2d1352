"""A diagnosis between nodes: the numbers of a rehearsal, only with the owners' consent, and one line for what does not fit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest

from fedskew.core.errors import BadInput, FedskewError, TooFew
from fedskew.data.datasets.table import TableData
from fedskew.diagnosis.diagnose import rehearse
from fedskew.diagnosis.questions import Answer, Question, arrays
from fedskew.diagnosis.site import AnsweringSite, targets_in
from fedskew.diagnosis.subject import Source
from fedskew.flower.diagnosis import (
    CLIENTS,
    IN_PROGRESS,
    OUTPUT,
    Answers,
    carried,
    carried_bytes,
    diagnosed,
    write_diagnosis,
)
from fedskew.flower.limits import Limits
from fedskew.flower.node import Node
from fedskew.flower.nodes import Deployment
from fedskew.flower.wire import Reply, Request, pack, unpack
from tests.flower.test_tables import patients
from tests.flower_nodes import Direct

QUICK = Deployment(wait=0.1)


def sites(folder: Path, fewest: int = 5, target: str = "label=outcome", **limits: Any) -> list[Node]:
    """Write the tables of three hospitals. The patients of the second are older."""
    made, (option, column) = [], target.split("=")
    for k in range(3):
        path = folder / f"site-{k}.csv"
        folder.mkdir(exist_ok=True)
        frame = patients(60, k)[["age", "city", column]]
        frame.assign(age=frame["age"] + 20 * (k == 1)).to_csv(path, index=False)
        allowed = Limits(**{"diagnosis": True, "fewest": fewest, **limits})
        made.append(Node(k, path, folder / f"states-{k}", allowed, TableData(path=str(path), **{option: column})))
    return made


def site(node: Node) -> AnsweringSite:
    """Return the same site for a rehearsal."""
    assert node.table
    found, own = node.table.surveyed(), Answers(node.table, node.folder, node.limits)
    return AnsweringSite(found.table, targets_in(found), node.limits.fewest, own.secret())


@pytest.mark.parametrize("target", ["label=outcome", "target=cost"])
@pytest.mark.parametrize("fewest", [1, 5])
def test_nodes_give_the_numbers_of_a_rehearsal(fewest: int, target: str, tmp_path: Path) -> None:
    nodes = sites(tmp_path, fewest, target)
    for k, node in enumerate(nodes):
        node.folder.mkdir(parents=True, exist_ok=True)
        (node.folder / "secret").write_bytes(bytes([k] * 32))  # with a few secrets, rounding hides the older site
    found = diagnosed(Direct(nodes), 3, QUICK)
    rehearsed = rehearse({f"site {k}": site(node) for k, node in enumerate(nodes)}, Source("3 sites"))
    kept = rehearsed["column_notes"][: len(found["column_notes"])]
    assert found == {**rehearsed, "column_notes": kept}
    assert "age" in found["columns"][0]["text"]


def test_a_reply_holds_the_sites_answer_and_nothing_else(tmp_path: Path) -> None:
    channel = Direct(sites(tmp_path))
    diagnosed(channel, 3, QUICK)
    for client, kind, request, data in channel.seen:
        (asked, question), (reply, tensors) = unpack(request, Request), unpack(data, Reply)
        rest = {"kind": kind, "run": asked.run, "round": asked.round, "client": client, "rows": 1}
        assert reply == Reply(**rest)
        if kind == "meet":
            assert tensors == {}
        else:
            answer = site(channel.clients[client]).reply(carried_bytes(question))
            assert carried_bytes(tensors) == answer
            assert not msgspec.msgpack.decode(answer, type=Answer).refused


def test_a_node_answers_only_if_its_owner_agreed(tmp_path: Path) -> None:
    nodes = sites(tmp_path, diagnosis=False)
    with pytest.raises(
        TooFew, match=r"missing: site 0, site 1, site 2; site \d: this node answers no diagnosis.*--share-diagnosis"
    ):
        diagnosed(Direct(nodes), 3, QUICK)


@pytest.mark.parametrize("columns", [{}, {"time": "age", "event": "outcome"}, {"labels": "age|outcome"}])
def test_a_node_with_other_targets_says_what_it_needs(columns: dict[str, str], tmp_path: Path) -> None:
    node = sites(tmp_path)[0]
    other = TableData(path=str(node.rows), **columns) if columns else None
    with pytest.raises(TooFew, match=r"site 0: a diagnosis needs a table with classes or numbers.*target=COLUMN"):
        diagnosed(Direct([Node(0, node.rows, node.folder, node.limits, other)]), 2, QUICK)


def test_the_owner_chooses_the_fewest_rows(tmp_path: Path) -> None:
    nodes = [*sites(tmp_path, 1)[:2], sites(tmp_path, 9)[2]]
    channel = Direct(nodes)
    diagnosed(channel, 3, QUICK)
    for client, kind, _, data in channel.seen:
        if kind == "diagnose":
            answer = msgspec.msgpack.decode(carried_bytes(unpack(data, Reply)[1]), type=Answer)
            if answer.step == "columns":
                assert answer.fewest == (9 if client == 2 else 1)
                assert client != 2 or min(answer.classes.values()) >= 9


def test_a_step_is_answered_once_a_run_and_the_same_question_in_the_same_way(tmp_path: Path) -> None:
    node = sites(tmp_path)[0]
    answers = Answers(node.table, node.folder, node.limits)
    first, other = (msgspec.msgpack.encode(Question(step="columns", classes=names)) for names in ((), ("a",)))
    said = answers.answer("r", carried(first))
    again = Answers(node.table, node.folder, node.limits).answer("r", carried(first))
    assert carried_bytes(said) == carried_bytes(again)
    with pytest.raises(BadInput, match="the server asks for columns twice, with two different questions"):
        answers.answer("r", carried(other))
    assert (node.folder / "secret").stat().st_mode & 0o777 == 0o600
    elsewhere = Answers(node.table, tmp_path / "elsewhere", node.limits)
    elsewhere.answer("r", carried(first))
    assert elsewhere.secret() != answers.secret()


@pytest.mark.parametrize("changed", ["target edges", "strata"])
def test_all_steps_have_the_same_strata_of_numbers(changed: str, tmp_path: Path) -> None:
    """The difference of sums by two divisions of the target would be counts of few rows."""
    node = sites(tmp_path, target="target=cost")[0]
    answers = Answers(node.table, node.folder, node.limits)
    asked = {"target edges": np.arange(255.0), "strata": np.arange(256.0) // 128}
    other = {**asked, changed: asked[changed] + np.eye(1, len(asked[changed]), 9)[0]}
    answers.answer("r", carried(msgspec.msgpack.encode(Question(step="moments", numbers=arrays(asked)))))
    with pytest.raises(BadInput, match=f"the server asks for {changed} twice"):
        answers.answer("r", carried(msgspec.msgpack.encode(Question(step="faces", numbers=arrays(other)))))


def test_all_questions_of_a_diagnosis_are_about_the_same_rows(tmp_path: Path) -> None:
    node = sites(tmp_path)[0]
    answers = Answers(node.table, node.folder, node.limits)
    question = carried(msgspec.msgpack.encode(Question(step="columns")))
    said = carried_bytes(answers.answer("r", question))
    node.rows.write_text("".join(node.rows.read_text().splitlines(keepends=True)[:40]))
    assert carried_bytes(answers.answer("r", question)) == said
    assert carried_bytes(answers.answer("s", question)) != said
    with pytest.raises(BadInput, match="begun another diagnosis, and reads its rows once a diagnosis; start a new one"):
        answers.answer("r", question)
    IN_PROGRESS.clear()
    with pytest.raises(BadInput, match="the node has restarted, or begun another diagnosis"):
        answers.answer("s", question)


@pytest.mark.parametrize("run", ["secret", "diagnoses.json", "..", "0" * 31, "G" * 32])
def test_a_run_of_another_name_is_refused(run: str, tmp_path: Path) -> None:
    """It would name a file of the node."""
    with pytest.raises(BadInput, match="32 hexadecimal digits"):
        sites(tmp_path)[0].states(run)


def test_a_node_answers_as_many_diagnoses_as_its_owner_allows(tmp_path: Path) -> None:
    nodes = sites(tmp_path, diagnoses=2)
    made = [diagnosed(Direct(nodes), 3, QUICK) for _ in range(2)]
    assert made[0] == made[1]
    with pytest.raises(BadInput, match=r"site \d: the server asks for 3 diagnoses, but this node allows 2"):
        diagnosed(Direct(nodes), 3, QUICK)


def reply_of(data: bytes, **facts: Any) -> bytes:
    """Return the reply with other bytes in its body."""
    reply, _ = unpack(data, Reply)
    return pack(reply, **facts)


def answered(step: str) -> Callable[[bytes], bytes]:
    return lambda data: reply_of(data, tensors=carried(msgspec.msgpack.encode({"step": step})))


SPOILED: dict[str, tuple[Callable[[bytes], bytes | None], str]] = {
    "silent": (lambda data: None, "no answer in"),
    "cut": (lambda data: data[:-9], "the message is not one of fedskew's"),
    "no body": (lambda data: reply_of(data), "a message of a diagnosis without its bytes"),
    "no answer": (lambda data: reply_of(data, tensors=carried(b"x")), "its answer cannot be read"),
    "other step": (answered("faces"), "answers faces instead of columns"),
    "no summary": (answered("columns"), "sent no summary|is no column"),
    "too long": (lambda data: reply_of(data, tensors=carried(b"x" * 30_000)), "a message of 30,"),
}


@pytest.mark.parametrize("how", SPOILED)
def test_an_answer_that_does_not_fit_ends_the_diagnosis_in_one_line(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, reason = SPOILED[how]
    monkeypatch.setattr("fedskew.flower.diagnosis.LONGEST", 20_000)

    def spoil(client: int, kind: str, round_: int, data: bytes) -> bytes | None:
        return change(data) if (client, kind) == (1, "diagnose") else data

    with pytest.raises(BadInput, match=f"site 1.*({reason})") as caught:
        diagnosed(Direct(sites(tmp_path), spoil), 3, QUICK)
    assert "\n" not in str(caught.value)


def test_the_result_or_the_reason_is_in_a_file(tmp_path: Path) -> None:
    nodes, output = sites(tmp_path), tmp_path / "new" / "diagnosis.json"
    config = {CLIENTS: 3, OUTPUT: str(output)}
    write_diagnosis(Direct(nodes), config, QUICK)
    assert json.loads(output.read_text())["clients"] == 3
    pd.DataFrame({"outcome": ["ill", "well"] * 9, "height": range(18)}).to_csv(nodes[1].rows, index=False)
    with pytest.raises(FedskewError):
        write_diagnosis(Direct(nodes), config, QUICK)
    assert "site 1" in json.loads(output.read_text())["error"]
