"""Code of the user: which code may run, and the source text of a class with everything that it uses from its program.

A list outside every run store remembers the code that this user has named or confirmed. A run store may come from someone else. It
names files and modules that a run needs. They are imported only if they are in the list: a file by the hash of its contents, a
module of an installed package by its name.
"""

import __future__

import ast
import hashlib
import importlib
import linecache
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import FunctionType, ModuleType

import platformdirs

from fedskew.core.errors import BadInput, FedskewError, first_line, require, suggestion
from fedskew.core.files import read_small

FOLDER, SESSION = "FEDSKEW_CONFIG", "FEDSKEW_TRUSTED"
"""Environment variables: the folder of the list (default: the user's configuration folder), and keys if no list can be written."""

ASKED: ContextVar[bool] = ContextVar("ASKED", default=False)


def trusted_list() -> Path:
    """Return the path of the list. Each line has a key, and the name that the code had when it was added."""
    return Path(os.environ.get(FOLDER) or platformdirs.user_config_path("fedskew")) / "trusted-code.txt"


def trusted_keys() -> set[str]:
    """Return the keys of all trusted code."""
    keys = set(os.environ.get(SESSION, "").split())
    with suppress(OSError):
        lines = trusted_list().read_text(encoding="utf-8", errors="replace").splitlines()
        keys |= {line.partition(" ")[0] for line in lines}
    return keys


def admit(contents: bytes, what: str) -> None:
    """Add code to the list: a file's contents, or a module's name.

    Inside `asking` raise `BadInput` instead if the code is not in the list.
    """
    key = hashlib.sha256(contents).hexdigest()
    if key in trusted_keys():
        return
    if ASKED.get():
        raise BadInput(
            f"{what} is code that you have not run or confirmed before; read it, and if you trust it, add --trust to the command"
        )
    try:
        trusted_list().parent.mkdir(parents=True, exist_ok=True)
        with trusted_list().open("a", encoding="utf-8") as file:
            file.write(f"{key} {' '.join(what.split())}\n")
    except OSError:
        # valid in this process and its child processes
        os.environ[SESSION] = f"{os.environ.get(SESSION, '')} {key}".strip()


def admit_module(name: str) -> None:
    """Do what `admit` does, for a class of an installed package by its name."""
    admit(f"module {name}".encode(), name)


@contextmanager
def asking() -> Iterator[None]:
    """Inside this context, input may come from someone else: only code in the list runs."""
    before = ASKED.set(True)
    try:
        yield
    finally:
        ASKED.reset(before)


PROGRAM = "__main__"
"""The module of the running program."""


def text_of(thing: type | FunctionType, place: str) -> str:
    """Return source text that defines ``thing`` completely.

    Its parts are ``thing`` and the imports, plain values, functions and classes that it uses. Raises `BadInput` if its source
    text is unknown, or if it uses an object that source text cannot make.
    """
    scope = vars(sys.modules[thing.__module__]) if thing.__module__ in sys.modules else {}
    imports: dict[str, None] = {}
    parts: dict[str, str] = {}
    define(thing, scope, imports, parts, place)
    head = sorted(imports, key=lambda line: (not line.startswith("from __"), line))
    return "\n\n".join(["\n".join(head), *parts.values()])


def define(
    thing: type | FunctionType, scope: Mapping[str, object], imports: dict[str, None], parts: dict[str, str], place: str
) -> None:
    """Add the text of ``thing`` to ``parts``, after the text of everything that it uses."""
    text, postponed = own_text(thing, place)
    if postponed:
        imports["from __future__ import annotations"] = None
    parts[thing.__name__] = ""  # mark it as known, because the text may use its own name
    for name in sorted({node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)} & scope.keys()):
        value = scope[name]
        if name in parts:
            continue
        if isinstance(value, type | FunctionType) and value.__module__ == thing.__module__ and value.__name__ == name:
            define(value, scope, imports, parts, place)
        elif line := import_of(name, value):
            imports[line] = None
        elif is_plain(value):
            parts[name] = f"{name} = {value!r}"
        else:
            raise BadInput(
                f"{place}: {thing.__name__} uses {name!r} of this program, whose type {type(value).__name__} cannot be stored with "
                f"a run; put both into a file, and write 'FILE.py::{thing.__name__}'"
            )
    del parts[thing.__name__]
    parts[thing.__name__] = text


