"""How sure a comparison is: where its numbers vary, and how likely a repeat orders the methods in another way."""

import math

import numpy as np

from fedskew.core.text import count, listed, percent
from fedskew.measure.statistics import Components, shared_by_rows, variance_components
from fedskew.report.experiments import own_clients
from fedskew.report.series import Results
from fedskew.report.tables import by_method, repeats, same_rows, splits
from fedskew.report.words import rows_of


def sources(results: Results) -> Components | None:
    """Return the parts of the variance of a run's primary measure.

    None unless two methods finished the same two or more training seeds on each of two or more partitions.
    """
    tables = repeats(results.frame, results.records, results.measure)
    if len(tables) < 2 or results.budget:
        return None
    rows = by_method(results.store, results.records, results.layout.by)
    of_rows = list[float]()
    for seeds, reference in rows.get(results.methods[0], {}).items():
        stored = [of_seeds[seeds] for method in tables if seeds in (of_seeds := rows.get(method, {}))]
        alike = [part.values for part in stored if same_rows(part, reference)]
        of_rows += [shared_by_rows(np.stack(alike))] if len(alike) > 1 else []
    shared = float(np.mean(of_rows)) if of_rows else 0.0
    dealt = not all(map(own_clients, results.records))
    return variance_components(
        np.stack([*tables.values()]), shared, splits(results.records, results.layout.by) is not None, dealt
    )


def how_sure(results: Results) -> list[str]:
    """Return sentences on the shares of the variance and on the order of the best methods, if partitions and seeds are crossed."""
    parts, measure, sentences = sources(results), results.measure, list[str]()
    if parts and sum(parts):
        tables = repeats(results.frame, results.records, measure)
        partitions, seeds = next(iter(tables.values())).shape
        names = ("choice of the test rows", "partition", "training seed", "method x partition")
        shares = [f"{percent(share)} {name}" for name, share in zip(names, parts.shares(), strict=True)]
        sentences.append(
            f"variance of {measure.label} between runs of a method: {listed(shares)} (analysis of variance, "
            f"{count(len(tables), 'method')} x {count(partitions, 'partition')} x {count(seeds, 'seed')})"
        )
    rows = [row for row in rows_of(results.summary) if math.isfinite(row[measure.key])]
    if parts and len(rows) > 1:
        rows.sort(key=lambda row: row[measure.key], reverse=measure.ahead == "higher")
        first = next((row for row in rows if row["method"] == results.methods[0]), rows[0])
        other = rows[0] if rows[0] is not first else rows[1]
        if math.isfinite(other["flips"]):
            sentences.append(
                f"a repeat of this size orders {other['method']} and {first['method']} the other way with probability "
                f"{percent(other['flips'])}"
            )
    return sentences
