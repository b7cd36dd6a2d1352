"""Columns that are left out, dates in a format of the user's, and the user's own grouping into clients: all verbs read the same."""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedskew as fs
from fedskew.core.errors import BadInput
from fedskew.data.datasets.table import TableData
from fedskew.diagnosis.diagnose import sites_of_files
from fedskew.diagnosis.subject import DiagnosisOptions, from_files
from fedskew.experiment.config import Experiment
from fedskew.flower.tables import check_table, summary_of
from tests.tables import survey

ROWS = 60


def visits(seed: int = 0) -> pd.DataFrame:
    """Rows with a number, two columns that may be left out, a day, a ward of four, its hospital of two, and a label."""
    rng = np.random.default_rng(seed)
    ward = rng.choice(["a1", "a2", "b1", "b2"], ROWS)
    return pd.DataFrame(
        {
            "age": rng.normal(50, 9, ROWS).round(1),
            "ssn": rng.integers(1000, 1010, ROWS),
            "colour": rng.choice(["red", "blue"], ROWS),
            "day": pd.date_range("2021-01-01", periods=ROWS).strftime("%Y-%m-%d"),
            "ward": ward,
            "hospital": [name[0] for name in ward],
            "ill": rng.choice(["no", "yes"], ROWS),
        }
    )


def write(folder: Path, **frames: pd.DataFrame) -> Path:
    folder.mkdir(exist_ok=True)
    for name, frame in frames.items():
        frame.to_csv(folder / f"{name}.csv", index=False)
    return folder


def same(first: fs.Dataset, second: fs.Dataset) -> bool:
    return first.fingerprint() == second.fingerprint() and first.columns == second.columns


def test_dropped_columns_are_read_as_if_the_file_did_not_have_them(tmp_path):
    frame = visits()
    write(tmp_path, full=frame, part=frame.drop(columns=["ssn", "colour"]))
    columns = {"label": "ill", "client": "hospital"}
    full, part = str(tmp_path / "full.csv"), str(tmp_path / "part.csv")
    options = {"path": full, "drop": ("ssn", "colour"), **columns}
    assert same(TableData(**options).load(), TableData(path=part, **columns).load())
    assert same(fs.table(full, drop=["ssn", "colour"], **columns), fs.table(part, **columns))
    rows = [
        from_files(DiagnosisOptions(paths=[Path(path)], drop=drop, **columns))
        for path, drop in ((full, ("ssn", "colour")), (part, ()))
    ]
    assert rows[0].x.tolist() == rows[1].x.tolist()
    assert "drop=[ssn,colour]" in rows[0].source.arguments
    with_drop, without = (
        sites_of_files(DiagnosisOptions(paths=[Path(path)], drop=drop, **columns))[0]
        for path, drop in ((full, ("ssn", "colour")), (part, ()))
    )
    assert [site.table.column_names for site in with_drop.values()] == [["age", "day", "ward"]] * 2
    assert all(with_drop[name].table.equals(without[name].table) for name in "ab")


def test_a_column_that_only_one_file_has_can_be_left_out(tmp_path):
    frame = visits()
    folder = write(tmp_path, a=frame, b=frame.drop(columns="ssn"))
    with pytest.raises(BadInput, match="its columns differ"):
        survey([folder], "ill")
    assert survey([folder], "ill", drop=("ssn",)).table.column_names == [*frame.columns[[0, 2, 3, 4, 5]]]
    sites, _ = sites_of_files(DiagnosisOptions(paths=[folder], label="ill", drop="ssn"))
    assert all("ssn" not in site.table.column_names for site in sites.values())


def test_a_renamed_column_is_left_out_by_its_agreed_name(tmp_path):
    write(tmp_path, a=visits())
    (tmp_path / "a.columns.toml").write_text('[rename]\nssn = "number"')
    assert "number" not in survey([tmp_path / "a.csv"], "ill", "ward", drop=("number",)).table.column_names


