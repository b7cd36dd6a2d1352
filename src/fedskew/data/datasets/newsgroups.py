"""20 Newsgroups: posts to twenty discussion groups. The version "bydate": test posts are later than training posts."""

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fedskew.core.limits import PositiveInt
from fedskew.data.dataset import Dataset, check_all_trained, numbered
from fedskew.data.datasets import SOURCES
from fedskew.data.find import Files, text_of
from fedskew.data.preprocessing import Texts
from fedskew.data.texts import Vocabulary, of_texts

Post = tuple[str, str, str]
"""Part, group, text."""


@dataclass(frozen=True, kw_only=True)
class Newsgroups:
    """11,314 training and 7,532 later test posts. Rows are ids of the first ``length`` words.

    Headers reveal the group, for example by the moderator's name. They are left out, unless ``headers`` is True or the post has
    no other text.
    """

    length: PositiveInt = 256
    vocabulary: Vocabulary = 20_000
    headers: bool = False

    model: ClassVar[str] = "text-cnn"
    cites: ClassVar[tuple[str, ...]] = ("20-newsgroups",)
    idea: ClassVar[str] = "posts to twenty discussion groups, tested on later ones"
    files: ClassVar[Files] = SOURCES["20-newsgroups"]

    def load(self) -> Dataset:
        [posts] = self.files.read(read)
        labels, classes = numbered([group for _, group, _ in posts])
        texts = [text if self.headers else body(text) for *_, text in posts]
        train, test = ([at for at, post in enumerate(posts) if post[0] == part] for part in ("train", "test"))
        parts = [([texts[row] for row in rows], labels[rows]) for rows in (train, test)]
        known = Texts(length=self.length, target="group")
        check_all_trained("data set 20-newsgroups", classes, parts[0][1], parts[1][1])
        return of_texts(self.files, parts[0], parts[1], classes, known, self.vocabulary)


def body(text: str) -> str:
    """Return the text after the header, which ends at an empty line. If there is no text after it, return the header."""
    behind = text.partition("\n\n")[2]
    return behind if behind.strip() else text


def read(path: Path) -> list[Post]:
    """Read the posts from a file with a JSON object in each line, or from an archive with paths PART/GROUP/POST."""
    if path.suffix == ".xz":
        rows = [json.loads(line) for line in text_of(path)]
        return [(row["split"], row["group"], row["text"]) for row in rows]
    posts = []
    with tarfile.open(path) as archive:
        for member in archive:
            folder, _, rest = member.name.partition("/")
            if file := archive.extractfile(member):
                posts.append((folder.rpartition("-")[2], rest.partition("/")[0], file.read().decode("latin-1")))
    return posts
