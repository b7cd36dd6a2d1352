"""The result of a diagnosis as plain values, for ``--json``, the page and the terminal."""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.advice.advise import Advice, advise
from fedskew.advice.evidence import known
from fedskew.core.units import usual_factor
from fedskew.diagnosis.questions import CLASSES
from fedskew.diagnosis.subject import Source
from fedskew.diagnosis.targets import TargetTable
from fedskew.measure.heterogeneity.columns import Difference, Tested, listed
from fedskew.measure.heterogeneity.faces import Diagnosis, MeasuredFace

MEANINGS: dict[str, dict[str, str]] = tomllib.loads(
    files("fedskew.diagnosis").joinpath("meanings.toml").read_text(encoding="utf-8")
)
"""By kind of target: what each face measures, if it differs from the meaning for classes."""

MOST_REPAIRS, NEAR_UNIT = 5, 0.05
"""Maximum number of columns in a wrong unit that are reported. Their factor's logarithm is this close to a usual factor's."""

FOLLOW = "the columns that differ may only follow the labels: among rows of the same label, inputs differ no more than by chance"

FILL_IN = (
    "These rows are no single data set of fedskew: write yours for DATASET, such as table:path=FOLDER,label=COLUMN, where FOLDER "
    "holds one file a client."
)


def values_of(
    source: Source,
    targets: TargetTable,
    diagnosis: Diagnosis,
    measures: Mapping[str, Any],
    tested: Sequence[Tested],
    runs: Path | None = None,
) -> dict[str, Any]:
    """Return the complete diagnosis as plain values.

    ``measures`` are further measures. ``tested`` are the tests of columns. ``runs`` is a folder with the user's own evidence,
    which the advice uses, too.
    """
    kind, sizes = targets.kind, targets.sizes
    columns, of_clients, by_labels = listed(tested, source.clients)
    follow = [FOLLOW] if kind != CLASSES and follow_labels(diagnosis, columns) else []
    return {
        "data": source.title,
        "clients": len(sizes),
        "rows": int(sizes.sum()),
        "target": kind,
        "target_in_words": targets.words,
        "holdings": targets.holdings,
        "measured_rows": diagnosis.measured_rows,
        "rows_of_a_class_held_by_one_client": diagnosis.alone,
        "classes": list(targets.classes),
        "sizes": sizes.tolist(),
        "smallest": int(sizes.min()),
        "median": float(np.median(sizes)),
        "largest": int(sizes.max()),
        "dominant": diagnosis.dominant or None,
        "faces": [values_of_face(face, source.clients, kind) for face in diagnosis.faces],
        "measures": measures,
        "columns": [asdict(difference) for difference in columns],
        "by_client": [
            [
                {name: getattr(difference, name) for name in ("column", "text", "effect", "p")}
                for difference in of_client
            ]
            for of_client in of_clients
        ],
        "explained_by_labels": by_labels,
        "repairs": repairs(of_clients),
        "notes": [*source.notes, *follow],
        "column_notes": list(source.column_notes),
        "advice": advice_for(diagnosis, source, kind, runs),
        "client_names": list(source.clients),
        "label_counts": diagnosis.counts.tolist(),
    }


def values_of_face(face: MeasuredFace, clients: Sequence[str], kind: str = CLASSES) -> dict[str, Any]:
    return {
        "face": face.name,
        "meaning": {**MEANINGS[CLASSES], **MEANINGS[kind]}[face.name],
        **{name: getattr(face, name) for name in ("value", "low", "high", "chance", "p", "strength", "verdict")},
        "farthest_client": clients[int(np.argmax(face.each))],
        "each": face.each.tolist(),
    }


def follow_labels(diagnosis: Diagnosis, columns: Sequence[Difference]) -> bool:
    """Whether labels explain all that differs in the inputs, and columns of inputs are listed.

    It matters only for targets that are no classes. For classes, `beyond_labels` has left such columns out already.
    """
    real = {face.name: face.real for face in diagnosis.faces}
    inputs = any(difference.column not in ("label", "target", "rows") for difference in columns)
    return inputs and real["label"] and not real.get("feature", True)


def advice_for(diagnosis: Diagnosis, source: Source, kind: str, runs: Path | None) -> Advice:
    """The advice. If the command cannot name the data set, it says what to fill in."""
    data = source.arguments or "--dataset DATASET"
    advice = advise(known(runs), diagnosis.dominant, diagnosis.strengths, data, source.name, kind)
    return advice if source.arguments else {**advice, "caution": f"{advice['caution']} {FILL_IN}"}


def repairs(of_clients: Sequence[Sequence[Difference]]) -> list[str]:
    """Return advice to correct columns that seem to be in another unit at one client than at the others."""
    wrong = [(part, *usual_factor(part.factor)) for of_client in of_clients for part in of_client if part.factor]
    return [
        f"First correct {part.client}'s column {part.column}, if it is in another unit ({units}): "
        f"{f'divide it by {factor:.4g}' if factor > 1 else f'multiply it by {1 / factor:.4g}'}."
        for part, factor, units in wrong
        if units and abs(math.log(factor / part.factor)) < NEAR_UNIT
    ][:MOST_REPAIRS]
