"""Folders in LEAF's format: users are the clients, of training rows and of test rows."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedskew as fs
from fedskew.core.errors import BadInput
from fedskew.data.datasets.leaf import LeafFolder
from fedskew.experiment.config import Experiment

Users = dict[str, tuple[list[Any], list[Any]]]


def write(path: Path, users: Users) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {name: {"x": x, "y": y} for name, (x, y) in users.items()}
    path.write_text(
        json.dumps({"users": [*users], "num_samples": [len(y) for _, y in users.values()], "user_data": data})
    )


def folder(place: Path, labels: tuple[Any, Any, Any] = (0, 1, 7)) -> Path:
    """Three users with two, one and two training rows, in two files; test rows of two users, one of them without training rows."""
    a, b, c = labels
    write(place / "train" / "0.json", {"u2": ([[0, 1], [2, 3]], [a, b]), "u1": ([[4, 5]], [c])})
    write(place / "train" / "1.json", {"u3": ([[6, 7], [8, 9]], [a, c])})
    write(place / "test" / "0.json", {"u1": ([[10, 11]], [b]), "u9": ([[12, 13], [14, 15]], [a, c])})
    return place


def test_rows_labels_and_users_of_both_parts_are_leafs(tmp_path):
    data = LeafFolder(path=str(folder(tmp_path))).load()
    assert data.x.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert data.x_test.tolist() == [[10, 11], [12, 13], [14, 15]]
    assert data.classes == ("0", "1", "7")
    assert (data.y.tolist(), data.y_test.tolist()) == ([0, 1, 2, 0, 2], [1, 0, 2])
    assert data.group_names == ("u1", "u2", "u3")
    assert data.groups.tolist() == [1, 1, 0, 2, 2]
    assert data.groups_test.tolist() == [0, -1, -1]


@pytest.mark.parametrize(
    ("labels", "target", "classes"),
    [
        (("b", "a", "c"), "classes", ("a", "b", "c")),
        ((10.0, 2.0, 7.0), "classes", ("2", "7", "10")),
        ((0.5, 1, 2.5), "number", ()),
    ],
)
def test_words_are_classes_and_fractions_are_targets_to_predict(tmp_path, labels, target, classes):
    data = LeafFolder(path=str(folder(tmp_path, labels))).load()
    assert (data.target, data.classes) == (target, classes)
    first = [classes.index(str(label).removesuffix(".0")) for label in labels] if classes else [*labels]
    assert data.y[:3].tolist() == first


def test_rows_may_have_a_shape_and_a_run_has_the_users_as_clients(tmp_path):
    spec = f"leaf:{folder(tmp_path)},shape=[1,2]"
    assert fs.load(spec).x.shape == (5, 1, 2)
    experiment = Experiment(dataset=spec)
    assert experiment.labels("skew") == ["natural"]
    assert fs.from_toml(experiment.toml()) == experiment
    runs = fs.run(dataset=spec, rounds=1, held_out=0, runs=tmp_path / "runs", progress=False)
    assert fs.load_model(runs).predict(np.zeros((4, 1, 2)))["prediction"].isin(["0", "1", "7"]).all()


def test_texts_are_ids_of_words(tmp_path):
    write(tmp_path / "train" / "0.json", {"u1": (["good film", "bad film"], ["yes", "no"])})
    write(tmp_path / "test" / "0.json", {"u1": (["a good one"], ["yes"])})
    data = LeafFolder(path=str(tmp_path), length=3).load()
    assert (data.vocabulary, data.x.shape, data.classes) == (20_000, (2, 3), ("no", "yes"))
    assert data.texts == (("good film", "bad film"), ("a good one",))
    assert data.groups_test.tolist() == [0]


def test_shakespeare_s_windows_predict_the_character_that_follows(tmp_path):
    """Each line begins after as many spaces as a window has characters, and ends with a newline that no window holds."""

    def windows(line: str) -> tuple[list[str], list[str]]:
        text = " " * 4 + line
        return [text[i : i + 4] for i in range(len(line))], [*line]

    write(tmp_path / "train" / "0.json", {"HAMLET": windows("to be\n"), "IAGO": windows("I am\n")})
    write(tmp_path / "test" / "0.json", {"IAGO": windows("bet"), "GHOST": windows("x")})
    data = LeafFolder(path=str(tmp_path)).load()
    assert data.classes == ("newline", "space", "I", "a", "b", "e", "m", "o", "t", "x")
    assert (data.x.shape, data.target, data.group_names) == ((11, 4), "symbols", ("HAMLET", "IAGO"))
    names = np.array(data.classes)
    before = [["space"] * 4, ["space"] * 3 + ["t"], ["space"] * 2 + ["t", "o"]]
    assert names[data.x[:3]].tolist() == before
    assert (data.y[:, :-1] == -1).all()
    assert names[data.y[:, -1]].tolist() == ["t", "o", "space", "b", "e", "newline", "I", "space", "a", "m", "newline"]
    assert names[data.y_test[:, -1]].tolist() == ["b", "e", "t", "x"]
    assert (data.groups.tolist(), data.groups_test.tolist()) == ([0] * 6 + [1] * 5, [1, 1, 1, -1])
    # in training t, b, I and a follow a space, e follows b, and a newline follows e: only the e of bet is predicted
    assert data.baselines["the most frequent symbol after the present one"] == {"accuracy": 0.25}
    settings = {"rounds": 1, "held_out": 0, "model": "symbol-lstm:hidden=4", "runs": tmp_path / "runs"}
    runs = fs.run(dataset=f"leaf:{tmp_path}", **settings)
    assert fs.from_toml(runs.records[0].experiment).task.target == "symbols"


def test_texts_of_one_length_with_longer_words_as_labels_stay_texts(tmp_path):
    write(tmp_path / "train" / "0.json", {"u1": (["good", "evil"], ["+", "--"])})
    write(tmp_path / "test" / "0.json", {"u1": (["evil"], ["--"])})
    assert LeafFolder(path=str(tmp_path)).load().classes == ("+", "--")


def test_rows_of_sent140_are_their_tweets(tmp_path):
    def tweets(user: str, *texts: str) -> list[list[str]]:
        return [["1467", "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", user, text, "training"] for text in texts]

    write(
        tmp_path / "train" / "0.json",
        {"ann": (tweets("ann", "Good day!", "so bad"), [1, 0]), "bob": (tweets("bob", "ok"), [1])},
    )
    write(tmp_path / "test" / "0.json", {"bob": (tweets("bob", "bad day"), [0])})
    data = LeafFolder(path=str(tmp_path), length=2).load()
    assert data.texts == (("Good day!", "so bad", "ok"), ("bad day",))
    assert (data.classes, data.y.tolist(), data.groups.tolist()) == (("0", "1"), [1, 0, 1], [0, 0, 1])
    assert data.preprocessing.vocabulary == ("bad", "day", "good", "ok", "so")
    assert (data.x.tolist(), data.x_test.tolist()) == ([[4, 3], [6, 2], [5, 0]], [[2, 3]])


@pytest.mark.parametrize(
    ("users", "words"),
    [
        ({"u1": (["a", 1], [0, 1])}, r"cannot read .*1.json, .*: x of user u1 holds texts and other values"),
        ({"u1": ([[1, 2]], [0, 1])}, r"cannot read .*1.json, .*: user u1 has 2 labels and 1 rows"),
        ({"u1": ([[1, 2, 3]], [0])}, "/train: rows have different shapes"),
        ({"u1": ([[1, 2], [1]], [0, 1])}, r"cannot read .*1.json, .*inhomogeneous"),
        ({"u1": ([["a", "b"]], [0])}, r"cannot read .*1.json, .*could not convert string to float"),
        ({"u1": (["a"], [0])}, "/train: rows have different shapes"),
    ],
)
def test_other_rows_are_one_line(tmp_path, users, words):
    write(folder(tmp_path) / "train" / "1.json", users)
    with pytest.raises(BadInput, match=words):
        LeafFolder(path=str(tmp_path)).load()


def test_other_folders_and_shapes_are_one_line(tmp_path):
    with pytest.raises(BadInput, match="/train: no rows in JSON files here; LEAF's folders are train and test"):
        LeafFolder(path=str(tmp_path)).load()
    folder(tmp_path)
    with pytest.raises(BadInput, match="cannot reshape"):
        LeafFolder(path=str(tmp_path), shape=(3,)).load()
    (tmp_path / "test" / "0.json").write_text('{"users": ["a"]')
    with pytest.raises(BadInput, match="cannot read"):
        LeafFolder(path=str(tmp_path)).load()
    write(tmp_path / "test" / "0.json", {})
    with pytest.raises(BadInput, match="/test: no rows in JSON files here"):
        LeafFolder(path=str(tmp_path)).load()
