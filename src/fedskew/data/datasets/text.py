"""The user's own texts. Which symbol comes next?"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fedskew.core.errors import require
from fedskew.core.files import require_exists, whole_path
from fedskew.core.limits import NonNegativeInt, OpenShare, PositiveInt
from fedskew.data.dataset import Dataset
from fedskew.data.find import LARGEST, Files, reading
from fedskew.data.texts import check_windows, of_long_texts


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
        require(
            sum(path.stat().st_size for path in paths if path.is_file()) <= LARGEST,
            f"{self.path}: more than {LARGEST:,} bytes of text; give a part of it",
        )
        texts = {}
        for path in paths:
            with reading("text", path):
                texts[path.stem] = path.read_text(encoding="utf-8")
        files = Files(dataset=place.name, licence="", classes=0, source=self.path)
        return of_long_texts(files, texts, self, natural=self.file_a_client)
