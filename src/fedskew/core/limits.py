"""Types of options with limits, and their words. `fedskew.core.component.from_table` refuses all other values.

It is the one place that does, whether a component comes from Python, a file, the command line or a run store.
"""

import sys
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from msgspec import Meta

FINITE = sys.float_info.max
"""Largest finite number. With this limit, infinity is refused; undefined numbers are refused with any limit."""

PositiveInt = Annotated[int, Meta(ge=1)]
NonNegativeInt = Annotated[int, Meta(ge=0)]
FiniteFloat = Annotated[float, Meta(ge=-FINITE, le=FINITE)]
PositiveFloat = Annotated[float, Meta(gt=0, le=FINITE)]
NonNegativeFloat = Annotated[float, Meta(ge=0, le=FINITE)]
PositiveOrInf = Annotated[float, Meta(gt=0)]
NonNegativeOrInf = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
PositiveShare = Annotated[float, Meta(gt=0, le=1)]
OpenShare = Annotated[float, Meta(gt=0, lt=1)]
BelowOne = Annotated[float, Meta(ge=0, lt=1)]
Concentration = Annotated[float, Meta(ge=1e-300, le=FINITE, description="a finite number above 0")]
"""Of a Dirichlet distribution: small is skewed, large is even."""
Widths = Annotated[tuple[PositiveInt, ...], Meta(min_length=1)]
"""At least one whole number, such as the widths of layers."""

NOUNS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def expected(kind: Any, only_limits: bool = False) -> str:
    """Return the values that a type allows: ``a whole number of at least 1 or all``; empty if there are no words for the type.

    With ``only_limits`` a number is described by its limits alone: ``at least 1 or all``.
    """
    members = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return " or ".join(filter(None, (one_kind(member, only_limits) for member in members if member is not NoneType)))


def one_kind(kind: Any, only_limits: bool) -> str:
    """Return the values that a type allows. The type is no union."""
    arguments = get_args(kind)
    if get_origin(kind) is Literal:
        return " or ".join(map(str, arguments))
    if get_origin(kind) is tuple:
        return f"a list, each {expected(arguments[0], only_limits)}"
    if get_origin(kind) is not Annotated:
        return NOUNS.get(kind, "")
    limit = next(part for part in arguments if isinstance(part, Meta))
    if limit.description:
        return limit.description
    if limit.min_length is not None:
        return expected(arguments[0], only_limits).replace("a list", f"a list of {limit.min_length} or more", 1)
    bounds = {"at least": limit.ge, "above": limit.gt, "at most": limit.le, "below": limit.lt}
    finite = {words: bound for words, bound in bounds.items() if bound is not None and abs(bound) < FINITE}
    text = " and ".join(f"{words} {bound:g}" for words, bound in finite.items())
    if limit.le == FINITE:
        return f"a finite number{' of' * text.startswith('at')} {text}".rstrip()
    return text if only_limits else f"{NOUNS[arguments[0]]}{' of' * text.startswith('at')} {text}"
