"""The store reports a damaged checkpoint, and never stores a secret of the machine."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedskew.api.functions import run
from fedskew.cli.main import main
from fedskew.execution.run import Progress, execute, register
from fedskew.flower.server import serve
from fedskew.store import checkpoints
from fedskew.store.runs import RunStore
from tests.commands import line_of
from tests.flower_nodes import VERSIONS, Direct, configuration, nodes_of, small
from tests.stored import numbers

EXPERIMENT = small("scaffold", rounds=6).replace(checkpoint__every=2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """The store of the run without an interruption."""
    return run(EXPERIMENT, runs=tmp_path_factory.mktemp("whole")).store


def interrupted(folder: Path, states: str = "memory") -> tuple[RunStore, int]:
    """Return a store, and the number of a run in it that ended after five of six rounds."""

    def interrupt(progress: Progress) -> None:
        if progress.round == 5:
            raise KeyboardInterrupt

    store = RunStore(folder)
    number = register(store, EXPERIMENT.replace(training__states=states))
    with pytest.raises(KeyboardInterrupt):
        execute(store, number, listener=interrupt)
    return store, number


def test_resume_from_an_older_checkpoint_warns_and_changes_no_number(whole: RunStore, tmp_path: Path) -> None:
    store, number = interrupted(tmp_path)
    newest = checkpoints.latest(store.run_folder(number))
    assert newest
    assert newest.name == "round-000004.safetensors"
    newest.write_bytes(newest.read_bytes()[:-8])
    line = "round 2: the checkpoint round-000004.safetensors is damaged, so the run continues from this round"
    assert line in line_of("resume", number, "--runs", store.folder)
    assert [entry["line"].startswith(line) for entry in store.run(number).facts["warnings"]].count(True) == 1
    made = [checkpoints.newest(s.run_folder(n)) for s, n in ((store, number), (whole, 1))]
    assert made[0]
    assert made[1]
    assert torch.equal(made[0][0]["x"], made[1][0]["x"])


@pytest.mark.parametrize("states", ["memory", "disk"])
@pytest.mark.parametrize("lost", ["rows", "checkpoints"])
def test_rounds_that_a_power_cut_took_are_played_again(whole: RunStore, tmp_path: Path, states: str, lost: str) -> None:
    """The store may lack rounds before the newest checkpoint, or all checkpoints may be lost. Rounds are played again."""
    store, number = interrupted(tmp_path, states)
    if lost == "rows":
        store.db.execute("DELETE FROM measurements WHERE round > 2")
        store.db.execute("UPDATE runs SET rounds_done=2")
        line = "the store has no numbers of round 3, which the checkpoint round-000004.safetensors needs, so the run "
        line += "continues from this round" if states == "memory" else "starts again"
    else:
        for path in checkpoints.checkpoints_in(store.run_folder(number)):
            path.unlink()
        line = "round 0: there is no checkpoint of the 5 rounds that were done, so the run starts again"
    execute(store, number)
    assert [entry["line"] for entry in store.run(number).facts["warnings"] if line in entry["line"]]
    assert numbers(store) == numbers(whole)
    assert [path.name for path in sorted(checkpoints.checkpoints_in(store.run_folder(number)))][
        -1
    ] == checkpoints.file_name(6)


def test_rounds_are_synced_to_disk_before_their_checkpoint(tmp_path: Path) -> None:
    """With FULL (2) SQLite syncs each commit to disk. With NORMAL (1) a power cut may lose the commit."""
    store, seen = RunStore(tmp_path), []
    number = register(store, small(rounds=3).replace(checkpoint__every=2))
    add = store.add_measurements

    def noting(*arguments: object) -> None:
        add(*arguments)
        seen.append(store.query("PRAGMA synchronous")[0][0])

    store.add_measurements = noting
    execute(store, number)
    assert seen[:4] == [1, 1, 2, 2]
    assert store.query("PRAGMA synchronous")[0][0] == 1, "what follows need not wait for the disk"


def test_reading_an_older_checkpoint_warns_and_keeps_the_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = run(small(rounds=4).replace(checkpoint__every=2), runs=tmp_path).store
    folder = store.run_folder(1)
    facts, old, newest = store.run(1).facts, folder / checkpoints.file_name(2), folder / checkpoints.file_name(4)
    commands = {
        "export": ["export", "1", "--output", str(tmp_path / "model.safetensors")],
        "landscape": ["landscape", "1", "--kind", "line", "--points", "3", "--output", str(tmp_path / "l.svg")],
    }
    for words in commands.values():
        assert main([*words, "--runs", str(tmp_path)]) == 0
        assert capsys.readouterr().err.strip() == ""
    newest.write_bytes(newest.read_bytes()[:-8])
    line = "run 1: the checkpoint round-000004.safetensors is damaged; using the checkpoint before it, after round 2"
    for words in commands.values():
        assert main([*words, "--runs", str(tmp_path)]) == 0
        assert capsys.readouterr().err.strip() == f"fedskew: {line}"
    assert store.run(1).facts == facts
    named, x = load_file(tmp_path / "model.safetensors"), checkpoints.load(old)[0]["x"]
    assert sorted(torch.cat([leaf.flatten() for leaf in named.values()]).tolist()) == sorted(x.tolist())


def test_nothing_of_the_environment_reaches_store_nodes_or_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "correct-horse-battery-staple"
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "FLWR_SECRET", "PASSWORD"):
        monkeypatch.setenv(name, secret)
    experiment = small(rounds=1)
    nodes = nodes_of(experiment, tmp_path)
    options = configuration(experiment, tmp_path) | {"key": secret, "tls.password": secret}
    number = serve(Direct(nodes), options, VERSIONS)
    folder = tmp_path / "runs"
    run(experiment, runs=folder)
    for one in (number, number + 1):
        assert main(["report", str(one), "--runs", str(folder)]) == 0
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {".html", ".db", ".toml", ".safetensors"} <= {path.suffix for path in files}
    assert not [path for path in files if secret.encode() in path.read_bytes()]
