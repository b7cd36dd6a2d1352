"""UCI Adult: census rows of 48,842 people in the USA, 1994. Does a person earn more than 50,000 dollars a year?"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedskew.data.dataset import Dataset, numbered, places_of
from fedskew.data.datasets import SOURCES
from fedskew.data.find import Files, text_of
from fedskew.data.preprocessing import Number, Standard, Words
from fedskew.data.tables.summaries import fitted

COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship"),
    *("race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income"),
)
NUMBERS = ("age", "education-num", "capital-gain", "capital-loss", "hours-per-week")
WORDS = ("workclass", "education", "marital-status", "occupation", "relationship", "race", "sex")
Table = dict[str, NDArray[np.str_]]


@dataclass(frozen=True, kw_only=True)
class Adult:
    """32,561 training and 16,281 test rows of five standardised numbers, six one-hot words, and the sensitive attribute.

    "?" counts as a word. ``sensitive`` is the attribute in the last column: ``sex`` (1: male) or ``race`` (1: white). ``groups``
    chooses the natural clients: "people" of one sex and race, of one kind of employer ("workclass"), or of one "education". The
    survey weight and the native country are not used.
    """

    groups: Literal["people", "workclass", "education"] = "workclass"
    sensitive: Literal["sex", "race"] = "sex"

    model: ClassVar[str] = "mlp"
    cites: ClassVar[tuple[str, ...]] = ("adult",)
    idea: ClassVar[str] = "census rows: income above 50,000 dollars or not, with sex or race as the sensitive attribute"
    files: ClassVar[Files] = SOURCES["adult"]

    def load(self) -> Dataset:
        train, test = self.files.read(read)
        favoured = {"sex": "Male", "race": "White"}[self.sensitive]

        columns: list[Standard] = [
            *(Number(name=c) for c in NUMBERS),
            *(Words(name=c, known=words_of(train[c])) for c in WORDS if c != self.sensitive),
            Words(name=self.sensitive, known=(favoured,), others=words_of(train[self.sensitive])),
        ]
        both = {c: np.concatenate([train[c], test[c]]).astype(float if c in NUMBERS else object) for c in train}
        preprocessing, x = fitted(columns, both, slice(len(train["age"])))
        x, x_test = np.split(x, [len(train["age"])])
        owner, tested = (
            np.char.add(np.char.add(part["sex"], " "), part["race"]) if self.groups == "people" else part[self.groups]
            for part in (train, test)
        )
        clients = numbered(owner)
        y, y_test = ((part["income"] == ">50K").astype(np.int64) for part in (train, test))
        return self.files.build(
            (x, y),
            (x_test, y_test),
            ("at most 50K", "above 50K"),
            clients=clients,
            groups_test=places_of(tested, clients[1]),
            sensitive=self.sensitive,
            preprocessing=preprocessing,
            notes=f"the last column holds the sensitive attribute, 1 for {favoured.lower()}",
        )


def words_of(column: NDArray[np.str_]) -> tuple[str, ...]:
    """Return the distinct words of a column, sorted."""
    return tuple(np.unique(column).tolist())


def read(path: Path) -> Table:
    """Read the columns of a file, by name."""
    lines = [line.rstrip("\n.").split(", ") for line in text_of(path, "ascii") if line.strip() and line[0] != "|"]
    if {len(line) for line in lines} != {len(COLUMNS)}:
        raise ValueError(f"its lines do not have {len(COLUMNS)} columns")
    return dict(zip(COLUMNS, np.asarray(lines).T, strict=True))
