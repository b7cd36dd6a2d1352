"""Federations with one planted difference, and what `fedskew study` says of them.

``python -m tests.studies.planted 3 5`` studies three seeds of each kind, five minutes each. A line says whether the cause is named
first, which remedy has the best mean, its verdict, what is decided, and whether this is right.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import pandas as pd

import fedskew as fs

SITES = dict.fromkeys(("north", "south", "east", "west", "centre"), 280)
WEIGHTS = {"age": 0.6, "bmi": 1.5, "glucose": 2.0, "crp": 0.5, "sodium": -0.5}
CENTRES = {"age": (50, 10), "bmi": (26, 3), "glucose": (95, 15), "crp": (6, 2), "sodium": (140, 3)}
"""Mean and standard deviation of each column."""

OFFSETS = {"north": 0.0, "south": 6.0, "east": -6.0, "west": 12.0, "centre": -12.0}
SHIFTS = {"north": 0.0, "south": 3.0, "east": -3.0, "west": 4.0, "centre": -4.0}
KINDS = ("unit", "offset", "labels", "words", "random", "none")


class Said(NamedTuple):
    """What a study says of one federation."""

    named: bool  # the cause is named first
    top: str  # the remedy with the best mean
    verdict: str  # of this remedy
    decision: str


UNDONE_BY = {"unit": ("site-scale", "combat"), "offset": ("site-scale", "combat"), "labels": ("site-bias", "prior")}
"""The remedies that undo a planted difference; words are corrected in the file, and random labels by nothing."""


def federation(kind: str, seed: int) -> pd.DataFrame:
    """Return the rows of five sites. They differ in one thing, or in none."""
    rng, frames = np.random.default_rng([seed, KINDS.index(kind)]), []
    for site, rows in SITES.items():
        z = {name: rng.normal(size=rows) for name in WEIGHTS}
        male = rng.random(rows) < 0.5
        score = sum(WEIGHTS[name] * z[name] for name in WEIGHTS) + male - 0.5 + 0.5 * rng.logistic(size=rows)
        ill = score + (SHIFTS[site] if kind == "labels" else 0.0) > 0
        frame = pd.DataFrame({name: CENTRES[name][0] + CENTRES[name][1] * z[name] for name in WEIGHTS}).round(2)
        frame["sex"] = np.where(male, "male", "female")
        if kind == "unit" and site == "south":
            frame["glucose"] = (frame["glucose"] / 18.02).round(2)
        if kind == "offset":
            frame["bmi"] += OFFSETS[site]
        if kind == "words" and site == "south":
            frame["sex"] = np.where(male, "m", "f")
        if kind == "random" and site == "south":
            ill = rng.random(rows) < 0.5
        frames.append(frame.assign(outcome=np.where(ill, "ill", "well"), site=site))
    return pd.concat(frames)


def is_named(kind: str, diagnosis: dict) -> bool:
    """Whether the diagnosis names the planted cause first; of ``none``, whether it names nothing."""
    repairs, columns = " ".join(diagnosis["repairs"][:1]), diagnosis["columns"]
    return {
        "unit": lambda: "south" in repairs and "glucose" in repairs,
        "words": lambda: "south" in repairs and "sex" in repairs,
        "offset": lambda: diagnosis["dominant"] == "feature" and columns[0]["column"] == "bmi",
        "labels": lambda: diagnosis["dominant"] in ("label", "concept"),
        "random": lambda: (
            diagnosis["dominant"] == "concept" and faces(diagnosis)["concept"]["farthest_client"] == "south"
        ),
        "none": lambda: diagnosis["dominant"] in (None, "quantity") and not repairs,
    }[kind]()


def faces(diagnosis: dict) -> dict[str, dict]:
    return {face["face"]: face for face in diagnosis["faces"]}


def said_of(kind: str, seed: int, folder: Path, **options: object) -> Said:
    """Study one federation."""
    file = folder / f"{kind}-{seed}.csv"
    federation(kind, seed).to_csv(file, index=False)
    decided = fs.study(file, label="outcome", client="site", runs=folder / f"{kind}-{seed}", progress=False, **options)
    found = decided.findings
    top = found.remedies[0]
    return Said(is_named(kind, dict(found.diagnosis)), top, found.rows[top]["verdict"], found.decision)


def is_right(kind: str, said: Said) -> bool:
    """Whether the remedy that undoes the difference is on top; of the others, whether FedAvg is advised."""
    remedies = [f"FedAvg + {name}" for name in UNDONE_BY.get(kind, ())]
    return said.top in remedies if remedies else said.decision == "fedavg" or kind != "none"


if __name__ == "__main__":
    for seed in range(int(sys.argv[1])):
        for kind in KINDS:
            with TemporaryDirectory() as folder:
                said = said_of(kind, seed, Path(folder), minutes=float(sys.argv[2]))
            print(kind, seed, *said, is_right(kind, said), sep="\t", flush=True)
