"""Pairwise covering arrays: few cases in which every two options of different factors stand together at least once."""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

Case = dict[str, str]
Allowed = Callable[[Case], bool]


def covering(factors: Mapping[str, Sequence[str]], allowed: Allowed = lambda case: True) -> list[Case]:
    """Return cases that cover all ``allowed`` pairs of options. Each case has one option of every factor.

    ``allowed`` takes two options at a time. The first option of a factor must be allowed with every option that is allowed alone.
    Greedy and deterministic: a case starts with a pair that is still open, and each further factor takes the allowed option
    that closes most pairs.
    """
    known: dict[frozenset[tuple[str, str]], bool] = {}

    def together(one: tuple[str, str], two: tuple[str, str]) -> bool:
        key = frozenset((one, two))
        if key not in known:
            known[key] = allowed(dict(key))
        return known[key]

    options = {factor: [(factor, option) for option in values] for factor, values in factors.items()}
    still_open = {
        frozenset((one, two)): None
        for a, b in combinations(options.values(), 2)
        for one in a
        for two in b
        if together(one, two)
    }
    cases = []
    while still_open:
        chosen = dict(sorted(next(iter(still_open))))
        for factor, candidates in options.items():
            if factor in chosen:
                continue
            fit = [c for c in candidates if all(together(c, other) for other in chosen.items())]
            best = max(fit, key=lambda c: sum(frozenset((c, other)) in still_open for other in chosen.items()))
            chosen[factor] = best[1]
        for pair in combinations(chosen.items(), 2):
            still_open.pop(frozenset(pair), None)
        cases.append({factor: chosen[factor] for factor in factors})
    return cases
