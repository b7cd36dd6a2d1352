"""Check that a user's class has the members of its kind's protocol or base class.

A misspelt or missing hook, or one with other arguments, is refused, and the message names it. Otherwise it would have no effect, or
fail in a round.
"""

import dataclasses
import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from types import FunctionType

from fedskew.core.errors import BadInput, require
from fedskew.core.own import MARK, ORIGINS, Origin, load, name_of
from fedskew.core.text import plainly

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


def canonical(name: str, known: Iterable[str]) -> str:
    """Return the known name that differs only in capitals and signs (``qfedavg`` for ``q-FedAvg``), or else the name itself."""
    known, wanted = [*known], plainly(name)
    return name if name in known else next((one for one in known if plainly(one) == wanted), name)


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
        adapt: Callable[[object, str], type | None] = lambda found, what: None,
    ) -> None:
        self.kinds, self.ours, self.contracts, self.optional, self.adapt = kinds, ours, contracts, optional, adapt

    @cached_property
    def offered(self) -> dict[str, EntryPoint]:
        found = entry_points(group=f"fedskew.{self.kinds}") if self.contracts else ()
        return {entry.name: entry for entry in found if entry.name not in self.ours}

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
        """Load the class that ``FILE.py::CLASS`` or ``MODULE::CLASS`` names; see `fedskew.core.own.load`."""
        require(bool(self.contracts), f"{place}: {self.kinds} cannot be loaded from files, got {name!r}")
        found, origin = load(name, place, expected, text)
        return self.accepted(found, f"{place}: {origin.short}", origin)

    def given(self, thing: object, place: str) -> type | None:
        """Return the component's class for a class, a function or an object of a Python program; None for anything else."""
        cls = thing if isinstance(thing, type | FunctionType) else type(thing)
        if isinstance(cls, type) and (cls in ORIGINS or any(cls is known for known in self.ours.values())):
            return cls
        if cls is not thing and not dataclasses.is_dataclass(cls):
            self.adapt(thing, place)  # it may raise an error that says what to give instead
            return None
        name, text = name_of(cls, place)
        return self.own(name, place, text=text)

    def accepted(self, found: object, what: str, origin: Origin) -> type:
        """Check that the class fits the kind, record its origin, and return it. Raises `BadInput` if it does not fit."""
        cls = self.adapt(found, what) or fitted(found, self.contracts, self.optional, what)
        ORIGINS.setdefault(cls, origin)
        return cls
