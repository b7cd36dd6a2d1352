"""The exported folder answers as the run does: ONNX with the preprocessing inside, next to a model card."""

import contextlib
import hashlib
import io
import runpy
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedskew as fs
from fedskew.cli.main import main
from fedskew.core.errors import BadInput, FedskewError
from fedskew.core.files import UNFINISHED
from fedskew.data.datasets.heart import CSV
from fedskew.serving.predict import PREDICTION
from tests.commands import error_of, output_of
from tests.disk import largest_file
from tests.serving.test_predict import QUICK, stored, trained_on


def answers(folder: Path, rows: Path) -> tuple[np.ndarray, list[str]]:
    """Return what the Python file of an exported folder prints: probabilities (n, K) or numbers (n,), and the classes.

    The file runs in this process, which has imported its libraries already.
    """
    runtime = pytest.importorskip("onnxruntime")
    [output] = runtime.InferenceSession(str(folder / "model.onnx")).get_outputs()
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", ["predict.py", str(rows)])
        runpy.run_path(str(folder / "predict.py"), run_name="__main__")
    frame = pd.read_csv(io.StringIO(printed.getvalue()))
    classes = [] if list(frame.columns) == ["prediction"] else list(frame.columns)
    assert output.name == ("network/probabilities" if classes else "network/predictions")
    return frame.to_numpy() if classes else frame["prediction"].to_numpy(), classes


def test_folder_without_onnx_says_why(tmp_path: Path) -> None:
    runs = trained_on(tmp_path)
    with pytest.warns(UserWarning, match="no model.onnx: export: column 'note' holds texts"):
        folder = fs.export(runs)
    names = {path.name for path in folder.iterdir()}
    assert names == {"model.safetensors", "preprocessing.json", "experiment.toml", "README.md", "SHA256SUMS"}
    card = (folder / "README.md").read_text()
    assert "There is no ONNX file: export: column 'note' holds texts" in card
    assert f"| accuracy | {100 * stored(runs, 'accuracy'):.1f}" in card
    assert "## Privacy" in card


def test_a_card_gives_the_epsilon_of_the_shared_model_and_says_that_a_simulation_protects_nobody(
    tmp_path: Path,
) -> None:
    pytest.importorskip("dp_accounting")
    private = {"algorithm": "dp-fedavg:q=1,noise=2", "selection": "poisson:rate=1", "dataset": "digits", "rounds": 1}
    cards = []
    for sharing, client in (("all", None), ("personal:head=1", 0)):
        runs = fs.run(**private, sharing=sharing, progress=False, runs=tmp_path / sharing.partition(":")[0])
        cards.append((fs.export(runs, tmp_path / f"model-{client}", client=client) / "README.md").read_text())
    assert "privacy loss" in cards[0]
    assert (
        "this run was a simulation: its noise comes from the seed in `experiment.toml`, so it protects nobody."
        in cards[0]
    )
    assert "privacy loss" not in cards[1]


