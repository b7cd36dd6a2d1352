"""Long texts, cut into rows of symbols: the user's own files, and Shakespeare's plays. Which symbol comes next?"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedskew.core.errors import BadInput, require
from fedskew.core.files import require_exists, whole_path
from fedskew.core.limits import NonNegativeInt, OpenShare, PositiveInt
from fedskew.data.dataset import Dataset
from fedskew.data.datasets import SOURCES
from fedskew.data.find import LARGEST, Files, reading, text_of
from fedskew.data.texts import BYTES, characters, cut, of_symbols, windows, word_pieces


def check_windows(options: "TextData | Shakespeare") -> None:
    """Raise `BadInput` if rows would leave symbols out, or if there are fewer pieces than bytes."""
    require(
        options.stride <= options.length,
        f"stride must be 1 to {options.length}, the length of a row, or 0 for that length, got {options.stride}",
    )
    if options.pieces and options.pieces <= BYTES:
        raise BadInput(f"pieces must be above {BYTES}, the number of bytes, or 0 for characters, got {options.pieces}")


def of_long_texts(
    files: Files,
    texts: Mapping[str, str],
    options: "TextData | Shakespeare",
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
    if len(alphabet.names) < 2:
        raise BadInput(f"{where}: all characters are {''.join(alphabet.names)!r}; there is nothing to predict")
    stride, encode = options.stride or options.length, alphabet.symbols.encoder()
    rows = [windows(encode(text), options.length, stride) for text in train]
    tests = [windows(encode(text), options.length, options.length) for _, text in parts]
    (x, y), (x_test, y_test) = (tuple(map(np.concatenate, zip(*part, strict=True))) for part in (rows, tests))
    for part, inputs in (("training", x), ("test", x_test)):
        require(len(inputs) > 0, f"{where}: its {part} texts have fewer than two symbols; give it longer texts")
    owner = np.repeat(np.arange(len(texts)), [len(inputs) for inputs, _ in rows])
    tested = np.repeat(np.arange(len(texts)), [len(inputs) for inputs, _ in tests])
    clients = (owner, tuple(texts)) if natural else None
    facts = {"groups_test": tested if natural else None, "notes": notes}
    return of_symbols(files, (x, y), (x_test, y_test), alphabet, clients, **facts)


@dataclass(frozen=True, kw_only=True)
class TextData:
    """The text of the file ``path``, or of all ``.txt`` files in the folder ``path``. In a folder, each file is a client.

    A row has ``length`` characters; its targets are the next characters, and -1 after the text's end. The last ``test_share`` of
    each file is for testing. A training row begins every ``stride`` characters; 0 means every ``length``. With ``pieces`` above
    256, the symbols are this number of word pieces instead of characters; this needs the extra ``text``.
    """

    path: str
    length: PositiveInt = 80
    stride: NonNegativeInt = 0
    test_share: OpenShare = 0.2
    pieces: NonNegativeInt = 0

    takes: ClassVar[str] = "path"
    task: ClassVar[str] = "next-token"
    model: ClassVar[str] = "symbol-lstm"
    idea: ClassVar[str] = (
        "your own text files: which character or word piece comes next? A folder's files are the clients"
    )

    def __post_init__(self) -> None:
        check_windows(self)
        object.__setattr__(self, "path", whole_path(self.path))

    @property
    def file_a_client(self) -> bool:
        """True if the path is a folder, in which each file is a client."""
        return Path(self.path).is_dir()

    def load(self) -> Dataset:
        place = Path(self.path)
        require_exists(place)
        paths = sorted(place.glob("*.txt")) if place.is_dir() else [place]
        require(bool(paths), f"{self.path}: the folder has no .txt files")
        if sum(path.stat().st_size for path in paths if path.is_file()) > LARGEST:
            raise BadInput(f"{self.path}: more than {LARGEST:,} bytes of text; give a part of it")
        texts = {}
        for path in paths:
            with reading("text", path):
                texts[path.stem] = path.read_text(encoding="utf-8")
        files = Files(dataset=place.name, licence="", classes=0, source=self.path)
        return of_long_texts(files, texts, self, natural=self.file_a_client)


CHARACTERS, DIFFERENT, SPEECHES, SPEAKERS = 1_115_394, 65, 7_222, 308


@dataclass(frozen=True, kw_only=True)
class Shakespeare:
    """A row has ``length`` characters of a speaker's text; its targets are the next characters, and -1 after the text's end.

    The clients are the speakers with at least ``smallest`` characters, in order of appearance; others are left out. A name in
    several plays, such as First Citizen, is one speaker. The last ``test_share`` of each speaker's text is for testing. A training
    row begins every ``stride`` characters; 0 means every ``length``. With ``pieces`` above 256, the symbols are this number of
    word pieces instead of characters; this needs the extra ``text``.
    """

    length: PositiveInt = 80
    stride: NonNegativeInt = 0
    smallest: PositiveInt = 2000
    test_share: OpenShare = 0.2
    pieces: NonNegativeInt = 0

    task: ClassVar[str] = "next-token"
    model: ClassVar[str] = "symbol-lstm"
    cites: ClassVar[tuple[str, ...]] = ("shakespeare", "leaf")
    idea: ClassVar[str] = "speakers of Shakespeare's plays: which character comes next?"
    files: ClassVar[Files] = SOURCES["shakespeare"]

    def __post_init__(self) -> None:
        check_windows(self)

    def load(self) -> Dataset:
        [spoken] = self.files.read(read_speakers)
        texts = {name: text for name, text in spoken.items() if len(text) >= self.smallest}
        longest = max(map(len, spoken.values()))
        require(
            bool(texts),
            f"data set shakespeare: no speaker has {self.smallest:,} characters, the longest text has {longest:,}; lower smallest",
        )
        left = len(spoken) - len(texts)
        notes = f"{left} speakers with less than {self.smallest:,} characters left out"
        return of_long_texts(self.files, texts, self, written=spoken.values(), notes=notes)


def read_speakers(path: Path) -> dict[str, str]:
    """Read the text of each speaker, by name, in order of appearance.

    A speech begins with the speaker's name and ends with an empty line.
    """
    content = text_of(path).read()
    blocks = re.split(r"\n\n+", content.rstrip("\n"))
    spoken: dict[str, list[str]] = {}
    for block in blocks:
        head, _, speech = block.partition("\n")
        spoken.setdefault(" ".join(head.rstrip(":").split()), []).append(speech)
    if (len(content), len(set(content)), len(blocks), len(spoken)) != (CHARACTERS, DIFFERENT, SPEECHES, SPEAKERS):
        raise ValueError(f"it does not have {CHARACTERS:,} characters in {SPEECHES:,} speeches of {SPEAKERS} speakers")
    return {name: "\n".join(speeches) for name, speeches in spoken.items()}
