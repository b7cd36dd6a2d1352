"""Texts as word ids: the vocabulary, the split without leaks, and integer rows in both engines."""

import dataclasses

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedskew.core.errors import BadInput
from fedskew.data.dataset import Dataset
from fedskew.data.datasets.long_texts import TextData
from fedskew.data.find import Files
from fedskew.data.preprocessing import Texts
from fedskew.data.texts import (
    PAD,
    UNKNOWN,
    SiteWords,
    accuracy_of_pairs,
    characters,
    cut,
    encoded,
    held_out_rows,
    merged_vocabulary,
    of_texts,
    reworded,
    site_words,
    vocabulary_of,
    windows,
    word_pieces,
    words,
)
from fedskew.execution.build import assemble
from fedskew.execution.deal import client_data
from fedskew.experiment.config import Experiment


def dataset(train, test, y=(0, 1), y_test=(0, 1), length=2, vocabulary=100, classes=("x", "y"), **more) -> Dataset:
    files = Files(dataset="tiny", licence="", classes=2)
    return of_texts(
        files, (train, np.array(y)), (test, np.array(y_test)), classes, Texts(length=length), vocabulary, **more
    )


def test_words_are_lower_case_runs_of_letters_digits_and_apostrophes():
    assert words("I can't find Order #12, d'être; x_y") == ["i", "can't", "find", "order", "12", "d'être", "x", "y"]
    assert words("  ...!") == []


def test_vocabulary_is_ranked_by_frequency_then_alphabet():
    texts = ["b a b", "c a b", "d"]
    assert vocabulary_of(texts, 10, 3) == ("b", "a", "c", "d")
    assert vocabulary_of(texts, 4, 3) == ("b", "a")
    assert vocabulary_of(texts, 10, 1) == ("b", "c", "d"), "words after the cut do not count"


def test_texts_are_cut_and_padded():
    rows = encoded(["a b a b", "b", "zebra a", "?!"], Texts(vocabulary=("a", "b"), length=3))
    assert rows.tolist() == [[2, 3, 2], [3, PAD, PAD], [UNKNOWN, 2, PAD], [UNKNOWN, PAD, PAD]]
    assert rows.dtype == np.int64


def test_vocabulary_has_words_of_the_training_part_only():
    train = ["red apple", "blue sea"]
    data, other = (dataset(train, [f"red {word}", "blue sea sea sea"]) for word in ("zebra", "lion"))
    known = {word: at for at, word in enumerate(vocabulary_of(train, 100, 2), start=2)}
    assert data.x_test.tolist() == [[known["red"], UNKNOWN], [known["blue"], known["sea"]]]
    assert data.texts == (tuple(train), ("red zebra", "blue sea sea sea"))
    assert np.array_equal(other.x_test, data.x_test)
    assert other.fingerprint() != data.fingerprint(), "the ids are the same, the texts are not"


@pytest.mark.parametrize(
    ("train", "test", "part"), [(["a", " "], ["b", "c"], "training"), (["a", "b"], ["b", ""], "test")]
)
def test_empty_texts_give_one_line_errors(train, test, part):
    with pytest.raises(BadInput, match=f"tiny: 1 texts of the {part} part are empty, the first one is row 2"):
        dataset(train, test)


TEXTS = st.lists(
    st.tuples(st.lists(st.sampled_from("abcde"), min_size=1, max_size=3), st.integers(0, 2)), min_size=6, max_size=40
)


@given(TEXTS)
def test_no_set_of_words_is_in_both_parts(rows):
    texts, y = [" ".join(parts) for parts, _ in rows], np.array([label for _, label in rows])
    held = held_out_rows(texts, y, 0.3)
    train, test = (
        {frozenset(text.split()) for text, is_test in zip(texts, held, strict=True) if is_test == t} for t in (0, 1)
    )
    assert not train & test
    assert np.array_equal(held, held_out_rows(texts, y, 0.3))


def test_different_texts_are_split_by_class():
    texts = [f"message {i}" for i in range(500)]
    y = np.repeat([0, 1], [400, 100])
    assert np.bincount(y[held_out_rows(texts, y, 0.2)]).tolist() == [80, 20]


def shop() -> Dataset:
    """Return ten texts. Each has a word that no other text has. One test text has all words."""
    texts = [f"word{row} order" for row in range(10)]
    return dataset(texts, [" ".join(texts)], [0, 1] * 5, [0], length=20)


def known_to(rows: np.ndarray) -> set[int]:
    return set(np.unique(rows)) - {PAD, UNKNOWN}


