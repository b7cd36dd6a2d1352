"""The same numbers through Flower: a SuperLink and four nodes as processes of their own, over loopback, offline."""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

pytest.importorskip("flwr")

from fedskew.api.functions import run
from fedskew.experiment.config import Experiment
from fedskew.flower.app import write_app
from fedskew.flower.superlink import Loopback, loopback
from fedskew.store import checkpoints
from fedskew.store.runs import RunStore
from tests.flower.test_reach import serving
from tests.flower_nodes import nodes_of, small
from tests.waiting import wait_until

METHODS = ("fedavg", "scaffold", "moon")
"""The other methods are compared in test_deployed.py, without Flower: it carries the same bytes."""

# nothing outside this machine can be reached: proxies on which no process listens
OFFLINE = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
OFFLINE |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "OMP_NUM_THREADS": "1"}


def experiment_of(method: str) -> Experiment:
    return small(method, model="mlp:hidden=[16]", rounds=5).replace(name=method, evaluation__every=5)


def weights(folder: Path) -> torch.Tensor:
    """Wait until the only run of a store has ended, and return its model."""
    wait_until(lambda: [r for r in RunStore(folder).runs() if r.status not in ("planned", "running")], 900)
    store = RunStore(folder)
    record = store.runs()[0]
    assert (record.status, record.message) == ("finished", "")
    path = checkpoints.latest(store.run_folder(record.id))
    assert path
    return checkpoints.load(path)[0]["x"]


@pytest.mark.slow
def test_five_rounds_give_the_simulators_weights_to_the_last_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    nodes = nodes_of(experiment_of("fedavg"), tmp_path / "nodes")
    with loopback(tmp_path / "flower", nodes) as link:
        for method in METHODS:
            app = write_app(tmp_path / f"app-{method}", experiment_of(method), str(tmp_path / method))
            link.submit(app, "--run-config", "deployment.measure=false deployment.labels=true")
        for method in METHODS:
            run(experiment_of(method), runs=tmp_path / f"{method}-simulated")
            assert torch.equal(weights(tmp_path / method), weights(tmp_path / f"{method}-simulated")), method


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent is gone")
def test_no_process_outlives_a_killed_parent(tmp_path: Path) -> None:
    script = (
        "import time; from fedskew.flower.superlink import start\n"
        "print(start(['sleep', '600']).pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        parent.kill()
    wait_until(lambda: not alive(child))


def test_flowers_client_runs_in_a_fork_of_a_loaded_process() -> None:
    script = (
        "import subprocess, sys, time; from pathlib import Path\n"
        "from fedskew.flower.resident import forking_clients\n"
        "with forking_clients(Path(sys.argv[1])):\n"
        "    for _ in range(2): subprocess.run([sys.argv[1] + '/flwr-clientapp', '--help'], check=True)\n"
        "    time.sleep(600)"
    )
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-c", script, folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
            assert parent.stdout
            for _ in range(2):
                assert any(line.startswith("usage: flwr-clientapp") for line in parent.stdout)
            parent.kill()


@pytest.mark.slow
def test_a_stopped_node_leaves_no_file_behind(tmp_path: Path) -> None:
    """Any server that replies serves as the SuperLink: the SuperNode keeps looking for its own."""
    node = nodes_of(experiment_of("fedavg"), tmp_path)[0]
    # the path of a socket must be short
    with TemporaryDirectory() as name, serving() as port:
        link = Loopback(tmp_path, {"TMPDIR": name}, "", port)
        process = link.start_node(node)
        try:
            wait_until(lambda: list(Path(name).rglob("fork")))
        finally:
            process.terminate()
            process.wait(60)
        assert process.returncode == 130, (tmp_path / "node-0.log").read_text()
        assert not list(Path(name).iterdir())


def alive(process: int) -> bool:
    """Return True if a process exists and is no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
