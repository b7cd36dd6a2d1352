"""The source text of a class of the running program, such as a notebook cell, with everything that it uses from there."""

import __future__

import ast
import linecache
import sys
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType

from fedskew.core.errors import BadInput

PROGRAM = "__main__"
"""The module of the running program."""


def text_of(thing: type | FunctionType, place: str) -> str:
    """Return source text that defines ``thing`` completely: the imports, plain values, functions and classes that it uses, and it.

    Raises `BadInput` if its source text is unknown, or if it uses an object that source text cannot make.
    """
    scope = vars(sys.modules[thing.__module__]) if thing.__module__ in sys.modules else {}
    imports: dict[str, None] = {}
    parts: dict[str, str] = {}
    define(thing, scope, imports, parts, place)
    return "\n\n".join(
        ["\n".join(sorted(imports, key=lambda line: (not line.startswith("from __"), line))), *parts.values()]
    )


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
    own = [module for module in [getattr(value, "__module__", None)] if isinstance(module, str)]
    ours = [
        module for module in sys.modules if module.startswith("fedskew.") and not module.startswith("fedskew.core.own")
    ]
    for module in [*own, *ours]:
        for known in (getattr(value, "__qualname__", name), name):
            if module != PROGRAM and getattr(sys.modules.get(module), str(known), None) is value:
                return f"from {module} import {known}" + ("" if known == name else f" as {name}")
    return ""


def is_plain(value: object) -> bool:
    """True if `repr` of the value is a literal that gives the value."""
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
