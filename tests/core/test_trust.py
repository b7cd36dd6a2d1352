"""A run store from elsewhere names code: it runs only if this person named it before, or confirms it now."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from fedskew.api.functions import run
from fedskew.cli.main import main
from fedskew.core import user_code as trust
from fedskew.core.errors import BadInput
from fedskew.experiment.config import COMPONENTS, SEVERAL, Experiment, from_toml
from fedskew.store.runs import RunStore
from tests.commands import error_of
from tests.flower_nodes import small

METHOD = """
from dataclasses import dataclass
from pathlib import Path
import fedskew
Path({marker!r}).touch()

@dataclass(frozen=True, kw_only=True)
class Mine(fedskew.Algorithm):
    pass
"""
MODEL = """
from pathlib import Path
from torch import nn
Path({marker!r}).touch()

class Net(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.Flatten(), nn.Linear(64, classes))
"""
EXPORT = ["export", "1"]
IMPORTING = [
    ("method", ["resume", "1"]),
    ("method", ["landscape", "1", "--kind", "line", "--points", "3"]),
    *((kind, EXPORT) for kind in ("method", "method without a hash", "model")),
]
"""Every command that imports code with one kind of code, and the cheapest command with every kind."""
READING = (["cite", "1"], ["list", "runs"], ["show", "1"], ["report", "1"], ["watch", "1"])


def named(kind: str, folder: Path) -> dict[str, Any]:
    """Return sections that name a file of code. The file writes a mark when it is run."""
    path, template = folder / f"{kind[:5]}.py", MODEL if kind == "model" else METHOD
    path.write_text(template.format(marker=str(folder / "ran")))
    found = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return {
        "method": {"algorithm": {"name": f"{path}::Mine", "file_hash": found}},
        "method without a hash": {"algorithm": {"name": f"{path}::Mine"}},
        "model": {"model": {"name": f"{path}::Net", "file_hash": found}},
    }[kind]


@pytest.fixture(params=["method", "method without a hash", "model"])
def store(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    """Return a store with an interrupted run. Its experiment names a file that this user has never run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(trust.FOLDER, str(tmp_path / "configuration"))
    made = run(small(rounds=2, checkpoint={"every": 1}), runs="runs").store
    table = small(rounds=3, checkpoint={"every": 1}).table() | named(request.param, tmp_path)
    made.db.execute("UPDATE runs SET status='interrupted', rounds=3, experiment=?", (tomli_w.dumps(table),))
    return made


@pytest.mark.parametrize(("store", "words"), IMPORTING, indirect=["store"])
def test_code_that_a_store_names_runs_when_it_is_confirmed(
    store: RunStore, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedskew.report.html.write_report", lambda results, path, **_: path)
    said = error_of(*words).lstrip()
    assert not Path("ran").exists()
    assert said.startswith("fedskew: run 1: ")
    assert said.endswith(
        ".py is code that you have not run or confirmed before; read it, and if you trust it, add --trust to the command\n"
    )
    assert said.count("\n") == 1
    assert store.run(1).status == "interrupted"
    main([*words, "--trust"])
    assert Path("ran").exists()
    # from now on it is known
    with trust.asking():
        from_toml(store.run(1).experiment)


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("store", ["method without a hash", "model"], indirect=True)
def test_commands_that_only_read_run_no_code(capsys: pytest.CaptureFixture[str]) -> None:
    for words in READING:
        assert main(words) == 0, capsys.readouterr().err
        assert not Path("ran").exists()
        if words[0] == "cite":
            assert "(code that no longer exists, or that you have not run)" in capsys.readouterr().out


def test_the_name_of_a_run_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = named("method", tmp_path)["algorithm"]["name"]
    stored = from_toml(tomli_w.dumps(small().table() | {"name": file}))
    assert not stored.unnamed
    assert not Path("ran").exists()


def test_code_named_by_the_user_is_trusted_if_the_list_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    for folder in (tmp_path / "configuration", blocked / "below"):
        monkeypatch.setenv(trust.FOLDER, str(folder))
        monkeypatch.setenv(trust.SESSION, "")
        table = named("method", tmp_path)
        with pytest.raises(BadInput, match="not run or confirmed before"):
            from_toml(tomli_w.dumps(table))
        Experiment(**table)
        assert "Mine" in from_toml(tomli_w.dumps(table)).name
        (tmp_path / "metho.py").write_text((tmp_path / "metho.py").read_text() + "# changed\n")
        with pytest.raises(BadInput, match="has changed"):
            from_toml(tomli_w.dumps(table))
    assert len((tmp_path / "configuration" / "trusted-code.txt").read_text().splitlines()) == 1


@pytest.mark.parametrize("section", [section for section, known in COMPONENTS.items() if known.contracts])
def test_code_of_every_kind_runs_only_if_it_is_known(
    section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(trust.FOLDER, str(tmp_path / "configuration"))
    named("method", tmp_path)
    text = (tmp_path / "metho.py").read_text()
    for part in ({"name": f"{tmp_path / 'metho.py'}::Mine"}, {"name": "__main__::Mine", "file_text": text}):
        for table in ({section: part}, {section: [part]}) if section in SEVERAL else ({section: part},):
            with pytest.raises(BadInput, match="is code that you have not run or confirmed before"):
                from_toml(tomli_w.dumps(table))
    assert not (tmp_path / "ran").exists()


def test_a_module_of_a_package_is_known_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(trust.FOLDER, str(tmp_path))
    table = {"model": {"name": "torch.nn::Linear"}}
    with pytest.raises(BadInput, match=r"torch\.nn::Linear is code that you have not run"):
        from_toml(tomli_w.dumps(table))
    Experiment(**table)
    from_toml(tomli_w.dumps(table))
