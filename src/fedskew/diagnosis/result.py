"""The result of a diagnosis as plain values, for ``--json``, the page and the terminal."""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from fedskew.advice.advise import Advice, advise
from fedskew.advice.evidence import known
from fedskew.core.units import usual_factor
from fedskew.data.tables.schema import alike, other_language, spelt
from fedskew.diagnosis.questions import CLASSES
from fedskew.diagnosis.subject import Source
from fedskew.diagnosis.targets import TargetTable
from fedskew.measure.heterogeneity.columns import Difference, Tested, listed
from fedskew.measure.heterogeneity.faces import Diagnosis, MeasuredFace

MEANINGS: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_name("meanings.toml").read_text("utf-8"))
"""By kind of target: what each face measures, if it differs from the meaning for classes."""

FAR = 5
"""Targets of sites often differ by less than this factor: a shop sells half as much. Then another unit is not suspected."""

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
    follow = [FOLLOW] if kind != CLASSES and follow_labels(diagnosis, columns, source.label) else []
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
        "by_client": [[*map(brief, of_client)] for of_client in of_clients],
        "explained_by_labels": by_labels,
        **repairs(source, of_clients, words_of(source, tested)),
        "notes": [*source.notes, *follow],
        "column_notes": list(source.column_notes),
        "advice": advice_for(diagnosis, source, kind, runs),
        "client_names": list(source.clients),
        "label_counts": diagnosis.counts.tolist(),
    }


def brief(difference: Difference) -> dict[str, Any]:
    return {name: getattr(difference, name) for name in ("column", "text", "effect", "p")}


def values_of_face(face: MeasuredFace, clients: Sequence[str], kind: str = CLASSES) -> dict[str, Any]:
    return {
        "face": face.name,
        "meaning": {**MEANINGS[CLASSES], **MEANINGS[kind]}[face.name],
        **{name: getattr(face, name) for name in ("value", "low", "high", "chance", "p", "strength", "verdict")},
        "farthest_client": clients[int(np.argmax(face.each))],
        "each": face.each.tolist(),
    }


def follow_labels(diagnosis: Diagnosis, columns: Sequence[Difference], target: str) -> bool:
    """Whether labels explain all that differs in the inputs, and columns of inputs are listed.

    It matters only for targets that are no classes. For classes, `beyond_labels` has left such columns out already.
    """
    real = {face.name: face.real for face in diagnosis.faces}
    inputs = any(difference.column not in (target or "target", "rows") for difference in columns)
    return inputs and real["label"] and not real.get("feature", True)


def advice_for(diagnosis: Diagnosis, source: Source, kind: str, runs: Path | None) -> Advice:
    """The advice. If the command cannot name the data set, it says what to fill in."""
    data = source.arguments or "--dataset DATASET"
    advice = advise(known(runs), diagnosis.dominant, diagnosis.strengths, data, source.name, kind)
    return advice if source.arguments else {**advice, "caution": f"{advice['caution']} {FILL_IN}"}


def words_of(source: Source, tested: Sequence[Tested]) -> dict[str, dict[str, list[str]]]:
    """Return the words of each client in columns of words, by column and client."""
    words: dict[str, dict[str, list[str]]] = {}
    for part in tested:
        of_column = words.setdefault(part.column, {}) if part.kind == "share" and part.word else {}
        for k in np.flatnonzero(part.here):
            of_column.setdefault(source.clients[k], []).append(part.word)
    return words


def repairs(
    source: Source, of_clients: Sequence[Sequence[Difference]], words: Mapping[str, Mapping[str, Sequence[str]]]
) -> dict[str, Any]:
    """Return ``repairs``, sentences on columns that seem to have another unit or spelling at some clients, and ``paste``.

    ``paste`` has the lines that correct them, for each file ``NAME.columns.toml``.
    """
    sentences, files = list[str](), dict[str, Any]()

    def paste(client: str, tables: Sequence[str], entries: Mapping[str, Any]) -> None:
        target = files
        for name in (source.mappings.get(client, f"NAME.columns.toml of {client}"), *tables):
            target = target.setdefault(name, {})
        target.update(entries)

    wrong: list[tuple[Difference, float, str]] = []
    for part in (part for of_client in of_clients for part in of_client if part.factor):
        factor, units = usual_factor(part.factor)
        near = units and abs(math.log(factor / part.factor)) < NEAR_UNIT
        if near and (part.column != (source.label or "target") or abs(math.log(factor)) > math.log(FAR)):
            wrong.append((part, factor, units))
    for part, factor, units in wrong[:MOST_REPAIRS]:
        change = f"divide it by {factor:.4g}" if factor > 1 else f"multiply it by {1 / factor:.4g}"
        sentences.append(f"{part.client}'s column {part.column} may be in another unit ({units}): {change}.")
        rows = (source.column, part.client) if source.column else ()
        paste(part.client, ("units", *rows), {part.column: float(f"{1 / factor:.6g}")})
    for column, of_column in words.items():
        for client, pairs in alike(of_column).items():
            sentences.append(f"{client}'s column {column} holds {spelt(pairs)}.")
            paste(client, ("words", column), pairs)
        for client, line in other_language(column, of_column, fewest=2).items():
            sentences.append(f"{client}'s column {column} holds {line}.")
    pasted = {} if source.name else files
    return {"repairs": sentences, "paste": [{"file": at, "lines": tomli_w.dumps(pasted[at])} for at in pasted if at]}
