"""The natural client of each test row: in data sets, in tables, and among the clients that train."""

from pathlib import Path

import numpy as np
import pytest

from fedskew.core.errors import BadInput
from fedskew.data.dataset import Dataset
from fedskew.data.datasets.table import TableData
from fedskew.execution.deal import client_data
from fedskew.experiment.config import Experiment
from tests.data.test_dataset import valid
from tests.real import loaded
from tests.tables import frame, write


def test_the_fingerprint_does_not_depend_on_groups_test():
    assert Dataset(**valid(groups_test=[3, -1])).fingerprint() == Dataset(**valid()).fingerprint()


def test_words_become_the_numbers_of_the_training_clients():
    data = Dataset(**valid(groups=list("vuuvu"), groups_test=["w", "v"]))
    assert (data.groups_test.tolist(), data.group_names) == ([-1, 1], ("u", "v"))


def test_whole_numbers_with_a_point_are_the_same_ids():
    data = Dataset(**valid(groups=[1.0, 1.0, 2.0, 2.0, 3.0], groups_test=[3, 7]))
    assert (data.groups.tolist(), data.groups_test.tolist(), data.group_names) == ([1, 1, 2, 2, 3], [3, 7], ())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"groups_test": [1]}, r"the test rows' client ids \(groups_test\) must have one entry a test row"),
        ({"groups_test": [1, 2], "groups": None}, "groups_test needs groups"),
        ({"groups_test": ["a", "b"]}, "groups_test must hold integers, as groups does"),
        ({"groups_test": [1, 9], "group_names": list("abcd")}, r"\(groups_test\) are not below 4"),
        ({"groups_test": ["a", None]}, r"1 rows have no client \(groups_test\), such as row 1"),
    ],
)
def test_ids_that_do_not_fit_get_one_line(changes, says):
    with pytest.raises(BadInput, match=rf"^mine: .*{says}[^\n]*$"):
        Dataset(**valid(**changes))


def names_of(data: Dataset) -> list[str]:
    return [data.group_names[group] if group >= 0 else "-" for group in data.groups_test]


def test_test_rows_of_a_table_keep_their_client(tmp_path: Path):
    table = frame()
    path = str(write(table, tmp_path / "t.csv"))
    drawn = TableData(path=path, label="label", client="who").load()
    tested = table["who"].value_counts().sort_index() // 5
    assert np.bincount(drawn.groups_test).tolist() == tested.tolist()
    assert TableData(path=path, label="label").load().groups_test is None


def test_a_test_file_names_clients_as_the_rows_do(tmp_path: Path):
    # as 01 would become 1 if the column were read as numbers
    table, test = frame(), frame(40, seed=1)
    number = {"anna": "01", "ben": "02", "cleo": "1", "dan": "2", "eve": "x"}
    path = str(write(table.assign(who=table["who"].map(number)), tmp_path / "t.csv"))
    options = {"path": path, "label": "label", "client": "who", "test": str(tmp_path / "u.csv")}
    write(test.drop(columns="who"), tmp_path / "u.csv")
    unknown = TableData(**options).load()
    assert unknown.groups_test is None
    known = test["who"].map(number).where(test["who"] != "eve", "elsewhere").where(test["who"] != "dan")
    write(test.assign(who=known), tmp_path / "u.csv")
    data = TableData(**options).load()
    assert names_of(data) == known.where(~known.isin(["elsewhere"])).fillna("-").tolist()
    assert data.fingerprint() == unknown.fingerprint()
    write(test.assign(who="elsewhere"), tmp_path / "u.csv")
    assert TableData(**options).load().groups_test is None


def test_a_test_file_has_the_values_that_a_file_groups_into_clients(tmp_path: Path):
    groups = {"anna": "north", "ben": "north", "cleo": "south", "dan": "south", "eve": "south"}
    (tmp_path / "map.csv").write_text("value,client\n" + "".join(f"{a},{b}\n" for a, b in groups.items()))
    path, test = write(frame(), tmp_path / "t.csv"), frame(40, seed=1)
    write(test.assign(who=test["who"].replace("eve", "new")), tmp_path / "u.csv")
    options = {"label": "label", "client_from": f"who:{tmp_path}/map.csv", "test": str(tmp_path / "u.csv")}
    data = TableData(path=str(path), **options).load()
    assert names_of(data) == test["who"].replace("eve", "new").map(groups).fillna("-").tolist()


