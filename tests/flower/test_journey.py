"""The page about four hospitals, from their files to predictions, with certificates and keys; and what a killed process costs."""

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

pytest.importorskip("flwr")

from fedskew.flower.superlink import end, free_port
from fedskew.store.runs import RunStore
from tests.flower.certificates import CERTIFIED, blocks
from tests.flower.test_recipe import Session
from tests.waiting import wait_until

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "between-sites.md").read_text(encoding="utf-8")
FILES = ("hungary.columns.toml", "switzerland.columns.toml", "veterans.columns.toml", "recipe.toml")
STARTED = "fedskew flower node"


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    made = Session(tmp_path)
    made.seconds = 900.0
    made.names["--rounds 5"] = "--rounds 5 --seeds 1"
    made.names |= {"9096": str(free_port()), "9097": str(free_port())}
    yield made
    end(made.running)


def carry_out(session: Session, until: str = "", without: str = "") -> None:
    """The page's blocks in order, up to the command that begins with ``until``, without the ones that begin with ``without``."""
    files = iter(FILES)
    for kind, text in re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.S | re.M):
        if kind == "python":
            (session.folder / "make.py").write_text(text)
            session.carry_out("sh", "python make.py")
        elif kind == "toml":
            (session.folder / next(files)).write_text(text)
        elif kind == "sh":
            lines = text.replace("\\\n", " ").splitlines()
            if until and any(line.startswith(until) for line in lines):
                return
            if not (without and text.startswith(without)):
                session.carry_out("sh", text)


def secured(session: Session) -> None:
    """A certificate, a SuperLink and its name, as the page on deployment prints them."""
    printed = blocks(CERTIFIED)
    for kind, text in (printed[0], printed[2], printed[4]):
        session.carry_out(kind, text)


def rehearsed(session: Session) -> dict[str, Any]:
    """The page's rehearsal, as JSON."""
    command = next(line for line in PAGE.splitlines() if line.endswith("--federated"))
    found: dict[str, Any] = json.loads(session.run(f"{command} --json").stdout)
    return found


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_four_hospitals_go_from_their_files_to_predictions(session: Session) -> None:
    secured(session)
    carry_out(session)
    record = RunStore(session.folder / "runs").runs()[-1]
    assert (record.status, record.rounds_done, "flower" in record.facts) == ("finished", 5, True)
    answers = pd.read_csv(session.folder / "answers.csv")
    assert len(answers) == 60
    result = json.loads(next((session.folder / "runs").glob("diagnosis-*.json")).read_text())
    assert (result["clients"], result["dominant"]) == (4, rehearsed(session)["dominant"])
    truth = pd.read_csv(session.folder / "test.csv")["outcome"]
    frame = RunStore(session.folder / "runs").measurements([record.id])
    tested = frame[(frame["split"] == "test") & (frame["name"] == "accuracy") & (frame["round"] == 5)]["value"].item()
    assert (answers["prediction"] == truth).mean() == pytest.approx(tested, abs=1e-6)
    assert tested > 0.7
    assert {"README.md", "model.onnx", "predict.py", "preprocessing.json"} <= {
        p.name for p in (session.folder / "model").iterdir()
    }


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_killed_process_costs_at_most_the_round(session: Session) -> None:
    """The SuperLink with the server's process is killed and started again; then a node is killed, and the others end the run."""
    secured(session)
    carry_out(session, until="flwr run", without="fedskew compare")
    recipe = session.folder / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("rounds = 5", "rounds = 9"))
    options = "deployment.agree=true deployment.most_rows=400 deployment.timeout=20"
    for line in ("fedskew flower init app --recipe recipe.toml", f"flwr run app ours --run-config '{options}'"):
        done = session.run(session.named(line))
        assert done.returncode == 0, done.stderr

    def rounds() -> int:
        if not (session.folder / "runs").is_dir():
            return -1
        found = RunStore(session.folder / "runs").runs()
        return found[0].rounds_done if found else -1

    await_rounds(rounds, 2)
    os.killpg(session.running[0].pid, signal.SIGKILL)  # the SuperLink, with the server's process
    session.running[0].wait(20)
    before = rounds()
    session.carry_out(*blocks(CERTIFIED)[2])
    for k in range(4):  # the SuperLink keeps the keys in memory only
        assert session.run(f"flwr supernode register key-{k}.pub ours").returncode == 0
    nodes = [line for line in PAGE.replace("\\\n", " ").splitlines() if line.startswith(f"{STARTED} --client")]
    for k, line in enumerate(nodes, start=1):  # a node ends when the new SuperLink does not know its key
        session.running[k].terminate()
        session.running[k].wait(60)
        session.start(session.named(line))
    assert session.run(session.named(f"flwr run app ours --run-config '{options} resume=1'")).returncode == 0
    await_rounds(rounds, before + 1)
    node = session.running[-3]
    os.kill(node.pid, signal.SIGKILL)
    node.wait(20)
    await_rounds(rounds, 9)
    frame = RunStore(session.folder / "runs").measurements([1])
    clients = frame[(frame["name"] == "clients") & (frame["split"] == "round")].set_index("round")["value"]
    assert sorted(clients.index) == list(range(1, 10))
    assert (clients.loc[: before + 1] == 4).all()
    assert (clients >= 3).all()


def await_rounds(rounds: Callable[[], int], number: int) -> None:
    wait_until(lambda: rounds() >= number, 600, lambda: f"{rounds()} of {number} rounds")


def test_the_page_names_a_file_for_each_block() -> None:
    kinds = re.findall(r"^```(\w+)\n", PAGE, re.M)
    assert kinds.count("toml") == len(FILES)
    assert all(f"`{name}`" in PAGE for name in FILES)
