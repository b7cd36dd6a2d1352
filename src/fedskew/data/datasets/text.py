"""The user's own texts: which symbol comes next?"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fedskew.core.errors import require
from fedskew.core.places import require_exists, whole_path
from fedskew.data.dataset import Dataset
from fedskew.data.find import LARGEST, Files, reading
from fedskew.data.symbols import check_options, of_texts


@dataclass(frozen=True, kw_only=True)
class Text:
    """The texts of the file ``path``, or of the ``.txt`` files of the folder ``path``: then each file is a client.

    Rows are ``length`` characters, the targets are the next characters; -1 stands behind a text's end. The last ``test_share`` of
    each file is for testing. A training row begins every ``stride`` characters, 0 for every ``length``. With ``pieces``
    above 256 the symbols are word pieces of this number in place of characters; this needs the extra ``text``.
    """

    path: str
    length: int = 80
    stride: int = 0
    test_share: float = 0.2
    pieces: int = 0

    takes: ClassVar[str] = "path"
    task: ClassVar[str] = "next-token"
    model: ClassVar[str] = "symbol-lstm"
    idea: ClassVar[str] = (
        "your own text files: which character or word piece comes next? A folder's files are the clients"
    )

    def __post_init__(self) -> None:
        check_options(self)
        object.__setattr__(self, "path", whole_path(self.path))

    @property
    def client(self) -> str:
        """What a client is, if the path is a folder."""
        return "file" if Path(self.path).is_dir() else ""

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
        return of_texts(files, texts, self, natural=bool(self.client))
