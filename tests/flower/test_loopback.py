"""The same numbers through Flower: a SuperLink and four nodes as processes of their own, over loopback, offline."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import tomli_w
import torch

pytest.importorskip("flwr")
pytest.importorskip("cryptography")

from fedskew.experiment.config import Experiment
from fedskew.experiment.results import run
from fedskew.flower.local import Loopback
from fedskew.flower.starter import carried_out, write_stub
from fedskew.flower.template import write_app
from fedskew.store import checkpoints
from fedskew.store.runs import RunStore
from tests.flower.test_deployed import DEPLOYABLE, SETTINGS
from tests.flower.test_reach import serving
from tests.flower_nodes import nodes_of, small

PATIENCE = 900.0
ORDINARY = ("fedavg", "scaffold", "moon")


@dataclass
class Running:
    """Four nodes that hold the rows of the digits' partition, and what was handed in."""

    there: Loopback
    folder: Path

    def hand_in(self, experiment: Experiment) -> str:
        app = write_app(self.folder / f"app-{experiment.name}", experiment, str(self.folder / experiment.name))
        options = self.folder / f"{experiment.name}.toml"
        options.write_text(tomli_w.dumps({"deployment.measure": False, "deployment.labels": True}))
        return self.there.submit(app, options)

    def weights(self, experiment: Experiment) -> torch.Tensor:
        """When the run has ended; the run store says so."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            store = RunStore(self.folder / experiment.name)
            records = store.runs()
            store.close()
            if records and records[0].status not in ("planned", "running"):
                assert (records[0].status, records[0].message) == ("finished", "")
                path = checkpoints.latest(store.run_folder(records[0].id))
                assert path
                return checkpoints.load(path)[0]["x"]
            time.sleep(0.5)
        raise AssertionError(f"not finished: {(self.folder / 'flower' / 'superlink.log').read_text()[-2000:]}")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("flower")
    nodes = nodes_of(experiment_of("fedavg"), folder / "nodes")
    # nothing outside this machine can be reached: proxies that nobody listens at
    offline = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
    environment = {**offline, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    with Loopback(folder / "flower", nodes, environment=environment) as there:
        yield Running(there, folder)


def experiment_of(method: str) -> Experiment:
    sections = {"algorithm": method, "model": "mlp:hidden=[16]", **SETTINGS.get(method, {})}
    return small(rounds=5, **sections).replace(name=method, evaluation__every=5)


def check_equal(running: Running, experiments: list[Experiment]) -> None:
    for experiment in experiments:
        running.hand_in(experiment)
    for experiment in experiments:
        theirs = run(experiment, folder=running.folder / f"{experiment.name}-simulated")
        path = checkpoints.latest(theirs.store.run_folder(theirs.ids[0]))
        assert path
        assert torch.equal(running.weights(experiment), checkpoints.load(path)[0]["x"]), experiment.name


@pytest.mark.slow
def test_five_rounds_give_the_simulators_weights_to_the_last_bit(running: Running) -> None:
    check_equal(running, [experiment_of(method) for method in ORDINARY])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent is gone")
def test_nothing_outlives_a_killed_parent(tmp_path: Path) -> None:
    """Not even if it is killed in a way that it cannot notice."""
    script = (
        "import sys, time; from pathlib import Path; from fedskew.flower.local import Loopback\n"
        "there = Loopback(Path(sys.argv[1]), [])\n"
        "print(there.start('sleep', ['sleep', '600']).pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        parent.kill()
    end = time.monotonic() + 60
    while alive(child) and time.monotonic() < end:
        time.sleep(0.1)
    assert not alive(child)


@pytest.mark.slow
def test_a_node_that_is_stopped_leaves_nothing_behind(tmp_path: Path) -> None:
    """The SuperLink is any server that answers: the SuperNode looks for its own."""
    node = nodes_of(experiment_of("fedavg"), tmp_path)[0]
    # a socket's path must not be long
    with TemporaryDirectory() as name:
        temporary = Path(name)
        there = Loopback(tmp_path / "flower", [], environment={"TMPDIR": name})
        there.folder.mkdir()
        with serving() as there.port:
            process = there.start_node(node)
            end = time.monotonic() + 60
            while not list(temporary.rglob("starter")) and time.monotonic() < end:
                time.sleep(0.1)
            assert list(temporary.rglob("starter"))
        there.close()
        assert process.returncode == 130
        assert not list(temporary.iterdir())


def test_a_message_is_answered_by_a_copy_of_a_loaded_process_or_by_flowers_command_where_that_is_gone(
    tmp_path: Path,
) -> None:
    stub = [tmp_path / "flwr-clientapp", "--token", "a b"]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "starter"))
        listener.listen()
        write_stub(tmp_path, str(tmp_path / "starter"))
        script = (
            "import os, socket, sys; from fedskew.flower.starter import split_off\n"
            "split_off(socket.socket(fileno=int(sys.argv[1])))\n"
            # in one piece, since both copies may write at the same time
            "os.write(1, f'{os.getppid()} {sys.argv}\\n'.encode())"
        )
        command = [sys.executable, "-c", script, str(listener.fileno())]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, pass_fds=[listener.fileno()]) as starter:
            for _ in range(2):
                assert subprocess.run(stub, timeout=100).returncode == 0
            assert starter.stdout
            told = [starter.stdout.readline() for _ in range(2)]
            starter.kill()
    assert told == [f"{starter.pid} {[str(stub[0]), *stub[1:]]}\n"] * 2
    helped = subprocess.run([stub[0], "--help"], capture_output=True, text=True, timeout=100)
    assert "Run a Flower ClientApp" in helped.stdout


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        (None, 0, ""),
        (SystemExit(), 0, ""),
        (SystemExit(3), 3, ""),
        (SystemExit("no token"), 1, "no token\n"),
        (RuntimeError("the link is gone"), 1, "RuntimeError: the link is gone\n"),
        (KeyboardInterrupt(), 1, "KeyboardInterrupt\n"),
    ],
)
def test_a_copy_ends_as_flowers_command_would(end: BaseException | None, code: int, said: str, capsys) -> None:
    def command() -> None:
        if end:
            raise end

    assert carried_out(command) == code
    assert capsys.readouterr().err.endswith(said)


def alive(process: int) -> bool:
    """Whether it is there and not only waiting to be buried."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# methods whose clients hold other rows than the four nodes here are compared in test_flower.py, without Flower
OTHERS = [m for m in DEPLOYABLE if m not in ORDINARY and not {"dataset", "server_data"} & set(SETTINGS.get(m, {}))]


@pytest.mark.slow
@pytest.mark.parametrize("methods", [OTHERS[i : i + 4] for i in range(0, len(OTHERS), 4)], ids=" ".join)
def test_all_other_methods_give_the_simulators_weights(running: Running, methods: list[str]) -> None:
    check_equal(running, [experiment_of(method) for method in methods])
