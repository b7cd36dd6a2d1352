"""``study``: from rows to a decision."""

import argparse

from fedskew.api.caller import CommandLine
from fedskew.api.study import study as decide
from fedskew.cli.output import print_json
from fedskew.cli.request import settings_from
from fedskew.cli.verbs import keywords_of
from fedskew.experiment.config import read
from fedskew.experiment.keywords import StudyOptions
from fedskew.report.console import say
from fedskew.report.study import printed, title_of, values


def study(parsed: argparse.Namespace) -> None:
    """Carry out a study, write its page, and print what it found."""
    options = {**settings_from(parsed), **keywords_of(parsed, StudyOptions)}
    experiment = read(parsed.path) if parsed.path and parsed.path.suffix == ".toml" else None
    path = None if experiment else parsed.path
    decided = decide(path, experiment=experiment, runs=parsed.runs, jobs=parsed.jobs, progress=CommandLine(), **options)
    page = decided.report(parsed.report or decided.runs.store.folder / "study.html")
    if parsed.json:
        print_json({**values(decided.findings), "report": str(page)})
        return
    for line in printed(decided.findings):
        say(line)
    if decided.final:
        [record] = decided.final.records
        rows = record.facts["final"].get("rows", "all rows")  # an older version did not store it
        say(f"Run {record.id} is trained on {rows}: {title_of(decided.findings.used)}")
    say(f"Page: {page}")
    say(f"Next: {decided.findings.commands[0].removeprefix('# ')}")
