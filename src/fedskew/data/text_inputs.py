"""The preprocessing of texts: each text as ids of its words, or of its symbols. Stored as JSON."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import require


class Texts(msgspec.Struct, frozen=True, kw_only=True, tag="texts"):
    """The texts of ``column`` as ids of their first ``length`` words; a word's id is 2 plus its position in ``vocabulary``.

    ``target`` is the column that the models predict, if it has a name, ``others`` are further columns of the target.
    """

    column: str
    vocabulary: tuple[str, ...]
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

            made = Tokenizer.from_str(self.tokenizer)
            return lambda text: np.asarray(made.encode(text).ids, dtype=np.int64)
        number = {character: at for at, character in enumerate(self.characters)}
        return lambda text: np.array([number[each] for each in text if each in number], dtype=np.int64)

    def unknown(self, text: str) -> str:
        """The characters that `encoder` leaves out."""
        return "" if self.tokenizer else "".join(sorted({*text} - {*self.characters}))


def require_tokenizers() -> None:
    require(
        find_spec("tokenizers") is not None,
        "word pieces need the package tokenizers; install it with pip install 'fedskew[text]', or use pieces=0 for characters",
    )
