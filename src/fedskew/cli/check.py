"""``check``: a method's promises, one line each."""

import argparse
import dataclasses

from fedskew.cli.output import print_json
from fedskew.cli.terminal import Console
from fedskew.conformance.promises import check as verdicts
from fedskew.experiment.combinations import with_method
from fedskew.experiment.config import COMPONENTS, Experiment


def check(parsed: argparse.Namespace) -> int:
    """Check the promises and print one line for each; the exit code is 1 if one is broken."""
    experiment = with_method(Experiment(), parsed.method)
    console = Console()
    given = []
    for verdict in verdicts(experiment.algorithm, experiment.server, COMPONENTS["algorithm"]):
        given.append(verdict)
        if not parsed.json:
            console.print("ok    " if verdict.kept else "broken", style="green" if verdict.kept else "red", end=" ")
            console.print(verdict.promise + (f": {verdict.reason}" if verdict.reason else ""), soft_wrap=True)
    broken = sum(not v.kept for v in given)
    if parsed.json:
        print_json({"method": parsed.method, "promises": [dataclasses.asdict(v) for v in given]})
    else:
        console.print(
            f"{parsed.method}: " + (f"{broken} of {len(given)} promises broken" if broken else "keeps its promises")
        )
    return 1 if broken else 0
