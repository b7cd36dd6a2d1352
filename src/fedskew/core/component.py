"""Components: a catalogue for each kind, built from ``"fedprox:mu=0.1"`` or ``{"name": "fedprox", "mu": 0.1}``, and formatted.

A component is a frozen dataclass; its fields are its options. A catalogue maps names to such classes. A component may also be a
class in a user's file, ``"./mine.py::Mine:mu=0.1"``, in a module, ``"package.module::Mine"``, or in the running program. Such a
class must have the members of its kind's protocol or base class: a misspelt or missing hook, or one with other arguments, is
refused, and the message names it. Otherwise it would have no effect, or fail in a round.
"""

import dataclasses
import difflib
import inspect
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import msgspec

from fedskew.core.errors import BadInput, require, require_storable, suggestion
from fedskew.core.files import toml_table
from fedskew.core.limits import expected
from fedskew.core.text import plainly
from fedskew.core.user_code import MARK, ORIGINS, Origin, load, name_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


DECORATOR = "@dataclass(frozen=True, kw_only=True)"

COMMON = frozenset(("accepts", "private", "idea", "paper", "cites", "changes", "ranges", "takes"))
"""Members that a component of any kind may have."""


NEAR = 0.8
"""Minimum similarity (0..1) of two names for which one may be a misspelling of the other."""


def fitted(cls: object, contracts: Sequence[type], optional: Collection[str], what: str) -> type:
    """Return the class if it fits the most similar of the ``contracts``. Otherwise raise `BadInput` with the first reason."""
    if not isinstance(cls, type):
        raise BadInput(f"{what} is not a class, but {type(cls).__name__}")
    shared = {candidate: len((members(candidate).keys() - COMMON) & vars(cls).keys()) for candidate in contracts}
    contract = max(
        contracts, key=lambda candidate: (not is_protocol(candidate) and issubclass(cls, candidate), shared[candidate])
    )
    hooks = members(contract)
    if not is_protocol(contract) and not issubclass(cls, contract):
        name = f"{contract.__module__}.{contract.__name__}".replace("fedskew.core.algorithm.", "fedskew.")
        raise BadInput(f"{what} is not a subclass of {name}; write {DECORATOR} and class {cls.__name__}({name})")
    decorated = "__dataclass_params__" in vars(cls) and cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    require(decorated, f"{what} is not a frozen dataclass; write {DECORATOR} above it")
    fields = {field.name: field for field in dataclasses.fields(cls)}
    defined = {name for name in vars(cls) if not name.startswith("_") and name not in fields}
    expected_names = {*hooks, *COMMON} - vars(cls).keys()
    for name in sorted(defined - hooks.keys() - COMMON):
        near = difflib.get_close_matches(name, sorted(expected_names), n=1, cutoff=NEAR)
        require(
            not near,
            f"{what}: {name!r} is no member that fedskew uses; did you mean {near and near[0]!r}? Else begin its name with _",
        )
    missing = [name for name in hooks if name not in optional and name not in fields and not hasattr(cls, name)]
    missing += sorted(getattr(cls, "__abstractmethods__", ()))
    require(not missing, f"{what} lacks {' and '.join(written(name, hooks) for name in missing)}")
    for name in sorted(defined & hooks.keys()):
        check_member(name, hooks[name], inspect.getattr_static(cls, name), what)
    reserved = fields.keys() & {"name", "file_hash", "file_text"}
    require(
        not reserved,
        f"{what}: a stored experiment has other uses for the name {''.join(reserved)!r}; rename the option",
    )
    for name, field in fields.items():
        has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        require(has_default or is_protocol(contract), f"{what}: option {name!r} has no default; give it one")
    return cls


def likeness(cls: object, contracts: Sequence[type]) -> int:
    """Return how many members of the most similar contract the class has, including misspelt ones."""
    public = [name for name in dir(cls) if not name.startswith("_")]
    return max(
        sum(bool(difflib.get_close_matches(name, public, 1, NEAR)) for name in members(contract).keys() - COMMON)
        for contract in contracts
    )


