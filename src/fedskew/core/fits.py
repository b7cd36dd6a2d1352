"""Check that a user's class has the members of its kind's protocol or base class.

A misspelt or missing hook, or one with other arguments, is refused, and the message names it. Otherwise it would have no effect, or
fail in a round.
"""

import dataclasses
import difflib
import inspect
from collections.abc import Collection, Sequence

from fedskew.core.errors import BadInput, require

DECORATOR = "@dataclass(frozen=True, kw_only=True)"

COMMON = frozenset(("accepts", "private", "idea", "paper", "cites", "changes", "ranges", "takes"))
"""Members that a component of any kind may have."""


NEAR = 0.8
"""Minimum similarity (0..1) of two names for which one may be a misspelling of the other."""


def fitted(found: object, contracts: Sequence[type], optional: Collection[str], what: str) -> type:
    """Return the class if it fits the most similar of the ``contracts``. Otherwise raise `BadInput` with the first reason."""
    if not isinstance(found, type):
        raise BadInput(f"{what} is not a class, but {type(found).__name__}")
    shared = {one: len((members(one).keys() - COMMON) & vars(found).keys()) for one in contracts}
    contract = max(contracts, key=lambda one: (not is_protocol(one) and issubclass(found, one), shared[one]))
    wanted = members(contract)
    if not is_protocol(contract) and not issubclass(found, contract):
        name = f"{contract.__module__}.{contract.__name__}".replace("fedskew.core.algorithm.", "fedskew.")
        raise BadInput(f"{what} is not a subclass of {name}; write {DECORATOR} and class {found.__name__}({name})")
    decorated = "__dataclass_params__" in vars(found) and found.__dataclass_params__.frozen  # type: ignore[attr-defined]
    require(decorated, f"{what} is not a frozen dataclass; write {DECORATOR} above it")
    fields = {field.name: field for field in dataclasses.fields(found)}
    own = {name for name in vars(found) if not name.startswith("_") and name not in fields}
    known = {*wanted, *COMMON} - vars(found).keys()
    for name in sorted(own - wanted.keys() - COMMON):
        near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=NEAR)
        require(
            not near,
            f"{what}: {name!r} is no member that fedskew uses; did you mean {near and near[0]!r}? Else begin its name with _",
        )
    missing = [name for name in wanted if name not in optional and name not in fields and not hasattr(found, name)]
    missing += sorted(getattr(found, "__abstractmethods__", ()))
    require(not missing, f"{what} lacks {' and '.join(written(name, wanted) for name in missing)}")
    for name in sorted(own & wanted.keys()):
        check_member(name, wanted[name], inspect.getattr_static(found, name), what)
    taken = fields.keys() & {"name", "file_hash", "file_text"}
    require(not taken, f"{what}: a stored experiment has other uses for the name {''.join(taken)!r}; rename the option")
    for name, field in fields.items():
        given = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        require(given or is_protocol(contract), f"{what}: option {name!r} has no default; give it one")
    return found


def likeness(found: object, contracts: Sequence[type]) -> int:
    """Return how many members of the most similar contract the class has, including misspelt ones."""
    own = [name for name in dir(found) if not name.startswith("_")]
    return max(
        sum(bool(difflib.get_close_matches(name, own, 1, NEAR)) for name in members(one).keys() - COMMON)
        for one in contracts
    )


def check_member(name: str, wanted: object, given: object, what: str) -> None:
    """Raise `BadInput` if a member is final, takes other arguments, or is a value where a method is needed, or the reverse."""
    require(not getattr(wanted, "__final__", False), f"{what}: {name!r} cannot be changed; see the class that has it")
    given = getattr(given, "__func__", given)
    if not inspect.isfunction(wanted):
        require(not inspect.isfunction(given), f"{what}: {name} is a value, not a method; write @property above it")
        return
    require(inspect.isfunction(given), f"{what}: {name} is a method; write def {written(name, {name: wanted})}")
    assert inspect.isfunction(given)
    try:
        inspect.signature(given).bind(*inspect.signature(wanted).parameters)
    except TypeError:
        raise BadInput(
            f"{what}: {written(name, {name: given})} takes other arguments than {written(name, {name: wanted})}"
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