def test_files_of_a_test_folder_are_the_clients_of_their_names(tmp_path: Path):
    for part, names in (("train", "abc"), ("test", "cbd")):
        (tmp_path / part).mkdir()
        for at, name in enumerate(names):
            write(frame(20 + at, seed=at).drop(columns="who"), tmp_path / part / f"{name}.csv")
    options = {"path": str(tmp_path / "train"), "label": "label"}
    data = TableData(**options, test=str(tmp_path / "test")).load()
    assert sorted(names_of(data)) == sorted("b" * 21 + "c" * 20 + "-" * 22)
    one = TableData(**options, test=str(tmp_path / "test" / "d.csv")).load()
    assert one.groups_test is None, "its name is no client's"


def test_test_rows_of_other_clients_are_noted(tmp_path: Path):
    """They were in the test accuracy, but in no table by site, and nothing said so."""
    rows = frame(40)
    write(rows, tmp_path / "train.csv")
    options = {"path": str(tmp_path / "train.csv"), "label": "label", "test": str(tmp_path / "test.csv")}
    for who, says in (
        ("zoe", "no test row is of a client that trains"),
        (
            ["zoe", "anna"] * 20,
            "20 of 40 test rows are of clients that do not train, such as 'zoe'; they are at no site",
        ),
        ("anna", ""),
    ):
        write(frame(40, 1).assign(who=who), tmp_path / "test.csv")
        notes = TableData(**options, client="who").load().notes
        assert says in notes
        assert ("test row" in notes) == bool(says)
    assert "client" not in TableData(**options, drop="who").load().notes


@pytest.mark.parametrize(
    "name", ["heart", "adult", "parkinsons", "shakespeare", "tcga-brca", "bitext-support", "synthetic"]
)
def test_loaders_know_the_clients_of_test_rows(name):
    data = loaded(name)
    assert len(data.groups_test) == len(data.y_test)
    assert set(data.groups_test) <= {-1, *data.groups}
    assert loaded("uci-har").groups_test is None, "nine other people are tested"


def test_a_hospital_of_heart_has_a_third_of_its_people_tested():
    data = loaded("heart")
    assert data.fingerprint() == "ca4cf2f41358fb25", "stored runs have it"
    assert np.abs(np.bincount(data.groups_test) - np.bincount(data.groups) / 2).max() <= 1


def natural(dataset: str = "heart", skew: object = "natural", **settings) -> Experiment:
    return Experiment(dataset=dataset, skew=skew, **settings)


def test_owners_are_numbers_of_the_clients_that_train():
    data = loaded("heart")
    assert client_data(natural(), data).test_owner.tolist() == data.groups_test.tolist()
    folded = natural("heart:fold=2/4:clients")
    assert set(client_data(folded, folded.dataset.load()).test_owner) == {-1}, "the tested hospital does not train"


def test_unseen_clients_own_no_test_row():
    data, experiment = loaded("heart"), natural(clients={"unseen": 0.5})
    dealt = client_data(experiment, data)
    seen = [
        data.group_names[group] if data.group_names[group] in dealt.sites.names else "-" for group in data.groups_test
    ]
    assert [dealt.sites.names[k] if k >= 0 else "-" for k in dealt.test_owner] == seen
    assert len(dealt.sites) == 2


def test_pooled_rows_keep_their_sites():
    dealt = client_data(natural(skew=["natural", "pooled"]), loaded("heart"))
    assert len(dealt.partition) == 1
    assert dealt.test_owner.tolist() == loaded("heart").groups_test.tolist()
    assert len(dealt.sites) == 4


@pytest.mark.parametrize("skew", ["iid", ["natural", "feature-noise"], ["natural", "concept-swap"]])
def test_other_clients_have_no_test_rows_of_their_own(skew):
    assert client_data(natural(skew=skew), loaded("heart")).test_owner is None