@pytest.mark.parametrize("drop", ["snn", ["colour", "snn"]])
def test_a_column_to_drop_that_no_file_has_is_one_line(tmp_path, drop):
    path = write(tmp_path, a=visits()) / "a.csv"
    for call in (
        lambda: fs.table(path, label="ill", client="ward", drop=drop),
        lambda: fs.diagnose(path, label="ill", client="ward", drop=drop, progress=False),
        lambda: fs.diagnose(path, label="ill", client="ward", drop=drop, federated=True, progress=False),
    ):
        with pytest.raises(BadInput, match=r"^[^\n]*drop: no column 'snn'; did you mean 'ssn'\?$"):
            call()


LABEL = {"label": "y"}
SURVIVAL = {"time": "t", "event": "e"}


@pytest.mark.parametrize(
    ("target", "role", "other"),
    [
        *((LABEL, *pair) for pair in combinations(["label", "client", "person", "text", "drop"], 2)),
        *((SURVIVAL, *pair) for pair in combinations(["time", "event", "client"], 2)),
    ],
)
def test_a_column_has_one_role(tmp_path, target, role, other):
    options = target | dict.fromkeys((role, other), "a")
    words = f"column 'a' cannot be both the {role} and the {other.replace('drop', 'column to drop')}; leave out one"
    with pytest.raises(BadInput, match=words):
        TableData(path="t.csv", **options)
    if target is LABEL and "text" not in options:
        with pytest.raises(BadInput, match=words):
            DiagnosisOptions(paths=[tmp_path], **options)


def test_drop_is_for_files():
    with pytest.raises(BadInput, match="client_from, person and drop are for files"):
        DiagnosisOptions(dataset="digits", drop="age")


def test_defaults_are_not_in_the_toml_and_others_come_back():
    plain = Experiment(dataset="table:path=t.csv,label=ill")
    assert not {"drop", "client_from", "person"} & {*plain.table()["dataset"]}
    for options in ("drop=ssn", "drop=[ssn,colour]", "client_from=ward:wards.csv"):
        experiment = Experiment(dataset=f"table:path=t.csv,label=ill,{options}")
        assert fs.from_toml(experiment.toml()) == experiment
        assert Experiment(dataset=experiment.labels("dataset")[0]) == experiment


def test_neither_a_node_nor_the_server_sends_or_takes_a_dropped_column(tmp_path):
    path = str(write(tmp_path, a=visits()) / "a.csv")
    for of_node, of_server in (("ssn", None), (None, "ssn"), ("ssn", "ssn")):
        experiment = Experiment(dataset={"name": "table", "path": path, "label": "ill", "drop": of_server})
        sent = summary_of(TableData(path=path, label="ill", drop=of_node), experiment, 1)[1]
        assert b"ssn" not in sent
        assert b"colour" in sent


@pytest.mark.parametrize("form", ["%d/%m/%Y", "%m/%d/%Y", "%d.%m.%y", "%Y%m%d", "%d %B %Y", "on %Y-%m-%d at %H:%M"])
def test_dates_of_a_format_are_read_as_plain_dates(tmp_path, form):
    frame = visits()
    frame.day = pd.to_datetime(frame.day)
    write(tmp_path, iso=frame, own=frame.assign(day=frame.day.dt.strftime(form)))
    (tmp_path / "own.columns.toml").write_text(f'[dates]\nday = "{form}"')
    datasets = [
        TableData(path=str(tmp_path / f"{name}.csv"), label="ill", client="ward").load() for name in ("iso", "own")
    ]
    assert same(*datasets)
    frame.assign(day=frame.day.dt.strftime(form)).to_json(tmp_path / "own.jsonl", orient="records", lines=True)
    assert same(datasets[0], TableData(path=str(tmp_path / "own.jsonl"), label="ill", client="ward").load())


def test_gaps_between_dates_stay_gaps(tmp_path):
    (tmp_path / "t.csv").write_text("day,ill\n" + "02/01/2021,no\n,yes\nunknown,yes\n" * 9)
    (tmp_path / "t.columns.toml").write_text('[dates]\nday = "%d/%m/%Y"')
    days = survey([tmp_path / "t.csv"], "ill", fair=False).table["day"].to_pylist()
    assert days == [pd.Timestamp("2021-01-02"), None, None] * 9


