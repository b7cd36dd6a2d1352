"""The `fedskew` command: parses the arguments, calls the verb, and turns errors into one line and an exit code."""

import argparse
import gc
import io
import os
import re
import sys
import textwrap
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from rich_argparse import RawDescriptionRichHelpFormatter

from fedskew.cli.verbs import GROUPS, VERBS, Verb
from fedskew.core.errors import BadInput, FedskewError, visible
from fedskew.experiment.keywords import OTHER_NAMES

RESUMED = {"run", "compare", "resume"}
"""The verbs that make or continue runs."""

NUMBERS = {"int": "a whole number", "float": "a number"}


class HelpFormatter(RawDescriptionRichHelpFormatter):
    """Prints help texts unchanged. Words in brackets are not read as markup."""

    help_markup = False
    text_markup = False
    group_name_formatter = str


class Parser(argparse.ArgumentParser):
    """Prints one line for an error. Only ``--help`` prints the usage."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": HelpFormatter, "allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        number = re.fullmatch(r"argument (.*): invalid (int|float) value: (.*)", message)
        choice = re.fullmatch(r"argument (.*): invalid choice: '(.*)' \(choose from (.*)\)", message)
        if number:
            message = f"{number[1]}: {NUMBERS[number[2]]} is needed, got {number[3]}"
        if choice:
            words = re.findall(r"[^', ]+", choice[3])
            near = [f"did you mean {word}?" for word in get_close_matches(choice[2], words, n=1)]
            message = f"{choice[1]} cannot be {choice[2]!r}; " + (near or [f"known are {', '.join(words)}"])[0]
        self.exit(BadInput.exit_code, visible(f"{self.prog}: {message}; see `{self.prog} --help`") + "\n")


class PrintVersion(argparse.Action):
    """Reads the version only on request, because importing the packages' metadata takes long."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"fedskew {version('fedskew')}")
        parser.exit()


def help_texts() -> dict[str, str]:
    """Return the help text of each verb, and of ``fedskew`` itself."""
    text = Path(__file__).with_name("help.txt").read_text(encoding="utf-8")
    _, *parts = re.split(r"^## (.*)\n", text, flags=re.M)
    return {name: f"{body.rstrip()}\n" for name, body in zip(parts[::2], parts[1::2], strict=True)}


@cache
def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    texts = help_texts()
    top = Parser(prog="fedskew", description=texts["fedskew"])
    top.add_argument("--version", action=PrintVersion, nargs=0, help="show program's version number and exit")
    verbs = {"": top.add_subparsers(title="verbs", metavar="VERB", required=True)}
    for verb in VERBS:
        group, _, name = verb.name.rpartition(" ")
        if group not in verbs:
            above = verbs[""].add_parser(
                group, help=GROUPS[group], description=texts[group], usage="%(prog)s VERB [options]"
            )
            verbs[group] = above.add_subparsers(title="verbs", metavar="VERB", required=True, prog=f"fedskew {group}")
        parser = verbs[group].add_parser(
            name, help=verb.summary, description=texts.get(verb.name, verb.summary), usage=usage(verb)
        )
        parser.set_defaults(verb=verb, parser=parser)
        for title, options in {"": verb.options, **verb.groups}.items():
            place = parser.add_argument_group(title) if title else parser
            for option in options:
                place.add_argument(option.name, help=option.help, **option.how)
    return top


def usage(verb: Verb) -> str:
    """Return a usage line with the required options."""
    required = [f"{option.name} {option.how['metavar']}" for option in verb.options if option.how.get("required")]
    brackets = {"?": "[{}]", "*": "[{} ...]", "+": "{} ..."}
    program = f"fedskew {verb.name}"
    positional = [
        brackets.get(option.how.get("nargs", ""), "{}").format(option.how["metavar"])
        for option in verb.options
        if not option.name.startswith("-")
    ]
    line = " ".join([program, "[options]", *required, *positional])
    indent = " " * len(f"usage: {program} ")
    return textwrap.fill(line, 80, initial_indent=" " * 7, subsequent_indent=indent, break_on_hyphens=False).strip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Return the exit code: 0 done, 2 bad input, 3 diverged, 130 interrupted, 1 other errors."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        try:
            return call_verb(arguments)
        finally:
            # a full device raises its error here and not while Python ends
            sys.stdout.flush()
    except FedskewError as error:
        print(f"fedskew: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        resumed = "; `fedskew resume` continues runs that had started" if {*arguments[:1]} & RESUMED else ""
        resumed = "; the same command continues" if arguments[:1] == ["study"] else resumed
        print(f"fedskew: interrupted{resumed}", file=sys.stderr)
        return 130
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # the reader has ended, as in `fedskew list | head`
            where = f": {error.filename}" if error.filename else ", standard output or a temporary file"
            print(visible(f"fedskew: {error.strerror or error}{where}"), file=sys.stderr)
        drop_output()
        return 1
    except Exception as error:
        from fedskew.core.user_code import fault

        readable = fault(error)
        if readable is None and (isinstance(error, MemoryError) or "allocate memory" in str(error)):
            readable = FedskewError(f"out of memory: {error}; use a smaller model, or fewer clients at a time")
        if readable is None:
            raise
        print(f"fedskew: {readable}", file=sys.stderr)
        return readable.exit_code


def drop_output() -> None:
    """Discard buffered output that could not be written. Otherwise Python would try to write it again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def call_verb(arguments: Sequence[str]) -> int:
    """Parse the arguments and carry out their verb. Return its exit code."""
    parsed, unknown = parser().parse_known_args(arguments or ["--help"])
    if unknown:
        parsed.parser.error(unknown_word(unknown[0], parsed.parser))
    try:
        code: int = parsed.verb(parsed)
    except SystemExit as error:
        # user code has called sys.exit: its exit code 0 would mean success
        raise FedskewError(
            f"your code ended the program with sys.exit({error.code!r}); raise an error instead"
        ) from None
    return code


def unknown_word(word: str, verb: argparse.ArgumentParser) -> str:
    """Return the error message for an argument that the verb does not have."""
    options = [option for action in verb._actions for option in action.option_strings]
    if not word.startswith("-"):
        naming = [option for option in other_names("--method") if option in options and not word.endswith(".toml")]
        folder = "; for several files give their folder" * (Path(word).is_file() and not word.endswith(".toml"))
        return f"does not know what {word!r} is for{folder}" + "".join(
            f"; methods are named by {option}" for option in naming
        )
    option = word.partition("=")[0]
    if option in ("--seeds", "--folds") and verb.prog.endswith(" run"):
        return f"has one seed and no {option}; write `fedskew compare --algorithms METHOD {option} 5`"
    near = [name for name in other_names(option) if name in options] or get_close_matches(option, options)
    return f"has no option {word!r}" + "".join(f"; did you mean {name}?" for name in near[:1])


def other_names(option: str) -> list[str]:
    """Return our options with the meaning that this option has in other tools."""
    return [f"--{name}" for name in OTHER_NAMES.get(option[2:].replace("-", "_"), ())]


def entry() -> NoReturn:
    """Run the command line and end the process with its exit code."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the caller closed it, as `>&-` does, and some cron jobs
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # characters outside the terminal's encoding become escapes
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # processes that it starts import no module of the working folder in place of Python's
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    gc.disable()  # until the verb's modules are there: they stay, and to look for garbage in them takes a tenth of a short command
    code = main()
    if code == BadInput.exit_code:
        # Python aborts if it ends while Arrow's threads are still starting (apache/arrow#34314); nothing needs cleaning up
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)
