"""Build a checked component from ``"fedprox:mu=0.1"`` or ``{"name": "fedprox", "mu": 0.1}``, and format it again.

A component is a frozen dataclass; its fields are its options. A catalogue maps names to such classes. A component may also be a
class in a user's file, ``"./mine.py::Mine:mu=0.1"``, in a module, ``"package.module::Mine"``, or in the running program.
"""

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType, MappingProxyType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from fedskew.core.catalogue import Catalogue, canonical
from fedskew.core.errors import BadInput, require, require_storable, suggestion
from fedskew.core.files import toml_table
from fedskew.core.own import MARK, ORIGINS

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Classes = Mapping[str, type]
T = TypeVar("T", bound="DataclassInstance")
Part = TypeVar("Part")


def build(kind: str, catalogue: Classes, spec: object, where: str = "") -> Any:
    """Build a component from a compact string, a table with ``name``, a class, or an object. Options are always checked.

    Raises `BadInput`, which names the kind, the option and the nearest known name.
    """
    place = where or kind
    if isinstance(spec, str):
        name, options = parse(spec, place, catalogue)
    elif isinstance(spec, Mapping):
        options = dict(spec)
        given = options.pop("name", None)
        if not isinstance(given, str):
            raise BadInput(f"{place}: needs a name; " + suggestion("", catalogue))
        name = canonical(given, catalogue)
    else:
        cls = as_catalogue(catalogue).given(spec, place)
        if cls is None:
            raise BadInput(
                f"{place}: expected a name such as {next(iter(catalogue), 'FILE.py::CLASS')!r}, got {brief(spec)}"
            )
        options = {} if isinstance(spec, type | FunctionType) else plain(spec)
        return from_table(cls, options, f"{place} {cls.__name__}")
    if MARK in name:
        expected, text = (str(options.pop(key, "")) for key in ("file_hash", "file_text"))
        cls = as_catalogue(catalogue).own(name, place, expected, text)
        return from_table(cls, options, f"{place} {ORIGINS[cls].short}")
    if name not in catalogue:
        require(
            kind != "dataset" or not Path(name).is_file(),
            f"{place}: {name!r} is a file; give its rows as table:path={name},label=COLUMN,client=COLUMN",
        )
        raise BadInput(f"{place}: unknown {kind} {name!r}; {suggestion(name, catalogue)}")
    return from_table(catalogue[name], options, f"{place} {name}")


def brief(value: object) -> str:
    """Show a value in one short line: its Python text, or its type if the text is long."""
    text = repr(value)
    return text if len(text) <= 80 and "\n" not in text else f"a {type(value).__name__}"


def as_catalogue(classes: Classes) -> Catalogue:
    """Return a catalogue unchanged; make one from other mappings, with only these classes."""
    return classes if isinstance(classes, Catalogue) else Catalogue("components of this kind", classes)


def parse(spec: str, place: str, catalogue: Classes = MappingProxyType({})) -> tuple[str, dict[str, object]]:
    """Parse ``"name:key=value,key=value"``. Values are TOML literals; anything else is a plain string.

    If a class of the catalogue has an attribute ``takes``, the first value needs no key: ``"name:value,key=value"``.
    """
    elsewhere = re.match(rf"((?:.*?\.py|[\w.]*){MARK}[^:]*):?(.*)", spec, re.S)
    name, rest = elsewhere.groups() if elsewhere else spec.partition(":")[::2]
    require(not name.endswith(".py"), f"{place}: write {name}{MARK}CLASS:OPTION=VALUE for a class in {name}")
    name = canonical(name.strip(), catalogue)
    takes = None if elsewhere else getattr(catalogue.get(name), "takes", None)
    options: dict[str, object] = {}
    for part in split(rest):
        if takes and not options and "=" not in part:
            part = f"{takes}={part}"
        key, equals, text = part.partition("=")
        if not equals or not key.strip():
            raise BadInput(f"{place}: cannot read {part!r} in {spec!r}; write NAME:OPTION=VALUE,OPTION=VALUE")
        options[key.strip()] = literal(text.strip())
    return name, options


SIGN = re.compile(r"""(?<![^=\[,])("(?:\\.|[^"\\])*"|'[^']*')|.""", re.S)
"""A quoted value, or one character."""


SPECIAL = re.compile(r"""[,\[\]"']""")


DEEPEST = 50
"""Maximum depth of nested brackets. Deeper ones would exceed the recursion limit of Python's parsers."""


def split(text: str) -> list[str]:
    """Split at commas outside brackets and quotes. An empty text has no parts."""
    parts, depth = [""], 0
    for found in SIGN.finditer(text):
        sign = found[0]
        depth += (sign == "[") - (sign == "]")
        require(depth <= DEEPEST, f"{text[:40]!r}...: more than {DEEPEST} brackets within each other; write fewer")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return parts if text else []


