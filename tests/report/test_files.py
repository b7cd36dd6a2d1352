"""Figures and tables for a paper: the right files, with numbers worked out by hand, the same bytes each time."""

import csv
import json

import pytest
from PIL import Image

from fedskew.core.errors import BadInput, FedskewError
from fedskew.report.files import formula_of, markdown, readable, write_figures, write_tables
from fedskew.report.series import Layout, Results
from fedskew.store.runs import RunStore
from tests.commands import output_of
from tests.report import mixed_store


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> RunStore:
    return mixed_store(tmp_path_factory.mktemp("files") / "runs")


def test_unwritable_output_gives_one_line(store, tmp_path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(FedskewError, match=r"taken.*: cannot be written"):
        write_tables(Results(store, store.runs()), tmp_path / "taken")


def test_a_bar_in_a_cell_of_markdown_is_escaped() -> None:
    import pandas as pd

    assert markdown(pd.DataFrame({"a": ["x|y"], "b": [1]})).splitlines()[2] == "| x\\|y | 1 |"


def test_small_numbers_are_powers_of_ten_in_formulas() -> None:
    assert formula_of("1.18e-06 ± 6.22e-07") == r"$1.18 \cdot 10^{-6} \pm 6.22 \cdot 10^{-7}$"
    assert formula_of("2.50e+07", bold=True) == r"$\mathbf{2.50 \cdot 10^{7}}$"


@pytest.mark.slow
def test_the_command_line_writes_every_figure_in_three_forms_and_the_same_bytes_again(store, tmp_path) -> None:
    words = ["report", "9", "--runs", str(store.folder), "--output", str(tmp_path / "page.html"), "--json"]
    files = json.loads(output_of(*words, "--figures", tmp_path / "f", "--tables", tmp_path / "t"))["files"]
    assert {str(p) for d in "ft" for p in (tmp_path / d).iterdir()} == set(files)
    assert str(tmp_path / "t" / "methods.tex") in files
    again = write_figures(Results(store, [store.run(9)]), tmp_path / "again")
    names = {f.stem for f in again}
    assert {"accuracy", "loss"} <= names
    assert "ranks" not in names  # one data set
    assert {f.name for f in again} == {f"{name}.{form}" for name in names for form in ("pdf", "svg", "png")}
    assert [f.read_bytes() for f in again] == [(tmp_path / "f" / f.name).read_bytes() for f in again]
    assert (tmp_path / "f" / "accuracy.pdf").read_bytes().startswith(b"%PDF")
    assert b"<svg" in (tmp_path / "f" / "accuracy.svg").read_bytes()
    with Image.open(tmp_path / "f" / "accuracy.png") as image:
        assert image.width > 1000
        assert len(image.convert("RGB").getcolors(1 << 24)) > 3


def test_a_seed_has_a_row(store, tmp_path) -> None:
    written = write_tables(Results(store, store.runs()), tmp_path)
    assert {"methods.csv", "methods.tex", "methods.md", "accuracy.csv", "clients.csv"} <= {f.name for f in written}
    with (tmp_path / "seeds.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["method"], row["seed"]) for row in rows] == [
        *(("fedavg", seed) for seed in "0123"),
        *(("fedprox:mu=0.1", seed) for seed in "012"),
    ]
    assert [float(row["accuracy"]) for row in rows[:4]] == [0.80, 0.82, 0.84, 0.78]


@pytest.mark.parametrize(("spread", "shown"), [("std", "81.0 ± 2.6"), ("sem", "81.0 ± 1.3"), ("ci95", "81.0 ± 4.1")])
def test_the_interval_is_a_choice(store, spread: str, shown: str) -> None:
    """0.84, 0.80, 0.78, 0.82: the standard deviation is the square root of 0.002 / 3."""
    assert readable(Results(store, store.runs(), layout=Layout(spread=spread)))["accuracy %"][0] == shown


def test_any_stored_measure_can_be_a_column_and_no_other(store) -> None:
    layout = Layout(("Worst Client", "bytes_up", "personal/accuracy_mean", "verdict"))
    measures = Results(store, store.runs(), layout=layout).columns("table")
    assert [measure.key for measure in measures] == ["worst_client", "bytes_up", "personal"]
    twice = readable(Results(store, store.runs(), layout=Layout(("worst_client_rmse", "worst_client_mae"))))
    assert {"RMSE of the worst client", "MAE of the worst client"} <= {*twice}
    with store.transaction():
        store.db.execute("UPDATE measurements SET name='my_score' WHERE name='opportunity'")
    seeds = Results(store, store.runs(), layout=Layout(("my_score",))).seeds["my_score"]
    assert seeds.loc["fedavg"].tolist() == pytest.approx([0.08, 0.082, 0.084, 0.078])
    with pytest.raises(BadInput, match="columns: unknown 'acuracy'; did you mean 'accuracy'"):
        Results(store, store.runs(), layout=Layout(("acuracy",))).columns("table")
