"""``fedskew``: the verbs, and how their errors become one line and an exit code."""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import version
from typing import Any, NoReturn

from fedskew.cli import deploy_options, laboratory, options
from fedskew.cli.terminal import HelpFormatter
from fedskew.core.errors import BadInput, FedskewError, visible

DESCRIPTION = """\
Federated learning when clients' data differ: simulate it, measure the drift,
compare methods over seeds, and get a report.

  fedskew compare                     the demo: FedAvg, FedProx and SCAFFOLD on
                                      digits, 10 clients with skewed labels
  fedskew compare --dataset uci-har --skew natural --lr 0.05 --momentum 0.9 \\
          --batch-size 32 --epochs 1 --algorithms fedavg fedprox:mu=0.01
  fedskew list algorithms             what there is, with the papers
  fedskew run my.toml                 an experiment from a file
"""


NUMBERS = {"int": "a whole number", "float": "a number"}

ELSEWHERE = {
    "--method": ("--algorithms", "--algorithm"),
    "--methods": ("--algorithms", "--algorithm"),
    "--strategy": ("--algorithms", "--algorithm"),
    "--optimizer": ("--solver",),
    "--learning-rate": ("--lr",),
    "--alpha": ("--skew",),
    "--partition": ("--skew",),
    "--fraction": ("--cohort",),
    "--participation": ("--cohort",),
    "--gpu": ("--device",),
    "--cuda": ("--device",),
    "--out": ("--runs",),
    "--output": ("--runs",),
}
"""What other tools call options that have another name here, of which a verb has one."""


