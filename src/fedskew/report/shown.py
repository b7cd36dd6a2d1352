"""The table of methods for Python: a data frame with all numbers that prints only its main columns."""

import pandas as pd

from fedskew.measure.registry import compared_by
from fedskew.report.experiments import name_of
from fedskew.report.files import PLAIN, readable

PRIMARY = "compared by"
"""Key in ``attrs``: the metric that compares the runs."""

LAYOUT, CHOSEN = "layout", "chosen"
"""Keys in ``attrs``: the layout for printing, and the measures of the layout's columns."""


class Table(pd.DataFrame):
    """The frame of `fedskew.report.tables.summary`. Frames derived from it are plain pandas frames."""

    @property
    def _constructor(self) -> type[pd.DataFrame]:
        return pd.DataFrame

    def short(self) -> pd.DataFrame:
        """Return the main columns, formatted as text."""
        frame, layout = pd.DataFrame(self), self.attrs.get(LAYOUT, PLAIN)
        dropped = ["clients' rows", *([] if layout.columns else ["seeds"])]
        with compared_by(self.attrs.get(PRIMARY, "")):
            shown = readable(frame, layout, self.attrs.get(CHOSEN, ())).drop(columns=dropped, errors="ignore")
        return shown.assign(method=[str(name_of(name)) for name in shown["method"]])

    def __repr__(self) -> str:
        return self.short().to_string(index=False)

    def _repr_html_(self) -> str:
        html: str = self.short().to_html(index=False, border=0)
        return html
