"""Preprocessing, which a model stores as JSON: tables, texts and arrays become inputs. Arrays and pixels are fitted here, too."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any, ClassVar, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import require
from fedskew.core.machine import cores


class Texts(msgspec.Struct, frozen=True, kw_only=True, tag="texts"):
    """The texts of ``column`` as ids of their first ``length`` words; a word's id is 2 plus its position in ``vocabulary``.

    ``target`` is the column that the models predict, if it has a name, ``others`` are further columns of the target.
    """

    column: str = "text"
    vocabulary: tuple[str, ...] = ()
    length: int
    target: str = ""
    others: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (self.column,)


class Symbols(msgspec.Struct, frozen=True, kw_only=True, tag="symbols"):
    """The texts of ``column`` as ids of their ``characters``, or of the word pieces of ``tokenizer``, JSON of `tokenizers`.

    The models predict each text's next symbols, so its column is the target, too.
    """

    others: ClassVar[tuple[str, ...]] = ()

    characters: str = ""
    tokenizer: str = ""
    column: str = "text"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def target(self) -> str:
        return self.column

    def encoder(self) -> Callable[[str], NDArray[np.int64]]:
        """The function from a text to the ids (n,) of its symbols. It leaves out unknown characters."""
        if self.tokenizer:
            require_tokenizers()
            from tokenizers import Tokenizer

            pieces = Tokenizer.from_str(self.tokenizer)
            return lambda text: np.asarray(pieces.encode(text).ids, dtype=np.int64)
        number = {character: at for at, character in enumerate(self.characters)}
        return lambda text: np.array([number[each] for each in text if each in number], dtype=np.int64)

    def unknown(self, text: str) -> str:
        """The characters that `encoder` leaves out."""
        return "" if self.tokenizer else "".join(sorted({*text} - {*self.characters}))


def require_tokenizers() -> None:
    require(
        find_spec("tokenizers") is not None,
        "word pieces need the package tokenizers; pip install '.[text]' in the clone, or use pieces=0 for characters",
    )


Floats: TypeAlias = NDArray[np.float64]
Cells: TypeAlias = NDArray[Any]
"""A column's cells (n,): floating-point numbers with NaN for missing ones, or strings with "" for missing ones."""
Pixels: TypeAlias = NDArray[np.uint8]
Unseen: TypeAlias = tuple[NDArray[np.bool_], str]
"""(rows, text): which rows (n,) have a value that no training row had, and a description of it."""

MISSING = frozenset({"?"})
"""Cells that are missing values in every column, beside pandas's own."""
LARGEST = np.finfo(np.float32).max
HASHES, TEXT_WIDTH = 2**14, 32
"""For texts: the number of hash buckets of words, and the number of random directions to which they are projected."""
SIGNS = {".": ",'’ \u00a0\u202f", ",": ".'’ \u00a0\u202f"}
"""The signs between thousands, by decimal sign."""
DAYS = (
    *(order.replace(" ", sign) for order in ("%d %m %Y", "%m %d %Y", "%d %m %y", "%m %d %y") for sign in "/-"),
    *("%d.%m.%Y", "%d.%m.%y", "%Y/%m/%d", "%Y.%m.%d", "%Y-%m"),
    *("%d %b %Y", "%d-%b-%Y", "%d-%b-%y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y"),
)
CLOCKS = ("%H:%M:%S", "%H:%M", "%H:%M:%S.%f", "%I:%M %p", "%I:%M:%S %p")
TIMES = (*CLOCKS, *DAYS, *(f"{day} {clock}" for day in DAYS for clock in CLOCKS))
SPELLINGS = frozenset(("", *SIGNS, *TIMES))
"""How cells of numbers and times may be spelt: by the decimal sign, or the format of a time. Plain cells have no spelling."""


