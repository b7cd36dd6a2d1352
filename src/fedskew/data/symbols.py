"""Texts as windows of symbols (characters or word pieces). The target at each place is the next symbol."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedskew.core.errors import require
from fedskew.data.dataset import Dataset
from fedskew.data.find import Files
from fedskew.data.preprocessing import Symbols, require_tokenizers
from fedskew.data.targets import PADDING as END
from fedskew.data.targets import Ints

BYTES = 256
"""Number of word pieces with which byte-pair encoding starts: all bytes, so that every text can be encoded."""

SPOKEN = {"\n": "newline", " ": "space", "\t": "tab"}
"""Names of invisible characters."""


class WindowOptions(Protocol):
    """Options that divide texts into rows and symbols; see `check_options`."""

    @property
    def length(self) -> int: ...

    @property
    def stride(self) -> int: ...

    @property
    def test_share(self) -> float: ...

    @property
    def pieces(self) -> int: ...


@dataclass(frozen=True)
class Alphabet:
    """The names of the symbols 0, 1, ..., and the preprocessing that turns a text into symbols."""

    names: tuple[str, ...]
    symbols: Symbols


def check_options(options: WindowOptions) -> None:
    require(options.length >= 1, f"length must be at least 1 symbol, got {options.length}")
    require(
        0 <= options.stride <= options.length,
        f"stride must be 1 to {options.length}, the length of a row, or 0 for that length, got {options.stride}",
    )
    require(0 < options.test_share < 1, f"test_share must be between 0 and 1, got {options.test_share}")
    require(
        options.pieces == 0 or options.pieces > BYTES,
        f"pieces must be above {BYTES}, the number of bytes, or 0 for characters, got {options.pieces}",
    )


def windows(symbols: Ints, length: int, stride: int) -> tuple[Ints, Ints]:
    """Cut a sequence into rows (n, ``length``); return the rows and, at each place, the next symbol. `END` pads the last row.

    A row begins every ``stride`` symbols, until a row reaches the end.
    """
    targets = len(symbols) - 1
    if targets < 1:
        nothing = np.empty((0, length), dtype=np.int64)
        return nothing, nothing
    starts = np.arange(0, max(targets - length, 0) + stride, stride)
    places = starts[:, None] + np.arange(length)
    padded = np.concatenate([symbols, np.full(length + stride, END, dtype=np.int64)])
    y = padded[places + 1]
    return np.where(y == END, END, padded[places]), y


def characters(texts: Iterable[str]) -> Alphabet:
    """Make an alphabet of all characters in the texts."""
    found = sorted(set().union(*texts))
    return Alphabet(tuple(SPOKEN.get(each, each) for each in found), Symbols(characters="".join(found)))


def word_pieces(texts: Sequence[str], count: int) -> Alphabet:
    """At most ``count`` word pieces: all bytes, and the most frequent pairs of pieces in the texts (byte-pair encoding)."""
    require_tokenizers()
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=count, initial_alphabet=sorted(alphabet), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    pieces = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    # the encoder's own letters stand for bytes, such as Ġ for a space: no two names are the same
    return Alphabet(tuple(piece for piece, _ in pieces), Symbols(tokenizer=tokenizer.to_str()))


def cut(text: str, share: float) -> tuple[str, str]:
    """Split a text before its last ``share`` (0..1) of characters; return both parts."""
    at = len(text) - int(share * len(text) + 1e-9)
    return text[:at], text[at:]


def of_texts(
    files: Files,
    texts: Mapping[str, str],
    options: WindowOptions,
    *,
    written: Iterable[str] = (),
    natural: bool = True,
    notes: str = "",
) -> Dataset:
    """Make a data set from one long text for each client, by name. The last ``test_share`` of each text is for testing.

    The symbols are all characters of the texts and of ``written``. Word pieces are learnt from the training texts only. Raises
    `BadInput` if there is nothing to predict.
    """
    where = f"data set {files.dataset}"
    parts = [cut(text, options.test_share) for text in texts.values()]
    train = [text for text, _ in parts]
    alphabet = word_pieces(train, options.pieces) if options.pieces else characters((*texts.values(), *written))
    require(
        len(alphabet.names) > 1, f"{where}: all characters are {''.join(alphabet.names)!r}; there is nothing to predict"
    )
    stride, encode = options.stride or options.length, alphabet.symbols.encoder()
    rows = [windows(encode(text), options.length, stride) for text in train]
    tests = [windows(encode(text), options.length, options.length) for _, text in parts]
    (x, y), (x_test, y_test) = (tuple(map(np.concatenate, zip(*part, strict=True))) for part in (rows, tests))
    for part, found in (("training", x), ("test", x_test)):
        require(len(found) > 0, f"{where}: its {part} texts have fewer than two symbols; give it longer texts")
    owner = np.repeat(np.arange(len(texts)), [len(found) for found, _ in rows])
    clients = (owner, tuple(texts)) if natural else None
    right = accuracy_of_pairs((x, y), (x_test, y_test), len(alphabet.names))
    return files.build(
        (x, y),
        (x_test, y_test),
        alphabet.names,
        target="symbols",
        clients=clients,
        preprocessing=alphabet.symbols,
        baselines={"the most frequent symbol after the present one": {"accuracy": right}},
        notes=notes,
    )


def accuracy_of_pairs(train: tuple[Ints, Ints], test: tuple[Ints, Ints], symbols: int) -> float:
    """Return the accuracy on the test rows of predicting the symbol that most often follows the current one in training."""
    (x, y), (now, then) = ((part[0][part[1] != END], part[1][part[1] != END]) for part in (train, test))
    from scipy import sparse

    pairs = sparse.coo_array((np.ones(len(y)), (x, y)), shape=(symbols, symbols)).tocsr()
    after = np.asarray(pairs.argmax(axis=1)).ravel()
    return float((then == after[now]).mean())
