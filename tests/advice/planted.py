"""A table of evidence with known gains."""

from collections.abc import Callable, Mapping

import numpy as np

from fedskew.advice.evidence import FACES, Case, Gain, Measure


def case(
    strengths: Mapping[str, float],
    *lines: tuple[str, float],
    data: str = "digits",
    skew: str = "s",
    target: str = "classes",
    measure: Measure = "test",
    p: float = 0.5,
    better: str = "higher",
) -> Case:
    """A case in which FedAvg reaches 0.5, with the gain of each method."""
    return Case(
        data=data,
        skew=skew,
        model="mlp",
        target=target,
        metric="accuracy" if better == "higher" else "rmse",
        better=better,
        dominant="label",
        strengths={face: strengths.get(face, 0.0) for face in FACES},
        fedavg={measure: 0.5},
        methods=tuple(Gain(name, measure, 0.1, gain, 0.01, p, 5) for name, gain in lines),
    )


def planted(effects: Mapping[str, Callable[[float, float], float]], sets: int = 6, noise: float = 0.0) -> list[Case]:
    """Return cases of several data sets. The gain of a method is a linear function of label and concept strength, plus noise."""
    rng = np.random.default_rng(0)
    cases = []
    for name in range(sets):
        for at, (label, concept) in enumerate([(0.1, 0.0), (0.5, 0.0), (0.9, 0.0), (0.1, 0.5), (0.1, 0.9)]):
            lines = [(m, effect(label, concept) + noise * rng.standard_normal()) for m, effect in effects.items()]
            cases.append(case({"label": label, "concept": concept}, *lines, data=f"set{name}", skew=f"s{at}"))
    return cases
