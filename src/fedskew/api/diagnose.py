"""`fedskew.diagnose`: measure how clients' data differ. Importing it loads no PyTorch, which files do not need."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Unpack, cast

import pandas as pd

from fedskew.api.caller import Caller, caller_of
from fedskew.api.runs import Shown, plainly
from fedskew.core.component import brief, from_table
from fedskew.core.errors import BadInput, first_line, require, suggestion
from fedskew.diagnosis.diagnose import diagnose as measure
from fedskew.diagnosis.subject import DiagnosisOptions
from fedskew.experiment.keywords import DiagnoseKeywords
from fedskew.report.diagnosis import answer, page, write_diagnosis


class Found(Shown, dict[str, Any]):
    """The result of `fedskew.diagnose`: the values that `fedskew diagnose --json` prints, by key."""

    @property
    def heading(self) -> str:  # type: ignore[override]
        return answer(self)

    def table(self) -> pd.DataFrame:
        """Return one row for each way in which clients differ (face): value, interval, chance, p, strength, verdict."""
        columns = ["face", "value", "low", "high", "chance", "p", "strength", "verdict"]
        return pd.DataFrame([{key: face[key] for key in columns} for face in self["faces"]]).round(3)

    def report(self, path: str | Path) -> Path:
        """Write the HTML page."""
        return write_diagnosis(dict(self), path)

    def html(self) -> str:
        """Return the HTML page as text."""
        return page(dict(self))


@plainly
def diagnose(
    *paths: str | Path | pd.DataFrame,
    runs: str | Path = "runs",
    progress: bool | Caller = True,
    **keywords: Unpack[DiagnoseKeywords],
) -> Found:
    """Measure how clients' data differ: ``diagnose("visits.csv", label="outcome", client="hospital")``.

    A pandas data frame may stand in place of a file. ``target`` names a column of numbers, instead of ``label``.
    ``diagnose(dataset="uci-har")`` measures a data set by name, or a `Dataset`; ``skew`` deals it to ``clients``
    clients. With ``federated``, no rows are pooled: only counts and sums leave a client, and each count covers at least
    ``fewest`` rows. ``person`` names a column of persons who have several rows: then the first row of each person at a
    client counts. The advice also uses the cases that were added in the folder ``runs``.
    """
    for name in keywords:
        if name not in DiagnoseKeywords.__annotations__:
            raise BadInput(f"diagnose: unknown keyword {name!r}; {suggestion(name, DiagnoseKeywords.__annotations__)}")
    with caller_of(progress).board("reading") as board, ExitStack() as stack:
        files = [stack.enter_context(as_file(path, "diagnose")) for path in paths]
        options = from_table(DiagnosisOptions, {"paths": files, **keywords}, "diagnose")
        return Found(measure(options, board.stage, Path(runs)))


@contextmanager
def as_file(rows: object, verb: str) -> Iterator[Path]:
    """Give a path unchanged, and a data frame as a file, so that both are read in the same way."""
    if isinstance(rows, str | Path):
        yield Path(rows)
        return
    require(hasattr(rows, "to_parquet"), f"{verb}: give the path of a file, or a pandas data frame, not {brief(rows)}")
    with TemporaryDirectory() as folder:
        file = Path(folder) / "frame.parquet"
        try:
            cast("pd.DataFrame", rows).rename(columns=str).to_parquet(file, index=False)
        except (ValueError, TypeError) as error:
            raise BadInput(f"{verb}: the data frame cannot be read: {first_line(error)}") from None
        yield file