WARDS = "value,client\na1,north\na2,north\nb1,south\nb2,south\n"


def test_a_file_of_clients_groups_the_values_of_a_column(tmp_path):
    frame = visits()
    north = frame.ward.str[0].map({"a": "north", "b": "south"})
    write(tmp_path, wards=frame, mapped=frame.assign(ward=north))
    (tmp_path / "map.csv").write_text(WARDS)
    grouped = TableData(path=str(tmp_path / "wards.csv"), label="ill", client_from=f"ward:{tmp_path}/map.csv")
    data = grouped.load()
    assert data.group_names == ("north", "south")
    assert same(data, TableData(path=str(tmp_path / "mapped.csv"), label="ill", client="ward").load())
    assert Experiment(dataset=grouped).labels("skew") == ["natural"]
    asked = [
        fs.diagnose(tmp_path / f"{name}.csv", label="ill", progress=False, **columns)
        for name, columns in (("wards", {"client_from": f"ward:{tmp_path}/map.csv"}), ("mapped", {"client": "ward"}))
    ]
    assert asked[0]["faces"] == asked[1]["faces"]
    assert f"client_from=ward:{tmp_path}/map.csv" in asked[0]["advice"]["command"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            "value,client\na1,north\na2,north\nb1,south\n",
            r"map.csv: no line for ['b2'], which column 'ward' of a.csv holds; add one",
        ),
        (WARDS + "a1,south\n", "map.csv: 'a1' has two clients, 'north' and 'south'; leave one of them"),
        ("ward,client\na1,north\n", "map.csv: no column 'value'"),
        (WARDS + "c1,\n", "map.csv: a line lacks its value or its client"),
        ("", "map.csv: no line for ['"),
    ],
)
def test_a_wrong_file_of_clients_is_one_line(tmp_path, content, words):
    path = write(tmp_path, a=visits()) / "a.csv"
    (tmp_path / "map.csv").write_text(content)
    with pytest.raises(BadInput, match=re.escape(words)):
        TableData(path=str(path), label="ill", client_from=f"ward:{tmp_path}/map.csv").load()


def test_client_from_names_a_column_and_a_file(tmp_path):
    with pytest.raises(
        BadInput, match=r"client_from must be COLUMN:FILE\.csv, a file with the columns value and client"
    ):
        TableData(path="t.csv", label="ill", client_from="ward")
    with pytest.raises(BadInput, match="client and client_from both name the clients; leave out one"):
        TableData(path="t.csv", label="ill", client="ward", client_from="ward:map.csv")
    with pytest.raises(BadInput, match="'ill' cannot be both the label and the client"):
        DiagnosisOptions(paths=[tmp_path], label="ill", client_from="ill:map.csv")
    with pytest.raises(BadInput, match="--table: leave out client_from"):
        check_table(TableData(path="t.csv", label="ill", client_from="ward:map.csv"))


def test_a_column_that_names_the_client_is_an_input_with_a_note(tmp_path):
    """A table of all clients, a file of each, and sites that do not pool rows: one note, and none on other columns."""
    parts = {name: rows.drop(columns=["ward", "ssn"]) for name, rows in visits().groupby("hospital")}
    named = {name: rows.assign(town=f"town of {name}", code=ord(name)) for name, rows in parts.items()}
    together, apart = write(tmp_path / "one", all=pd.concat(named.values())), write(tmp_path / "two", **named)
    notes = [
        TableData(path=str(together / "all.csv"), label="ill", client="hospital").load().notes,
        TableData(path=str(apart), label="ill", drop="hospital").load().notes,
        "; ".join(fs.diagnose(apart, label="ill", drop="hospital", federated=True, progress=False)["column_notes"]),
    ]
    for of_rows in notes:
        said = re.findall(r"column '(\w+)': an input, though each client has one value of its own", of_rows)
        assert sorted(said) == ["code", "town"]
    assert "drop=town" in notes[0]
