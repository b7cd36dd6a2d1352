"""Tables with a column of 0 and 1 for each label."""

from pathlib import Path

import numpy as np
import pytest

from fedskew.core.errors import BadInput
from fedskew.experiment.config import Experiment


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    rows = [
        f"{a:.3f},{int(a > 0)},{int(b > 0)},{k % 3},{a - b:.3f}" for k, (a, b) in enumerate(rng.normal(size=(60, 2)))
    ]
    path = tmp_path / "scans.csv"
    path.write_text("\n".join(["size,fracture,nodule,hospital,age", *rows]))
    return path


def test_label_columns_are_the_targets_and_no_input(scans: Path) -> None:
    experiment = Experiment(dataset=f"table:path={scans},labels=fracture|nodule,client=hospital")
    data = experiment.dataset.load()
    assert experiment.task.target == data.target == "labels"
    assert (data.classes, data.shape, data.group_names) == (("fracture", "nodule"), (2,), ("0", "1", "2"))
    assert (data.y.shape, data.y_test.shape) == ((48, 2), (12, 2))
    # size is standardised, so that its order tells the fracture
    both = np.concatenate([data.x[:, 0], data.x_test[:, 0]]), np.concatenate([data.y[:, 0], data.y_test[:, 0]])
    assert both[0][both[1] == 1].min() > both[0][both[1] == 0].max()


def test_a_test_file_has_the_same_labels(scans: Path) -> None:
    data = Experiment(dataset=f"table:path={scans},labels=fracture|nodule,test={scans}").dataset.load()
    assert np.array_equal(data.y, data.y_test)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("labels=fracture", "write label=fracture"),
        ("labels=fracture|fracture", "two or more different columns"),
        ("labels=fracture|nodule,label=age", "needs one of label=COLUMN for classes"),
        ("labels=fracture|age", "column 'age' is a label and must hold 0 or 1, 60 rows do not"),
        ("labels=fracture|nodul", "no column 'nodul'; did you mean 'nodule'"),
    ],
)
def test_bad_label_columns_give_one_line_errors(scans: Path, options: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Experiment(dataset=f"table:path={scans},{options}").dataset.load()
