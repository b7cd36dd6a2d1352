"""``data``: list, download, verify and locate data sets. ``skew``: split one among clients."""

import argparse
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from rich.padding import Padding
from rich.text import Text

from fedskew.cli.output import number, print_json
from fedskew.cli.request import experiment_from
from fedskew.core.component import compact
from fedskew.core.errors import FedskewError, require, suggestion
from fedskew.core.text import count
from fedskew.data import DATASETS
from fedskew.data.dataset import Dataset
from fedskew.data.find import Files, digest, fetch, home
from fedskew.execution.deal import ClientData, client_data, partition_facts
from fedskew.experiment.config import Experiment
from fedskew.experiment.references import references
from fedskew.report.console import Console, say
from fedskew.report.html import PARTITION_NUMBERS
from fedskew.report.progress import Board, Part, face_for
from fedskew.skew.concept import Concept
from fedskew.skew.exported import export
from fedskew.skew.feature import FeatureSkew


class WithFiles(Protocol):
    """The class of a data set that is read from files."""

    idea: str
    cites: tuple[str, ...]
    files: Files

    def load(self) -> Dataset: ...


NAMED: dict[str, type[WithFiles]] = {name: cls for name, cls in DATASETS.items() if hasattr(cls, "files")}


def data(parsed: argparse.Namespace) -> int | None:
    """Carry out ``data list``, ``get``, ``verify`` or ``path``. The exit code is 1 if a verified file is wrong."""
    for name in parsed.names:
        require(name in NAMED, f"data {parsed.action}: unknown data set {name!r}; {suggestion(name, NAMED)}")
    actions: dict[str, Callable[[Sequence[str], argparse.Namespace], int | None]]
    actions = {"list": list_, "get": get, "verify": verify, "path": path}
    return actions[parsed.action](parsed.names or list(NAMED), parsed)


def list_(names: Sequence[str], parsed: argparse.Namespace) -> None:
    rows = [about(name) for name in names]
    if parsed.json:
        print_json(rows)
        return
    console = Console()
    for row in rows:
        console.print(Text.assemble((str(row["name"]), "bold"), f"  {row['idea']}"))
        natural = f"natural clients: {row['natural_clients']}" if row["natural_clients"] else "no natural clients"
        facts = [f"{row['classes']} classes", natural, size_of(row["bytes"]), f"licence: {row['licence']}"]
        for text, style in (("; ".join(filter(None, facts)), ""), (row["citation"], "dim"), (row["here"], "dim")):
            console.print(Padding(Text(str(text), style), (0, 0, 0, 4)))


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


def get(names: Sequence[str], parsed: argparse.Namespace) -> None:
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


def fetch_shown(files: Files) -> list[Path]:
    """Download files, with a progress bar for each on standard error. Return their paths."""
    parts = {remote.file: Part(remote.file, remote.size / 1e6) for remote in files.remotes}
    with Board(parts, face_for(), "MB") as board:

        def on_progress(file: str, done: int, size: int) -> None:
            part = parts[file]
            part.total = size / 1e6
            board.advance(file, done / 1e6 - part.done, new=part.done > 0)

        return fetch(files, on_progress)


def verify(names: Sequence[str], parsed: argparse.Namespace) -> int:
    """Compare the files with the published checksums, then read and check each data set."""
    rows = []
    for name in names:
        if parsed.names or NAMED[name].files.here():
            try:
                right, verdict = True, f"right: {verified(name)}"
            except FedskewError as error:
                right, verdict = False, f"wrong: {error}"
            rows.append({"name": name, "right": right, "verdict": verdict})
    if parsed.json:
        print_json(rows)
    else:
        for row in rows:
            say(f"{row['name']}: {row['verdict']}")
        if not rows:
            say("nothing to verify: no data set has been downloaded")
    return 0 if all(row["right"] for row in rows) else 1


def verified(name: str) -> str:
    """Check the files of a data set, and say what was checked. Raises `FedskewError` if they are wrong."""
    files: Files = NAMED[name].files
    sums = {remote.file: remote.sha256 for remote in files.remotes if remote.sha256}
    paths = [path for path in files.here() if path.name in sums]
    for path in paths:
        require(digest(path) == sums[path.name], f"{path} does not have the published SHA-256")
    dataset = NAMED[name]().load()
    checked = "SHA-256 as published" if paths else "no checksum is published for these files"
    rows = f"{len(dataset.y):,} training and {len(dataset.y_test):,} test rows read"
    return f"{checked if files.forms else 'no files'}; {rows}"


