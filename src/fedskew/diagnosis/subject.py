"""The subject of a diagnosis (clients' rows), and the diagnosis as plain values."""

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
from fedskew.diagnosis.targets import CLASSES, MEANINGS, TargetTable, said
from fedskew.measure.heterogeneity.columns import Difference, Fact, Held
from fedskew.measure.heterogeneity.diagnose import MEANINGS as OF_CLASSES
from fedskew.measure.heterogeneity.diagnose import Diagnosis

Ints = NDArray[np.int64]

MOST_REPAIRS, NEAR_UNIT = 5, 0.05
"""Maximum number of columns in a wrong unit that are reported. Their factor's logarithm is this close to a usual factor's."""

FOLLOW = "the columns that differ may only follow the labels: among rows of the same label, inputs differ no more than by chance"

FILL_IN = (
    "These rows are no single data set of fedskew: write yours for DATASET, such as table:path=FOLDER,label=COLUMN, where FOLDER "
    "holds one file a client."
)


@dataclass(frozen=True, eq=False)
class Facts:
    """What a diagnosis is of. ``label`` is the column of classes, if its name is known."""

    title: str
    name: str = ""  # the data set's name, if it has one
    arguments: str = ""  # arguments of `fedskew compare` that name these data
    notes: tuple[str, ...] = ()
    label: str = "LABEL"
    clients: tuple[str, ...] = ()
    column_notes: tuple[str, ...] = ()  # how columns became numbers; less important than notes
    inputs: int = 0  # number of inputs, if they are not made of the columns
    classes: tuple[str, ...] = ()  # in their order, if it is known
    computed: frozenset[str] = frozenset()  # columns of numbers that are computed from rows, and have no unit


@dataclass(frozen=True, eq=False)
class Subject:
    """Clients' rows, or a sample of them. ``counts`` (clients, classes) then still covers all rows.

    ``x`` (n, d) are standardised inputs, or symbols.
    If the targets are not classes, ``targets`` (n, ...) holds them, and ``y`` (n,) and ``classes`` their strata and the strata's
    names; numbers have none. ``response`` (n,) is one number for each target. ``sizes`` (clients,) is each client's number of all
    rows, if ``counts`` does not say it.
    """

    title: str
    x: NDArray[Any]
    y: Ints
    client: Ints
    counts: Ints
    classes: tuple[str, ...]
    clients: tuple[str, ...]
    notes: tuple[str, ...] = ()
    column_notes: tuple[str, ...] = ()
    facts: tuple[Fact | Held, ...] = ()  # about the columns, in their own units
    name: str = ""
    arguments: str = ""
    kind: str = CLASSES  # the kind of target
    targets: NDArray[Any] | None = None
    response: NDArray[np.float64] | None = None
    sizes: Ints | None = None
    categories: tuple[str, ...] = ()  # names of labels or symbols, for these kinds of target


def sizes_of(subject: Subject) -> Ints:
    """Return the number of rows of each client (clients,)."""
    sizes: Ints = subject.counts.sum(1) if subject.sizes is None else subject.sizes
    return sizes


def values_of(
    facts: Facts,
    targets: TargetTable,
    found: Diagnosis,
    more: Mapping[str, Any],
    differences: tuple[list[Difference], list[list[Difference]], list[str]],
    runs: Path | None = None,
) -> dict[str, Any]:
    """Return the complete diagnosis as plain values.

    ``more`` are further measures. ``differences`` are the columns that differ, over all clients and by client, and columns that
    differ no more than the labels explain. ``runs`` is a
    folder with the user's own evidence, which the advice uses, too.
    """
    kind, sizes = targets.kind, targets.sizes
    listed, of_clients, by_labels = differences
    return {
        "data": facts.title,
        "clients": len(sizes),
        "rows": int(sizes.sum()),
        "target": kind,
        "target_in_words": said(kind, targets.names),
        "holdings": targets.holdings,
        "measured_rows": found.measured_rows,
        "rows_of_a_class_held_by_one_client": found.alone,
        "classes": list(targets.classes),
        "sizes": sizes.tolist(),
        "smallest": int(sizes.min()),
        "median": float(np.median(sizes)),
        "largest": int(sizes.max()),
        "dominant": found.dominant or None,
        "faces": [face_of(found, face.name, facts.clients, MEANINGS.get(kind, {})) for face in found.faces],
        "measures": more,
        "columns": [asdict(one) for one in listed],
        "by_client": [[named(one) for one in own] for own in of_clients],
        "explained_by_labels": by_labels,
        "repairs": repairs(of_clients),
        "notes": [*facts.notes, *([FOLLOW] if kind != CLASSES and follow_labels(found, listed) else [])],
        "column_notes": list(facts.column_notes),
        "advice": advice_for(found, facts, kind, runs),
        "client_names": list(facts.clients),
        "label_counts": found.counts.tolist(),
    }


def follow_labels(found: Diagnosis, listed: Sequence[Difference]) -> bool:
    """Whether labels explain all that differs in the inputs, and columns of inputs are listed.

    Only for targets that are no classes: else `beyond_labels` has left such columns out.
    """
    real = {face.name: face.real for face in found.faces}
    inputs = any(difference.column not in ("label", "target", "rows") for difference in listed)
    return inputs and real["label"] and not real.get("feature", True)


def advice_for(found: Diagnosis, facts: Facts, kind: str, runs: Path | None) -> Advice:
    """The advice. If the command cannot name the data set, it says what to fill in."""
    data = facts.arguments or "--dataset DATASET"
    advice = advise(known(runs), found.dominant, found.strengths, data, facts.name, kind)
    return advice if facts.arguments else {**advice, "caution": f"{advice['caution']} {FILL_IN}"}


def repairs(of_clients: Sequence[Sequence[Difference]]) -> list[str]:
    """Return advice to correct columns that seem to be in another unit at one client than at the others."""
    wrong = [(one, usual_factor(one.factor)) for own in of_clients for one in own if one.factor]
    return [
        f"First correct {one.client}'s column {one.column}, if it is in another unit ({units}): "
        f"{f'divide it by {factor:.4g}' if factor > 1 else f'multiply it by {1 / factor:.4g}'}."
        for one, (factor, units) in wrong
        if units and abs(math.log(factor / one.factor)) < NEAR_UNIT
    ][:MOST_REPAIRS]


def named(one: Difference) -> dict[str, str | float]:
    """Return a client's difference as plain values."""
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
