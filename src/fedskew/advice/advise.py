"""A short recommendation out of the packaged evidence; where there is none it says so.

The evidence (evidence.json) is made by experiments/evidence.py: under a planted skew, with the strengths of the four faces that
were measured, how much test accuracy each method gained over FedAvg on the same seeds, with the 95 % interval.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

NEAR = 0.25
"""Evidence counts where the dominant face's strength differs by no more than this."""

MOST = 3


@cache
def evidence() -> dict[str, Any]:
    """``made_by``, and ``cases``: data, skew, dominant face, strengths, and the methods with gain, half-width and verdict."""
    loaded: dict[str, Any] = json.loads((files("fedskew.advice") / "evidence.json").read_text(encoding="utf-8"))
    return loaded


def advise(dominant: str, strengths: Mapping[str, float]) -> dict[str, Any]:
    """``methods`` in order, ``because`` of what, ``caution`` about how thin the evidence is, ``command`` to find out.

    A method is recommended where its accuracy was above FedAvg's with a 95 % interval that leaves out zero in some near case and
    below in none; in order of the mean gain over the near cases.
    """
    if not dominant:
        return {
            "methods": [],
            "because": "Nothing differs beyond chance: plain averaging has nothing to correct.",
            "caution": "Differences too small for clients of these sizes to show are not excluded.",
            "command": command(["fedavg"]),
        }
    cases = [c for c in evidence()["cases"] if c["dominant"] == dominant]
    near = [c for c in cases if abs(c["strengths"][dominant] - strengths[dominant]) <= NEAR]
    if not near:
        reach = ", ".join(sorted(f"{c['strengths'][dominant]:.2f}" for c in cases))
        return {
            "methods": [],
            "because": f"The {dominant} face dominates at strength {strengths[dominant]:.2f}.",
            "caution": f"We have no runs of our own near that ({f'only at {reach}' if reach else 'none for this face'}), so "
            "no method is recommended: compare some.",
            "command": command(["fedavg", "scaffold", "fedprox:mu=0.1"]),
        }
    found: dict[str, list[dict[str, Any]]] = {}
    for case in near:
        for line in case["methods"]:
            found.setdefault(line["method"], []).append({**line, "data": case["data"], "skew": case["skew"]})
    good = {
        method: lines
        for method, lines in found.items()
        if any(line["verdict"] == "higher" for line in lines) and not any(line["verdict"] == "lower" for line in lines)
    }
    order = sorted(good, key=lambda method: -sum(line["gain"] for line in good[method]) / len(good[method]))[:MOST]
    data = sorted({c["data"] for c in near})
    seeds = min(line["seeds"] for lines in found.values() for line in lines)
    others = [face for face, strength in strengths.items() if face != dominant and strength >= strengths[dominant] / 2]
    mixed = f" Your data also show the face {' and '.join(others)}, which those runs did not." if others else ""
    return {
        "methods": [{"method": m, "evidence": good[m]} for m in order],
        "because": f"The {dominant} face dominates at strength {strengths[dominant]:.2f}; {len(near)} skews of ours come near it."
        + ("" if order else " No method gained over FedAvg there beyond the seeds' noise."),
        "caution": f"Thin evidence: {' and '.join(data)} only, {seeds} seeds each, gains in test accuracy at a learning rate tuned "
        f"for each method.{mixed} Other data may differ: compare before you choose.",
        "command": command(["fedavg", *(order or ["scaffold", "fedprox:mu=0.1"])]),
    }


def command(methods: list[str]) -> str:
    return f"fedskew compare --algorithms {' '.join(methods)}"
