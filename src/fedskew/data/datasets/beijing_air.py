"""Beijing Multi-Site Air Quality: hourly values of four years at twelve stations. How much fine dust is in the air soon?"""

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from fedskew.core.limits import NonNegativeInt
from fedskew.data.dataset import Dataset, numbered, some_rows
from fedskew.data.datasets import SOURCES
from fedskew.data.find import Files
from fedskew.data.preprocessing import Angle, Number, Standard
from fedskew.data.tables.summaries import fitted

if TYPE_CHECKING:
    import pandas as pd

HOURS, STATIONS = 35064, 12
MEASURED = ["PM2.5", "PM10", "SO2", "NO2", "CO", "O3", "TEMP", "PRES", "DEWP", "RAIN", "WSPM"]
WINDS = ["N", "NNE", "NE", "ENE", "E", "ESE", "SE", "SSE", "S", "SSW", "SW", "WSW", "W", "WNW", "NW", "NNW"]
COLUMNS: tuple[Standard, ...] = (
    *(Number(name=name) for name in MEASURED),
    Angle(name="wd", words=tuple(WINDS)),
    Angle(name="hour", period=24),
    Angle(name="month", period=12),
)
USED = [part.name for part in COLUMNS]


@dataclass(frozen=True, kw_only=True)
class BeijingAir:
    """The target is PM2.5 (fine dust, in micrograms per cubic metre) ``ahead`` hours later at the same station.

    The inputs are 11 measurements, wind direction, hour and month; the last three are given as sine and cosine. Columns are
    standardised with the known values of the training rows; a missing value becomes their mean, 0. Hours without PM2.5, now or
    ``ahead`` hours later, are left out. The last year, from March 2016 on, is the test set. ``rows`` is the number of training
    rows, drawn at random; 0 takes all.
    """

    ahead: Annotated[int, Meta(ge=1, le=24)] = 1
    rows: NonNegativeInt = 0

    task: ClassVar[str] = "regression"
    model: ClassVar[str] = "mlp"
    cites: ClassVar[tuple[str, ...]] = ("beijing-air",)
    idea: ClassVar[str] = "12 air-quality stations, hourly for four years: fine dust an hour ahead, a number"
    files: ClassVar[Files] = SOURCES["beijing-air"]

    def load(self) -> Dataset:
        [tables] = self.files.read(read)
        cells = {name: np.concatenate([table[name].to_numpy() for table in tables]) for name in USED}
        cells = {name: words(values) if name == "wd" else values.astype(float) for name, values in cells.items()}
        now = np.concatenate([table["PM2.5"].to_numpy() for table in tables])
        y = np.concatenate([table["PM2.5"].shift(-self.ahead).to_numpy() for table in tables])
        station, names = numbered(np.concatenate([table["station"].to_numpy(dtype=str) for table in tables]))
        # the last 365 days
        late = np.tile(np.arange(HOURS) >= HOURS - 365 * 24, STATIONS)
        complete = np.isfinite(now) & np.isfinite(y)
        train, test = np.flatnonzero(complete & ~late), np.flatnonzero(complete & late)
        train = train[some_rows(len(train), self.rows, 0, "beijing-air")]
        preprocessing, x = fitted(COLUMNS, cells, train)
        wrong, spread = y[test] - now[test], y[test] - y[test].mean()
        as_now = {"rmse": float(np.sqrt((wrong**2).mean())), "mae": float(np.abs(wrong).mean())}
        as_now["r2"] = float(1 - (wrong**2).sum() / (spread**2).sum())
        return self.files.build(
            (x[train], y[train]),
            (x[test], y[test]),
            clients=(station[train], names),
            groups_test=station[test],
            preprocessing=preprocessing,
            baselines={"as now": as_now},
            notes=f"{(~complete).sum():,} of {len(y):,} hours have no PM2.5 now or later",
        )


def words(values: NDArray[np.object_]) -> NDArray[np.object_]:
    """Convert values to texts. A missing value becomes an empty text."""
    return np.array([value if isinstance(value, str) else "" for value in values], dtype=object)


def read(path: Path) -> "list[pd.DataFrame]":
    """Read the table of each station, in order of the stations' names. Rows are in order of time."""
    import pandas as pd

    with zipfile.ZipFile(path) as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".csv"))
        tables = [pd.read_csv(archive.open(name)) for name in names]
    if len(tables) != STATIONS or any(len(table) != HOURS for table in tables):
        raise ValueError(f"it does not have {STATIONS} stations with {HOURS} hours each")
    return tables
