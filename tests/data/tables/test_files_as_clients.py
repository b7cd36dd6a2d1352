"""A folder with a file for each client: run, compare and tune take the files as clients, as diagnose and client= do."""

from pathlib import Path

import numpy as np
import pytest

import fedskew as fs
from fedskew.core.errors import BadInput
from fedskew.execution.deal import dealt_rows
from fedskew.experiment.config import Experiment
from fedskew.report.answer import remarks
from tests.cli.test_commands import call

LINE = "each of 3 files is a client (--skew iid, or another skew, deals the rows anew)"
ANEW = "deals the rows of 3 files anew (--skew natural makes each file a client)"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    (tmp_path / "sites").mkdir()
    for site, rows in (("north", 40), ("south", 60), ("west", 80)):
        cells = "".join(f"{x:.3f},{int(x + y > 0)}\n" for x, y in rng.normal(size=(rows, 2)))
        (tmp_path / "sites" / f"{site}.csv").write_text(f"x,sick\n{cells}", encoding="utf-8")
    return tmp_path / "sites"


def test_files_are_the_clients_by_default(folder: Path) -> None:
    experiment = Experiment(dataset=f"table:path={folder},label=sick", held_out=0)
    part = dealt_rows(experiment, experiment.dataset.load())
    assert experiment.labels("skew") == ["natural"]
    assert (part.names, part.note) == (("north", "south", "west"), LINE)
    assert part.sizes.tolist() == [32, 48, 64], "four fifths of each file; the others are test rows"


@pytest.mark.parametrize("skew", ["iid", "label-dirichlet:alpha=0.5", ["iid", "quantity-lognormal"], "feature-noise"])
def test_an_explicit_skew_wins_and_says_that_files_are_ignored(folder: Path, skew: object) -> None:
    experiment = Experiment(dataset=f"table:path={folder},label=sick", skew=skew, clients=5)
    part = dealt_rows(experiment, experiment.dataset.load())
    assert len(part) == 5
    assert part.note.split(" ", 1)[1] == ANEW


def test_a_folder_with_one_file_has_no_clients(folder: Path) -> None:
    for name in ("north", "south"):
        (folder / f"{name}.csv").unlink()
    experiment = Experiment(dataset=f"table:path={folder},label=sick", clients=4)
    assert dealt_rows(experiment, experiment.dataset.load()).note == ""
    assert experiment.labels("skew")[0].startswith("label-dirichlet")


@pytest.mark.parametrize("verb", [fs.run, fs.compare, fs.tune])
def test_a_folder_in_place_of_arrays_says_how_to_name_it(folder: Path, verb) -> None:
    for data in (folder, str(folder)):
        with pytest.raises(
            BadInput, match=r"data must be a fedskew\.Dataset.* write dataset='table:path=FOLDER,label=COLUMN'"
        ):
            verb(data=data)


def test_texts_of_a_folder_say_so_too(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text("to be or not to be, that is the question. " * 20, encoding="utf-8")
    experiment = Experiment(dataset=f"text:path={tmp_path},length=8")
    assert dealt_rows(experiment, experiment.dataset.load()).note == LINE


def test_run_compare_and_tune_train_on_the_files(folder: Path, tmp_path: Path, capsys) -> None:
    options = {"dataset": f"table:path={folder},label=sick", "rounds": 1, "model": "softmax", "runs": tmp_path / "runs"}
    made = fs.run(**options)
    compared = fs.compare(["fedavg", "fedprox"], seeds=2, **options)
    fs.tune(["fedavg"], grid={"lr": [0.1]}, tuning_seeds=[9], **options)
    err = " ".join(capsys.readouterr().err.split())
    assert err.count(f"partition: {LINE}") == 3
    for record in fs.open(tmp_path / "runs").runs().records:
        assert record.facts["partition"]["clients"] == 3
    assert LINE in remarks(made.records)
    assert remarks(compared.records).count(LINE) == 1


def test_the_command_line_says_it_in_one_line(folder: Path, tmp_path: Path, capsys) -> None:
    words = [
        "--dataset",
        f"table:path={folder},label=sick",
        "--rounds",
        "1",
        "--model",
        "softmax",
        "--runs",
        str(tmp_path / "r"),
    ]
    code, _, err = call(capsys, "run", *words)
    assert (code, f"partition: {LINE}" in " ".join(err.split())) == (0, True)
    code, _, err = call(capsys, "run", *words, "--skew", "iid")
    assert (code, f"partition: iid {ANEW}" in " ".join(err.split())) == (0, True)
    code, _, err = call(capsys, "run", *words, "--clients", "5")
    assert (code, "has natural clients; leave the number out, or add the skew" in " ".join(err.split())) == (2, True)
