"""The options of built-in components, read from the syntax trees of their files. Importing the files would load PyTorch."""

import ast
from collections.abc import Iterator
from dataclasses import field, make_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

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