class Number(msgspec.Struct, frozen=True, kw_only=True, tag="number"):
    """A column of numbers. Its input is (number - ``mean``) / ``scale``.

    A missing value becomes ``fill``. Numbers in ``missing`` count as missing values. If ``marked``, a second input is 1 for a
    missing value. ``low`` and ``high`` are the smallest and the largest training value. ``gaps`` is True if training rows had
    missing values. If ``time``, the numbers are seconds. ``spelling`` is how the cells are spelt, see
    `SPELLINGS`; empty for plain numbers and times.
    """

    text: ClassVar[bool] = False

    name: str
    low: float = 0.0
    high: float = 0.0
    mean: float = 0.0
    scale: float = 1.0
    fill: float = 0.0
    missing: tuple[float, ...] = ()
    marked: bool = False
    gaps: bool = False
    time: bool = False
    spelling: str = ""

    def known(self, values: Cells, xp: Any = np) -> Floats:
        """Return the numbers (n,), with NaN for missing values."""
        for code in self.missing:
            values = xp.where(values == code, np.nan, values)
        return values

    def raw(self, values: Cells, xp: Any = np) -> Floats:
        """Return the numbers (n, 1), with NaN for missing values and for numbers too large for float32 after scaling.

        They are computed by ``xp``: NumPy, or an ONNX graph with functions of the same names.
        """
        numbers = xp.expand_dims(self.known(values, xp), 1)
        with np.errstate(over="ignore"):
            size = xp.abs((numbers - self.mean) / self.scale)
        return xp.where(size <= float(LARGEST), numbers, np.nan)

    def encode(self, values: Cells, xp: Any = np) -> Floats:
        """Return the inputs (n, width), computed by ``xp`` as in `raw`."""
        scaled = (self.raw(values, xp) - self.mean) / self.scale
        missing = xp.isnan(scaled)
        inputs = xp.where(missing, self.fill, scaled)
        return xp.concatenate([inputs, xp.where(missing, 1.0, 0.0)], axis=1) if self.marked else inputs

    @property
    def width(self) -> int:
        return 1 + self.marked

    def decode(self, inputs: Floats) -> Cells:
        """Return the numbers (n,) from the inputs (n, width): the inverse of `encode`."""
        missing = inputs[:, 1] > 0.5 if self.marked else (inputs[:, 0] == self.fill) & self.gaps
        return np.where(missing, np.nan, inputs[:, 0] * self.scale + self.mean)

    def unseen(self, values: Cells) -> list[Unseen]:
        numbers = self.known(values)
        unseen = [((numbers < self.low) | (numbers > self.high), f"outside {self.shown(self.low, self.high)}")]
        return unseen if self.gaps else [*unseen, (np.isnan(numbers), "missing")]

    def shown(self, *values: float) -> str:
        if self.time:
            times = (str(np.datetime64(round(v * 1e6), "us")).partition(".")[0] for v in values)
            return " to ".join(time.removesuffix("T00:00:00") for time in times)
        return " to ".join(f"{v:g}" for v in values)


def standardised_inputs(raw: Floats, mean: tuple[float, ...], scale: tuple[float, ...], xp: Any) -> Floats:
    """Return the inputs (n, width) of raw ones: (raw - ``mean``) / ``scale``, or unchanged without a mean; 0 for NaN."""
    inputs = (raw - np.array(mean)) / np.array(scale) if mean else raw
    return xp.where(xp.isnan(inputs), 0.0, inputs)


def one_hot(values: Cells, words: tuple[str, ...], xp: Any) -> Floats:
    """Return 1 where a cell is the word, else 0, (n, words)."""
    return xp.where(xp.expand_dims(values, 1) == np.array([words], dtype=object), 1.0, 0.0)


class Words(msgspec.Struct, frozen=True, kw_only=True, tag="words"):
    """A column of words, one-hot: there is one input for each word in ``known``.

    With ``mean`` and ``scale`` (one number for each word), the inputs are standardised, and a missing word becomes 0, the mean.
    Training rows also had the words ``others``, which have no input.
    """

    text: ClassVar[bool] = True

    name: str
    known: tuple[str, ...]
    others: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    gaps: bool = False

    def raw(self, values: Cells, xp: Any = np) -> Floats:
        """Return one-hot columns (n, words), with NaN for a missing word, as `Number.raw` does."""
        hits = one_hot(values, self.known, xp)
        return hits if "" in self.known else xp.where(xp.expand_dims(values, 1) == "", np.nan, hits)

    def encode(self, values: Cells, xp: Any = np) -> Floats:
        """Return the inputs (n, width), as `Number.encode` does."""
        return standardised_inputs(self.raw(values, xp), self.mean, self.scale, xp)

    @property
    def width(self) -> int:
        return len(self.known)

    def decode(self, inputs: Floats) -> Cells:
        """Return the words (n,) from the inputs (n, width); empty for a missing word, and for a word without an input."""
        hits = inputs * self.scale + self.mean if self.mean else inputs
        missing = (hits.max(1) <= 0.5) | ((inputs == 0).all(1) & bool(self.mean))
        return np.where(missing, "", np.asarray(self.known, dtype=object)[hits.argmax(1)])

    def unseen(self, values: Cells) -> list[Unseen]:
        missing = values == ""
        strange = ~np.isin(values.astype(str), (*self.known, *self.others)) & ~missing
        unseen = [(strange, f"unknown, such as {values[strange][0]!r}")] if strange.any() else []
        return unseen if self.gaps else [*unseen, (missing & ("" not in self.known), "missing")]


