"""The table of methods for Python: a data frame with all numbers that prints only its main columns."""

from __future__ import annotations

from typing import ClassVar

import pandas as pd


class MethodTable(pd.DataFrame):
    """A summary of methods. It prints ``short``, its main columns as text. Frames derived from it are plain pandas frames."""

    _metadata: ClassVar[list[str]] = ["short"]
    short: pd.DataFrame

    @classmethod
    def of(cls, summary: pd.DataFrame, short: pd.DataFrame) -> MethodTable:
        table = cls(summary)
        table.short = short
        return table

    @property
    def _constructor(self) -> type[pd.DataFrame]:
        return pd.DataFrame

    def __repr__(self) -> str:
        return self.short.to_string(index=False)

    def _repr_html_(self) -> str:
        return self.short.to_html(index=False, border=0)
