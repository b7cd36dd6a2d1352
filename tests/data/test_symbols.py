"""Texts as symbols: windows and their targets by hand, word pieces, shares for testing, counts of each client."""

import numpy as np
import pytest

from fedskew.core.errors import BadInput
from fedskew.data.datasets.text import TextData
from fedskew.data.texts import accuracy_of_pairs, characters, cut, windows, word_pieces


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