@pytest.mark.parametrize(
    ("settings", "unused"),
    [
        ({"server_data": {"share": 0.4}}, 4),
        ({"clients": {"number": 2, "held_out": 0.4}}, 4),
        ({"clients": {"number": 3}, "skew": "label-shards:shards=1"}, 1),
    ],
)
def test_words_of_untrained_rows_are_unknown(settings, unused):
    data = shop()
    experiment = Experiment(
        **{"dataset": "digits", "model": "text-cnn:widths=[1]", "skew": "iid", "clients": {"number": 2}} | settings
    )
    made = client_data(experiment, data)
    trained = set(made.partition.indices.tolist())
    assert len(trained) == 10 - unused
    own = {row: made.x[row, 0] for row in range(10)}
    assert {row for row in range(10) if own[row] == UNKNOWN} == set(range(10)) - trained
    assert len(known_to(made.x)) == len(trained) + 1, "their own words, and the one that all texts have"
    assert known_to(made.x_test) == known_to(made.x)
    assert int((made.x_test == UNKNOWN).sum()) == unused
    assert assemble(experiment, data).federation.task.model.embedding.num_embeddings == len(trained) + 3


def test_word_frequencies_come_from_the_chosen_rows():
    data = dataset(["a", "b b", "b b", "c c c", "c c c", "a a"], ["a b c"], [0, 1] * 3, [0], length=3, vocabulary=3)
    assert data.x_test.tolist() == [[UNKNOWN, UNKNOWN, 2]], "of all rows c is the most frequent"
    x, x_test, preprocessing = reworded(data, np.array([0, 1, 2, 5, 5]))
    assert x_test.tolist() == [[UNKNOWN, 2, UNKNOWN]], "of these b"
    assert x[3].tolist() == [UNKNOWN] * 3
    assert preprocessing == Texts(column="text", vocabulary=("b",), length=3)
    assert reworded(data, np.arange(6))[0] is data.x


def test_rows_without_word_ids_are_not_reworded():
    bare = dataclasses.replace(shop(), vocabulary=0)
    assert reworded(bare, np.array([0]))[1] is bare.x_test


def notes(seed: int, rows: int = 200) -> tuple[list[str], np.ndarray]:
    """Texts with many equally frequent words, and the client of each."""
    rng = np.random.default_rng(seed)
    zipf = rng.zipf(1.5, (rows, 12)).clip(max=400)
    return [" ".join(f"w{word}" for word in row) for row in zipf], rng.integers(0, 4, rows)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("size", [10, 50, 1000])
def test_merged_words_of_sites_are_the_vocabulary_of_the_pooled_texts(seed, size):
    texts, client = notes(seed)
    sites = [site_words([texts[row] for row in np.flatnonzero(client == k)], 9, 1).counts for k in range(4)]
    pooled = vocabulary_of(texts, size, 9)
    assert merged_vocabulary(sites, size) == merged_vocabulary(reversed(sites), size) == pooled


def test_no_word_of_few_texts_is_in_the_bytes_that_leave():
    texts, _ = notes(0)
    texts[0] += " Anna Anna Anna Anna Anna Anna"
    data = msgspec.msgpack.encode(site_words(texts, 20, 5))
    sent = msgspec.msgpack.decode(data, type=SiteWords).counts
    for word in {word for text in texts for word in words(text)}:
        rows = sum(word in words(text) for text in texts)
        assert (sent.get(word, 0) >= 5) == (rows >= 5)
        assert (word in sent) == (rows >= 5)
    assert b"anna" not in data


def test_a_vocabulary_has_words_of_enough_texts_of_one_client_also_after_rows_are_held_out():
    train = ["a b", "a c", "a", "b c", "b", "c"]
    owner = np.array([0, 0, 0, 1, 1, 1])
    assert vocabulary_of(train, 10, 5, owner, 2) == ("a", "b", "c")
    data = dataset(train, ["a b c"], [0, 1] * 3, [0], length=5, clients=(owner, ("x", "y")), fewest=2)
    assert data.preprocessing.vocabulary == ("a", "b", "c")
    assert reworded(data, np.array([0, 1, 3, 4]))[2].vocabulary == ("a", "b")


@pytest.mark.parametrize("counts", [{"a": 0}, {"a b": 1}, {"A": 1}, {"\n": 1}, {"": 1}])
def test_words_that_no_text_gives_are_refused(counts):
    with pytest.raises(msgspec.ValidationError, match="counts of no texts"):
        msgspec.msgpack.decode(msgspec.msgpack.encode({"counts": counts}), type=SiteWords)