def literal(text: str) -> object:
    """Parse a text as a TOML value, or as a list of such values; otherwise return the text."""
    listed = text.startswith("[") and text.endswith("]")
    try:
        return toml_table(f"v = {text}", "")["v"]
    except BadInput:
        return [literal(part.strip()) for part in split(text[1:-1])] if listed else text


def from_table(cls: type[T], table: Mapping[str, object], place: str) -> T:
    """Make an instance of the dataclass ``cls`` from its options. Raises `BadInput` for unknown options and wrong types."""
    fields = [field.name for field in dataclasses.fields(cls)]
    for key in table:
        if key not in fields:
            hint = suggestion(key, fields) if fields else "it has no options"
            raise BadInput(f"{place}: unknown option {key!r}; {hint}")
        require_storable(f"{place}: {key}", table[key])
    try:
        # `replace` calls the constructor, because the converter skips some defaults
        return dataclasses.replace(msgspec.convert({key: of_numpy(value) for key, value in table.items()}, cls))
    except msgspec.ValidationError as error:
        number = re.fullmatch(r"Expected `str(?: \| null)?`, got `int` - at `\$\.(\w+)`", str(error))
        if number:  # label=0 names the column "0"
            return from_table(cls, {**table, number[1]: str(table[number[1]])}, place)
        option = str(error).rpartition("$.")[2].rstrip("`")
        cure = getattr(cls, "CURES", {}).get(option, "")
        raise BadInput(f"{place}: {unlisted(cls, table) or readable(error) + cure}") from None
    except BadInput as error:
        raise BadInput(f"{place}: {error}") from None


def of_numpy(value: Any) -> object:
    """Return a number of NumPy as a Python number, and anything else unchanged."""
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0 else value


def with_options(component: Part, options: Mapping[str, object], place: str) -> Part:
    """Return a component of the same class with some options changed. They cannot name another component."""
    return from_table(type(component), {**plain(component), **options}, place)  # type: ignore[type-var]


def unlisted(cls: type, table: Mapping[str, object]) -> str:
    """Return an error message for the first option with a value that is not among its choices; empty if there is none."""
    kinds = get_type_hints(cls)
    for option, value in table.items():
        members = get_args(kinds[option]) if get_origin(kinds[option]) in (Union, UnionType) else (kinds[option],)
        words = [word for kind in members if get_origin(kind) is Literal for word in get_args(kind)]
        if words and isinstance(value, str) and value not in words and str not in members:
            others = ["a whole number" for kind in members if kind is int]
            return f"{option} must be {' or '.join(others + words)}, got {value!r}"
    return ""


def readable(error: msgspec.ValidationError) -> str:
    """Put the option's name before msgspec's error message: ``mu: expected 'float', got 'str'``."""
    message = str(error)
    required = re.fullmatch(r"Object missing required field `(\w+)`.*", message)
    if required:
        return f"needs the option {required[1]!r}"
    match = re.fullmatch(r"(.*) - at `\$\.?(.*)`", message, re.S)
    if not match:
        return message
    text, option = match[1], match[2]
    return f"{option}: {text[0].lower() + text[1:]}".replace("`", "'")


def to_table(component: object, catalogue: Classes) -> dict[str, Any]:
    """Return the component as ``{"name": ..., option: value}`` with all its options."""
    if type(component) in ORIGINS:
        return {**ORIGINS[type(component)].table(), **plain(component)}
    for name, cls in catalogue.items():
        if type(component) is cls:
            return {"name": name, **plain(component)}
    raise BadInput(f"{type(component).__name__} has no name in the catalogue, so it cannot be written to TOML")


def plain(component: object) -> dict[str, Any]:
    """Return the fields of a dataclass as TOML values, without fields that are None."""
    table = msgspec.to_builtins(component)
    return {key: value for key, value in table.items() if value is not None}


def label(component: object, catalogue: Classes, with_first: bool = False) -> str:
    """Return the compact form with the options that are not defaults. ``with_first`` always includes the first option."""
    assert dataclasses.is_dataclass(component)
    table = to_table(component, catalogue)
    if type(component) in ORIGINS:
        table = {"name": ORIGINS[type(component)].short, **plain(component)}
    defaults = {f.name: f.default for f in dataclasses.fields(component) if f.default is not dataclasses.MISSING}
    first = next((f.name for f in dataclasses.fields(component)), None) if with_first else None
    options = [
        f"{key}={shown(value)}"
        for key, value in table.items()
        if key != "name" and (key == first or key not in defaults or msgspec.to_builtins(defaults[key]) != value)
    ]
    return table["name"] + (":" + ",".join(options) if options else "")


def without_brackets(text: str) -> str:
    """Return the text without its parts in square brackets."""
    inner = re.sub(r"\[[^\[\]]*\]", "", text)
    return inner if inner == text else without_brackets(inner)


def shown(value: object) -> str:
    """Format a value for a compact form. Text that would be parsed as another value is quoted."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ",".join(shown(v) for v in value) + "]"
    if isinstance(value, str) and (SPECIAL.search(without_brackets(value)) or literal(value.strip()) != value):
        return json.dumps(value, ensure_ascii=False)
    return str(value)
