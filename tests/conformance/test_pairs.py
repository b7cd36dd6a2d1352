"""Every method with every slot, and every two slots together: what must hold in a round holds, or the reason is said.

Methods and options come from the catalogues, so that what is new in the code is tested here without a change.
"""

import random
import time
from functools import cache
from itertools import combinations, product
from typing import Any

import pytest
import torch

from fedskew.algorithms import ALGORITHMS
from fedskew.core.errors import TooFew
from tests.covering import Case, covering
from tests.invariants import play
from tests.slot_options import fits, made, options

torch.set_num_threads(1)

OPTIONS = {
    "krum": "krum:f=0,c=2",
    "trimmed-mean": "trimmed-mean:beta=0.2",
    "dp-fedavg": "dp-fedavg:clip=0.3,noise=0.5,q=0.7,delta=0.1",
}
"""Methods whose defaults need more clients, or that have to act on a few."""
METHODS = {name: OPTIONS.get(name, name) for name in ALGORITHMS}
UNLIKE = ("fedavg", "scaffold", "fednova", "feddyn", "dp-fedavg", "fedmd", "ifca", "fedbs", "drfa", "krum", "ditto")
"""Methods that together use every hook. They are in the fast suite; the slow one has all."""

SECONDS = 15
"""That the slow test takes for each method at most."""


@cache
def slots() -> dict[str, dict[str, Any]]:
    """The options of each slot that these data take: what is refused beside FedAvg is refused beside every method."""
    return {
        slot: {name: one for name, one in tried.items() if not isinstance(made("fedavg", **{slot: one}), str)}
        for slot, tried in options().items()
    }


def chosen(case: Case) -> dict[str, Any]:
    """Return the slots of a case."""
    return {slot: slots()[slot][name] for slot, name in case.items() if slot != "method"}


def allowed(case: Case) -> bool:
    """Whether two options go together. What stays at clients is checked with everything put together.

    The first option of a slot is harmless in others; `failure` says where it is not.
    """
    if "method" not in case and any(name == next(iter(slots()[slot])) for slot, name in case.items()):
        return True
    method = METHODS[case.get("method", "fedavg")]
    if {"sharing", "harmonisation"} & case.keys():
        return not isinstance(made(method, **chosen(case)), str)
    return fits(method, **chosen(case))


def failure(method: str, case: Case) -> str:
    """Return the failure of a case. It is empty if all checks hold, or if the method says that it has too few updates."""
    assembly = made(METHODS[method], **chosen(case))
    if isinstance(assembly, str):
        return f"refused although each two of its options go together: {assembly}"
    try:
        play(assembly)
    except TooFew as error:
        return "" if "; " in str(error) else f"no cure is named: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else error!r}"
    return ""


def report(method: str, case: Case) -> str:
    """Return a failure with the smallest combination that causes it."""
    found = failure(method, case)
    if not found:
        return ""
    plain = {slot: next(iter(tried)) for slot, tried in slots().items()}
    unlike = {slot: name for slot, name in case.items() if slot != "method" and name != plain[slot]}
    for size in range(len(unlike)):
        for part in combinations(unlike.items(), size):
            smaller = {**plain, **dict(part)}
            if less := failure(method, smaller):
                return f"{method} {dict(part)}: {less}"
    return f"{method} {unlike}: {found}"


@pytest.mark.parametrize("methods", [UNLIKE, pytest.param(tuple(METHODS), marks=pytest.mark.slow)], ids=len)
def test_every_method_keeps_its_promises_with_every_slot_or_refuses_it_with_a_reason(methods: tuple[str, ...]) -> None:
    """One test for all methods, because to find the pairs that are allowed takes as long as half of the rounds."""
    cases = covering({"method": methods, **{slot: list(tried) for slot, tried in slots().items()}}, allowed)
    broken = sorted({found for case in cases if (found := report(case["method"], case))})
    assert not broken, "\n".join(["", *broken])
    stood = {(case["method"], slot, name) for case in cases for slot, name in case.items()}
    for method, (slot, tried) in product(methods, slots().items()):
        assert {(method, slot, name) for name in tried} & stood, "the method is refused beside everything"
        for name, one in tried.items():
            if (method, slot, name) not in stood:
                refused = made(METHODS[method], **{slot: one})
                assert isinstance(refused, str), (method, slot, name)
                assert "\n" not in refused
                assert any(mark in refused for mark in ("; ", "use ")), refused


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_with_every_pair_of_slots_and_some_larger_sets(method: str) -> None:
    end, luck = time.monotonic() + SECONDS, random.Random(0)
    factors = {"method": [method], **{slot: list(tried) for slot, tried in slots().items()}}
    factors = {
        f: [o for o in tried if f == "method" or allowed({"method": method, f: o})] for f, tried in factors.items()
    }
    todo, broken = covering(factors, allowed), set()
    luck.shuffle(todo)
    while time.monotonic() < end and len(broken) < 5:
        case = todo.pop() if todo else {factor: luck.choice(tried) for factor, tried in factors.items()}
        if all(allowed(dict(pair)) for pair in combinations(case.items(), 2)) and (found := report(method, case)):
            broken.add(found)
    assert not broken, "\n".join(["", *sorted(broken)])


# the generator


def test_a_covering_array_holds_every_allowed_pair_and_no_other() -> None:
    factors = {"a": list("0123"), "b": list("012"), "c": list("01"), "d": list("0123456")}

    def together(case: Case) -> bool:
        return not {("a", "1"), ("b", "2")} <= set(case.items()) and not {("c", "1"), ("d", "6")} <= set(case.items())

    made_up = covering(factors, together)
    found = {pair for case in made_up for pair in combinations(case.items(), 2)}
    wanted = {
        ((a, one), (b, two))
        for a, b in combinations(factors, 2)
        for one, two in product(factors[a], factors[b])
        if together({a: one, b: two})
    }
    assert found == wanted
    assert len(made_up) < 40, "the largest two factors have 28 pairs, all cases are 168"
    assert made_up == covering(factors, together)