def test_windows_by_hand():
    x, y = windows(np.arange(6), 3, 3)
    assert x.tolist() == [[0, 1, 2], [3, 4, -1]]
    assert y.tolist() == [[1, 2, 3], [4, 5, -1]]
    x, y = windows(np.arange(6), 3, 1)
    assert x.tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
    assert (y == x + 1).all()


@pytest.mark.parametrize("count", range(8))
@pytest.mark.parametrize("length", [1, 3, 5])
def test_windows_side_by_side_have_every_target_once(count: int, length: int):
    x, y = windows(np.arange(count), length, length)
    assert y[y >= 0].tolist() == list(range(1, count))
    assert x[x >= 0].tolist() == list(range(max(count - 1, 0)))
    assert ((x < 0) == (y < 0)).all()


def test_a_narrow_stride_ends_with_the_first_row_that_reaches_the_end():
    x, y = windows(np.arange(9), 5, 2)
    assert x[:, 0].tolist() == [0, 2, 4]
    assert y[-1].tolist() == [5, 6, 7, 8, -1]


def test_characters_are_numbered_in_order_and_have_names():
    alphabet = characters(["ba c", "\n"])
    assert alphabet.names == ("newline", "space", "a", "b", "c")
    assert alphabet.symbols.encoder()("c a\n").tolist() == [4, 1, 2, 0]


def test_word_pieces_write_every_text_and_frequent_words_are_one_piece():
    pytest.importorskip("tokenizers")
    alphabet = word_pieces(["the cat and the dog and the hen"] * 9, 300)
    assert 256 < len(alphabet.names) <= 300
    assert len(set(alphabet.names)) == len(alphabet.names)
    encode = alphabet.symbols.encoder()
    assert encode(" the the").tolist() == [alphabet.names.index("Ġthe")] * 2
    assert len(encode("é☃")) == 5, "characters that it has not seen are bytes"
    assert word_pieces(["the cat and the dog and the hen"] * 9, 300).names == alphabet.names


def test_the_last_share_is_for_testing():
    assert cut("abcdefghij", 0.2) == ("abcdefgh", "ij")
    assert cut("abcd", 0.2) == ("abcd", "")


def test_accuracy_of_pairs_by_hand():
    train = windows(np.array([0, 1, 0, 1, 0, 2, 0, 1]), 8, 8)
    # after 0 comes 1 three times of four; after 1 and 2 comes 0
    assert accuracy_of_pairs(train, windows(np.array([0, 1, 0, 2, 1]), 4, 4), 3) == 2 / 4


def folder_of(tmp_path, **texts: str):
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    return tmp_path


def test_a_folder_of_texts_has_a_client_a_file(tmp_path):
    loader = TextData(path=str(folder_of(tmp_path, anna="abcabcabca", bert="aabbaabbaabb")), length=4)
    data = loader.load()
    assert (loader.file_a_client, data.target, data.classes) == (True, "symbols", ("a", "b", "c"))
    assert (data.group_names, data.groups.tolist()) == (("anna", "bert"), [0, 0, 1, 1, 1])
    # of each text the last fifth is for testing, and no target of a training row is among it
    assert data.y[:2].tolist() == [[1, 2, 0, 1], [2, 0, 1, -1]]
    assert data.y_test.tolist() == [[0, -1, -1, -1], [1, -1, -1, -1]]


def test_one_text_has_no_clients_of_its_own(tmp_path):
    folder_of(tmp_path, anna="abcabcabca")
    loader = TextData(path=str(tmp_path / "anna.txt"))
    assert (loader.file_a_client, loader.load().groups) == (False, None)


@pytest.mark.parametrize(
    ("texts", "line"),
    [
        ({}, "the folder has no .txt files"),
        ({"anna": "aaaaaaaaaaaaaaaa"}, "all characters are 'a'; there is nothing to predict"),
        ({"anna": ""}, "there is nothing to predict"),
        ({"anna": "ab"}, "its test texts have fewer than two symbols; give it longer texts"),
    ],
)
def test_texts_without_anything_to_predict_are_refused(tmp_path, texts, line):
    with pytest.raises(BadInput, match=line):
        TextData(path=str(folder_of(tmp_path, **texts))).load()


def test_a_missing_text_and_one_in_another_encoding_give_one_line_errors(tmp_path):
    with pytest.raises(BadInput, match=r"none\.txt: no such file or folder"):
        TextData(path=str(tmp_path / "none.txt")).load()
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match=r"cannot read .*a\.txt"):
        TextData(path=str(tmp_path / "a.txt")).load()