def check_member(name: str, hook: object, member: object, what: str) -> None:
    """Raise `BadInput` if a member is final, takes other arguments, or is a value where a method is needed, or the reverse."""
    require(
        not getattr(hook, "__final__", False),
        f"{what}: {name!r} cannot be changed, the base class fixes it; rename yours",
    )
    member = getattr(member, "__func__", member)
    if not inspect.isfunction(hook):
        require(not inspect.isfunction(member), f"{what}: {name} is a value, not a method; write @property above it")
        return
    require(inspect.isfunction(member), f"{what}: {name} is a method; write def {written(name, {name: hook})}")
    assert inspect.isfunction(member)
    try:
        inspect.signature(member).bind(*inspect.signature(hook).parameters)
    except TypeError:
        raise BadInput(
            f"{what}: {written(name, {name: member})} takes other arguments than {written(name, {name: hook})}"
        ) from None


def written(name: str, where: dict[str, object]) -> str:
    """Format a method as ``select(self, clients, rng)``, any other member as its name."""
    member = where.get(name)
    return f"{name}({', '.join(inspect.signature(member).parameters)})" if inspect.isfunction(member) else name


def members(contract: type) -> dict[str, object]:
    """Return the public members of a protocol or a base class, by name."""
    bases = [base for base in reversed(contract.__mro__) if base.__module__ not in ("builtins", "typing", "abc")]
    return {name: value for base in bases for name, value in vars(base).items() if not name.startswith("_")}


def is_protocol(cls: type) -> bool:
    return bool(getattr(cls, "_is_protocol", False))


def canonical(name: str, names: Iterable[str]) -> str:
    """Return the known name that differs only in capitals and signs (``qfedavg`` for ``q-FedAvg``), or else the name itself."""
    names, plain_name = [*names], plainly(name)
    return name if name in names else next((candidate for candidate in names if plainly(candidate) == plain_name), name)


def code_of(entry: EntryPoint) -> str:
    """Return the name, MODULE::CLASS, of the class that a package offers."""
    return f"{entry.module}{MARK}{entry.attr}"


class Catalogue(Mapping[str, type]):
    """Built-in components, then installed packages' components, which are loaded on access and never replace a built-in one.

    ``kinds`` is the kind's plural; packages offer components under the entry points ``fedskew.KINDS``. A class that is not
    built in must fit one of the ``contracts``, except for their ``optional`` members. Without contracts only built-in components
    are accepted. ``adapt`` turns an object of another library into a component, or returns None.
    """

    def __init__(
        self,
        kinds: str,
        ours: Mapping[str, type],
        *contracts: type,
        optional: Collection[str] = (),
        adapt: Callable[[object, str], type | None] = lambda thing, what: None,
    ) -> None:
        self.kinds, self.ours, self.contracts, self.optional, self.adapt = kinds, ours, contracts, optional, adapt

    @cached_property
    def offered(self) -> dict[str, EntryPoint]:
        entries = entry_points(group=f"fedskew.{self.kinds}") if self.contracts else ()
        return {entry.name: entry for entry in entries if entry.name not in self.ours}

    def __getitem__(self, name: str) -> type:
        if name in self.ours:
            return self.ours[name]
        entry = self.offered[name]
        what = f"{name} of package {entry.dist.name if entry.dist else '?'}"
        return self.accepted(load(code_of(entry), what)[0], what, Origin(name))

    def __contains__(self, name: object) -> bool:
        return name in self.ours or name in self.offered

    def __iter__(self) -> Iterator[str]:
        yield from self.ours
        yield from self.offered

    def __len__(self) -> int:
        return len(self.ours) + len(self.offered)

    def own(self, name: str, place: str, expected: str = "", text: str = "") -> type:
        """Load the class that ``FILE.py::CLASS`` or ``MODULE::CLASS`` names; see `fedskew.core.user_code.load`."""
        require(bool(self.contracts), f"{place}: {self.kinds} cannot be loaded from files, got {name!r}")
        thing, origin = load(name, place, expected, text)
        return self.accepted(thing, f"{place}: {origin.short}", origin)

    def given(self, thing: object, place: str) -> type | None:
        """Return the component's class for a class, a function or an object of a Python program; None for anything else."""
        cls = thing if isinstance(thing, type | FunctionType) else type(thing)
        if isinstance(cls, type) and (cls in ORIGINS or any(cls is builtin for builtin in self.ours.values())):
            return cls
        if cls is not thing and not dataclasses.is_dataclass(cls):
            self.adapt(thing, place)  # it may raise an error that says what to give instead
            return None
        name, text = name_of(cls, place)
        return self.own(name, place, text=text)

    def accepted(self, thing: object, what: str, origin: Origin) -> type:
        """Check that the class fits the kind, record its origin, and return it. Raises `BadInput` if it does not fit."""
        cls = self.adapt(thing, what) or fitted(thing, self.contracts, self.optional, what)
        ORIGINS.setdefault(cls, origin)
        return cls


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
        spelling = options.pop("name", None)
        if not isinstance(spelling, str):
            raise BadInput(f"{place}: needs a name; " + suggestion("", catalogue))
        name = canonical(spelling, catalogue)
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
    for match in SIGN.finditer(text):
        sign = match[0]
        depth += (sign == "[") - (sign == "]")
        require(depth <= DEEPEST, f"{text[:40]!r}...: more than {DEEPEST} brackets within each other; write fewer")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return parts if text else []


