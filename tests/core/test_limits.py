"""Limits of options: one table of all of them, and values below, at and above each limit, for every component."""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from msgspec import Meta

from fedskew.core.component import build, from_table
from fedskew.core.errors import BadInput
from fedskew.core.limits import FINITE, expected
from fedskew.experiment.combinations import COMBINATIONS
from fedskew.experiment.config import COMPONENTS, SETTINGS, Experiment
from fedskew.slots.optimisers import Sgd

OPTIONS: dict[str, type] = {
    **{f"{kind} {name}": cls for kind, catalogue in COMPONENTS.items() for name, cls in catalogue.items()},
    **{f"combination {name}": combination.options for name, combination in COMBINATIONS.items()},
    **SETTINGS,
}
"""By name of a component or section, the class of its options."""


def types_of(cls: type) -> dict[str, Any]:
    """The type of each option, with its limits."""
    types = get_type_hints(cls, include_extras=True)
    return {field.name: types[field.name] for field in dataclasses.fields(cls)}


def limits_in(kind: Any) -> Iterator[tuple[Meta, type, bool]]:
    """Each limit within a type, the type of its number, and whether it is for the entries of a list."""
    for part in get_args(kind):
        if isinstance(part, Meta) and part.pattern is None:
            yield part, get_args(kind)[0], False
        else:
            yield from ((limit, of, listed or get_origin(kind) is tuple) for limit, of, listed in limits_in(part))


def values_around(limit: Meta, of: type) -> tuple[list[Any], list[Any]]:
    """Values that the limit allows, and values that it does not."""
    if limit.min_length is not None:
        return [], [[]]
    step = {int: lambda at, to: at + int(math.copysign(1, to)), float: lambda at, to: float(np.nextafter(at, to))}[of]
    bounds = [
        (limit.ge, -math.inf, True),
        (limit.gt, -math.inf, False),
        (limit.le, math.inf, True),
        (limit.lt, math.inf, False),
    ]
    right, wrong = [], [] if of is int else [math.nan]
    for bound, outwards, included in bounds:
        if bound is not None:
            right.append(of(bound) if included else step(of(bound), -outwards))
            wrong.append(step(of(bound), outwards) if included else of(bound))
    return right, wrong


def required(cls: type) -> dict[str, object]:
    """Values of the options without a default."""
    without = [f.name for f in dataclasses.fields(cls) if f.default is f.default_factory is dataclasses.MISSING]
    return {name: [3] if get_origin(types_of(cls)[name]) is not None else "x" for name in without}


def refusal(name: str, option: str, value: object) -> str:
    """The message for this value; empty if it is taken."""
    try:
        from_table(OPTIONS[name], {**required(OPTIONS[name]), option: value}, name)
    except BadInput as error:
        return str(error)
    return ""


LIMITED = [
    (name, option, limit, of, listed)
    for name, cls in OPTIONS.items()
    for option, kind in types_of(cls).items()
    for limit, of, listed in limits_in(kind)
]


def test_what_each_option_takes(snapshot: object) -> None:
    words = {name: {option: expected(kind) for option, kind in types_of(cls).items()} for name, cls in OPTIONS.items()}
    assert words == snapshot


@pytest.mark.parametrize(("name", "option"), dict.fromkeys((name, option) for name, option, *_ in LIMITED))
def test_values_at_a_limit_are_taken_and_values_beyond_it_are_not(name: str, option: str) -> None:
    words = expected(types_of(OPTIONS[name])[option], only_limits=True)
    for limit, of, listed in [tuple(rest) for one, other, *rest in LIMITED if (one, other) == (name, option)]:
        right, wrong = values_around(limit, of)
        for value in wrong:
            given = [value] if listed else value
            assert refusal(name, option, given).startswith(f"{name}: {option} must be {words}, got {given!r}")
        for value in right:
            # another condition, such as one between two options, may refuse it
            assert f"{option} must be {words}" not in refusal(name, option, [value] if listed else value)


def test_there_are_limits() -> None:
    assert len(LIMITED) > 130
    assert sum(limit.le == FINITE for _, _, limit, _, _ in LIMITED) > 40


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (float, "x", "a number"),
        (int, 1.5, "a whole number"),
        (bool, 1, "true or false"),
        (Literal["a", "b"], "c", "a or b"),
        (int | Literal["all"], "some", "a whole number or all"),
        (float | None, "x", "a number"),
        (tuple[int, ...], ["x"], "a list, each a whole number"),
    ],
)
def test_a_value_of_another_type_is_refused_with_the_type_in_words(kind: Any, value: object, words: str) -> None:
    cls = dataclasses.make_dataclass("Mine", [("a", kind, None)], frozen=True, kw_only=True)
    with pytest.raises(BadInput) as error:
        from_table(cls, {"a": value}, "mine")
    assert str(error.value) == f"mine: a must be {words}, got {value!r}"


@pytest.mark.parametrize("spec", ["sgd:lr=0", {"name": "sgd", "lr": 0.0}, Sgd(lr=0.0)], ids=["text", "table", "object"])
def test_limits_hold_wherever_a_component_comes_from(spec: str | Mapping[str, object] | Sgd) -> None:
    words = "lr must be a finite number above 0, got 0"
    with pytest.raises(BadInput, match=words):
        build("solver", COMPONENTS["solver"], spec)
    with pytest.raises(BadInput, match=words):
        Experiment(solver=spec)


@pytest.mark.parametrize(
    ("kind", "spec", "words"),
    [
        ("algorithm", "dp-fedavg:clip=inf", "give a finite clip, or noise=0"),
        *[
            ("algorithm", f"dualmetric:{options}", "mu must be between")
            for options in ("mu=0.2", "mu_min=0.02", "mu_max=0.001")
        ],
        ("algorithm", "fedpbs:variance_threshold=nan", "variance_threshold must be a number or 'median'"),
        ("server", "adam:beta2=1,bias_correction=true", "bias_correction needs beta2 below 1"),
        ("server", "yogi:beta2=1,bias_correction=true", "bias_correction needs beta2 below 1"),
        ("availability", "on-off:leave=0.6,join=0.6", "leave and join must be at most 1 together, got 0.6 and 0.6"),
        ("selection", "uniform", "give either clients or fraction"),
        ("selection", "uniform:clients=3,fraction=0.5", "give either clients or fraction"),
        ("model", "transformer:width=12,heads=4", "width must be a multiple of twice the heads, got 12 and 4 heads"),
        ("model", "minilm:adapt=b", "adapt and targets need lora above 0"),
        ("model", "hf:targets=[query]", "adapt and targets need lora above 0"),
        (
            "dataset",
            "shakespeare:stride=81",
            "stride must be 1 to 80, the length of a row, or 0 for that length, got 81",
        ),
        (
            "dataset",
            "shakespeare:pieces=256",
            "pieces must be above 256, the number of bytes, or 0 for characters, got 256",
        ),
        ("skew", "concept-swap:clusters=1", "use clusters=2, or say at_round"),
    ],
)
def test_conditions_between_options(kind: str, spec: str, words: str) -> None:
    with pytest.raises(BadInput, match=re.escape(words)):
        build(kind, COMPONENTS[kind], spec)