class Angle(msgspec.Struct, frozen=True, kw_only=True, tag="angle"):
    """A column of periodic numbers, or of ``words`` in a circular order. Its inputs are standardised sine and cosine.

    A missing value becomes 0 and 0.
    """

    name: str
    mean: tuple[float, ...] = (0.0, 0.0)
    scale: tuple[float, ...] = (1.0, 1.0)
    period: float = 0.0
    words: tuple[str, ...] = ()
    gaps: bool = True

    @property
    def text(self) -> bool:
        return bool(self.words)

    def raw(self, values: Cells, xp: Any = np) -> Floats:
        """Return sine and cosine (n, 2), with NaN for a missing value, as `Number.raw` does."""
        if self.words:
            hits, places = one_hot(values, self.words, xp), np.arange(len(self.words))
            known = hits @ np.ones((len(self.words), 1)) == 1.0
            return xp.where(known, hits @ Angle(name="", period=len(self.words)).raw(places), np.nan)
        angle = xp.expand_dims(values, 1) * (2 * np.pi) / self.period
        return xp.concatenate([xp.sin(angle), xp.cos(angle)], axis=1)

    def encode(self, values: Cells, xp: Any = np) -> Floats:
        """Return the inputs (n, 2), as `Number.encode` does."""
        return standardised_inputs(self.raw(values, xp), self.mean, self.scale, xp)

    @property
    def width(self) -> int:
        return 2

    def decode(self, inputs: Floats) -> Cells:
        """Return the numbers (n,), in 0..period, or the words, from the inputs (n, 2): the inverse of `encode`."""
        missing, (sine, cosine) = (inputs == 0).all(1), (inputs * self.scale + self.mean).T
        number = self.period or len(self.words)
        # float32 has seven digits
        places = np.round(np.arctan2(sine, cosine) / (2 * np.pi) * number, 4) % number
        if not self.words:
            return np.where(missing, np.nan, places)
        return np.where(missing, "", np.array(self.words, object)[np.rint(places).astype(int) % len(self.words)])

    def unseen(self, values: Cells) -> list[Unseen]:
        strange = ~np.isin(values.astype(str), ("", *self.words)) if self.words else np.zeros(len(values), dtype=bool)
        return [(strange, f"unknown, such as {values[strange][0]!r}")] if strange.any() else []


