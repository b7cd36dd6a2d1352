"""The table of methods for Python: a data frame with all numbers that prints only its main columns."""

from typing import ClassVar

import pandas as pd

from fedskew.report.files import readable
from fedskew.report.series import Results


class MethodTable(pd.DataFrame):
    """The summary of results. Frames derived from it are plain pandas frames. ``short`` has the main columns as text."""

    _metadata: ClassVar[list[str]] = ["short"]
    short: pd.DataFrame

    @classmethod
    def of(cls, results: Results) -> "MethodTable":
        table = cls(results.summary)
        dropped = ["clients' rows", *([] if results.layout.columns else ["seeds"])]
        table.short = readable(results).drop(columns=dropped, errors="ignore")
        return table

    @property
    def _constructor(self) -> type[pd.DataFrame]:
        return pd.DataFrame

    def __repr__(self) -> str:
        return self.short.to_string(index=False)

    def _repr_html_(self) -> str:
        html: str = self.short.to_html(index=False, border=0)
        return html