def own_text(thing: type | FunctionType, place: str) -> tuple[str, bool]:
    """Return its source text with decorators, and True if its annotations are postponed."""
    for code in (function.__code__ for function in functions(thing)):
        lines = linecache.getlines(code.co_filename)
        try:
            nodes = ast.parse("".join(lines)).body
        except SyntaxError:
            continue
        for node in nodes:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name != thing.__name__:
                continue
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first <= code.co_firstlineno <= (node.end_lineno or 0):
                text = "".join(lines[first - 1 : node.end_lineno])
                return text, bool(code.co_flags & __future__.annotations.compiler_flag)
    raise BadInput(
        f"{place}: the text of {thing.__name__} cannot be found, so its runs could not be repeated; put it into a file, and write "
        f"'FILE.py::{thing.__name__}'"
    )


def functions(thing: type | FunctionType) -> Iterator[FunctionType]:
    """Yield the functions that a class defines in source text, or the function itself."""
    for value in vars(thing).values() if isinstance(thing, type) else [thing]:
        inner = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if isinstance(inner, FunctionType) and not inner.__code__.co_filename.startswith("<string>"):
            yield inner


def import_of(name: str, value: object) -> str:
    """Return the line that imports ``value`` under this name; empty if there is none."""
    if isinstance(value, ModuleType):
        return f"import {value.__name__}" + ("" if value.__name__ == name else f" as {name}")
    # an alias, such as a generic type, does not know its own module
    its_module = [module for module in [getattr(value, "__module__", None)] if isinstance(module, str)]
    ours = [
        module
        for module in sys.modules
        if module.startswith("fedskew.") and not module.startswith("fedskew.core.user_code")
    ]
    for module in [*its_module, *ours]:
        for attribute in (getattr(value, "__qualname__", name), name):
            if module != PROGRAM and getattr(sys.modules.get(module), str(attribute), None) is value:
                return f"from {module} import {attribute}" + ("" if attribute == name else f" as {name}")
    return ""


def is_plain(value: object) -> bool:
    """True if `repr` of the value is a literal that gives the value."""
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False


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
    file_hash = digest(contents)
    require(
        expected in ("", file_hash),
        f"{place}: {path} has changed (hash {expected} before, now {file_hash}); put the old file back, or start a new run",
    )
    admit(contents, f"{place}: {path}")
    module = run(path, contents, file_hash, place)
    return member(module, attribute, f"{place}: {path}"), Origin(f"{home}{MARK}{attribute}", file_hash, text)


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


def run(path: Path, contents: bytes, file_hash: str, place: str) -> ModuleType:
    """Execute the file as a module in `sys.modules`, where dataclasses and pickle find it; return the module."""
    name = f"{PREFIX}{digest(str(path).encode())}_{file_hash}"
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
        message = error.msg if isinstance(error, SyntaxError) else first_line(error)
        raise BadInput(f"{place}: {path}, line {line}: {type(error).__name__}: {message}") from None
    return module


def fault(error: Exception) -> FedskewError | None:
    """Turn an exception in a user's code into one line with function, file and line; None if no user's code was running."""
    files = {module.__file__ for name, module in sys.modules.items() if name.startswith(PREFIX)}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    if isinstance(error, FedskewError) or not frames:
        return None
    cause = f"{type(error).__name__}: {first_line(error)}"
    return FedskewError(f"{frames[-1].filename}, line {frames[-1].lineno}, in {frames[0].name}: {cause}")


def offered_by(cls: type) -> dict[str, str]:
    """Return name and version of the package that offers a component; empty for built-in components and files."""
    if cls.__module__.startswith(("fedskew.", PREFIX)):
        return {}
    value = f"{cls.__module__}:{cls.__qualname__}"
    offering = [e.dist for e in entry_points(value=value) if e.group.startswith("fedskew.") and e.dist]
    return {dist.name: dist.version for dist in offering}
