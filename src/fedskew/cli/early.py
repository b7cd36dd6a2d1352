"""The options of built-in components, read from the syntax trees of their files. Importing the files would load PyTorch."""

import argparse
import ast
from collections.abc import Iterator, Mapping
from dataclasses import field, make_dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal

from fedskew.core.catalogue import Catalogue, canonical
from fedskew.core.component import build, from_table, literal
from fedskew.core.errors import BadInput, require, suggestion
from fedskew.core.files import file_text, toml_table
from fedskew.core.own import MARK
from fedskew.core.text import METHODS
from fedskew.experiment.keywords import KEYWORDS
from fedskew.experiment.settings import LIGHT

ROOT = Path(__file__).parents[2]
PLACES = {
    "algorithm": ("fedskew.algorithms", "ALGORITHMS"),
    "model": ("fedskew.models", "MODELS"),
    "solver": ("fedskew.slots", "SOLVERS"),
    "server": ("fedskew.slots", "SERVER_OPTIMISERS"),
    "augment": ("fedskew.slots", "AUGMENTATIONS"),
    "availability": ("fedskew.slots", "AVAILABILITIES"),
    "refine": ("fedskew.slots", "REFINES"),
    "selection": ("fedskew.slots", "SELECTIONS"),
    "sharing": ("fedskew.slots", "SHARINGS"),
    "codec": ("fedskew.slots", "CODECS"),
}
"""The module and the name of each catalogue of classes."""

TYPES = {"Literal": Literal, "int": int, "float": float, "bool": bool, "str": str, "tuple": tuple, "None": None}


@cache
def tree(module: str) -> ast.Module:
    """Return the syntax tree of a module of fedskew."""
    file = ROOT.joinpath(*module.split("."))
    return ast.parse((file / "__init__.py" if file.is_dir() else file.with_suffix(".py")).read_text(encoding="utf-8"))


def homes(module: str) -> dict[str, str]:
    """Return imported name -> module, for all names that a module imports."""
    imports = [node for node in tree(module).body if isinstance(node, ast.ImportFrom) and node.module]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def classes(kind: str) -> dict[str, str]:
    """Return name -> class for the built-in components of a kind."""
    module, catalogue = PLACES[kind]
    for node in tree(module).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == catalogue and isinstance(node, ast.Assign | ast.AnnAssign):
            return dict(entries(node.value))
    return {}


def entries(node: ast.expr | None) -> Iterator[tuple[str, str]]:
    """Return the entries of a dict of classes and of the dicts inside it."""
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(value, ast.Name):
                yield str(key.value), value.id
            else:
                yield from entries(value)


def options(module: str, name: str) -> dict[str, Any]:
    """Return the type of each field of a class and its bases; `Any` if reading the type needs an import of the module."""
    found = next((n for n in tree(module).body if isinstance(n, ast.ClassDef) and n.name == name), None)
    if found is None:
        home = homes(module).get(name, "")
        return options(home, name) if home.startswith("fedskew") else {}
    types: dict[str, Any] = {}
    for base in found.bases:
        types |= options(module, base.id) if isinstance(base, ast.Name) else {}
    for node in found.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            text = ast.unparse(node.annotation)
            if not text.startswith("ClassVar"):
                types[node.target.id] = type_of(text)
    return types


def type_of(annotation: str) -> Any:
    """Return the type that an annotation names, if this needs no import."""
    try:
        return eval(annotation, {"__builtins__": {}}, TYPES)
    except (NameError, AttributeError):
        return Any


def outline(kind: str, name: str) -> type:
    """Return a class with the options of a built-in component, but without its behaviour."""
    module, cls = PLACES[kind][0], classes(kind)[name]
    fields = [(option, hint, field(default=None)) for option, hint in options(module, cls).items()]
    body = next(n for n in tree(homes(module)[cls]).body if isinstance(n, ast.ClassDef) and n.name == cls).body
    takes = [n.value for n in body if isinstance(n, ast.AnnAssign) and ast.unparse(n.target) == "takes"]
    made = make_dataclass(cls, fields)
    for value in takes:
        made.takes = ast.literal_eval(value) if value else ""  # type: ignore[attr-defined]
    return made


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
        refuse_options("algorithm", method)
    for kind, value in ((KEYWORDS[name].sets, value) for name, value in given.items()):
        if kind in PLACES and isinstance(value, str):
            refuse_options(kind, value)
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


def refuse_options(kind: str, spec: str | None) -> None:
    """Raise `BadInput` for an option of a built-in component with an unknown name or a value of a wrong type."""
    given, options, _ = (spec or "").partition(":")
    known = classes(kind) if options and MARK not in str(spec) else {}
    name = canonical(given.strip(), known)
    if name in known:
        build(kind, {name: outline(kind, name)}, spec)


def refuse_dataset(spec: str) -> None:
    """Raise `BadInput` for an unknown data set or option, or for a table whose file or columns do not exist."""
    from fedskew.data import DATASETS
    from fedskew.data.datasets.table import Table

    known = Catalogue("datasets", DATASETS, object)
    if MARK in spec or canonical(spec.partition(":")[0].strip(), known) in known.offered:
        return
    made = build("dataset", known, spec)
    if isinstance(made, Table):
        from fedskew.data.tables.survey import check_columns

        check_columns([Path(made.path)], [made.label, made.client, made.person or "", made.text])