def test_a_folder_holds_the_files_of_one_export(tmp_path: Path) -> None:
    runs, folder = trained_on(tmp_path), tmp_path / "model"
    with pytest.warns(UserWarning, match=r"has no model.onnx"):
        fs.export(runs, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    # an earlier export of another run had two more files
    sums = folder / "SHA256SUMS"
    for name in ("model.onnx", "predict.py"):
        (folder / name).write_text("of another run")
        sums.write_text(f"{hashlib.sha256(b'of another run').hexdigest()}  {name}\n{sums.read_text()}")
    with pytest.warns(UserWarning, match=r"has no model.onnx"):
        fs.export(runs, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=folder, check=True, timeout=60)
    assert not [*tmp_path.glob(f"{UNFINISHED}*")]


@pytest.mark.parametrize("name", ["model.onnx", "SHA256SUMS"])
def test_an_export_leaves_files_of_the_user(name: str, tmp_path: Path) -> None:
    """A user's own `model.onnx` was overwritten."""
    runs, folder = trained_on(tmp_path), tmp_path / "project"
    folder.mkdir()
    (folder / name).write_text("mine")
    if name == "SHA256SUMS":
        (folder / "notes").write_text("mine")
    with pytest.raises(
        BadInput, match=r"project holds .*, which no export wrote or which has changed since; give another"
    ):
        fs.export(runs, folder)
    assert {path.read_text() for path in folder.iterdir()} == {"mine"}


def test_an_export_leaves_a_card_that_the_user_changed_and_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, folder = trained_on(tmp_path), tmp_path / "model"
    fs.export(runs, folder)
    (folder / "README.md").write_text("mine")
    with pytest.raises(BadInput, match=r"holds README.md, which no export wrote or which has changed since"):
        fs.export(runs, folder)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(BadInput, match="this is the current folder"):
        fs.export(runs, Path())


def test_an_export_that_does_not_fit_on_the_disk_leaves_the_earlier_one(tmp_path: Path) -> None:
    runs, folder = trained_on(tmp_path), tmp_path / "model"
    with pytest.warns(UserWarning, match="no model.onnx"):
        fs.export(runs, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(FedskewError, match="cannot be written"), largest_file(len(before["model.safetensors"]) - 1):
        fs.export(runs, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert not [*tmp_path.glob(f"{UNFINISHED}*")]


def test_client_all_writes_a_folder_for_each_client(tmp_path: Path) -> None:
    trained_on(tmp_path, algorithm="ditto")
    command = ["export", "1", "--client", "all", "--output", str(tmp_path / "sites"), "--runs", str(tmp_path / "runs")]
    folders = [tmp_path / "sites" / f"client-{at}" for at in range(2)]
    printed = output_of(*command).splitlines()
    assert printed == [f"wrote {folder}: client {at}" for at, folder in enumerate(folders)], "and the client's name"
    weights = [(folder / "model.safetensors").read_bytes() for folder in folders]
    assert weights[0] != weights[1]
    one = tmp_path / "one.safetensors"  # the ending decides the format
    assert main(["export", "1", "--client", "1", "--output", str(one), *command[-2:]]) == 0
    assert one.read_bytes() == weights[1]
    assert "--client all writes folders; name one client to write a file" in error_of(*command, "--format", "onnx")


PERSONAL = [
    ("ditto", {}),
    ("fedper", {}),
    ("fedmd", {"model": "mixed:models=[softmax,mlp:hidden=[5]]", "server_data": 0.2}),
]


@pytest.mark.parametrize(("method", "options"), PERSONAL)
def test_the_folder_of_a_site_has_its_own_model_and_result(
    method: str, options: dict[str, object], tmp_path: Path
) -> None:
    runs = fs.run(dataset="heart", skew="natural", algorithm=method, runs=tmp_path / "runs", **{**QUICK, **options})
    frame = pd.read_csv(CSV, dtype=str, keep_default_na=False).drop(columns=["num", "hospital"])
    frame.to_csv(tmp_path / "new.csv", index=False)
    held = runs.store.measurements([1], per_client=True)
    last = held[(held["split"] == "personal-model") & (held["name"] == "accuracy") & (held["round"] == 2)]
    folder = fs.export(runs, tmp_path / "site", client="Switzerland")
    found, classes = answers(folder, tmp_path / "new.csv")
    own = runs.predict(tmp_path / "new.csv", client="Switzerland")
    assert found == pytest.approx(own[[f"probability_{name}" for name in classes]].to_numpy(), abs=1e-6)
    card = (folder / "README.md").read_text()
    assert "This is the personal model of client Switzerland of run 1" in card
    [mine] = last.loc[last["client"] == 3, "value"]
    assert f"| accuracy | {100 * mine:.1f}\u00a0% |" in card.partition("## Results")[2].partition("## Each client")[0]
    assert "metric on the test rows" not in card


@pytest.mark.parametrize("method", ["local-only", "fedper", "fedmd"])
def test_a_run_without_a_shared_model_says_what_to_write(method: str, tmp_path: Path) -> None:
    options = {"server_data": 0.2} if method == "fedmd" else {}
    fs.run(dataset="heart", skew="natural", algorithm=method, runs=tmp_path, **{**QUICK, **options})
    pd.read_csv(CSV).drop(columns="hospital").to_csv(tmp_path / "new.csv", index=False)
    for verb in (["export", "1"], ["predict", "1", str(tmp_path / "new.csv")]):
        said = (
            "write --client NAME (client=NAME in Python) for the model of one: Budapest, Cleveland, Long Beach, Switz"
        )
        assert said in error_of(*verb, "--runs", tmp_path)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("target", "leave_out"),
    [
        ("label=ill", "note"),
        pytest.param("target=age", "note", marks=SLOW),
        pytest.param("label=ill,text=note", "", marks=SLOW),
    ],
)
def test_the_program_prints_the_answers_of_predict(target: str, leave_out: str, tmp_path: Path) -> None:
    model = {"model": "text-cnn:filters=4,embedding=4"} if "text" in target else {}
    runs = trained_on(tmp_path, target, leave_out, **model)
    assert_same_answers(runs, tmp_path / "test.csv", runs.predict(tmp_path / "test.csv"))


@pytest.mark.parametrize("method", [pytest.param("fedavg", marks=SLOW), "fedavg-prior"])
def test_the_program_of_images_prints_the_answers_of_predict(method: str, tmp_path: Path) -> None:
    runs = fs.run(dataset="digits", skew="label-dirichlet", algorithm=method, runs=tmp_path, **QUICK)
    rows = np.random.default_rng(0).integers(0, 17, (5, 64))
    pd.DataFrame(rows).to_csv(tmp_path / "digits.csv", index=False)
    assert_same_answers(runs, tmp_path / "digits.csv", runs.predict(rows))


def assert_same_answers(runs: fs.Runs, rows: Path, own: pd.DataFrame) -> None:
    found, classes = answers(fs.export(runs), rows)
    expected = own[[f"probability_{name}" for name in classes]] if classes else own[PREDICTION]
    assert found == pytest.approx(expected.to_numpy(), rel=1e-5, abs=1e-6)


def test_none_is_a_word_in_the_program_as_in_training(tmp_path: Path) -> None:
    """pandas reads None as a missing value: the program gave other answers without a word."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"drinks": rng.choice(["None", "some", "many", "NA", "?"], 90), "x": rng.normal(size=90)})
    frame = frame.assign(y=np.where(frame["drinks"] == "None", "well", "ill"))
    frame.to_csv(path := tmp_path / "t.csv", index=False)
    runs = fs.run(dataset=f"table:{path},label=y", runs=tmp_path / "runs", **QUICK | {"model": "softmax", "lr": 1.0})
    assert_same_answers(runs, path, runs.predict(path))


def test_the_program_reads_texts_as_training_does(tmp_path: Path) -> None:
    """PyArrow's lower case of the Greek sigma and of the Turkish I is not Python's; 5.0 is 5 in training."""
    texts, rng = ["ΟΔΟΣ", "İzmir", "5.0", "good"], np.random.default_rng(0)
    frame = pd.DataFrame({"note": rng.choice(texts, 60)})
    frame.assign(y=np.where(frame["note"] == "good", "well", "ill")).to_csv(path := tmp_path / "t.csv", index=False)
    model = {"model": "text-cnn:filters=4,embedding=4", "lr": 1.0}
    runs = fs.run(dataset=f"table:{path},label=y,text=note", runs=tmp_path / "runs", **QUICK | model)
    assert_same_answers(runs, path, runs.predict(path))


def test_the_program_knows_sites_with_gaps_and_the_card_names_columns_with_signs(tmp_path: Path) -> None:
    """pandas writes the site 1 as 1.0 where another row has none. 1.200 is 1200 in training, and 1.2 for the program."""
    frame = pd.DataFrame({"site": np.arange(80) % 2, "inputs": np.arange(80.0), "y": ["a", "b"] * 40})
    frame["price"] = [f"1.{100 + row},50" for row in range(80)]
    frame.to_csv(path := tmp_path / "t.csv", index=False)
    runs = fs.run(
        dataset=f"table:{path},label=y,client=site",
        runs=tmp_path / "runs",
        harmonisation="prior",
        skew="natural",
        **QUICK,
    )
    frame.assign(site=frame["site"].where(frame.index > 0), price=1200.5).to_csv(
        new := tmp_path / "new.csv", index=False
    )
    line = "cells of price must be plain, such as 1200.5 or 2020-01-31"
    with pytest.warns(UserWarning, match=line):
        folder = fs.export(runs)
    assert answers(folder, new)[0] == pytest.approx(runs.predict(new)[["probability_a", "probability_b"]], abs=1e-6)
    assert line in (folder / "README.md").read_text()


def test_the_program_is_short_and_ends_at_a_cell_that_is_no_number(tmp_path: Path) -> None:
    folder = fs.export(trained_on(tmp_path, leave_out="note"), tmp_path / "model")
    assert len((folder / "predict.py").read_text().splitlines()) <= 36
    frame = pd.read_csv(tmp_path / "test.csv", dtype=str)
    frame.loc[0, "age"] = "old"
    frame.to_csv(tmp_path / "odd.csv", index=False)
    ended = subprocess.run(
        [sys.executable, folder / "predict.py", tmp_path / "odd.csv"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "could not convert string to float: 'old'" in ended.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_folder_needs_onnxruntime_and_pandas_alone(tmp_path: Path) -> None:
    """The folder runs in a new environment. The test is skipped if the packages cannot be installed."""
    runs = trained_on(tmp_path, leave_out="note")
    folder = fs.export(runs, tmp_path / "model")
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    got = subprocess.run(
        [python, "-m", "pip", "install", "-q", "onnxruntime", "pandas"], check=False, capture_output=True, timeout=500
    )
    if got.returncode:
        pytest.skip("onnxruntime or pandas cannot be installed here")
    words = [python, folder / "predict.py", tmp_path / "test.csv"]
    printed = subprocess.run(words, check=True, capture_output=True, text=True, env={}, timeout=60).stdout
    predicted = pd.read_csv(io.StringIO(printed)).idxmax(axis=1)
    truth = pd.read_csv(tmp_path / "test.csv")["ill"]
    assert float((np.array(predicted) == truth).mean()) == stored(runs, "accuracy")
