"""Tables of survival times: read as time and event, and one clear line for what cannot be."""

from pathlib import Path

import numpy as np
import pytest

from fedskew.core.errors import BadInput
from fedskew.data.datasets.table import TableData
from fedskew.experiment.config import Experiment


def table(folder: Path, *, days: str = "{}", died: str = "{}", rows: int = 40) -> Path:
    """Write a table of four sites. Every third row is an event. ``days`` and ``died`` format the cells of the last row."""
    lines = ["days,died,age,site"]
    for i in range(rows):
        cells = (str(i + 1), str(int(i % 3 == 0)))
        cells = (days.format(cells[0]), died.format(cells[1])) if i == rows - 1 else cells
        lines.append(f"{','.join(cells)},{20 + 7 * i % 50},s{i % 4}")
    path = folder / "people.csv"
    path.write_text("\n".join(lines))
    return path


def test_a_table_of_times_and_events(tmp_path: Path) -> None:
    spec = f"table:path={table(tmp_path)},time=days,event=died,client=site"
    data = TableData(path=str(table(tmp_path)), time="days", event="died", client="site").load()
    y = np.concatenate([data.y, data.y_test])
    assert y[np.argsort(y[:, 0])].tolist() == [[i + 1, float(i % 3 == 0)] for i in range(40)]
    assert (data.x.shape, data.x_test.shape, data.target) == ((32, 1), (8, 1), "survival")
    assert type(Experiment(dataset=spec).task).__name__ == "Survival"


def test_rows_without_a_value_are_dropped(tmp_path: Path) -> None:
    data = TableData(path=str(table(tmp_path, died="")), time="days", event="died", client="site").load()
    y = np.concatenate([data.y, data.y_test])
    assert (len(y), y[:, 1].sum()) == (39, 13)
    assert "1 of 40 rows dropped: no value in 'died'" in data.notes


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"days": "-{}"}, "times must be above 0, found -40; correct or remove such rows"),
        ({"days": "0"}, "times must be above 0, found 0; correct"),
        ({"died": "2"}, "events must be 0 or 1, found 2; "),
        ({"died": "-1"}, "events must be 0 or 1, found -1; "),
        ({"died": "0.5"}, "events must be 0 or 1, found 0.5; "),
        (
            {"died": "dead"},
            "holds words, such as 'dead'; write 1 for an event and 0 for none",
        ),
        ({"days": "long"}, "column 'days' is the target and holds words, such as 'long'; name a column of numbers"),
    ],
)
def test_bad_cells_give_one_line(tmp_path: Path, cells: dict[str, str], message: str) -> None:
    with pytest.raises(BadInput) as error:
        TableData(path=str(table(tmp_path, **cells)), time="days", event="died", client="site").load()
    assert message in str(error.value)


def test_without_an_event_there_is_nothing_to_predict(tmp_path: Path) -> None:
    path = table(tmp_path)
    path.write_text(path.read_text().replace(",1,", ",0,"))
    with pytest.raises(BadInput, match="no training row has an event"):
        TableData(path=str(path), time="days", event="died", client="site").load()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time": "days"}, "time=COLUMN and event=COLUMN belong together"),
        ({"event": "died"}, "time=COLUMN and event=COLUMN belong together"),
        ({"time": "days", "event": "days"}, "column 'days' cannot be both the time and the event"),
        (
            {"time": "days", "event": "site"},
            "column 'site' cannot be both the event and the client",
        ),
        ({"time": "days", "event": "died", "label": "age"}, "needs one of label=COLUMN for classes"),
        ({"time": "days", "event": "nothing"}, "no column 'nothing'"),
    ],
)
def test_bad_options_give_one_line(tmp_path: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        TableData(path=str(table(tmp_path)), client="site", **options).load()
