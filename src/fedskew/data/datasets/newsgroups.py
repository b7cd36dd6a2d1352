"""20 Newsgroups, the version split by date: posts to twenty discussion groups."""

from __future__ import annotations

import json
import lzma
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedskew.data.dataset import Dataset
from fedskew.data.find import Files, Remote, reading
from fedskew.data.texts import check_options, of_texts

Post = tuple[str, str, str]
"""Part, group, text."""


@dataclass(frozen=True, kw_only=True)
class Newsgroups:
    """11,314 training and 7,532 later test posts; rows are ids of the first ``length`` words.

    Headers give the group away (its moderators, its organisations) and are left out unless ``headers`` asks for them,
    or the post has nothing else.
    """

    length: int = 256
    vocabulary: int = 20_000
    headers: bool = False

    model: ClassVar[str] = "text-cnn"
    cites: ClassVar[tuple[str, ...]] = ("20-newsgroups",)
    idea: ClassVar[str] = "posts to twenty discussion groups, tested on later ones"
    files: ClassVar[Files] = Files(
        dataset="20-newsgroups",
        licence="none stated; cite the paper",
        classes=20,
        remotes=(
            Remote(
                "20news-bydate.tar.gz",
                "https://ndownloader.figshare.com/files/5975967",
                sha256="8f1b2514ca22a5ade8fbb9cfa5727df95fa587f4c87b786e15c759fa66d95610",
            ),
        ),
        others=(("20newsgroups_bydate.jsonl.xz",),),
    )

    def __post_init__(self) -> None:
        check_options(self.length, self.vocabulary)

    def load(self) -> Dataset:
        path = self.files.paths()[0]
        with reading("20-newsgroups", path):
            posts = archived(path) if path.suffix == ".gz" else listed(path)
            classes = tuple(sorted({group for part, group, _ in posts if part == "train"}))
            unseen = sorted({group for part, group, _ in posts if part == "test"} - {*classes})
            if unseen:
                raise ValueError(f"the training part has no post to {', '.join(unseen)}, which the test part has")
            ids = {group: at for at, group in enumerate(classes)}
            train, test = (
                (
                    [text if self.headers else body(text) for p, _, text in posts if p == part],
                    np.asarray([ids[group] for p, group, _ in posts if p == part]),
                )
                for part in ("train", "test")
            )
        return of_texts(
            train,
            test,
            classes=classes,
            length=self.length,
            vocabulary=self.vocabulary,
            name="20-newsgroups",
            source="K. Lang: NewsWeeder: Learning to Filter Netnews, ICML 1995; split by date by J. Rennie",
        )


def body(text: str) -> str:
    """What stands behind the header, which an empty line ends; the header where nothing does."""
    behind = text.partition("\n\n")[2]
    return behind if behind.strip() else text


def listed(path: Path) -> list[Post]:
    """From one JSON object a line: split, group, text."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [(row["split"], row["group"], row["text"]) for row in rows]


def archived(path: Path) -> list[Post]:
    """From the archive with a folder a part, a subfolder a group and a file a post, read in place."""
    posts = []
    with tarfile.open(path) as archive:
        for member in archive:
            folder, _, rest = member.name.partition("/")
            if file := archive.extractfile(member):
                posts.append((folder.rpartition("-")[2], rest.partition("/")[0], file.read().decode("latin-1")))
    return posts
