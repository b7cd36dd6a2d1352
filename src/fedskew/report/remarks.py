"""Remarks under a table of methods."""

from collections.abc import Sequence

from fedskew.measure.registry import primary
from fedskew.report.experiments import pooled, shares_no_model
from fedskew.report.words import heading, listed, plain
from fedskew.store.runs import RunRecord


def remarks(records: Sequence[RunRecord]) -> list[str]:
    """Return the remarks: methods without comparable values, rows and clients that are left out or not measured, baselines."""
    one = dict.fromkeys(record.name for record in records if pooled(record))
    alone = dict.fromkeys(record.name for record in records if shares_no_model(record))
    texts = {
        "one client holds all rows, so there is no worst client": one,
        "clients share no model, so the server has no trained model to measure": alone,
    }
    found = [f"{listed(list(names))}: {text}" for text, names in texts.items() if names]
    dealt = dict.fromkeys(record.facts.get("partition", {}).get("note", "") for record in records)
    return found + [text for text in dealt if text][:1] + without_numbers(records) + without_model(records)


def without_numbers(records: Sequence[RunRecord]) -> list[str]:
    """Say how many clients have too few rows to hold one out; an empty list if there are none."""
    partitions = [record.facts.get("partition", {}) for record in records]
    counts = [(int(found["unmeasured"]), int(found["clients"])) for found in partitions if found.get("unmeasured")]
    if not counts:
        return []
    most, clients = max(counts)
    up_to = "up to " if any(found.get("unmeasured", 0) != most for found in partitions) else ""
    return [f"{up_to}{most} of {clients} clients hold too few rows to hold one out: they are not measured"]


def without_model(records: Sequence[RunRecord]) -> list[str]:
    """Give the primary metric that answers without a model reach on each data set's test rows, as a range over test sets."""
    measure = primary()
    found: dict[str, dict[str, set[float]]] = {}
    for record in records:
        answers, data = record.facts.get("baselines", {}), record.facts.get("data", {})
        for answer, has in answers.items():
            if measure.name in has:
                found.setdefault(data.get("name", ""), {}).setdefault(answer, set()).add(has[measure.name])
    lines = []
    for name, answered in found.items():
        ranges = [
            f"{answer} {' to '.join(dict.fromkeys(plain(measure, end(values)) for end in (min, max)))}"
            for answer, values in answered.items()
        ]
        text = f"{heading(measure)} without a model: {', '.join(ranges)}"
        lines.append(f"{name}: {text}" if len(found) > 1 else text)
    return lines
