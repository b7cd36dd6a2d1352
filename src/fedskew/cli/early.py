"""Refuse wrong files, settings, methods, data sets and skews early: before PyTorch is imported, because that takes two seconds."""

import argparse
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path

from fedskew.core.component import Catalogue, build, canonical, from_table, literal
from fedskew.core.errors import BadInput, require, suggestion
from fedskew.core.files import file_text, toml_table
from fedskew.core.text import METHODS
from fedskew.core.user_code import MARK
from fedskew.experiment.keywords import KEYWORDS
from fedskew.experiment.settings import LIGHT


def refuse(parsed: argparse.Namespace) -> None:
    """Raise `BadInput` for mistakes in the options that can be found without PyTorch."""
    given = {name: value for name, value in vars(parsed).items() if name in KEYWORDS and value is not None}
    file = getattr(parsed, "file", None)
    sections: dict[str, dict[str, object]] = {}
    if isinstance(file, Path) and file.suffix == ".toml":
        for section, options in toml_table(file_text(file), str(file)).items():
            if section in LIGHT and isinstance(options, Mapping):
                # the experiment refuses this former option with a message of its own
                sections[section] = {name: value for name, value in options.items() if name != "workers"}
                from_table(LIGHT[section], sections[section], f"{file}: {section}")
    named = [(KEYWORDS[name].sets, value) for name, value in given.items()]
    named += [
        (key, literal(value)) for key, _, value in (text.partition("=") for text in getattr(parsed, "set", None) or ())
    ]
    for sets, value in named:
        section, _, option = sets.partition(".")
        if option and section in LIGHT:
            sections.setdefault(section, {})[option] = value
    for section, options in sections.items():
        from_table(LIGHT[section], options, section)
    for method in (getattr(parsed, "algorithm", None), *(getattr(parsed, "algorithms", None) or ())):
        refuse_method(method)
    if isinstance(given.get("dataset"), str):
        refuse_dataset(str(given["dataset"]))
    skews = [str(skew) for skew in given.get("skew", ())]
    if skews and MARK not in "".join(skews):
        from fedskew.skew.compose import KNOWN, skews_of

        if not KNOWN.offered:
            skews_of(skews)
    if getattr(parsed, "paths", None) and parsed.label and MARK not in parsed.label:
        from fedskew.data.tables.survey import check_columns

        check_columns(parsed.paths, [parsed.label, parsed.client or "", parsed.person or ""])


def refuse_method(spec: str | None) -> None:
    """Raise `BadInput` for an unknown name of a method."""
    name = (spec or "").partition(":")[0].strip()
    if not name or MARK in str(spec) or canonical(name, METHODS) in METHODS or entry_points(group="fedskew.algorithms"):
        return
    require(not name.endswith(".py"), f"algorithm: write {name}{MARK}CLASS:OPTION=VALUE for a class in {name}")
    raise BadInput(f"algorithm: unknown algorithm {name!r}; {suggestion(name, METHODS)}")


def refuse_dataset(spec: str) -> None:
    """Raise `BadInput` for an unknown data set or option, or for a table whose file or columns do not exist."""
    from fedskew.data import DATASETS
    from fedskew.data.datasets.table import TableData

    known = Catalogue("datasets", DATASETS, object)
    if MARK in spec or canonical(spec.partition(":")[0].strip(), known) in known.offered:
        return
    made = build("dataset", known, spec)
    if isinstance(made, TableData):
        from fedskew.data.tables.survey import check_columns

        check_columns([Path(made.path)], [made.label, made.client, made.person or "", made.text])
