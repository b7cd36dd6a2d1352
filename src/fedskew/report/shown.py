"""The table of methods as Python shows it: all numbers in a data frame that prints in few columns."""

import pandas as pd

from fedskew.measure.registry import compared_by
from fedskew.report.files import PLAIN, readable
from fedskew.report.names import name_of

PRIMARY = "compared by"
"""The key in ``attrs`` of the metric by which the runs are compared."""

LAYOUT, CHOSEN = "layout", "chosen"
"""The keys in ``attrs`` of the layout that it prints in, and of the measures that its columns name."""


class Table(pd.DataFrame):
    """The frame of `fedskew.report.tables.summary`. What is made from it prints as pandas prints."""

    @property
    def _constructor(self) -> type[pd.DataFrame]:
        return pd.DataFrame

    def short(self) -> pd.DataFrame:
        """The columns that it prints, as text."""
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
