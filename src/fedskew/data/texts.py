"""Texts as ids of words, or as windows of symbols (characters or word pieces) whose target is the next symbol."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, repeat
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fedskew.core.errors import require
from fedskew.core.seeding import stream
from fedskew.data.dataset import Dataset, Ints, Numbered, Rows
from fedskew.data.find import Files
from fedskew.data.preprocessing import Preprocessing, Symbols, Texts, require_tokenizers
from fedskew.data.targets import PADDING as END

PAD, UNKNOWN = 0, 1
"""Ids of padding after a text's end, and of words that are not in the vocabulary."""

MOST_WORDS = 100_000
"""Maximum number of words that a site sends: its most frequent ones."""

Labelled = tuple[Sequence[str], Ints]
"""Texts and their labels."""

Windows = tuple[Sequence[str], Sequence[str]]
"""Texts of equal length, and the character that follows each."""

Vocabulary = Annotated[int, msgspec.Meta(ge=3)]
"""Number of ids: of padding, of unknown words, and of at least one word."""


def words(text: str) -> list[str]:
    """Return the words of a text in lower case: runs of letters, digits and inner apostrophes."""
    return re.findall(r"[^\W_]+(?:'[^\W_]+)*", text.lower())


class SiteWords(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often each word occurs in the texts of a site. Sites agree on a vocabulary with it, without pooling texts."""

    counts: dict[str, int]

    def __post_init__(self) -> None:
        """Raise `ValueError` for words and counts of no texts, which another machine might send."""
        if len(self.counts) > MOST_WORDS or not all(n > 0 and words(word) == [word] for word, n in self.counts.items()):
            raise ValueError("counts of no texts")


def word_counts(texts: Sequence[str], length: int, fewest: int = 1) -> Counter[str]:
    """Count the words among the first ``length`` words of each text, without words of fewer than ``fewest`` texts."""
    of_texts = [words(text)[:length] for text in texts]
    counts = Counter(chain.from_iterable(of_texts))
    texts_with = Counter(chain.from_iterable(map(set, of_texts)))
    return Counter({word: n for word, n in counts.items() if texts_with[word] >= fewest})


def by_frequency(counts: Counter[str]) -> list[str]:
    """Return the words, the most frequent one first. Equally frequent words are in alphabetical order."""
    return sorted(counts, key=lambda word: (-counts[word], word))


def site_words(texts: Sequence[str], length: int, fewest: int) -> SiteWords:
    """Return what leaves a site: at most `MOST_WORDS` words, none of fewer than ``fewest`` texts."""
    counts = word_counts(texts, length, fewest)
    return SiteWords(counts={word: counts[word] for word in by_frequency(counts)[:MOST_WORDS]})


def merged_vocabulary(sites: Iterable[Mapping[str, int]], size: int) -> tuple[str, ...]:
    """Return the most frequent words of all sites together: those that have the ids 2 to ``size`` - 1."""
    counts = Counter[str]()
    for site in sites:
        counts.update(site)
    return tuple(by_frequency(counts)[: size - 2])


def vocabulary_of(
    texts: Sequence[str], size: int, length: int, clients: Ints | None = None, fewest: int = 1
) -> tuple[str, ...]:
    """Return the most frequent words among the first ``length`` words of each text: those that have the ids 2 to ``size`` - 1.

    A word counts at a client only if at least ``fewest`` of the client's texts have it. ``clients`` (n,) is the client of each
    text.
    """
    of_clients = defaultdict[int, list[str]](list)
    for text, client in zip(texts, repeat(0) if clients is None else clients.tolist(), strict=False):
        of_clients[client].append(text)
    return merged_vocabulary((word_counts(group, length, fewest) for group in of_clients.values()), size)


def encoded(texts: Sequence[str], preprocessing: Texts) -> Ints:
    """Return ids (n, length) of the first words of each text, padded at the end. A text without words becomes one unknown word."""
    number = {word: at for at, word in enumerate(preprocessing.vocabulary, start=2)}
    ids = np.full((len(texts), preprocessing.length), PAD, dtype=np.int64)
    for row, text in zip(ids, texts, strict=True):
        numbers = [number.get(word, UNKNOWN) for word in words(text)[: preprocessing.length]] or [UNKNOWN]
        row[: len(numbers)] = numbers
    return ids


def check_texts(dataset: str, where: str, texts: Sequence[str]) -> None:
    """Raise `BadInput` for empty texts. ``where`` names the part or the file in the message."""
    empty = [row for row, text in enumerate(texts, start=1) if not text.strip()]
    require(
        not empty,
        f"data set {dataset}: {len(empty)} texts of {where} are empty, the first one is row {(*empty, 0)[0]}; leave such rows out",
    )


def held_out_rows(texts: Sequence[str], labels: Ints, fraction: float) -> NDArray[np.bool_]:
    """Choose about ``fraction`` of each class as test rows, the same in every run; return True for these rows, (n,).

    Texts with the same set of words form a group, which is never split. A group has the class of its first text.
    """
    groups: dict[frozenset[str], list[int]] = {}
    for row, text in enumerate(texts):
        groups.setdefault(frozenset(words(text)), []).append(row)
    members = list(groups.values())
    owner = np.asarray([labels[rows[0]] for rows in members])
    rng, test = stream(0, "split"), np.zeros(len(texts), dtype=bool)
    for c in np.unique(labels):
        quota = fraction * int((labels == c).sum())
        for group in rng.permutation(np.flatnonzero(owner == c)):
            if int(test[labels == c].sum()) >= quota:
                break
            test[members[group]] = True
    return test


def of_texts(
    files: Files,
    train: Labelled,
    test: Labelled,
    classes: Sequence[str],
    preprocessing: Texts,
    vocabulary: int,
    clients: Numbered | None = None,
    agreed: bool = False,
    **facts: Any,
) -> Dataset:
    """Make a data set of labelled texts, with word ids as ``x``. ``facts`` are further fields of `Dataset`.

    ``preprocessing`` gets a vocabulary of at most ``vocabulary`` ids, in which a word counts at a client only if
    ``facts["fewest"]`` of the client's texts have it. If sites ``agreed`` on a vocabulary, ``preprocessing`` has it already.
    Raises `BadInput` for empty texts.
    """
    check_texts(files.dataset, "the training part", train[0])
    check_texts(files.dataset, "the test part", test[0])
    if not agreed:
        owner = clients[0] if clients else None
        fitted = vocabulary_of(train[0], vocabulary, preprocessing.length, owner, facts.get("fewest", 1))
        preprocessing = replace(preprocessing, vocabulary=fitted)
    rows, rows_test = ((encoded(texts, preprocessing), y) for texts, y in (train, test))
    facts |= {"texts": (tuple(train[0]), tuple(test[0])), "vocabulary": vocabulary, "preprocessing": preprocessing}
    return files.build(rows, rows_test, classes, clients, **facts)


def reworded(dataset: Dataset, rows: Ints, rewritten: bool = False) -> tuple[Rows, Rows, Preprocessing | None]:
    """Return ``x``, ``x_test`` and preprocessing with a vocabulary of the training rows ``rows`` only.

    Words of other rows become unknown. If x holds no word ids, nothing changes. ``rewritten``: the texts have changed since the
    data set's ids were made.
    """
    if dataset.texts is None or not dataset.vocabulary:
        return dataset.x, dataset.x_test, dataset.preprocessing
    used = np.unique(rows)
    if len(used) == len(dataset.y) and not rewritten:
        return dataset.x, dataset.x_test, dataset.preprocessing
    train, test = dataset.texts
    length = dataset.shape[0]
    owner = None if dataset.groups is None else dataset.groups[used]
    vocabulary = vocabulary_of([train[row] for row in used], dataset.vocabulary, length, owner, dataset.fewest)
    stored = dataset.preprocessing
    preprocessing = replace(stored if isinstance(stored, Texts) else Texts(length=length), vocabulary=vocabulary)
    x, x_test = encoded(train, preprocessing), encoded(test, preprocessing)
    return x, x_test, preprocessing if isinstance(stored, Texts) else stored


BYTES = 256
"""Number of word pieces with which byte-pair encoding starts: all bytes, so that every text can be encoded."""

SPOKEN = {"\n": "newline", " ": "space", "\t": "tab"}
"""Names of invisible characters."""


class Alphabet(NamedTuple):
    """The names of the symbols 0, 1, ..., and the preprocessing that turns a text into symbols."""

    names: tuple[str, ...]
    symbols: Symbols


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
    letters = sorted(set().union(*texts))
    return Alphabet(tuple(SPOKEN.get(each, each) for each in letters), Symbols(characters="".join(letters)))


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


def of_windows(files: Files, train: Windows, test: Windows, clients: Numbered, **facts: Any) -> Dataset:
    """Make a data set of windows of equal length, with one target: the character that follows. Symbols are all characters."""
    alphabet = characters(chain(*train, *test))
    encode = alphabet.symbols.encoder()

    def part(texts: Sequence[str], following: Sequence[str]) -> tuple[Ints, Ints]:
        x = encode("".join(texts)).reshape(len(texts), -1)
        y = np.full_like(x, END)
        y[:, -1] = encode("".join(following))
        return x, y

    return of_symbols(files, part(*train), part(*test), alphabet, clients, **facts)


def of_symbols(
    files: Files,
    train: tuple[Ints, Ints],
    test: tuple[Ints, Ints],
    alphabet: Alphabet,
    clients: Numbered | None,
    **facts: Any,
) -> Dataset:
    """Make a data set of rows (n, T) of symbols and their targets (n, T). ``facts`` are further fields of `Dataset`."""
    names, symbols = alphabet
    right = {"accuracy": accuracy_of_pairs(train, test, len(names))}
    facts |= {"baselines": {"the most frequent symbol after the present one": right}, "preprocessing": symbols}
    return files.build(train, test, names, clients, target="symbols", **facts)


def accuracy_of_pairs(train: tuple[Ints, Ints], test: tuple[Ints, Ints], symbols: int) -> float:
    """Return the accuracy on the test rows of predicting the symbol that most often follows the current one in training."""
    from scipy import sparse

    (x, y), (now, then) = ((symbol[after != END], after[after != END]) for symbol, after in (train, test))
    pairs = sparse.coo_array((np.ones(len(y)), (x, y)), shape=(symbols, symbols)).tocsr()
    after = np.asarray(pairs.argmax(axis=1)).ravel()
    return float((then == after[now]).mean())
