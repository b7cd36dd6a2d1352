"""Methods of users: a class in a file, ``./mine.py::Mine``, or in an installed package.

A run stores the file's absolute path and a hash of its contents, so that a repetition uses the same code. `fedskew.core.trust`
decides whether a file may run.
"""

import dataclasses
import hashlib
import inspect
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import TypeGuard

from fedskew.core.algorithm import Algorithm
from fedskew.core.errors import BadInput, FedskewError, require, suggestion
from fedskew.core.places import read_small
from fedskew.core.trust import admit

MARK = "::"
"""Separates a file from its class."""

GROUP = "fedskew.algorithms"
"""The group of entry points under which a package offers methods: ``name = "module:Class"``."""

PREFIX = "fedskew_own_"
"""Prefix of the names of modules made from files."""

GONE = {
    **dict.fromkeys(
        ("needs", "hazard", "fewest", "privacy", "acts_alone", "shares_model", "after_sending"), "say it in `contract`"
    ),
    **dict.fromkeys(("begin", "digest"), "do it in `local_init`, which gets the task and the solver"),
    "public": "put it into `broadcast`, under the key `PUBLIC`",
    "weights": "take the weighted sum in `aggregate`, with `cohort.sum`",
}
"""Hooks of earlier versions, and their replacements. The old hooks would have no effect."""

HOW = "write it as a subclass of fedskew.Algorithm under @dataclass(frozen=True, kw_only=True)"


@dataclass(frozen=True)
class Origin:
    """The file of a class."""

    path: Path
    name: str
    file_hash: str  # sixteen hex digits, of the contents that ran

    def table(self) -> dict[str, str]:
        """The entries that name the class in a stored experiment."""
        return {"name": f"{self.path}{MARK}{self.name}", "file_hash": self.file_hash}


ORIGINS: dict[type, Origin] = {}
"""All classes loaded from files."""


def load(spec: str, place: str, expected: str | None = None) -> type:
    """Load the class ``FILE.py::CLASS``. The same contents give the same class object.

    ``expected`` is the stored hash of the file. Raises `BadInput` if the file is missing, has changed or cannot be run, or if it
    has no such method.
    """
    file, _, name = spec.rpartition(MARK)
    path = Path(file).expanduser().resolve()
    try:
        contents = read_small(path)
    except OSError as error:
        raise BadInput(
            f"{place}: cannot read {path}: {error.strerror}; put the file there, or start a new run"
        ) from None
    found = digest(contents)
    require(
        expected in (None, found),
        f"{place}: {path} has changed (hash {expected} before, now {found}); put the old file back, or start a new run",
    )
    admit(contents, f"{place}: {path}")
    module = run(path, contents, found, place)
    cls = getattr(module, name, None)
    if cls is None:
        methods = [
            key for key, value in vars(module).items() if is_method(value) and value.__module__ == module.__name__
        ]
        raise BadInput(f"{place}: {path} has no class {name!r}; {suggestion(name, methods)}")
    method = check(cls, f"{place}: {path.name}{MARK}{name}")
    ORIGINS[method] = Origin(path, name, found)
    return method


def digest(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()[:16]


def run(path: Path, contents: bytes, found: str, place: str) -> ModuleType:
    """Run the file as a module in `sys.modules`, where dataclasses and pickle find it."""
    name = f"{PREFIX}{digest(str(path).encode())}_{found}"
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    try:
        exec(compile(contents, str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
        message = error.msg if isinstance(error, SyntaxError) else str(error).partition("\n")[0]
        raise BadInput(f"{place}: {path}, line {line}: {type(error).__name__}: {message}") from None
    return module


def fault(error: Exception) -> FedskewError | None:
    """An exception in a user's method as one line with hook, file and line. None if the user's code was not running."""
    files = {module.__file__ for name, module in sys.modules.items() if name.startswith(PREFIX)}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    if isinstance(error, FedskewError):
        return None
    said = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    if not frames:
        # a hook with wrong arguments fails before its first line: no frame of the file
        wrong = [origin.path for cls, origin in ORIGINS.items() if str(error).startswith(f"{cls.__qualname__}.")]
        return (
            FedskewError(f"{wrong[0]}: {said}; give the hook the arguments that fedskew.Algorithm has")
            if wrong
            else None
        )
    return FedskewError(f"{frames[-1].filename}, line {frames[-1].lineno}, in {frames[0].name}: {said}")


def is_method(value: object) -> TypeGuard[type[Algorithm]]:
    return inspect.isclass(value) and issubclass(value, Algorithm) and value is not Algorithm


def check(cls: object, what: str) -> type[Algorithm]:
    """Return the class if it is a method and its fields are its options. Raises `BadInput` otherwise."""
    if not is_method(cls):
        raise BadInput(f"{what} is not a method; {HOW}")
    # without the decorator only the fields of the base class would be options
    require("__dataclass_params__" in vars(cls), f"{what} is not a dataclass; {HOW}")
    for hook in GONE.keys() & vars(cls).keys():
        raise BadInput(f"{what}: the hook {hook!r} is gone; {GONE[hook]} (docs/how-to/own-method.md)")
    for field in dataclasses.fields(cls):
        given = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        require(given, f"{what}: option {field.name!r} has no default; give it one")
    return cls


def adopted(component: object, place: str) -> type:
    """The class of a component. An imported method is loaded again from its file."""
    cls = type(component)
    if not is_method(cls):
        return cls
    where = f"{place} {cls.__name__}"
    require(
        cls.__module__ != "__main__" and cls.__qualname__ == cls.__name__,
        f"{where}: a method must stand at the top of a file of its own, so that runs can be repeated; "
        f"put it into mine.py and write 'mine.py{MARK}{cls.__name__}'",
    )
    return load(f"{inspect.getfile(cls)}{MARK}{cls.__name__}", where)


def offered_by(cls: type) -> dict[str, str]:
    """Name and version of the package that offers a method; empty for built-in methods and files."""
    offering = [
        e.dist for e in entry_points(group=GROUP) if e.value == f"{cls.__module__}:{cls.__qualname__}" and e.dist
    ]
    return {dist.name: dist.version for dist in offering}


class Methods(Mapping[str, type]):
    """Built-in methods, then methods of installed packages. These are loaded on access and never replace a built-in one."""

    def __init__(self, ours: Mapping[str, type]) -> None:
        self.ours = ours

    @cached_property
    def offered(self) -> dict[str, EntryPoint]:
        return {entry.name: entry for entry in entry_points(group=GROUP) if entry.name not in self.ours}

    def __getitem__(self, name: str) -> type:
        if name in self.ours:
            return self.ours[name]
        entry = self.offered[name]
        what = f"algorithm {name} of package {entry.dist.name if entry.dist else '?'}"
        try:
            cls = entry.load()
        except Exception as error:
            raise BadInput(f"{what}: cannot be loaded: {type(error).__name__}: {error}") from None
        return check(cls, what)

    def __contains__(self, name: object) -> bool:
        return name in self.ours or name in self.offered

    def __iter__(self) -> Iterator[str]:
        yield from self.ours
        yield from self.offered

    def __len__(self) -> int:
        return len(self.ours) + len(self.offered)
