"""Loaders of texts and signals on small files: what they read, and one line for damaged and hostile files."""

import io
import json
import lzma
import stat
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedskew.core.errors import BadInput
from fedskew.data.datasets.labelled_texts import AgNews, BitextRetail, Newsgroups
from fedskew.data.datasets.uci_har import CHANNELS, FOLDER, UciHar
from tests.archives import tar_of
from tests.data.test_find import one_line

FILE = UciHar.files.others[-1][0]

# texts


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_ag_news_reads_the_original_form(folder):
    rows = '"3","Title, one","Text ""quoted"""\n"1","Two","Other"\n"2","a","b"\n"4","c","d"\n'
    write(folder / "ag-news" / "train.csv", rows)
    write(folder / "ag-news" / "test.csv", rows)
    data = AgNews(length=4).load()
    assert data.texts[0][0] == 'Title, one Text "quoted"'
    assert data.y.tolist() == [2, 0, 1, 3]
    assert data.notes == ""
    write(folder / "ag-news" / "test.csv", '"3","only two"\n')
    with pytest.raises(BadInput, match="its rows do not have the 3 columns"):
        AgNews().load()
    for topic in ("Sports", "5"):
        write(folder / "ag-news" / "test.csv", f'"1","a","b"\n"{topic}","a","b"\n')
        with pytest.raises(BadInput, match=f"the topic of row 2 is '{topic}', expected 1, 2, 3 or 4"):
            AgNews().load()


def test_newsgroups_from_the_archive_and_from_lines_are_the_same(folder):
    posts = [("train", "sci.space", "To the moon"), ("train", "alt.x", "Hm"), ("test", "alt.x", "Ho é")]
    head = "From: me\nSubject: it\n\n"
    members = {f"20news-bydate-{part}/{group}/{i}": head + text for i, (part, group, text) in enumerate(posts)}
    tar_of(folder / "20news-bydate.tar.gz", {name: text.encode("latin-1") for name, text in members.items()})
    one = Newsgroups().load()
    assert one.texts == (("To the moon", "Hm"), ("Ho é",))
    assert one.classes == ("alt.x", "sci.space")
    (folder / "20news-bydate.tar.gz").unlink()
    with lzma.open(folder / "20newsgroups_bydate.jsonl.xz", "wt", encoding="utf-8") as file:
        for part, group, text in posts:
            file.write(json.dumps({"split": part, "group": group, "text": head + text}) + "\n")
    assert Newsgroups().load().fingerprint() == one.fingerprint()
    with lzma.open(folder / "20newsgroups_bydate.jsonl.xz", "at", encoding="utf-8") as file:
        file.write(json.dumps({"split": "test", "group": "new.group", "text": "\n\nx"}) + "\n")
    with pytest.raises(BadInput, match=r"the test part has rows of new\.group"):
        Newsgroups().load()


def test_bitext_retail_and_wrong_columns(folder):
    path = folder / BitextRetail.files.remotes[0].file
    lines = [f"a,word{i} order,ORDER,{intent}" for intent in ("cancel", "track") for i in range(10)]
    write(path, "tags,instruction,category,intent\n" + "\n".join(lines) + "\n")
    data = BitextRetail().load()
    assert data.classes == ("cancel", "track")
    assert np.bincount(data.y_test).tolist() == [2, 2], "the same ten texts twice: a pair stays together"
    write(path, "tags,message,category,intent\na,b,c,d\n")
    with pytest.raises(BadInput, match="it has no column instruction"):
        BitextRetail().load()
    write(path, "tags,instruction,category,intent\n" + "\n".join([*lines, "a, ,ORDER,track"]) + "\n")
    with pytest.raises(BadInput, match=f"1 texts of {path.name} are empty, the first one is row 21; leave"):
        BitextRetail().load()
    write(path, "instruction,category,intent\na,b,c\nd,e\n")
    with pytest.raises(BadInput, match="a row is shorter than the header"):
        BitextRetail().load()


# UCI-HAR


def small_signals(path: Path, **changes) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "X_train": rng.standard_normal((12, 9, 128)).astype(np.float32) * 3 + 1,
        "y_train": np.arange(12, dtype=np.uint8) % 6,
        "subject_train": np.arange(12, dtype=np.uint8) % 3,
        "X_test": rng.standard_normal((6, 9, 128)).astype(np.float32),
        "y_test": np.arange(6, dtype=np.uint8),
        "activity_labels": np.array(["A_B", "C", "D", "E", "F", "G"]),
    }
    np.savez_compressed(path, **{k: v for k, v in (arrays | changes).items() if v is not None})


