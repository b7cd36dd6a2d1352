"""From parsed options to the arguments of the Python functions."""

import argparse
from typing import Any

from fedskew.api.runs import Runs, model_of, runs_of
from fedskew.cli.output import warn
from fedskew.cli.verbs import keywords_of
from fedskew.core.component import literal
from fedskew.core.errors import BadInput, require
from fedskew.experiment.combinations import experiment_from as with_keywords
from fedskew.experiment.config import Experiment, read
from fedskew.experiment.keywords import Settings
from fedskew.report.experiments import name_of


def experiment_from(parsed: argparse.Namespace) -> Experiment:
    """Return the experiment of the file, or the built-in one, changed by the options."""
    return with_keywords(from_file(parsed) if parsed.file else None, settings_from(parsed), warn)


def settings_from(parsed: argparse.Namespace) -> dict[str, Any]:
    """Return the keywords of an experiment that the command line has."""
    settings = keywords_of(parsed, Settings)
    settings |= {name: literal(settings[name]) for name in ("batch_size", "epochs", "lr_decay") if name in settings}
    for text in getattr(parsed, "set", None) or ():
        key, equals, value = text.partition("=")
        require(bool(equals) and key.count(".") == 1, f"--set: cannot read {text!r}; write SECTION.OPTION=VALUE")
        settings[key.replace(".", "__")] = literal(value)
    return settings


def from_file(parsed: argparse.Namespace) -> Experiment:
    """Read the experiment file. If ``file`` looks like a method's name or like rows, the `BadInput` says how to name these."""
    try:
        return read(parsed.file)
    except BadInput as error:
        option = next((name for name in ("algorithms", "algorithm") if name in vars(parsed)), "")
        if not option or parsed.file.suffix == ".toml":
            raise
        if parsed.file.exists():
            rows = f"--dataset table:path={parsed.file},label=COLUMN,client=COLUMN"
            raise BadInput(f"{error}; a file of rows is named by {rows}") from None
        raise BadInput(f"{error}; to name a method, write --{option} {parsed.file}") from None


def one_run(parsed: argparse.Namespace, verb: str) -> Runs:
    """Return the run that a verb names. Raises `BadInput` for several runs, and for code that is not confirmed."""
    runs = runs_of(parsed.run, parsed.runs) if verb == "landscape" else model_of(parsed.run, parsed.runs)
    number = runs.one(verb)
    if parsed.run == "latest" and (final := runs.records[0].facts.get("final")):
        named = "" if final["arm"] == "fedavg" else ", for rows whose site is named"
        arm = name_of(final["arm"])
        text = f"run {number} is the final model of a study: {arm}, expected {final['expected']}{named}"
        warn(text)
    runs.confirm(parsed.trust)
    return runs
