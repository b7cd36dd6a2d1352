"""What a comparison states of its verdicts: the margin of equivalence, and whether its seeds draw their own test rows."""

import math
from collections.abc import Sequence

import numpy as np

from fedskew.core.errors import require
from fedskew.report.experiments import parsed, split
from fedskew.report.words import listed
from fedskew.store.runs import RunRecord


def margin(records: Sequence[RunRecord]) -> float:
    """The difference that does not matter, of the runs that state one; NaN if none does. Raises `BadInput` if they differ."""
    stated = [parsed(record).get("evaluation", {}).get("margin") for record in records]
    found = sorted({*stated} - {None})
    require(
        len(found) < 2, f"these runs state several margins, {listed([f'{one:g}' for one in found])}; name runs of one"
    )
    return float(found[0]) if found else math.nan


def drawn_ratio(records: Sequence[RunRecord]) -> float:
    """Test rows for each training row, where the finished runs have drawn several test sets; NaN where they have the same."""
    finished = [record for record in records if record.status == "finished"]
    drawn = {split(record) for record in finished}
    sizes = [record.facts.get("data", {}) for record in finished]
    if len(drawn) < 2 or not all("test_rows" in size for size in sizes):
        return math.nan
    return float(np.mean([size["test_rows"] / size["training_rows"] for size in sizes]))
