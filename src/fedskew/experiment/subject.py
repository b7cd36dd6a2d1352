"""What a diagnosis is of, and its result as plain values."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.advice.advise import Advice, advise
from fedskew.advice.evidence import known
from fedskew.core.units import usual_factor
from fedskew.experiment.holdings import CLASSES, MEANINGS, holdings, said
from fedskew.measure.heterogeneity.columns import Difference, Fact, Held
from fedskew.measure.heterogeneity.diagnose import MEANINGS as OF_CLASSES
from fedskew.measure.heterogeneity.diagnose import Diagnosis

Ints = NDArray[np.int64]

MOST_REPAIRS, NEAR_UNIT = 5, 0.05
"""Maximum number of columns in another unit that the advice names. Their factors are this near to a usual one (logarithms)."""

FILL_IN = (
    "These rows are no single data set of fedskew: write yours for DATASET, such as table:path=FOLDER,label=COLUMN, where FOLDER "
    "holds one file a client."
)


@dataclass(frozen=True, eq=False)
class Subject:
    """Clients' rows, or a sample of them with the ``counts`` (clients, classes) of all rows.

    Where targets are not classes, ``y`` (n,) are their strata, ``classes`` the strata's names, ``targets`` (n, ...) the targets,
    and ``response`` (n,) numbers that stand for them. ``sizes`` (clients,) are all rows of each client, if ``counts`` is of a
    sample.
    """

    title: str
    x: NDArray[Any]
    y: Ints
    client: Ints
    counts: Ints
    classes: tuple[str, ...]
    clients: tuple[str, ...]
    notes: tuple[str, ...] = ()
    column_notes: tuple[str, ...] = ()  # routine: how columns became numbers
    facts: tuple[Fact | Held, ...] = ()  # about the columns, in their own units
    name: str = ""  # of the data set, if it has one
    arguments: str = ""  # of `fedskew compare`, that name these data
    kind: str = CLASSES  # of the targets
    targets: NDArray[Any] | None = None
    response: NDArray[np.float64] | None = None
    sizes: Ints | None = None
    inputs: tuple[str, ...] = ()  # names of the columns of x, if they have names
    categories: tuple[str, ...] = ()  # names of the labels of sets, or of the symbols of sequences


def sizes_of(subject: Subject) -> Ints:
    """The rows of each client."""
    sizes: Ints = subject.counts.sum(1) if subject.sizes is None else subject.sizes
    return sizes


def names_of(subject: Subject, found: Diagnosis) -> tuple[str, ...]:
    return subject.categories or subject.classes or tuple(f"symbol {at}" for at in range(found.counts.shape[1]))


def values_of(
    subject: Subject,
    found: Diagnosis,
    more: Mapping[str, Any],
    differences: tuple[list[Difference], list[list[Difference]]],
    runs: Path | None = None,
) -> dict[str, Any]:
    """A diagnosis, further measures, and the columns that differ, in all and by client, as plain values.

    The advice reads one's own evidence in the folder ``runs``, too.
    """
    sizes = sizes_of(subject)
    kind, targets = subject.kind, subject.y if subject.targets is None else subject.targets
    listed, of_clients = differences
    names = names_of(subject, found)
    return {
        "data": subject.title,
        "clients": len(sizes),
        "rows": int(sizes.sum()),
        "target": kind,
        "target_in_words": said(kind, names),
        "holdings": holdings(kind, targets, subject.client, found.counts, names),
        "measured_rows": found.measured_rows,
        "rows_of_a_class_held_by_one_client": found.alone,
        "classes": list(names if kind == "symbols" else subject.classes),
        "sizes": sizes.tolist(),
        "smallest": int(sizes.min()),
        "median": float(np.median(sizes)),
        "largest": int(sizes.max()),
        "dominant": found.dominant or None,
        "faces": [face_of(found, face.name, subject.clients, MEANINGS.get(kind, {})) for face in found.faces],
        "measures": more,
        "columns": [asdict(one) for one in listed],
        "by_client": [[named(one) for one in own] for own in of_clients],
        "repairs": repairs(of_clients),
        "notes": list(subject.notes),
        "column_notes": list(subject.column_notes),
        "advice": advice_for(found, subject, kind, runs),
        "client_names": list(subject.clients),
        "label_counts": found.counts.tolist(),
    }


def advice_for(found: Diagnosis, subject: Subject, kind: str, runs: Path | None) -> Advice:
    """The advice. If the command cannot name the data set, it says what to fill in."""
    data = subject.arguments or "--dataset DATASET"
    advice = advise(known(runs), found.dominant, found.strengths, data, subject.name, kind)
    return advice if subject.arguments else {**advice, "caution": f"{advice['caution']} {FILL_IN}"}


def repairs(of_clients: Sequence[Sequence[Difference]]) -> list[str]:
    """What to correct in the data before a comparison of methods: columns in another unit than elsewhere."""
    wrong = [(one, usual_factor(one.factor)) for own in of_clients for one in own if one.factor]
    return [
        f"First correct {one.client}'s column {one.column}, if it is in another unit ({units}): "
        f"{f'divide it by {factor:.4g}' if factor > 1 else f'multiply it by {1 / factor:.4g}'}."
        for one, (factor, units) in wrong
        if units and abs(math.log(factor / one.factor)) < NEAR_UNIT
    ][:MOST_REPAIRS]


def named(one: Difference) -> dict[str, str | float]:
    """A difference of one client as plain values."""
    return {"column": one.column, "text": one.text, "effect": one.effect, "p": one.p}


def face_of(found: Diagnosis, name: str, clients: Sequence[str], meanings: Mapping[str, str]) -> dict[str, Any]:
    face = found.face(name)
    return {
        "face": name,
        "meaning": meanings.get(name, OF_CLASSES[name]),
        "value": face.value,
        "low": face.low,
        "high": face.high,
        "chance": face.chance,
        "p": face.p,
        "strength": face.strength,
        "verdict": face.verdict,
        "farthest_client": clients[int(np.argmax(face.each))],
        "each": [float(v) for v in face.each],
    }
