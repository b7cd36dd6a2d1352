"""``reproduce``: a document's experiment, its numbers beside ours."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from fedskew.cli.output import print_json
from fedskew.core.errors import BadInput, suggestion
from fedskew.experiment.drift_demo import Reproduced, drift_demo

DOCUMENTS = ("drift-demo",)


def reproduce(parsed: argparse.Namespace) -> int:
    """Run a document's experiment; exit code 1 if a number differs from the document's."""
    if parsed.document not in DOCUMENTS:
        raise BadInput(f"reproduce: unknown document {parsed.document!r}; {suggestion(parsed.document, DOCUMENTS)}")
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("drift-demo", total=1.0)
        results = list(drift_demo(tell=lambda share: progress.update(bar, completed=share)))
    if parsed.json:
        print_json([as_row(r) for r in results])
    else:
        print_table(results)
    return 0 if all(r.agrees for r in results) else 1


def as_row(r: Reproduced) -> dict[str, object]:
    return {
        "skew": r.printed.skew,
        "epochs": r.printed.epochs,
        "drift": r.drift,
        "drift_in_document": r.printed.drift,
        "accuracy": r.accuracy,
        "accuracy_in_document": r.printed.accuracy,
        "agrees": r.agrees,
    }


def print_table(results: list[Reproduced]) -> None:
    table = Table(box=None, pad_edge=False)
    for title in ("partition", "epochs", "drift", "document", "accuracy", "document", ""):
        table.add_column(title, justify="left" if title in ("partition", "") else "right")
    for r in results:
        table.add_row(
            r.printed.skew,
            str(r.printed.epochs),
            f"{r.drift:.3f}",
            f"{r.printed.drift:.3f}",
            f"{r.accuracy:.3f}",
            f"{r.printed.accuracy:.3f}",
            "same" if r.agrees else "differs",
        )
    console = Console(highlight=False)
    console.print(table)
    console.print(
        "drift: mean over 30 rounds; accuracy: on the training rows, as the document measures it", style="dim"
    )