class Text(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    """A column of texts. Words are hashed, weighted by tf-idf, and projected to random directions. A missing text becomes zeros.

    ``counts`` has the number of training texts with a word in each hash bucket; there are ``documents`` training texts.
    """

    text: ClassVar[bool] = True

    name: str
    documents: int
    counts: dict[int, int]

    @property
    def width(self) -> int:
        return TEXT_WIDTH

    def encode(self, values: Cells) -> Floats:
        from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
        from sklearn.utils import check_random_state

        frequency = np.zeros(HASHES)
        frequency[list(self.counts)] = list(self.counts.values())
        weights = TfidfTransformer()
        weights.idf_ = np.log((1 + self.documents) / (1 + frequency)) + 1
        hashed = HashingVectorizer(n_features=HASHES, alternate_sign=False).transform(values)
        # NumPy's legacy generator gives the same numbers in every version
        directions = check_random_state(0).normal(0, 1 / np.sqrt(TEXT_WIDTH), (TEXT_WIDTH, HASHES))
        return np.asarray(weights.transform(hashed) @ directions.T)

    def unseen(self, values: Cells) -> list[Unseen]:
        return []


Standard: TypeAlias = Number | Words | Angle
"""Kinds of columns that `fitted` can fit."""
Column: TypeAlias = Standard | Text


class Tabular(msgspec.Struct, frozen=True, kw_only=True, tag="tabular"):
    """The preprocessing of a table: the inputs of all columns, side by side.

    ``target`` is the column that models predict; empty if it has no name. ``others`` are further columns of the target: the event
    of a survival time, or the labels after the first.
    """

    columns: tuple[Column, ...]
    target: str = ""
    others: tuple[str, ...] = ()

    def __call__(self, cells: Mapping[str, Cells]) -> NDArray[np.float32]:
        """Return the inputs (n, width) of the columns' cells."""
        return np.column_stack([part.encode(cells[part.name]) for part in self.columns]).astype(np.float32)

    def on_zeros(self) -> NDArray[np.float32]:
        """Return the inputs (1, width) of a row of zeros and empty texts."""
        return self({part.name: np.array([""], dtype=object) if part.text else np.zeros(1) for part in self.columns})

    def parts(self, inputs: Cells) -> Iterator[tuple[Column, Floats]]:
        """Split the inputs (n, width) of all columns; yield each column with its own inputs."""
        ends = np.cumsum([part.width for part in self.columns])
        yield from zip(self.columns, np.split(inputs.astype(np.float64), ends, axis=1), strict=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that new rows must have."""
        return tuple(dict.fromkeys(part.name for part in self.columns))

    @property
    def inputs(self) -> tuple[str, ...]:
        """The name of each input: the column's name, or "column = word". Inputs of a text are numbered."""
        names: list[str] = []
        for part in self.columns:
            if isinstance(part, Number):
                names += [part.name, *([f"{part.name} is missing"] if part.marked else [])]
            elif isinstance(part, Words):
                names += [f"{part.name} = {word}" for word in part.known]
            else:
                names += [f"{part.name} ({number})" for number in range(part.width)]
        return tuple(names)

    @property
    def texts(self) -> frozenset[str]:
        """The columns whose cells are texts."""
        return frozenset(part.name for part in self.columns if part.text)

    @property
    def missing(self) -> frozenset[str]:
        """Cells that are missing values in columns of words, unless a training row had them as words."""
        return MISSING.difference(*(part.known for part in self.columns if isinstance(part, Words)))

    @property
    def spellings(self) -> dict[str, str]:
        """How the cells of columns of numbers and times are spelt, if they are not plain."""
        return {part.name: part.spelling for part in self.columns if isinstance(part, Number) and part.spelling}


class Array(msgspec.Struct, frozen=True, kw_only=True, tag="array"):
    """The preprocessing of arrays: (row / ``divisor`` - ``mean``) / ``scale``, for rows of one ``shape``.

    ``mean`` and ``scale`` have the shape ``over``. ``low`` and ``high`` are the smallest and the largest training value.
    """

    names: ClassVar[tuple[str, ...]] = ()
    target: ClassVar[str] = ""
    others: ClassVar[tuple[str, ...]] = ()

    shape: tuple[int, ...]
    low: float
    high: float
    divisor: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    scale: tuple[float, ...] = (1.0,)
    over: tuple[int, ...] = ()

    def __call__(self, x: Cells) -> Cells:
        """Return the inputs (n, ...) of these rows."""
        return x if (self.divisor, *self.mean, *self.scale) == (1, 0, 1) else self.scaled(x).astype(np.float32)

    def scaled(self, x: Cells) -> Cells:
        """Return the inputs (n, ...) of these rows, before they are rounded. ``x`` may be a value in an ONNX graph."""
        mean, scale = (np.reshape(part, self.over) for part in (self.mean, self.scale))
        return (x / self.divisor - mean) / scale

    def on_zeros(self) -> Cells:
        """Return the inputs (1, ...) of a row of zeros."""
        return self(np.zeros((1, *self.shape)))

    def decode(self, inputs: Cells) -> Floats:
        """Return the rows (n, ...) from these inputs."""
        mean, scale = (np.reshape(part, self.over) for part in (self.mean, self.scale))
        return np.asarray((inputs * scale + mean) * self.divisor, dtype=np.float64)

    def unseen(self, x: Cells) -> list[Unseen]:
        flat = x.reshape(len(x), -1)
        strange = np.any((flat < self.low) | (flat > self.high), axis=1)
        return [(strange, f"outside {self.low:g} to {self.high:g}")]


Preprocessing: TypeAlias = Tabular | Texts | Symbols | Array


def as_array(x: Cells, divisor: float = 1.0, mean: Cells | float = 0.0, scale: Cells | float = 1.0) -> Array:
    """Make the preprocessing of arrays from raw training rows. ``mean`` and ``scale`` must broadcast to a row's shape."""
    center, deviation = np.broadcast_arrays(np.asarray(mean, dtype=float), np.asarray(scale, dtype=float))
    return Array(
        shape=tuple(x.shape[1:]),
        low=float(x.min()),
        high=float(x.max()),
        divisor=divisor,
        mean=tuple(center.ravel().tolist()),
        scale=tuple(deviation.ravel().tolist()),
        over=center.shape,
    )


def as_it_is(x: Cells, names: Sequence[str]) -> Tabular | Array:
    """Make a preprocessing that changes nothing, for rows like ``x``. If they are a table, ``names`` are its columns."""
    if not names or x.ndim > 2:
        return as_array(x)
    facts = zip(names, x.min(0).tolist(), x.max(0).tolist(), x.mean(0, dtype=float).tolist(), strict=True)
    return Tabular(columns=tuple(Number(name=n, low=a, high=b, fill=m) for n, a, b, m in facts))


def standardised(train: Cells, test: Cells, axes: tuple[int, ...] | None = None) -> tuple[Cells, Cells, Array]:
    """Standardise both parts with the training part's mean and deviation over the axes; return float32 and the preprocessing.

    A deviation of 0 counts as 1.
    """
    # float64, so that the sums do not depend on the order in which NumPy adds
    mean, std = (np.asarray(f(train, axis=axes, keepdims=True, dtype=np.float64))[0] for f in (np.mean, np.std))
    preprocessing = as_array(train, mean=mean, scale=np.where(std > 0, std, 1))
    return preprocessing(train), preprocessing(test), preprocessing


def standardised_pixels(train: Pixels, test: Pixels) -> tuple[NDArray[np.float32], NDArray[np.float32], Array]:
    """Standardise images (n, channels, height, width) from bytes to float32, with the training part's mean and deviation.

    Each channel is standardised separately, after scaling to 0..1. Mean and deviation come from counts of the 256 values: this is
    exact and needs no copy in float64. Returns both parts and the preprocessing. Raises `BadInput` for a channel with one value.
    """
    value = np.arange(256) / 255
    moments = np.empty((2, train.shape[1], 1, 1))
    for channel in range(train.shape[1]):
        parts = (np.bincount(rows[:, channel].ravel(), minlength=256) for rows in np.array_split(train, 512))
        counts = np.sum(list(parts), axis=0)
        require(
            int((counts > 0).sum()) > 1,
            f"images: channel {channel} of the training part is empty or has only one value",
        )
        share = counts / train[:, channel].size
        mean = (share * value).sum()
        deviation = np.sqrt((share * (value - mean) ** 2).sum())
        moments[:, channel] = np.array([mean, deviation])[:, None, None]
    preprocessing = as_array(train, divisor=255, mean=moments[0], scale=moments[1])
    return looked_up(preprocessing, train), looked_up(preprocessing, test), preprocessing


def looked_up(preprocessing: Array, pixels: Pixels) -> NDArray[np.float32]:
    """Return the inputs of these images (n, channels, height, width), from a table of a byte's 256 values for each channel.

    Images are looked up in groups of 64, so that their indices stay in the processor's cache.
    """
    inputs = preprocessing(np.arange(256, dtype=np.uint8)[:, None, None, None])[..., 0, 0]
    result = np.empty(pixels.shape, dtype=np.float32)

    def look_up(first: int) -> None:
        part = slice(first, first + 64)
        for channel in range(pixels.shape[1]):
            result[part, channel] = inputs[:, channel].take(pixels[part, channel])

    with ThreadPoolExecutor(cores()) as pool:  # NumPy looks up on several cores
        list(pool.map(look_up, range(0, len(pixels), 64)))
    return result
