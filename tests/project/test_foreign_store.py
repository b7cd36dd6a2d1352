"""A run store from elsewhere: whichever of its texts names code, no verb runs it, and none adds it to the list of trusted code."""

import json
import os
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import fedskew
from fedskew.cli.main import main
from fedskew.core import user_code as trust
from fedskew.core.errors import UNPRINTABLE, BadInput
from fedskew.core.files import toml_table
from fedskew.experiment.config import COMPONENTS
from tests.hostile import rows

CODE = """
from pathlib import Path
Path({marker!r}).touch()

class Mine:
    pass
"""
QUICK = [
    *("list", "list runs --json", "show 1", "show 1 --toml", "show c1 --json", "watch c1", "cite c1", "resume 1"),
    *("predict 1 t.csv", "predict 1 t.csv --client h1 --output a.csv", "export 1 --format safetensors", "export 1"),
    *("landscape 1 --kind line --points 3", "evidence add c1", "tag 1 seen", "rename 1 other", "rename c1 other"),
]
ALL = [
    *("report c1 --tables tables --figures figures", "report 1", "evidence", "evidence page"),
    *("reproduce fedpbs --as-stored", "diagnose t.csv --label y --client client", *QUICK, "rm 1 --yes"),
]
"""Every verb that reads a store, in an order in which the last ones change it."""


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, and a store with a comparison of two finished runs on it."""
    folder = tmp_path_factory.mktemp("sound")
    (folder / "t.csv").write_text(rows(number=80))
    words = (
        f"compare --algorithms fedavg fedavg-ft --seeds 1 --dataset table:path={folder / 't.csv'},label=y,client=client"
    )
    words += f" --rounds 1 --runs {folder / 'runs'} --jobs 1 --set evaluation.adapt_steps=1 --set training.threads=1"
    assert main(words.split(" ")) == 0
    return folder


@pytest.fixture
def code(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every spelling of a class in a file and in an installed module. Both write a mark when they are run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(trust.FOLDER, str(tmp_path / "configuration"))
    monkeypatch.setenv(trust.SESSION, "")
    shutil.copytree(sound, tmp_path, dirs_exist_ok=True)
    (tmp_path / "installed").mkdir()
    for name in ("evil.py", "installed/evil_module.py"):
        (tmp_path / name).write_text(CODE.format(marker=str(tmp_path / "ran")))
    offered = "".join(f"[fedskew.{one.kinds}]\nevil-{kind} = evil_module:Mine\n" for kind, one in COMPONENTS.items())
    (tmp_path / "installed" / "evil-1.0.dist-info").mkdir()
    (tmp_path / "installed" / "evil-1.0.dist-info" / "METADATA").write_text("Name: evil\nVersion: 1.0\n")
    (tmp_path / "installed" / "evil-1.0.dist-info" / "entry_points.txt").write_text(offered)
    monkeypatch.syspath_prepend(tmp_path / "installed")
    for catalogue in COMPONENTS.values():
        monkeypatch.delitem(vars(catalogue), "offered", raising=False)
    return [f"{tmp_path}/evil.py::Mine", "evil_module::Mine", "evil_module:Mine", f"{tmp_path}/evil.py", "evil_module"]


SPELLINGS = [0, *(pytest.param(at, marks=pytest.mark.slow) for at in range(1, 5))]
"""Numbers of the spellings of `code`. With the later ones, the tests take minutes."""

Walk = Callable[[list[str]], None]


def no_graph(*_: object) -> None:
    raise BadInput("these tests write no ONNX, which takes seconds")


@pytest.fixture
def walk(code: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Walk]:
    """Call verbs. Each may refuse the store in one line, but must not run code or trust it."""
    monkeypatch.setattr("fedskew.serving.export.graph_of", no_graph)
    others = {name for name in sys.modules if "evil" in name}  # of tests before

    def verbs(given: list[str]) -> None:
        for words in given:
            assert main(words.split(" ")) in (0, 1, 2, 3), words
            out, err = capsys.readouterr()
            assert "Traceback" not in err, (words, err)
            assert not UNPRINTABLE.search(out + err), words
            assert not Path("ran").exists(), words
            assert {name for name in sys.modules if "evil" in name} == others, words
            assert not Path("configuration").exists(), words
            assert not os.environ[trust.SESSION], words

    yield verbs
    for catalogue in COMPONENTS.values():
        vars(catalogue).pop("offered", None)


def change(**columns: object) -> None:
    """Change columns of both runs."""
    with closing(sqlite3.connect("runs/fedskew.db")) as db, db:
        for name, value in columns.items():
            db.execute(f"UPDATE runs SET {name}=?", (value,))


def experiment() -> dict[str, Any]:
    with closing(sqlite3.connect("runs/fedskew.db")) as db:
        return toml_table(db.execute("SELECT experiment FROM runs WHERE id=1").fetchone()[0], "")


def with_texts(value: object, text: str) -> Any:
    """Replace every text in nested lists and tables."""
    if isinstance(value, Mapping):
        return {key: with_texts(part, text) for key, part in value.items()}
    if isinstance(value, list):
        return [with_texts(part, text) for part in value]
    return text if isinstance(value, str) else value


def named(code: str) -> list[object]:
    """The ways in which a stored section may name a component of this code."""
    where, _, name = code.rpartition("::")
    text = Path("evil.py").read_text()
    tables = [{"name": code}, {"name": f"__main__::{name or 'Mine'}", "file_text": text}, {"name": "evil-{kind}"}]
    return [code, *tables, [code], [tables[0]]] if where else [code, tables[0]]


def learned_files() -> list[Path]:
    return sorted(Path("runs").glob("*/preprocessing.json"))


@pytest.mark.usefixtures("code")
def test_sound_store_has_what_the_verbs_need(capsys: pytest.CaptureFixture[str]) -> None:
    for words in QUICK:
        assert main(words.split(" ")) == 0 or words in ("evidence add c1", "export 1"), (words, capsys.readouterr().err)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_columns_of_the_database_name_no_code(spelling: int, walk: Walk, code: list[str]) -> None:
    text = code[spelling]
    change(name=text, message=text, experiment_hash=text)
    with closing(sqlite3.connect("runs/fedskew.db")) as db, db:
        facts = json.loads(db.execute("SELECT facts FROM runs WHERE id=1").fetchone()[0])
        db.execute("UPDATE runs SET facts=?", (json.dumps(with_texts(facts, text)),))
        db.execute("UPDATE comparisons SET title=?", (text,))
        db.execute("UPDATE partitions SET client_name=? || client, label=?", (text, text))
        db.execute("UPDATE measurements SET name=? WHERE round=0", (text,))
        db.execute("UPDATE measurements SET split=? WHERE name='loss'", (text,))
    walk(ALL)


@pytest.mark.parametrize("verbs", [["cite 1", "predict 1 t.csv"], pytest.param(QUICK, marks=pytest.mark.slow)])
@pytest.mark.parametrize("section", COMPONENTS)
def test_sections_of_the_stored_experiment_name_no_code(
    section: str, verbs: list[str], walk: Walk, code: list[str]
) -> None:
    table = experiment()
    for one in named(code[0]) + named(code[1]):
        stored = json.loads(json.dumps(one).replace("{kind}", section))
        change(experiment=tomli_w.dumps({**table, section: stored}))
        walk(verbs)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_text_of_the_stored_experiment_names_no_code(spelling: int, walk: Walk, code: list[str]) -> None:
    table = experiment()
    change(experiment=tomli_w.dumps({**table, "name": code[spelling]}))
    walk(QUICK)
    change(experiment=tomli_w.dumps(with_texts(table, code[spelling])))
    walk(ALL)


@pytest.mark.parametrize("part", ["model", "task", "preprocessing"])
def test_what_training_fitted_names_no_code(part: str, walk: Walk, code: list[str]) -> None:
    """`preprocessing.json` of a run once named the class of its model, with the source text to execute."""
    text, sound = Path("evil.py").read_text(), {path: path.read_bytes() for path in learned_files()}
    for table in (
        *({"name": one} for one in code),
        {"name": "__main__::Mine", "file_text": text},
        {"name": "__main__::Mine", "file_text": text, "file_hash": trust.digest(text.encode())},
    ):
        for path, known in sound.items():
            fitted = json.loads(known)
            path.write_text(json.dumps({**fitted, part: {**fitted[part], **table}}))
        walk(["predict 1 t.csv", "export 1 --format safetensors"])


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_all_texts_of_the_files_of_a_run_name_no_code(spelling: int, walk: Walk, code: list[str]) -> None:
    for path in Path("runs").glob("*/*.json"):
        path.write_text(json.dumps(with_texts(json.loads(path.read_bytes()), code[spelling])))
    for path in Path("runs").glob("*/*.toml"):
        path.write_text(tomli_w.dumps(with_texts(toml_table(path.read_text(), ""), code[spelling])))
    numbers = {"kind": code[spelling], "models": [code[spelling]], "axes": code[spelling]}
    Path("runs/1/landscape-line.json").write_text(json.dumps(numbers))
    Path("runs/evidence.json").write_text(json.dumps({"made_by": code[spelling], "cases": [code[spelling]]}))
    walk(QUICK)
    case = json.loads((Path(fedskew.__file__).parent / "advice" / "evidence.json").read_bytes())["cases"][0]
    texts = dict.fromkeys(("data", "skew", "model", "target", "metric", "command"), code[spelling])
    lines = [[code[spelling], *line[1:]] for line in case["methods"]]
    Path("runs/evidence.json").write_text(json.dumps({"made_by": "x", "cases": [{**case, **texts, "methods": lines}]}))
    walk(["evidence", "evidence page", "show 1"])
