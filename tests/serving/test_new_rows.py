"""New rows that differ from the training rows: times with offsets, cells that are no numbers, rows of the wrong shape."""

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
import torch

import fedskew as fs
from fedskew.api.runs import Runs
from fedskew.core.errors import BadInput
from fedskew.serving.predict import OUTSIDE
from tests.serving.test_predict import trained_on


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Runs]:
    folder = tmp_path_factory.mktemp("rows")
    return folder, trained_on(folder)


@pytest.mark.parametrize("zone", ["+01:00", "mixed"])
def test_times_with_an_offset_are_read_in_utc(made: tuple[Path, Runs], tmp_path: Path, zone: str) -> None:
    """The instant counts, in a CSV with and without cells that are no times, as texts, and as times with a zone."""
    folder, _ = made
    frame = pd.read_csv(folder / "test.csv").head(3)
    offsets = ["+01:00", "+02:00" if zone == "mixed" else "+01:00", "+01:00"]
    local = ["2020-01-01 10:00:00", "2020-01-02 11:00:00", "2020-01-03 23:30:00"]
    texts = [time + offset for time, offset in zip(local, offsets, strict=True)]
    utc = pd.to_datetime(pd.Series(texts), utc=True)
    model = fs.load_model(1, runs=folder / "runs")
    expected = model.inputs(frame.assign(seen=utc.dt.tz_localize(None)))
    given = [texts, utc.dt.tz_convert("Asia/Tokyo"), [pd.Timestamp(text).to_pydatetime() for text in texts]]
    for seen in given:
        assert torch.equal(model.inputs(frame.assign(seen=seen)), expected)
    frame.assign(seen=texts).to_csv(tmp_path / "all.csv", index=False)
    assert torch.equal(model.inputs(model.read(tmp_path / "all.csv")), expected)
    frame.assign(seen=[*texts[:2], "later"]).to_csv(tmp_path / "odd.csv", index=False)
    assert torch.equal(model.inputs(model.read(tmp_path / "odd.csv"))[:2], expected[:2])


def test_cells_that_are_not_numbers_are_named_as_such(made: tuple[Path, Runs]) -> None:
    folder, runs = made
    frame = pd.read_csv(folder / "test.csv").head(5)
    ages = frame.assign(age=["63 years", None, " ", "inf", "1e300"], seen=["later", *frame["seen"][1:]])
    with pytest.warns(UserWarning, match="no training row was like that") as told:
        answers = runs.predict(ages)
    assert [str(one.message).partition(";")[0] for one in told] == [
        "1 row of 5: age outside 27.3 to 76.51",
        "2 rows of 5: age missing",
        "2 rows of 5: age not a number, such as '63 years'",
        "1 row of 5: seen not a time, such as 'later'",
    ]
    assert answers[OUTSIDE].tolist() == [
        "age not a number, such as '63 years'; seen not a time, such as 'later'",
        "age missing",
        "age missing",
        "age not a number, such as '63 years'",
        "age outside 27.3 to 76.51",
    ]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"age": 63, "ward": "A"}, "give a list of values for each column, all of one length"),
        ({"age": [63, 41], "ward": ["A"]}, "give a list of values for each column, all of one length"),
        (pd.DataFrame([[63, 63, "A"]], columns=["age", "age", "ward"]), "two columns are called 'age'"),
        (pa.table([[63], [63], ["A"]], names=["age", "age", "ward"]), "two columns are called 'age'"),
    ],
)
def test_rows_of_the_wrong_shape_give_one_line_errors(made: tuple[Path, Runs], rows: object, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        made[1].predict(rows)