class Parser(argparse.ArgumentParser):
    """One whose errors are one line; the usage is what ``--help`` is for."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": HelpFormatter, **options})

    def error(self, message: str) -> NoReturn:
        number = re.fullmatch(r"argument (.*): invalid (int|float) value: (.*)", message)
        choice = re.fullmatch(r"argument (.*): invalid choice: '(.*)' \(choose from (.*)\)", message)
        if number:
            message = f"{number[1]}: {NUMBERS[number[2]]} is needed, got {number[3]}"
        if choice:
            known = re.findall(r"[^', ]+", choice[3])
            near = [f"did you mean {word}?" for word in get_close_matches(choice[2], known, n=1)]
            message = f"{choice[1]} cannot be {choice[2]!r}; " + (near or [f"known are {', '.join(known)}"])[0]
        self.exit(BadInput.exit_code, visible(f"{self.prog}: {message}; see `{self.prog} --help`") + "\n")


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = Parser(prog="fedskew", description=DESCRIPTION)
    top.add_argument("--version", action="version", version=f"fedskew {version('fedskew')}")
    verbs = top.add_subparsers(title="verbs", metavar="VERB", required=True)

    def verb(name: str, room: str, function: str, summary: str, description: str) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=summary, description=description)
        made.set_defaults(room=room, function=function, parser=made)
        return made

    options.for_run(verb("run", "train", "run", "run one experiment", options.RUN))
    options.for_compare(verb("compare", "train", "compare", "run several methods on equal terms", options.COMPARE))
    laboratory.for_tune(verb("tune", "tune", "tune", "find each method's best settings", laboratory.TUNE))
    laboratory.for_watch(verb("watch", "watch", "watch", "follow runs that are going on", laboratory.WATCH))
    options.for_diagnose(verb("diagnose", "diagnose", "diagnose", "how clients' data differ", options.DIAGNOSE))
    options.for_resume(verb("resume", "train", "resume", "go on with runs that were interrupted", options.RESUME))
    options.for_list(verb("list", "look", "list_", "list runs, algorithms, data sets, skews, ...", options.LIST))
    options.for_show(verb("show", "look", "show", "show one run or a comparison", options.SHOW))
    laboratory.for_report(verb("report", "look", "report", "write the HTML report of some runs", laboratory.REPORT))
    laboratory.for_landscape(
        verb("landscape", "landscape", "picture", "draw the loss around a run's model", laboratory.LANDSCAPE)
    )
    options.for_check(verb("check", "check", "check", "check a method's promises", options.CHECK))
    options.for_skew(verb("skew", "skew", "skew", "deal data to clients, look at it, export it", options.SKEW))
    options.for_cite(verb("cite", "look", "cite", "BibTeX of what some runs used", options.CITE))
    options.for_data(verb("data", "data", "data", "list, fetch, verify and find data sets", options.DATA))
    laboratory.for_reproduce(
        verb("reproduce", "reproduce", "reproduce", "repeat a document's experiment", laboratory.REPRODUCE)
    )
    deploy_options.for_export(
        verb("export", "export", "export", "write a run's model to a file", deploy_options.EXPORT)
    )
    deploy_options.for_flower(
        verb("flower", "deploy", "flower", "run between real machines, on Flower", deploy_options.FLOWER)
    )
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code: 0 done, 2 bad input, 3 diverged, 130 interrupted, 1 anything else."""
    try:
        try:
            return carried_out(sys.argv[1:] if arguments is None else arguments)
        finally:
            # a device that is full says so here, and not while Python ends
            sys.stdout.flush()
    except FedskewError as error:
        print(f"fedskew: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("fedskew: interrupted; runs that had begun, if any, go on with `fedskew resume`", file=sys.stderr)
        return 130
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # that is a reader who went away, as in `fedskew list | head`
            where = f": {error.filename}" if error.filename else ", standard output or a temporary file"
            print(visible(f"fedskew: {error.strerror or error}{where}"), file=sys.stderr)
        drop_output()
        return 1
    except Exception as error:
        from fedskew.core.own import fault

        found = fault(error)
        if found is None and (isinstance(error, MemoryError) or "allocate memory" in str(error)):
            found = FedskewError(f"out of memory: {error}; use a smaller model, or fewer clients at a time")
        if found is None:
            raise
        print(f"fedskew: {found}", file=sys.stderr)
        return found.exit_code


def drop_output() -> None:
    """Send what is left in the buffer to nowhere, if it cannot be written: Python would try once more at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def carried_out(arguments: Sequence[str]) -> int:
    """The exit code of a verb; whatever goes wrong is raised."""
    parsed, unknown = parser().parse_known_args(arguments or ["--help"])
    if unknown:
        parsed.parser.error(not_understood(unknown[0], parsed.parser))
    # the rooms below import PyTorch, which takes longer than printing a help text
    room = import_module(f"fedskew.cli.{parsed.room}")
    try:
        code: int = getattr(room, parsed.function)(parsed)
    except SystemExit as error:
        # of code of the user's: no verb ends so, and an exit code of 0 would say that all is done
        raise FedskewError(
            f"code that it called ended the program, sys.exit({error.code!r}); raise an error instead"
        ) from None
    return code


def not_understood(word: str, verb: argparse.ArgumentParser) -> str:
    """What to say of a word that a verb has no use for."""
    known = [option for action in verb._actions for option in action.option_strings]
    if not word.startswith("-"):
        named = [option for option in ELSEWHERE["--method"] if option in known and not word.endswith(".toml")]
        return f"does not know what {word!r} is for" + "".join(f"; methods are named by {option}" for option in named)
    wanted = word.partition("=")[0]
    near = [option for option in ELSEWHERE.get(wanted, ()) if option in known] or get_close_matches(wanted, known)
    return f"has no option {word!r}" + "".join(f"; did you mean {option}?" for option in near[:1])


def entry() -> NoReturn:
    """The command line as a process."""
    for stream in (sys.stdout, sys.stderr):
        # a terminal without our characters gets their escapes
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    code = main()
    if code == BadInput.exit_code:
        # Arrow's threads may still be starting when files are refused at once, and an interpreter that then ends aborts
        # (apache/arrow#34314); after bad input nothing is left to tidy up
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)


if __name__ == "__main__":
    entry()
