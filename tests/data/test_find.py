"""The folders in which data files are searched, and the error if they are missing."""

import pytest

from fedskew.core.errors import BadInput
from fedskew.data.datasets.uci_har import UciHar
from fedskew.data.find import VARIABLE, Files, folders

FILE = UciHar.files.others[-1][0]


def one_line(error: pytest.ExceptionInfo[BadInput], *words: str) -> None:
    """Check that the error is one line and contains all these words."""
    text = str(error.value)
    for word in words:
        assert word in text


def test_missing_file_is_one_line_with_the_places_and_what_to_do(folder, monkeypatch):
    with pytest.raises(BadInput) as error:
        UciHar().load()
    places = [str(place) for place in folders()]
    assert places[0] == str(folder)
    assert len(places) == 2
    one_line(error, "uci-har", FILE, *places, "FEDSKEW_DATA", "Human Activity Recognition", "X_train")
    assert "not set" not in str(error.value)
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(BadInput) as error:
        UciHar().load()
    one_line(error, places[1], "FEDSKEW_DATA is not set")
    assert places[0] not in str(error.value)


def test_named_folder_comes_before_the_cache(folder):
    cache = folders()[1]
    cache.mkdir(parents=True)
    files = Files(dataset="a", licence="", classes=2, others=(("a.npz",), ("b.npz", "c.npz")), common=("c.npz",))
    (cache / "a.npz").write_text("cache")
    assert files.paths() == [cache / "a.npz"]
    (folder / "a.npz").write_text("named")
    assert files.paths() == [folder / "a.npz"]
    (folder / "a").mkdir()
    (folder / "a" / "a.npz").write_text("in a folder of its own")
    assert files.paths() == [folder / "a" / "a.npz"]


def test_set_of_files_counts_when_it_is_whole(folder):
    files = Files(dataset="a", licence="", classes=2, others=(("b.npz", "c.npz"),), common=("c.npz",))
    (folder / "b.npz").mkdir()
    assert files.here() == []
    (folder / "b.npz").rmdir()
    (folder / "b.npz").write_text("b")
    (folder / "c.npz").write_text("some other data set's")
    with pytest.raises(BadInput) as error:
        files.paths()
    one_line(error, "data set a: no file b.npz in", "fedskew data get a")
    (folder / "a").mkdir()
    (folder / "a" / "c.npz").write_text("c")
    assert files.paths() == [folder / "b.npz", folder / "a" / "c.npz"]


def test_tilde_is_the_home_folder(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.setenv(VARIABLE, "~/data")
    assert folders()[0] == folder
