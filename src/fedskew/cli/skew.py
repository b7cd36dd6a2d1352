"""``skew``: split data among clients, show the result, write it to a folder."""

import argparse
import shlex
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.cli.output import number, print_json
from fedskew.cli.request import experiment_from
from fedskew.cli.terminal import Console
from fedskew.core.component import shown
from fedskew.core.errors import require
from fedskew.core.text import count
from fedskew.data.dataset import Dataset
from fedskew.execution.deal import ClientData, client_data, partition_facts
from fedskew.experiment.config import Experiment
from fedskew.report.html import PARTITION_NUMBERS
from fedskew.skew.compose import mixture
from fedskew.skew.concept import Concept
from fedskew.skew.exported import export
from fedskew.skew.feature import FeatureSkew

SHADES = " .:-=+*#%@"
"""The share of a client's rows, from none to all."""

SHOWN_CLIENTS, SHOWN_CLASSES = 24, 50


def skew(parsed: argparse.Namespace) -> int:
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
            {"client": name, "rows": int(own.sum()), "label_counts": own.tolist()}
            for name, own in zip(data.partition.names, counts, strict=True)
        ]
        print_json({"dataset": dataset.name, "fingerprint": dataset.fingerprint(), **facts, "by_client": rows})
        return 0
    show(facts, data.partition.names, counts, dataset)
    if parsed.export:
        Console().print(f"written to {parsed.export}", soft_wrap=True)
    return 0


def write(parsed: argparse.Namespace, experiment: Experiment, dataset: Dataset, data: ClientData) -> None:
    """Write the split to the folder of ``--export``."""
    require(
        experiment.shared_data.beta == 0 and not mixture(experiment.skew).pooled and not experiment.clients.unseen,
        "export: shared and pooled rows belong to no single client, and a run chooses the unseen clients; leave out shared_data, "
        "pooled and unseen",
    )
    labels = data.labels.at(0)
    skews = [f"from-folder:path={shown(str(parsed.export))}"]
    skews += [
        text
        for one, text in zip(experiment.skew, experiment.labels("skew"), strict=True)
        if isinstance(one, FeatureSkew | Concept)
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
    classes, shown = min(len(dataset.strata[1]), SHOWN_CLASSES), min(len(counts), SHOWN_CLIENTS)
    width = min(16, max(8, *(len(name) for name in names[:shown])))
    console.print(f"{'client':>{width}} {'rows':>7}  share of each class, {SHADES.strip()} up to all", style="dim")
    for name, own in zip(names[:shown], counts[:shown], strict=True):
        share = own / max(own.sum(), 1)
        cells = "".join(SHADES[0 if not s else min(1 + int(s * (len(SHADES) - 1)), len(SHADES) - 1)] for s in share)
        console.print(f"{name[:width]:>{width}} {own.sum():>7}  |{cells[:classes]}|")
    if shown < len(counts):
        console.print(f"and {len(counts) - shown} more; --json prints all of them", style="dim")
    for key, text in PARTITION_NUMBERS[1:]:
        if facts.get(key) not in (None, 0):
            value = facts[key]
            console.print(f"{text}: {number(value, 3) if isinstance(value, float) else value}")
    if facts["note"]:
        console.print(f"note: {facts['note']}")
