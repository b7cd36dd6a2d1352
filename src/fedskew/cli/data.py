"""``data``: list, download, verify and locate data sets."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypedDict

from rich.padding import Padding
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.text import Text

from fedskew.cli.output import print_json
from fedskew.cli.terminal import Console, say
from fedskew.core.errors import BadInput, FedskewError, require, suggestion
from fedskew.data import DATASETS
from fedskew.data.dataset import Dataset
from fedskew.data.find import Files, digest, fetch, home
from fedskew.experiment.references import references


class WithFiles(Protocol):
    """The class of a data set that is read from files."""

    idea: str
    cites: tuple[str, ...]
    files: Files

    def load(self) -> Dataset: ...


class Verdict(TypedDict):
    """The result of a check of a data set's files."""

    name: str
    right: bool
    verdict: str


NAMED: dict[str, type[WithFiles]] = {name: cls for name, cls in DATASETS.items() if hasattr(cls, "files")}


def data(parsed: argparse.Namespace) -> int:
    """Carry out ``data list``, ``get``, ``verify`` or ``path``. The exit code is 1 if a verified file is wrong."""
    for name in parsed.names:
        if name not in NAMED:
            raise BadInput(f"data {parsed.action}: unknown data set {name!r}; {suggestion(name, NAMED)}")
    act = {"list": list_, "get": get, "verify": verify, "path": path}[parsed.action]
    return act(parsed.names or list(NAMED), parsed)


def list_(names: Sequence[str], parsed: argparse.Namespace) -> int:
    rows = [about(name) for name in names]
    if parsed.json:
        print_json(rows)
        return 0
    console = Console()
    for row in rows:
        console.print(Text.assemble((str(row["name"]), "bold"), f"  {row['idea']}"))
        natural = f"natural clients: {row['natural_clients']}" if row["natural_clients"] else "no natural clients"
        facts = [f"{row['classes']} classes", natural, size_of(row["bytes"]), f"licence: {row['licence']}"]
        for text, style in (("; ".join(filter(None, facts)), ""), (row["citation"], "dim"), (row["here"], "dim")):
            console.print(Padding(Text(str(text), style), (0, 0, 0, 4)))
    return 0


def about(name: str) -> dict[str, object]:
    """Return facts about a data set, and the paths of its files."""
    cls = NAMED[name]
    files: Files = cls.files
    here = [str(p) for p in files.here()]
    fetched = f"not here; `fedskew data get {name}`" if files.remotes else f"not here; {files.how}"
    sizes = [remote.size for remote in files.remotes]
    return {
        "name": name,
        "idea": cls.idea,
        "classes": files.classes,
        "natural_clients": files.natural,
        "bytes": sum(sizes) if sizes and all(sizes) else None,
        "licence": files.licence,
        "citation": references()[cls.cites[0]].line(),
        "files": here,
        "here": f"here: {', '.join(here)}" if here else fetched if files.forms else "always here",
    }


def size_of(count: object) -> str:
    """Return a number of bytes in MB as text, or "" if it is not known."""
    return f"{count / 1e6:.1f} MB" if isinstance(count, int) else ""


def get(names: Sequence[str], parsed: argparse.Namespace) -> int:
    require(bool(parsed.names), "data get: name a data set; `fedskew data list` lists them")
    for name in names:
        files: Files = NAMED[name].files
        if not files.forms:
            say(f"{name}: always here, it needs no files")
        elif here := files.here():
            say(f"{name}: here already, {', '.join(map(str, here))}")
        else:
            require(bool(files.remotes), f"data get {name}: it cannot be downloaded; {files.how}")
            paths = fetch_shown(files)
            sums = "SHA-256 as published" if all(r.sha256 for r in files.remotes) else "no checksum is published"
            say(f"{name}: {', '.join(map(str, paths))}; {sums}")
    return 0


def fetch_shown(files: Files) -> list[Path]:
    """Download files, with a progress bar for each on standard error. Return their paths."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bars = {r.file: progress.add_task(r.file, total=r.size or None) for r in files.remotes}
        return fetch(files, lambda file, done, of: progress.update(bars[file], completed=done, total=of or None))


def verify(names: Sequence[str], parsed: argparse.Namespace) -> int:
    """Compare the files with the published checksums, then read and check each data set."""
    rows = [verdict(name) for name in names if parsed.names or NAMED[name].files.here()]
    if parsed.json:
        print_json(rows)
    else:
        for row in rows:
            say(f"{row['name']}: {row['verdict']}")
        if not rows:
            say("nothing to verify: no data set has been downloaded")
    return 0 if all(row["right"] for row in rows) else 1


def verdict(name: str) -> Verdict:
    files: Files = NAMED[name].files
    try:
        sums = {remote.file: remote.sha256 for remote in files.remotes if remote.sha256}
        found = [path for path in files.here() if path.name in sums]
        for path in found:
            if digest(path) != sums[path.name]:
                return {"name": name, "right": False, "verdict": f"wrong: {path} does not have the published SHA-256"}
        dataset = NAMED[name]().load()
    except FedskewError as error:
        return {"name": name, "right": False, "verdict": f"wrong: {error}"}
    checked = "SHA-256 as published" if found else "no checksum is published for these files"
    rows = f"{len(dataset.y):,} training and {len(dataset.y_test):,} test rows read"
    return {"name": name, "right": True, "verdict": f"right: {checked if files.forms else 'no files'}; {rows}"}


def path(names: Sequence[str], parsed: argparse.Namespace) -> int:
    """Print the paths of the files, or the folder to which a download would write them."""
    places = {name: [str(p) for p in NAMED[name].files.here()] or [str(home(NAMED[name].files))] for name in names}
    if parsed.json:
        print_json(places)
    else:
        for name in names:
            say("\n".join(places[name]) if len(names) == 1 else f"{name}: {', '.join(places[name])}")
    return 0
