"""Tables for tests, written in any format."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pytest

from fedskew.core.errors import BadInput
from fedskew.data.tables.columns import Columns
from fedskew.data.tables.guard import summary
from fedskew.data.tables.schema import merged
from fedskew.data.tables.survey import Roles, Survey, survey as survey_of


def frame(rows: int = 400, seed: int = 0) -> pd.DataFrame:
    """Two columns of numbers, one of three colours, five clients ``who``, and three labels."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, rows)
    return pd.DataFrame(
        {
            "age": (y * 10 + rng.integers(20, 40, rows)).astype(int),
            "height": rng.normal(1.7, 0.1, rows),
            "colour": np.array(["red", "green", "blue"])[rng.integers(0, 3, rows)],
            "who": np.array(["anna", "ben", "cleo", "dan", "eve"])[rng.integers(0, 5, rows)],
            "label": np.array(["no", "maybe", "yes"])[y],
        }
    )


def write(table: pd.DataFrame, path: Path) -> Path:
    """Write the table in the format of the file's name."""
    if path.name.endswith((".csv", ".csv.gz")):
        table.to_csv(path, index=False)
    elif path.suffix == ".tsv":
        table.to_csv(path, index=False, sep="\t")
    elif ".jsonl" in path.name or path.suffix == ".ndjson":
        table.to_json(path, orient="records", lines=True, date_format="iso")
    elif path.suffix == ".parquet":
        table.to_parquet(path, index=False)
    else:
        pyarrow.feather.write_feather(pa.Table.from_pandas(table, preserve_index=False), str(path))
    return path


def survey(paths: Sequence[Path], label: str, client: str = "", **options: Any) -> Survey:
    """Read tables. Options are fields of `Roles` or arguments of `fedskew.data.tables.survey.survey`."""
    roles = {name: options.pop(name) for name in Roles.__dataclass_fields__ if name in options}
    return survey_of(paths, Roles(label, client, **roles), **options)


def read(path: Path, **options: Any) -> Survey:
    return survey([path], "label", "who", **options)


def refused(path: Path, *words: str, label: str = "label", client: str = "who", **options: Any) -> None:
    """Reading the file raises `BadInput` in one line with all these words."""
    with pytest.raises(BadInput) as error:
        survey([path], label, client, **options)
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


def fitted_to(table: pa.Table, target: str = "") -> Columns:
    """The preprocessing that is fitted to these rows: they are one site, merged alone."""
    return merged({"rows": summary(table)}, target)
