"""What users write: Python names, verbs with their options, TOML sections with their keys. A change shows as a diff of one file.

After a wanted change: ``python -m tests.project.test_public_names > tests/project/public_names.txt``.
"""

import argparse
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import fedskew
from fedskew.cli.main import parser
from fedskew.experiment.config import COMPONENTS, SETTINGS

FROZEN = Path(__file__).with_name("public_names.txt")


def public_names() -> Iterator[str]:
    yield from (f"python fedskew.{name}" for name in sorted(fedskew.__all__))
    yield from command_line(parser(), "fedskew")
    for section, settings in SETTINGS.items():
        yield from (f"toml [{section}] {field.name}" for field in dataclasses.fields(settings))
    for kind, components in COMPONENTS.items():
        for name, cls in components.items():
            yield " ".join(["component", kind, name, *(field.name for field in dataclasses.fields(cls))])


def command_line(command: argparse.ArgumentParser, name: str) -> Iterator[str]:
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb, below in action.choices.items():
                yield from command_line(below, f"{name} {verb}")
        elif action.option_strings:
            yield f"cli {name} {' '.join(action.option_strings)}"
        else:
            yield f"cli {name} {str(action.metavar or action.dest).upper()}"


def test_public_names_change_only_on_purpose() -> None:
    assert list(public_names()) == FROZEN.read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    print(*public_names(), sep="\n")
