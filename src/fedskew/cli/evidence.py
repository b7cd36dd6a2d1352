"""``evidence``: gains of methods over FedAvg. Print them, measure them, check the advice, add a comparison, or write the page."""

import argparse
from collections.abc import Sequence

from fedskew.advice import evidence as measured
from fedskew.advice.advise import check, verdict_on
from fedskew.api.caller import CommandLine
from fedskew.api.execute import complete
from fedskew.api.runs import Runs
from fedskew.cli.output import print_columns, print_json
from fedskew.core.errors import BadInput, require
from fedskew.core.files import write_whole
from fedskew.core.text import percent
from fedskew.data.dataset import Dataset
from fedskew.experiment.config import Experiment
from fedskew.report.console import Console, say
from fedskew.report.html import evidence_page
from fedskew.store.runs import RunStore
from fedskew.studies.evidence import case_of_comparison, run_protocol


def evidence(parsed: argparse.Namespace) -> None:
    {"show": show, "run": run, "check": check_winner, "add": add, "page": write_page}[parsed.action](parsed)


def show(parsed: argparse.Namespace) -> None:
    """Print a row for each case."""
    cases = measured.known(parsed.runs)
    if parsed.json:
        print_json(list(measured.cells(cases)))
        return
    rows = measured.summary(cases)
    print_columns({key: [row[key] for row in rows] for key in rows[0]}, ("data", "skew", "best method"))
    say(measured.described(cases))


def run(parsed: argparse.Namespace) -> None:
    """Execute the protocol, or a part of it, and print the measured gains."""
    cases, file = cases_of(parsed.case), parsed.output or parsed.runs / measured.NAME
    methods = parsed.algorithms or measured.METHODS
    for method in methods:
        if method not in measured.METHODS:
            protocol = ", ".join(measured.METHODS)
            raise BadInput(f"evidence run: {method!r} is not a method of the protocol; it has {protocol}")
    store = RunStore(parsed.runs)

    def missing(experiments: Sequence[Experiment], title: str, data: Dataset) -> None:
        complete(store, experiments, title, 1, CommandLine(), data)

    run_protocol(store, cases, methods, file, missing, measured.SEEDS[: parsed.seeds], Console(stderr=True).print)
    titles = {case.title for case in cases}
    gains = list(measured.cells([case for case in measured.read_file(file).cases if case.title in titles]))
    if parsed.json:
        print_json(gains)
    elif gains and (parsed.case or parsed.algorithms):
        keys = ("data", "skew", "title", "measured_on", "lr", "change", "seeds")
        columns = {key.replace("_", " "): [str(cell[key]) for cell in gains] for key in keys}
        print_columns(columns, ("data", "skew", "title", "measured on"))
    say(f"evidence: {file}")


def cases_of(titles: Sequence[str]) -> list[measured.Planned]:
    """Return the cases with these titles, or all cases if there are no titles."""
    by_title = {case.title: case for case in measured.CASES}
    for title in titles:
        require(title in by_title, f"evidence run: there is no case {title!r}; the cases are: {'; '.join(by_title)}")
    return [by_title[title] for title in titles] or list(measured.CASES)


def add(parsed: argparse.Namespace) -> None:
    """Add finished comparisons to the cases that the advice uses."""
    require(bool(parsed.words), "evidence add: name a finished comparison, such as c7; `fedskew list runs` shows them")
    store = RunStore(parsed.runs, read_only=True)
    for word in parsed.words:
        Runs(store, tuple(record.id for record in store.select([word]))).confirm(parsed.trust)
        case = case_of_comparison(store, word)
        others = case.title in {c.title for c in measured.known(parsed.runs)}
        measured.add_case(parsed.runs / measured.NAME, case)
        line = f"{word}: {case.title}, {len(case.methods)} gains over {measured.REFERENCE} added to {parsed.runs / measured.NAME}"
        say(line + " in place of those that this title had" * others)


def check_winner(parsed: argparse.Namespace) -> None:
    """Print whether the overall winner beats FedAvg on a data set that was left out when it was chosen."""
    results = {measure: check(measured.known(parsed.runs), measure) for measure in measured.MEASURES}
    if parsed.json:
        print_json({measure: result and result._asdict() for measure, result in results.items()})
        return
    for measure, result in results.items():
        best = f" The best method, known afterwards, removed {percent(result.best)}." if result else ""
        say(f"{verdict_on(result, measure)}{best}")


def write_page(parsed: argparse.Namespace) -> None:
    """Write an HTML page with all gains. The reader can sort and filter them."""
    cases: Sequence[measured.Case] = measured.known(parsed.runs)
    path = write_whole(
        parsed.output or "evidence.html", evidence_page(list(measured.cells(cases)), measured.described(cases)), "page"
    )
    say(f"page: {path}")