def fails(path: Path) -> None:
    with pytest.raises(BadInput) as error:
        UciHar().load()
    one_line(error, "uci-har", str(path))


def test_npz_of_uci_har_is_read(folder):
    small_signals(folder / FILE)
    data = UciHar().load()
    assert data.classes[0] == "a b"
    assert data.x.shape == (12, 9, 128)
    np.testing.assert_allclose(data.x.mean(axis=(0, 2)), 0, atol=1e-6)
    assert "491 features are computed" in UciHar(form="features").load().notes


def test_other_formats_under_the_name_give_one_line_errors(folder):
    with (folder / FILE).open("wb") as file:
        np.save(file, np.ones(3))
    fails(folder / FILE)
    with zipfile.ZipFile(folder / FILE, "w") as archive:
        archive.writestr("readme.txt", "hello")
    fails(folder / FILE)


@pytest.mark.parametrize(
    "changes",
    [
        {"y_train": None},
        {"activity_labels": None},
        {"y_train": np.zeros(11, dtype=np.uint8)},
        {"y_test": np.full(6, 6, dtype=np.uint8)},
        {"subject_train": np.zeros(5, dtype=np.uint8)},
        {"X_test": np.zeros((6, 9, 64), dtype=np.float32)},
        {"X_train": np.full((12, 9, 128), np.nan, dtype=np.float32)},
        {"activity_labels": np.array([{"pickled": 1}] * 6, dtype=object)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_arrays_that_do_not_fit_give_one_line_errors(folder, changes):
    small_signals(folder / FILE, **changes)
    with pytest.raises(BadInput, match=r"^[^\n]*uci-har[^\n]*$"):
        UciHar().load()


def official_zip(path: Path, nested: bool) -> None:
    rng, inner = np.random.default_rng(0), io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr(f"{FOLDER}/activity_labels.txt", "1 WALKING\n2 LYING_DOWN\n")
        for part, rows in (("train", 6), ("test", 4)):
            archive.writestr(f"{FOLDER}/{part}/y_{part}.txt", "".join(f"{1 + i % 2}\n" for i in range(rows)))
            archive.writestr(f"{FOLDER}/{part}/subject_{part}.txt", "".join(f"{1 + i // 2}\n" for i in range(rows)))
            tables = {f"{part}/X_{part}.txt": 561}
            tables |= {f"{part}/Inertial Signals/{channel}_{part}.txt": 128 for channel in CHANNELS}
            for name, width in tables.items():
                buffer = io.StringIO()
                np.savetxt(buffer, rng.standard_normal((rows, width)), fmt="%16.7e")
                archive.writestr(f"{FOLDER}/{name}", buffer.getvalue())
    if not nested:
        path.write_bytes(inner.getvalue())
        return
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{FOLDER}.zip", inner.getvalue())


def test_uci_har_reads_the_official_files_packed_or_not(folder):
    official_zip(folder / "UCI HAR Dataset.zip", nested=False)
    features, signals = UciHar(form="features").load(), UciHar().load()
    assert features.shape == (561,)
    assert "computed" not in features.notes
    assert signals.shape == (9, 128)
    assert features.y.tolist() == signals.y.tolist() == [0, 1, 0, 1, 0, 1]
    assert features.classes == ("walking", "lying down")
    assert features.groups.tolist() == [1, 1, 2, 2, 3, 3]
    with zipfile.ZipFile(folder / "UCI HAR Dataset.zip") as archive:
        archive.extractall(folder)
    (folder / "UCI HAR Dataset.zip").unlink()
    assert UciHar().load().fingerprint() == signals.fingerprint()
    official_zip(folder / UciHar.files.remotes[0].file, nested=True)
    assert UciHar(form="features").load().fingerprint() == features.fingerprint()


def test_hostile_archive_of_uci_har_writes_nothing(folder):
    """The archive, and the archive inside it, contain a link and names that lead out of the folder."""
    path = folder / UciHar.files.remotes[0].file
    official_zip(path, nested=True)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../../escaped-fedskew.txt", "out")
        archive.writestr("/tmp/escaped-fedskew.txt", "out")
        link = zipfile.ZipInfo("link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    before = sorted(folder.parent.rglob("*"))
    assert UciHar().load().shape == (9, 128)
    assert sorted(folder.parent.rglob("*")) == before
    assert not Path("/tmp/escaped-fedskew.txt").exists()