def literal(text: str) -> object:
    """Parse a text as a TOML value, or as a list of such values; otherwise return the text. ``.5`` and ``5.`` are numbers, too."""
    listed = text.startswith("[") and text.endswith("]")
    try:
        return toml_table(f"v = {text}", "")["v"]
    except BadInput:
        if re.fullmatch(r"[+-]?(\d+\.|\.\d+)([eE][+-]?\d+)?", text):
            return float(text)
        return [literal(part.strip()) for part in split(text[1:-1])] if listed else text


def from_table(cls: type[T], table: Mapping[str, object], place: str) -> T:
    """Make an instance of the dataclass ``cls`` from its options.

    Raises `BadInput` for unknown options, wrong types, and values outside a type's limits.
    """
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
        raise BadInput(f"{place}: {refusal(cls, table, str(error))}") from None
    except BadInput as error:
        raise BadInput(f"{place}: {error}") from None


def of_numpy(value: Any) -> object:
    """Return a number of NumPy as a Python number, and anything else unchanged."""
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0 else value


def with_options(component: Part, options: Mapping[str, object], place: str) -> Part:
    """Return a component of the same class with some options changed. They cannot name another component."""
    return from_table(type(component), {**plain(component), **options}, place)  # type: ignore[type-var]


def refusal(cls: type, table: Mapping[str, object], error: str) -> str:
    """Return msgspec's error as a message that names the option: ``mu must be a finite number of at least 0, got -1``."""
    required = re.fullmatch(r"Object missing required field `(\w+)`.*", error)
    if required:
        return f"needs the option {required[1]!r}"
    match = re.fullmatch(r"(.*) - at `\$\.(\w+)(.*)`", error, re.S)
    if not match:
        return error
    reason, option, inside = match.groups()
    outside_limits = re.fullmatch(r"Expected `\w+` (of length )?[<>].*", reason) is not None
    words = expected(get_type_hints(cls, include_extras=True)[option], outside_limits)
    if not words:
        return f"{option}{inside}: {reason[0].lower() + reason[1:]}".replace("`", "'")
    return f"{option} must be {words}, got {brief(table[option])}"


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
    return {key: value for key, value in msgspec.to_builtins(component).items() if value is not None}


def label(component: object, catalogue: Classes, with_first: bool = False) -> str:
    """Return the compact form with the options that are not defaults. ``with_first`` always includes the first option."""
    assert dataclasses.is_dataclass(component)
    table = to_table(component, catalogue)
    if type(component) in ORIGINS:
        table = {"name": ORIGINS[type(component)].short, **plain(component)}
    defaults = {f.name: f.default for f in dataclasses.fields(component) if f.default is not dataclasses.MISSING}
    first = next((f.name for f in dataclasses.fields(component)), None) if with_first else None
    options = [
        f"{key}={compact(value)}"
        for key, value in table.items()
        if key != "name" and (key == first or key not in defaults or msgspec.to_builtins(defaults[key]) != value)
    ]
    return table["name"] + (":" + ",".join(options) if options else "")


def without_brackets(text: str) -> str:
    """Return the text without its parts in square brackets."""
    inner = re.sub(r"\[[^\[\]]*\]", "", text)
    return inner if inner == text else without_brackets(inner)


def compact(value: object) -> str:
    """Format a value for a compact form. Text that would be parsed as another value is quoted."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ",".join(compact(v) for v in value) + "]"
    if isinstance(value, str) and (SPECIAL.search(without_brackets(value)) or literal(value.strip()) != value):
        return json.dumps(value, ensure_ascii=False)
    return str(value)
