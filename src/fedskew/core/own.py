"""Users' own code: a class in a file ``./mine.py::Mine``, an installed module ``package.module::Mine``, or the running program.

A run stores the file's absolute path and a hash of its contents, so that a repetition uses the same code. For a class of the
running program, such as a notebook cell, it stores the source text. `fedskew.core.trust` decides if code may run.
"""

import hashlib
import importlib
import sys
import sysconfig
import traceback
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import FunctionType, ModuleType

from fedskew.core.cells import PROGRAM, text_of
from fedskew.core.errors import BadInput, FedskewError, require, suggestion
from fedskew.core.places import read_small
from fedskew.core.trust import admit, admit_module

MARK = "::"
"""Separates a file or a module from its class."""

PREFIX = "fedskew_own_"
"""Prefix of the names of modules made from files and texts."""


@dataclass(frozen=True)
class Origin:
    """What a stored experiment says about a class, besides its options."""

    name: str  # FILE.py::CLASS, MODULE::CLASS, __main__::CLASS, or the name in a package's entry points
    file_hash: str = ""  # sixteen hex digits of the SHA-256 of the file's contents
    file_text: str = ""  # the source text of a class of the running program

    def table(self) -> dict[str, str]:
        """Return the entries that name the class in a stored experiment."""
        return {key: value for key, value in vars(self).items() if value}

    @property
    def short(self) -> str:
        """Its name in tables."""
        where, mark, name = self.name.rpartition(MARK)
        return name if where == PROGRAM else f"{Path(where).name if self.file_hash else where}{mark}{name}"


ORIGINS: dict[type, Origin] = {}
"""All loaded classes that are not built in, with their origins."""


def load(name: str, place: str, expected: str = "", text: str = "") -> tuple[object, Origin]:
    """Load the object that ``name`` names; return it and its origin. The same contents give the same object.

    ``expected`` is the stored hash, ``text`` the stored text. Raises `BadInput` if the code is missing, has changed, cannot be
    run, or does not define the name.
    """
    where, _, attribute = name.rpartition(MARK)
    if where != PROGRAM and not where.endswith(".py"):
        admit_module(f"{where}{MARK}{attribute}")
        try:
            module = importlib.import_module(where)
        except (Exception, SystemExit) as error:
            raise BadInput(f"{place}: cannot import {where}: {type(error).__name__}: {error}") from None
        return member(module, attribute, f"{place}: module {where}"), Origin(name)
    if where == PROGRAM:
        require(bool(text), f"{place}: the text of {attribute} is missing; put it into a file")
        path, contents, home = Path(f"<{attribute}>"), text.encode(), PROGRAM
    else:
        path, contents = read(where, place, stored=bool(expected))
        home = str(path)
    found = digest(contents)
    require(
        expected in ("", found),
        f"{place}: {path} has changed (hash {expected} before, now {found}); put the old file back, or start a new run",
    )
    admit(contents, f"{place}: {path}")
    module = run(path, contents, found, place)
    return member(module, attribute, f"{place}: {path}"), Origin(f"{home}{MARK}{attribute}", found, text)


def read(file: str, place: str, stored: bool = False) -> tuple[Path, bytes]:
    """Return a code file's absolute path and its contents. ``stored``: a stored experiment names the file."""
    path = Path(file).expanduser().resolve()
    try:
        return path, read_small(path)
    except OSError as error:
        remedy = "put the file there, or start a new run" if stored else "check the path"
        raise BadInput(f"{place}: cannot read {path}: {error.strerror}; {remedy}") from None


def module_of(file: str, place: str) -> ModuleType:
    """Load a user's file as a module."""
    path, contents = read(file, place)
    admit(contents, f"{place}: {path}")
    return run(path, contents, digest(contents), place)


def member(module: ModuleType, name: str, what: str) -> object:
    """Return the class or function ``name`` of a user's module. Raises `BadInput` if there is none."""
    if not hasattr(module, name):
        theirs = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        raise BadInput(f"{what} has no class {name!r}; {suggestion(name, theirs)}")
    return getattr(module, name)


def name_of(thing: type | FunctionType, place: str) -> tuple[str, str]:
    """Return the name with which `load` finds a class or function of a program, and its source text (may be empty)."""
    name, module = thing.__name__, thing.__module__
    require(
        thing.__qualname__ == name,
        f"{place}: {name} must be at the top level of a file or a cell, not within a function, so that runs can be repeated",
    )
    file = getattr(sys.modules.get(module), "__file__", None)
    if module == PROGRAM or not file:
        return f"{PROGRAM}{MARK}{name}", text_of(thing, place)
    installed = Path(file).is_relative_to(sysconfig.get_path("purelib")) or "." in module
    return f"{module if installed else file}{MARK}{name}", ""


def digest(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()[:16]


def run(path: Path, contents: bytes, found: str, place: str) -> ModuleType:
    """Execute the file as a module in `sys.modules`, where dataclasses and pickle find it; return the module."""
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
    """Turn an exception in a user's code into one line with function, file and line; None if no user's code was running."""
    files = {module.__file__ for name, module in sys.modules.items() if name.startswith(PREFIX)}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    if isinstance(error, FedskewError) or not frames:
        return None
    said = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return FedskewError(f"{frames[-1].filename}, line {frames[-1].lineno}, in {frames[0].name}: {said}")


def offered_by(cls: type) -> dict[str, str]:
    """Return name and version of the package that offers a component; empty for built-in components and files."""
    if cls.__module__.startswith(("fedskew.", PREFIX)):
        return {}
    value = f"{cls.__module__}:{cls.__qualname__}"
    offering = [e.dist for e in entry_points(value=value) if e.group.startswith("fedskew.") and e.dist]
    return {dist.name: dist.version for dist in offering}
