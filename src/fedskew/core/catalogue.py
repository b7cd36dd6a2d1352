"""A catalogue of components of one kind by name: built-in ones, installed packages' ones, and users' own classes."""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from types import FunctionType

from fedskew.core.errors import require
from fedskew.core.fits import fitted
from fedskew.core.own import MARK, ORIGINS, Origin, load, name_of
from fedskew.core.titles import plainly


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
