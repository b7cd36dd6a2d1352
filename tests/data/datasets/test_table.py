"""The user's own table as a data set: rows, clients, test sets and texts."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedskew as fs
from fedskew.cli.main import main
from fedskew.core.errors import BadInput
from fedskew.data.datasets.table import TableData
from fedskew.data.tables import files
from fedskew.diagnosis.subject import DiagnosisOptions, from_files
from fedskew.execution.build import assemble
from fedskew.execution.deal import client_data, dealt_rows
from fedskew.experiment.config import Experiment
from fedskew.report.answer import remarks
from fedskew.skew.values import ColumnDirichlet
from tests.commands import error_of
from tests.tables import frame, refused, write


def test_table_has_a_test_share_of_each_client(tmp_path):
    table = frame()
    data = TableData(path=str(write(table, tmp_path / "t.csv")), label="label", client="who").load()
    sizes = table["who"].value_counts().sort_index().to_numpy()
    assert np.array_equal(np.bincount(data.groups), sizes - sizes // 5)
    assert len(data.y_test) == (sizes // 5).sum()
    assert data.classes == ("maybe", "no", "yes")
    assert data.x.shape[1] == data.x_test.shape[1] == 5
    experiment = Experiment(skew="natural", clients={"held_out": 0.1})
    assert client_data(experiment, data).partition.names == ("anna", "ben", "cleo", "dan", "eve")
    rare = dataclasses.replace(data, groups=np.where(data.groups == 1, 3, data.groups))
    assert client_data(experiment, rare).partition.names == ("anna", "cleo", "dan", "eve")
    with pytest.raises(BadInput, match="not below 4, the number of their names"):
        dataclasses.replace(data, group_names=data.group_names[:4])


def test_the_rows_of_a_file_are_read_once_for_all_splits_until_it_changes(tmp_path, monkeypatch):
    path, reads = tmp_path / "rows.csv", []
    write(frame(200), path)
    surveyed = TableData.surveyed
    monkeypatch.setattr(TableData, "surveyed", lambda *args, **options: reads.append(1) or surveyed(*args, **options))
    sources = [TableData(path=str(path), label="label", split_seed=seed) for seed in (0, 1)]
    first, second = (source.load() for source in sources)
    assert len(reads) == 1
    assert first.fingerprint() != second.fingerprint()
    monkeypatch.setattr("fedskew.data.datasets.table.MOST_KEPT", 0)
    assert sources[1].load().fingerprint() == second.fingerprint(), "as when it is read anew"
    monkeypatch.undo()
    write(frame(240), path)
    assert len(sources[0].load().y) == 192
    (tmp_path / "rows.columns.toml").write_text('[rename]\nage = "years"\n')
    assert "years" in " ".join(sources[0].load().columns)


def test_test_file_may_have_classes_that_no_client_has(tmp_path):
    train, test = frame(), frame(60, seed=1).astype({"label": object})
    test.loc[:3, "label"] = "never seen"
    data = TableData(
        path=str(write(train, tmp_path / "t.csv")),
        label="label",
        client="who",
        test=str(write(test.drop(columns="who"), tmp_path / "u.csv")),
    ).load()
    assert data.classes == ("maybe", "no", "yes", "never seen")
    assert np.bincount(data.y_test, minlength=4)[3] == 4
    assert len(data.y) == 400
    assert "1 classes with 4 rows are in the test set only: never seen" in data.notes


def test_one_class_is_refused_and_one_client_is_not(tmp_path):
    path = str(write(frame().assign(label="no"), tmp_path / "t.csv"))
    with pytest.raises(BadInput, match="all rows have the label 'no'"):
        TableData(path=path, label="label", client="who").load()
    write(frame().assign(who="anna"), tmp_path / "t.csv")
    alone = client_data(Experiment(skew="natural"), TableData(path=path, label="label", client="who").load())
    assert alone.partition.names == ("anna",)


def test_run_on_a_table_shows_dropped_rows(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    table = frame().astype({"label": object})
    table.loc[:4, "label"] = None
    write(table, tmp_path / "t.csv")
    arguments = ["--dataset", "table:path=t.csv,label=label,client=who", "--skew", "natural", "--rounds", "1", "--json"]
    assert main(["run", *arguments, "--engine", "sequential"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["methods"][0]["finished"] == 1
    assert "data: 5 of 400 rows dropped: no value in 'label'" in " ".join(printed.err.split())


def test_table_that_does_not_fit_is_refused_with_a_number_of_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("fedskew.data.tables.survey.MOST_BYTES", 30_000)
    monkeypatch.setattr(files, "BLOCK", 4000)
    path = write(frame(5000), tmp_path / "t.csv")
    with pytest.raises(BadInput, match=r"loaded into memory; take some of them, rows=[1-9]00, chosen at random"):
        TableData(path=str(path), label="label", client="who").load()
    data = TableData(path=str(path), label="label", client="who", rows=500).load()
    assert len(data.y) + len(data.y_test) == 500
    assert "500 of 5000 rows taken at random" in data.notes
    # the same five clients, with about a fifth each: the sample is of rows, not of clients
    assert np.bincount(data.groups).min() > 50
    rows = from_files(DiagnosisOptions(paths=[path], label="label", client="who"))
    advised = re.search(r",rows=([1-9]00) ", rows.source.arguments)
    assert advised
    assert int(advised[1]) * 5000 >= rows.counts.sum() * 400


# texts


def reviews(path, rows=120, **changes):
    """Return good and bad reviews of three shops. A tenth of the reviews has no words."""
    rng = np.random.default_rng(0)
    good = rng.random(rows) < 0.5
    said = np.where(good, "great works again", "poor broke at once")
    table = pd.DataFrame(
        {
            "shop": [f"shop {i % 3}" for i in range(rows)],
            "stars": np.where(good, "good", "bad"),
            "review": [" " if i % 10 == 9 else f"{text} {i}" for i, text in enumerate(said)],
            "price": rng.normal(size=rows),
        }
    )
    return write(table.assign(**changes), path)


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.jsonl"])
def test_text_column_gives_the_rows(tmp_path, name):
    path = reviews(tmp_path / name)
    data = TableData(path=str(path), label="stars", client="shop", text="review", length=3).load()
    assert (data.classes, data.group_names, data.shape) == (("bad", "good"), ("shop 0", "shop 1", "shop 2"), (3,))
    assert data.notes == "12 of 120 rows dropped: no value in 'review'"
    assert (len(data.y), len(data.y_test)) == (108 - 3 * 7, 3 * 7)
    for texts, x, y in ((data.texts[0], data.x, data.y), (data.texts[1], data.x_test, data.y_test)):
        assert [text.split()[0] for text in texts] == ["great" if label else "poor" for label in y]
        assert len({tuple(row) for row in x}) == 2
    few = TableData(path=str(path), label="stars", text="review", vocabulary=4).load()
    assert set(few.x.ravel()) == {0, 1, 2, 3}


def test_texts_have_a_model_of_texts_by_default(tmp_path):
    path = reviews(tmp_path / "t.csv")
    assert type(Experiment(dataset=f"table:path={path},label=stars,text=review").model).__name__ == "TextCnn"
    assert Experiment(dataset=f"table:path={path},label=stars").model == Experiment().model


def test_models_of_numbers_refuse_word_ids(tmp_path):
    path = reviews(tmp_path / "t.csv")
    words = Experiment(dataset=f"table:path={path},label=stars,text=review", skew="iid", model="mlp:hidden=[8]")
    with pytest.raises(
        BadInput, match=r"^model mlp:hidden=\[8\]: would treat the word ids of t.csv as measurements; use text-cnn"
    ):
        assemble(words, words.dataset.load())


def test_test_file_of_texts_needs_no_other_columns(tmp_path):
    train, test = reviews(tmp_path / "t.csv"), tmp_path / "test.csv"
    test.write_text("review,stars\ngreat,good\n,good\nodd,strange\n")
    data = TableData(path=str(train), label="stars", text="review", test=str(test)).load()
    assert data.texts[1] == ("great", "odd")
    assert [data.classes[c] for c in data.y_test] == ["good", "strange"]
    assert "1 classes with 1 rows are in the test set only: strange; test: 1 of 3 rows dropped" in data.notes


def test_bad_text_options_give_one_line_errors(tmp_path):
    path = reviews(tmp_path / "t.csv", review=" ")
    with pytest.raises(BadInput, match="no column 'reviw'; did you mean 'review'"):
        TableData(path=str(path), label="stars", text="reviw").load()
    words = "no row has both a label ('stars') and a client, and 'review'"
    refused(path, words, label="stars", client="", text="review", fair=False)


def test_inputs_of_a_table_have_names_and_a_skew_deals_by_them(tmp_path):
    rows = [f"{20 + i % 7},{'mf'[i % 2]},{i if i % 5 else ''},{i % 3}" for i in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["age,sex,dose,out", *rows]) + "\n")
    data = TableData(path=str(tmp_path / "t.csv"), label="out").load()
    assert data.columns == ("age", "sex = f", "sex = m", "dose", "dose is missing")
    held = ColumnDirichlet(column="sex").values(data)
    assert np.array_equal(held, data.x[:, 2])
    assert len(np.unique(ColumnDirichlet(column="age").values(data))) == 7


def test_a_label_of_many_numbers_is_noted(tmp_path):
    (tmp_path / "t.csv").write_text("\n".join(["size,days", *(f"{i % 9},{i % 30}" for i in range(90))]) + "\n")
    notes = TableData(path=str(tmp_path / "t.csv"), label="days").load().notes
    assert "'days' has 30 different numbers, and each one is a class of its own" in notes
    assert "different numbers" not in TableData(path=str(tmp_path / "t.csv"), label="size").load().notes


def test_a_class_that_is_a_number_has_the_same_name_whatever_other_rows_hold(tmp_path):
    path = tmp_path / "t.parquet"
    for extra in ([], [0.5], [2.0**60], [float("nan")], [None]):
        y = [1e10] * 30 + [-2.0] * 30 + extra
        pd.DataFrame({"y": pd.array(y, dtype="Float64"), "x": range(len(y))}).to_parquet(path)
        assert {"10000000000", "-2"} <= set(TableData(path=str(path), label="y").surveyed().classes)


def table(folder: Path, died: str = "1") -> Path:
    """Write a table of four sites. Every third row is an event. ``died`` is the cell of the last row."""
    lines = [f"{i + 1},{int(i % 3 == 0)},{20 + 7 * i % 50},s{i % 4}" for i in range(39)]
    path = folder / "people.csv"
    path.write_text("\n".join(["days,died,age,site", *lines, f"40,{died},43,s3"]))
    return path


def test_a_table_of_times_and_events(tmp_path: Path) -> None:
    spec = f"table:path={table(tmp_path)},time=days,event=died,client=site"
    data = TableData(path=str(table(tmp_path)), time="days", event="died", client="site").load()
    y = np.concatenate([data.y, data.y_test])
    assert y[np.argsort(y[:, 0])].tolist() == [[i + 1, float(i % 3 == 0)] for i in range(40)]
    assert (data.x.shape, data.x_test.shape, data.target) == ((32, 1), (8, 1), "survival")
    assert type(Experiment(dataset=spec).task).__name__ == "Survival"


def test_an_event_in_words_is_refused(tmp_path: Path) -> None:
    path = table(tmp_path, died="dead")
    with pytest.raises(BadInput, match="holds words, such as 'dead'; write 1 for an event and 0 for none"):
        TableData(path=str(path), time="days", event="died", client="site").load()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time": "days"}, "time=COLUMN and event=COLUMN belong together"),
        ({"time": "days", "event": "died", "label": "age"}, "needs one of label=COLUMN for classes"),
        ({"time": "days", "event": "nothing"}, "no column 'nothing'"),
    ],
)
def test_bad_options_give_one_line(tmp_path: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        TableData(path=str(table(tmp_path)), client="site", **options).load()


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    rows = [
        f"{a:.3f},{int(a > 0)},{int(b > 0)},{k % 3},{a - b:.3f}" for k, (a, b) in enumerate(rng.normal(size=(60, 2)))
    ]
    path = tmp_path / "scans.csv"
    path.write_text("\n".join(["size,fracture,nodule,hospital,age", *rows]))
    return path


def test_label_columns_are_the_targets_and_no_input(scans: Path) -> None:
    experiment = Experiment(dataset=f"table:path={scans},labels=fracture|nodule,client=hospital")
    data = experiment.dataset.load()
    assert experiment.task.target == data.target == "labels"
    assert (data.classes, data.shape, data.group_names) == (("fracture", "nodule"), (2,), ("0", "1", "2"))
    assert (data.y.shape, data.y_test.shape) == ((48, 2), (12, 2))
    # size is standardised; its order still shows the fracture
    both = np.concatenate([data.x[:, 0], data.x_test[:, 0]]), np.concatenate([data.y[:, 0], data.y_test[:, 0]])
    assert both[0][both[1] == 1].min() > both[0][both[1] == 0].max()


def test_a_test_file_has_the_same_labels(scans: Path) -> None:
    data = Experiment(dataset=f"table:path={scans},labels=fracture|nodule,test={scans}").dataset.load()
    assert np.array_equal(data.y, data.y_test)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("labels=fracture", "write label=fracture"),
        ("labels=fracture|fracture", "two or more different columns"),
        ("labels=fracture|nodule,label=age", "needs one of label=COLUMN for classes"),
        ("labels=fracture|age", "column 'age' is a label and must hold 0 or 1, 60 rows do not"),
        ("labels=fracture|nodul", "no column 'nodul'; did you mean 'nodule'"),
    ],
)
def test_bad_label_columns_give_one_line_errors(scans: Path, options: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Experiment(dataset=f"table:path={scans},{options}").dataset.load()


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


def test_a_folder_in_place_of_arrays_says_how_to_name_it(folder: Path) -> None:
    for data in (folder, str(folder)):
        with pytest.raises(
            BadInput, match=r"data must be a fedskew\.Dataset.* write dataset='table:path=FOLDER,label=COLUMN'"
        ):
            fs.run(data=data)


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


def test_a_number_of_clients_for_files_is_refused(folder: Path) -> None:
    error = error_of("run", "--dataset", f"table:path={folder},label=sick", "--clients", 5)
    assert "has natural clients; leave the number out, or add the skew" in " ".join(error.split())


# a test file for each client


def test_a_folder_may_have_a_test_file_for_each_client(folder: Path) -> None:
    test = folder.parent / "test"
    test.mkdir()
    for number, name in enumerate(("north", "west", "new"), start=1):
        rows = "x,sick\n" + f"{number},0\n{number},1\n" * number
        (folder / f"{name}.test.csv").write_text(rows)
        (test / f"{name}.csv").write_text(rows)
    beside = TableData(path=str(folder), label="sick")
    assert (beside.test, beside.redraw) == (str(folder), False)
    datasets = [beside.load()]
    for path in folder.glob("*.test.csv"):
        path.unlink()
    datasets.append(TableData(path=str(folder), label="sick", test=str(test)).load())
    for data in datasets:
        assert data.group_names == ("north", "south", "west")
        assert np.bincount(data.groups).tolist() == [40, 60, 80], "all rows are trained on"
        owner = {1: 0, 2: 2, 3: -1}
        x = data.preprocessing.columns[0].decode(data.x_test[:, :1]).round(3)
        assert data.groups_test.tolist() == [owner[round(value)] for value in x]
        assert sorted(x.tolist()) == [1] * 2 + [2] * 4 + [3] * 6
    assert datasets[0].fingerprint() == datasets[1].fingerprint()


def test_a_test_file_beside_a_client_is_no_client_and_reads_its_toml_file(folder: Path) -> None:
    (folder / "north.test.csv").write_text("weight,sick\n2000,0\n4000,1\n")
    (folder / "north.csv").write_text((folder / "north.csv").read_text().replace("x,sick", "weight,sick"))
    (folder / "north.columns.toml").write_text('[rename]\nweight = "x"\n[units]\nx = 0.001')
    data = TableData(path=str(folder), label="sick").load()
    assert data.preprocessing.columns[0].decode(data.x_test[:, :1]).round(3).tolist() == [2, 4]
    assert fs.diagnose(folder, label="sick", progress=False)["client_names"] == ["north", "south", "west"]
    experiment = Experiment(dataset=f"table:path={folder},label=sick", held_out=0)
    assert dealt_rows(experiment, experiment.dataset.load()).names == ("north", "south", "west")
    with pytest.raises(BadInput, match="gives the test rows, so there are no folds"):
        TableData(path=str(folder), label="sick", fold="1/2")