def path(names: Sequence[str], parsed: argparse.Namespace) -> None:
    """Print the paths of the files, or the folder to which a download would write them."""
    places = {name: [str(p) for p in NAMED[name].files.here()] or [str(home(NAMED[name].files))] for name in names}
    if parsed.json:
        print_json(places)
    else:
        for name in names:
            say("\n".join(places[name]) if len(names) == 1 else f"{name}: {', '.join(places[name])}")


SHADES = " .:-=+*#%@"
"""The share of a client's rows, from none to all."""

SHOWN_CLIENTS, SHOWN_CLASSES = 24, 50


def skew(parsed: argparse.Namespace) -> None:
    """Split the data among clients. Print the result, or export it."""
    experiment = experiment_from(parsed)
    dataset: Dataset = experiment.dataset.load()
    data = client_data(experiment, dataset)
    facts = partition_facts(experiment, dataset, data, 0)
    counts = data.label_counts()
    if parsed.export:
        write(parsed, experiment, dataset, data)
    if parsed.json:
        rows = [
            {"client": name, "rows": int(row.sum()), "label_counts": row.tolist()}
            for name, row in zip(data.partition.names, counts, strict=True)
        ]
        print_json({"dataset": dataset.name, "fingerprint": dataset.fingerprint(), **facts, "by_client": rows})
        return
    show(facts, data.partition.names, counts, dataset)
    if parsed.export:
        Console().print(f"written to {parsed.export}", soft_wrap=True)


def write(parsed: argparse.Namespace, experiment: Experiment, dataset: Dataset, data: ClientData) -> None:
    """Write the split to the folder of ``--export``."""
    require(
        experiment.shared_data.beta == 0
        and not {"pooled", "shuffled"} & {*experiment.labels("skew")}
        and not experiment.clients.unseen,
        "export: shared, pooled and shuffled rows have left the client that a skew dealt them to, and a run chooses the unseen "
        "clients; leave out shared_data, pooled, shuffled and unseen",
    )
    labels = data.labels.at(0)
    skews = [f"from-folder:path={compact(str(parsed.export))}"]
    skews += [
        text
        for part, text in zip(experiment.skew, experiment.labels("skew"), strict=True)
        if isinstance(part, FeatureSkew | Concept)
    ]
    export(
        parsed.export,
        data.partition,
        data.label_counts(),
        {
            "dataset": experiment.labels("dataset")[0],
            "fingerprint": dataset.fingerprint(),
            "skews": experiment.labels("skew"),
            "partition_seed": experiment.clients.partition_seed,
            "classes": list(dataset.strata[1]),
        },
        data.drawn,
        {"x": data.x, "y": labels},
        " ".join(f"--skew {shlex.quote(text)}" for text in skews),
    )


def show(facts: Mapping[str, Any], names: tuple[str, ...], counts: NDArray[np.int64], dataset: Dataset) -> None:
    """Print the counts as a picture, then the numbers. The picture has a line for each client and a character for each class."""
    console = Console()
    console.print(f"{dataset.name}, {count(facts['clients'], 'client')}: {facts['skews']}", style="bold")
    classes, rows = min(len(dataset.strata[1]), SHOWN_CLASSES), min(len(counts), SHOWN_CLIENTS)
    width = min(16, max(8, *(len(name) for name in names[:rows])))
    console.print(f"{'client':>{width}} {'rows':>7}  share of each class, {SHADES.strip()} up to all", style="dim")
    for name, row in zip(names[:rows], counts[:rows], strict=True):
        share = row / max(row.sum(), 1)
        cells = "".join(SHADES[0 if not s else min(1 + int(s * (len(SHADES) - 1)), len(SHADES) - 1)] for s in share)
        console.print(f"{name[:width]:>{width}} {row.sum():>7}  |{cells[:classes]}|")
    if rows < len(counts):
        console.print(f"and {len(counts) - rows} more; --json prints all of them", style="dim")
    for key, text in list(PARTITION_NUMBERS.items())[1:]:
        if facts.get(key) not in (None, 0):
            value = facts[key]
            console.print(f"{text}: {number(value, 3) if isinstance(value, float) else value}")
    if facts["note"]:
        console.print(f"note: {facts['note']}")
