"""Comparisons whose seeds test the folds of the rows, or of the clients."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import fedskew as fs
from fedskew.cli.main import main
from fedskew.core.errors import BadInput, Interrupted
from fedskew.measure.registry import Measures
from fedskew.measure.statistics import over_clients
from fedskew.report import tables
from fedskew.report.answer import without_model
from fedskew.report.experiments import repeat_command, settings
from fedskew.report.series import Results
from fedskew.report.tables import covered
from fedskew.studies.evidence import case_of_comparison
from tests.commands import error_of

METHODS = ["fedavg", "fedprox:mu=1"]


def compared(folder: Path, folds: int | str, seeds: int | None = None, jobs: int = 1) -> fs.Runs:
    return fs.compare(
        METHODS, dataset="heart", folds=folds, seeds=seeds, rounds=2, runs=folder, jobs=jobs, progress=False
    )


@pytest.fixture(scope="module")
def by_rows(tmp_path_factory: pytest.TempPathFactory) -> fs.Runs:
    return compared(tmp_path_factory.mktemp("rows"), 3)


@pytest.fixture(scope="module")
def by_clients(tmp_path_factory: pytest.TempPathFactory) -> fs.Runs:
    return compared(tmp_path_factory.mktemp("clients"), "4:clients", seeds=2)


def reached(runs: fs.Runs) -> np.ndarray:
    """The last test accuracy (seeds, methods)."""
    last = runs.measurements().query("split == 'test' and name == 'accuracy' and round == 2").sort_values("run")
    return last["value"].to_numpy().reshape(-1, len(METHODS))


def test_the_folds_test_all_rows(by_rows: fs.Runs) -> None:
    sizes = [record.facts["data"]["test_rows"] for record in by_rows.records]
    assert sizes[::2] == sizes[1::2] == [307, 307, 306]
    right = reached(by_rows) * np.array(sizes[::2])[:, None]
    assert right == pytest.approx(right.round(), abs=1e-3)


def test_the_interval_of_folds_of_rows_by_hand(by_rows: fs.Runs) -> None:
    difference = np.diff(reached(by_rows))[:, 0]
    # three folds without common test rows, half as many test as training rows: 1 / 3 + 1 / 2 x 1 / 6
    half = stats.t.ppf(0.975, 2) * difference.std(ddof=1) * (5 / 12) ** 0.5
    table = Results(by_rows.store, by_rows.records).summary
    assert table["difference_half"][1] == pytest.approx(half, rel=3e-3)  # 307 and 306 rows
    assert set(table["covers"]) == {"seeds and folds of rows"}
    assert "cover the seeds and the choice of the rows, as each seed tests one fold (" in covered(
        table, Measures().primary()
    )


def test_the_interval_of_folds_of_clients_by_hand(by_clients: fs.Runs) -> None:
    difference = np.diff(reached(by_clients))[:, 0]
    tests = [
        len(fs.load(f"heart:fold={k}/4:clients,split_seed={seed}").y_test) for seed in (0, 4) for k in (1, 2, 3, 4)
    ]
    by_hospital = [[d for d, n in zip(difference, tests, strict=True) if n == rows] for rows in (123, 200, 294, 303)]
    # four clients in four folds: 1 / 4 and half of 1 / 3, with as many degrees of freedom as four clients have
    error = np.std(np.mean(by_hospital, axis=1), ddof=1) * (1 / 4 + 1 / 6) ** 0.5
    table = Results(by_clients.store, by_clients.records).summary
    assert table["difference_half"][1] == pytest.approx(stats.t.ppf(0.975, 3) * error, rel=1e-4)
    assert table["p"][1] == pytest.approx(2 * stats.t.sf(abs(difference.mean()) / error, 3), rel=1e-4)
    assert set(table["covers"]) == {"seeds and folds of clients"}
    assert "cover the seeds and the choice of the clients, as each seed tests one fold (" in covered(
        table, Measures().primary()
    )


def test_the_verdict_on_folds_of_clients_is_their_intervals() -> None:
    """Two folds of six clients: the clients decide, although two means of folds would not."""
    of_clients = np.array([[0.02, 0.04, 0.03, *[np.nan] * 3], [*[np.nan] * 3, 0.05, 0.04, 0.06]])
    whole = over_clients(of_clients, 2)
    row = tables.compared(pd.Series(np.nanmean(of_clients, axis=1)), whole, float("nan"), 0.0, 0.05)
    assert abs(row["difference"]) > row["difference_half"]
    assert row["p"] == whole.p()


def test_what_would_decide_is_counted_in_runs() -> None:
    row = {
        "method": "fedprox",
        "verdict": "undecided",
        "pairs": 5,
        "accuracy": 0.8,
        "covers": "seeds and folds of rows",
        "difference": 0.01,
        "difference_half": 0.02,
        "difference_std": 0.02,
        "comparisons": 1,
        "observed": "seed",
        "repeats_to_decide": float("nan"),
        "rows_to_decide": float("nan"),
    }
    assert tables.on_verdicts(pd.DataFrame([{**row, "seeds_to_decide": 12}]), Measures().primary()) == [
        "About 12 runs of each method would decide fedprox's difference, if it is as large as here"
    ]
    crossed = {**row, "covers": "seeds and test rows", "observed": "partition", "seeds_to_decide": 12}
    for options, said in (((0, 2.4), "2.4 times the rows"), ((7, 0), "7 training seeds on each")):
        options = dict(zip(("repeats_to_decide", "rows_to_decide"), options, strict=True))
        [text] = tables.on_verdicts(pd.DataFrame([{**crossed, **options}]), Measures().primary())
        assert text.startswith(f"About 12 partitions, or {said} would decide fedprox's difference")
    never = {**row, "covers": "seeds and folds of clients", "seeds_to_decide": 0}
    assert tables.on_verdicts(pd.DataFrame([never]), Measures().primary()) == [
        "More runs of each method would not decide fedprox: too few clients for a difference of this size"
    ]


def test_the_folds_of_a_method_are_one_row_of_the_table(by_rows: fs.Runs, by_clients: fs.Runs) -> None:
    assert by_rows.table()["seeds"].tolist() == [3, 3]
    assert by_clients.table()["seeds"].tolist() == [8, 8]
    shown = {line.label: line.values[0].text for line in settings(by_clients.records)}
    assert shown["dataset"] == "heart (folds = 4:clients)"


def test_the_answer_without_a_model_is_a_range_over_hospitals(by_clients: fs.Runs) -> None:
    # without Switzerland most people are healthy, and 8 of 123 are there; without Cleveland most are ill, and 139 of 303 are there
    assert without_model(by_clients.records) == ["accuracy % without a model: always the same answer 6.5 to 45.9"]


def test_the_command_that_repeats_them(by_rows: fs.Runs, by_clients: fs.Runs) -> None:
    assert repeat_command(by_rows.store, by_rows.records).endswith(
        "--algorithms fedavg fedprox:mu=1 --folds 3 --seeds 0 1 2"
    )
    assert repeat_command(by_clients.store, by_clients.records).endswith("--folds 4:clients --seeds 0 1 2 3 4 5 6 7")
    assert "one for each of the runs" in repeat_command(by_rows.store, by_rows.records[:4])


def test_folds_are_evidence_of_their_data_set(by_rows: fs.Runs) -> None:
    case = case_of_comparison(by_rows.store, "c1")
    table = Results(by_rows.store, by_rows.records).summary
    [gain] = [line for line in case.methods if line.measure == "test"]
    assert case.data == "heart"
    assert gain.half == pytest.approx(table["difference_half"][1], rel=1e-3)


def test_an_interrupted_comparison_and_two_jobs_measure_the_same(by_rows: fs.Runs, tmp_path: Path) -> None:
    def stop(progress: object) -> None:
        if getattr(progress, "seed", 0) == 1:
            raise KeyboardInterrupt

    folder = tmp_path / "stopped"
    with pytest.raises((Interrupted, KeyboardInterrupt)):
        fs.compare(METHODS, dataset="heart", folds=3, rounds=2, runs=folder, progress=False, listener=stop)
    resumed = fs.resume("c1", runs=folder, jobs=2, progress=False)
    assert len(resumed.records) == 6
    assert reached(resumed).tolist() == reached(by_rows).tolist()


def test_the_command_line_runs_the_folds_of_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "visits.csv"
    lines = [f"{rng.normal():.3f},{'yn'[int(rng.random() < 0.5)]},{'abc'[number % 3]}" for number in range(60)]
    path.write_text("\n".join(["x,ill,place", *lines]) + "\n")
    command = (
        f"compare --dataset table:path={path},label=ill,client=place --skew natural --rounds 1 --runs {tmp_path / 'r'}"
    )
    assert main([*command.split(), "--algorithms", "fedavg", "fedprox", "--folds", "3:clients", "--jobs", "1"]) == 0
    out, err = capsys.readouterr()
    assert "comparison c1: 3 seeds (folds 3:clients), 1 at a time" in err
    assert "the choice of the clients, as each seed tests one fold" in " ".join(out.split())
    assert "tuning would use rows that the folds test on" in error_of(*command.split(), "--folds", "5", "--tuned")


def test_arrays_have_no_folds() -> None:
    data = fs.load("heart")
    with pytest.raises(BadInput, match="folds need rows in a file"):
        fs.compare(["fedavg"], data=data, folds=5)
