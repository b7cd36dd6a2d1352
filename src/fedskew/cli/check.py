"""``check``: check the promises of a component, or list the classes of a file."""

import argparse
import dataclasses

from fedskew.cli.output import print_json
from fedskew.cli.terminal import Console
from fedskew.core.errors import require
from fedskew.experiment.components import KINDS, classes_of
from fedskew.experiment.components import check as verdicts


def check(parsed: argparse.Namespace) -> int:
    """Check a component's promises and print one line for each. The exit code is 1 if a promise is broken."""
    if parsed.component.endswith(".py"):
        return list_classes(parsed)
    console = Console()
    kind, promises = verdicts(parsed.component)
    given = []
    for verdict in promises:
        given.append(verdict)
        if not parsed.json:
            console.print("ok    " if verdict.kept else "broken", style="green" if verdict.kept else "red", end=" ")
            console.print(verdict.promise + (f": {verdict.reason}" if verdict.reason else ""), soft_wrap=True)
    broken = sum(not v.kept for v in given)
    if parsed.json:
        rows = [dataclasses.asdict(v) for v in given]
        print_json({"component": parsed.component, "kind": kind, "promises": rows})
    else:
        console.print(
            f"{parsed.component}: "
            + (f"{broken} of {len(given)} promises broken" if broken else f"keeps its promises ({kind})"),
            soft_wrap=True,
        )
    return 1 if broken else 0


def list_classes(parsed: argparse.Namespace) -> int:
    """Print each class of a file with its kind and the command that checks it."""
    found = classes_of(parsed.component)
    require(
        bool(found), f"check {parsed.component}: the file defines no class; write one, such as class Mine(Algorithm)"
    )
    if parsed.json:
        print_json(found)
        return 0
    for name, kind in found.items():
        Console().print(
            f"{name}: {kind}" + (f", fedskew check {parsed.component}::{name}" if kind in KINDS else ""), soft_wrap=True
        )
    return 0
