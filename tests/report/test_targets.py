"""What runs spend until they reach a target, and curves along what they spend, on stores whose numbers are known."""

import json
import math
from pathlib import Path

import pytest

from fedskew.core.errors import BadInput
from fedskew.measure.registry import primary_of
from fedskew.report.budgets import Budget, budget_from
from fedskew.report.files import latex, numbers, readable, texts_of
from fedskew.report.html import page
from fedskew.report.plots import pictures, plot
from fedskew.report.series import Layout, Results, curves
from fedskew.store.runs import RunStore
from tests.commands import line_of, output_of

MB = 1_000_000.0


def add(store: RunStore, name: str, seed: int, curve: dict[int, float], sent: float, metric: str = "accuracy") -> None:
    """Add a finished run with the test metric in some rounds. Each round sends half of ``sent`` megabytes up and half down."""
    toml, last = f'name = "{name}"\n', max(curve)
    run = store.add_run(name=name, experiment=toml, experiment_hash="", seed=seed, partition_seed=seed, rounds=last)
    for round_ in range(last + 1):
        rows = [(None, "round", what, sent * MB / 2) for what in ("bytes_up", "bytes_down")] if round_ else []
        rows += [(None, "round", "local_steps", 5.0), (None, "round", "seconds", 2.0)] if round_ else []
        store.write_round(run, round_, rows + [(None, "test", metric, curve[r]) for r in [round_] if r in curve])
    if metric != "accuracy":
        store.add_facts(run, {"primary": metric})
    store.update(run, status="finished")


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """Return a store. ``cheap`` sends 2 MB a round; ``dear`` sends 6 MB a round, and one of its seeds never reaches 70 %."""
    made = RunStore(tmp_path / "runs")
    add(made, "cheap", 0, {0: 0.1, 1: 0.2, 2: 0.5, 3: 0.7, 4: 0.9}, 2)
    add(made, "cheap", 1, {0: 0.1, 1: 0.3, 2: 0.8, 3: 0.6, 4: 0.9}, 2)
    add(made, "dear", 0, {0: 0.1, 1: 0.7, 2: 0.8, 3: 0.8, 4: 0.8}, 6)
    add(made, "dear", 1, {0: 0.1, 1: 0.5, 2: 0.6, 3: 0.6, 4: 0.69}, 6)
    return made


def results(store: RunStore, *columns: str, budget: Budget | None = None) -> Results:
    return Results(store, store.runs(), budget, Layout(columns))


def test_a_target_counts_rounds_and_costs_until_it_is_first_met(store: RunStore) -> None:
    """The seeds of ``cheap`` reach 70 % in rounds 3 and 2, and have then sent 6 and 4 MB."""
    table = results(store, "rounds_to_70", "bytes_to_70", "steps_to_70", "seconds_to_70").summary.set_index("method")
    cheap = table.loc["cheap"]
    assert cheap[["rounds_to_70", "bytes_to_70", "steps_to_70", "seconds_to_70"]].tolist() == [2.5, 5, 12.5, 5]
    assert cheap["rounds_to_70_std"] == pytest.approx(math.sqrt(0.5))
    assert cheap["rounds_to_70_never"] == 0


def test_a_seed_that_never_reaches_the_target_leaves_no_mean_but_a_count(store: RunStore) -> None:
    several = results(store, "rounds_to_70", "bytes_to_70")
    dear = several.summary.set_index("method").loc["dear"]
    assert dear[["rounds_to_70", "rounds_to_70_half", "bytes_to_70"]].isna().all()
    assert (dear["rounds_to_70_never"], dear["bytes_to_70_never"]) == (1, 1)
    assert several.seeds["bytes_to_70"].tolist() == [6, 4, 6, math.inf]
    cells = readable(several)["MB to 70 %"].tolist()
    assert cells == ["5.00 (0 to 17.71)", "never in 1 of 2"]  # t(0.975, 1) = 12.706 times a standard error of 1
    assert numbers(several)["bytes_to_70_never"].tolist() == [0, 1]


def test_every_view_says_that_a_seed_never_reaches_the_target(store: RunStore) -> None:
    words = ["--columns", "accuracy,rounds_to_70", "--runs", str(store.folder)]
    shown = line_of("show", "1-4", *words)
    assert "never in 1 of 2" in shown
    assert "to 70 %: until the first measured round with a test accuracy of at least 70 %" in shown
    out = output_of("show", "1-4", "--json", *words)
    assert [m["rounds_to_70_never"] for m in json.loads(out)["methods"]] == [0, 1]
    assert '>never <span class="half">in 1 of 2</span></td>' in page(results(store, "accuracy", "rounds_to_70"))
    assert r"dear & never in 1 of 2 \\" in latex(results(store, "rounds_to_70"))


def test_a_target_is_met_at_measured_rounds_only_and_may_be_met_before_training(tmp_path: Path) -> None:
    made = RunStore(tmp_path)
    add(made, "sparse", 0, {0: 0.4, 3: 0.7, 6: 0.9}, 2)
    row = results(made, "rounds to 50", "bytes-to-70", "rounds_to_40", "bytes_to_40").summary.iloc[0]
    assert row[["rounds_to_50", "bytes_to_70", "rounds_to_40", "bytes_to_40"]].tolist() == [3, 6, 0, 0]


def test_a_metric_that_is_better_when_lower_is_to_fall_to_its_target(tmp_path: Path) -> None:
    made = RunStore(tmp_path)
    add(made, "a", 0, {0: 9.0, 1: 4.0, 2: 2.5, 3: 1.0}, 2, "rmse")
    of = results(made, "rounds_to_2.5", "bytes_to_0.5")
    assert of.summary.iloc[0][["rounds_to_2.5", "bytes_to_0.5_never"]].tolist() == [2, 1]
    assert of.named_measures[0].remark.startswith(
        "to 2.5: until the first measured round with a test RMSE of at most 2.5"
    )


def test_a_run_without_the_metric_or_the_cost_is_missing_and_not_called_never(store: RunStore) -> None:
    run = store.add_run(name="other", experiment="", experiment_hash="", seed=0, partition_seed=0, rounds=1)
    store.write_round(run, 1, [(None, "round", "local_steps", 5.0), (None, "clients", "accuracy_mean", 0.9)])
    store.update(run, status="finished")
    of = results(store, "rounds_to_70", "bytes_to_70")
    assert of.summary.set_index("method").loc["other", "rounds_to_70_never"] == 0
    assert readable(of)["rounds to 70 %"].tolist()[2] == "–"


def test_a_target_below_a_budget_counts_the_rounds_within_it(store: RunStore) -> None:
    table = results(store, "rounds_to_70", budget=budget_from("rounds=2")).summary
    assert table["rounds_to_70_never"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("rounds_to_0.7", "columns: rounds_to_0.7: accuracy is in percent here; write rounds_to_70$"),
        ("rounds_to_170", "columns: rounds_to_170: accuracy is in percent here; write rounds_to_70$"),
        ("rounds_to_many", r"columns: unknown 'rounds_to_many'"),
        ("joules_to_70", r"columns: unknown 'joules_to_70'"),
    ],
)
def test_wrong_targets_give_one_line_errors(store: RunStore, column: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        _ = results(store, column).summary


@pytest.mark.parametrize("text", ["accuracy=0.4", "accuracy", "rmse=2"])
def test_a_target_is_no_budget(text: str) -> None:
    with pytest.raises(BadInput, match=r"is reached, not spent; --columns rounds_to_70,bytes_to_70 shows"):
        budget_from(text)


def test_a_curve_along_bytes_has_each_round_at_the_megabytes_sent_until_then(store: RunStore) -> None:
    table = curves(results(store), primary_of(store.runs()), "bytes").set_index(["method", "round"])
    assert table.loc["cheap", "MB"].tolist() == [0, 2, 4, 6, 8]
    assert table.loc["dear", "MB"].tolist() == [0, 6, 12, 18, 24]
    assert table.loc[("cheap", 2), "mean"] == pytest.approx(0.65)
    axes = plot(results(store), "accuracy", along="bytes").axes[0]
    assert (axes.get_xlabel(), axes.lines[0].get_xdata().tolist()) == ("MB", [0, 2, 4, 6, 8])


def test_a_curve_along_bytes_is_at_the_mean_over_the_seeds_that_are_measured(tmp_path: Path) -> None:
    made = RunStore(tmp_path)
    add(made, "a", 0, {0: 0.1, 2: 0.5}, 2)
    add(made, "a", 1, {0: 0.1, 2: 0.7}, 4)
    assert curves(results(made), primary_of(made.runs()), "bytes")["MB"].tolist() == [0, 6]
    assert curves(results(made), primary_of(made.runs()), "seconds")["seconds"].tolist() == [0, 4]


def test_the_page_has_one_figure_more_where_methods_send_different_amounts(store: RunStore, tmp_path: Path) -> None:
    alike = RunStore(tmp_path / "alike")
    for name in ("a", "b"):
        add(alike, name, 0, {0: 0.1, 1: 0.5}, 2)
    assert "accuracy-by-bytes" not in pictures(results(alike))
    assert pictures(results(store)).keys() - pictures(results(alike)).keys() == {"accuracy-by-bytes"}
    assert page(results(store)).count("<h3>test accuracy over megabytes</h3>") == 1
    text = page(results(store))
    assert [text.count(f'aria-label="test accuracy over {axis}"') for axis in ("rounds", "MB")] == [1, 1]
    header = texts_of(results(store))["accuracy-by-bytes.csv"].partition("\n")[0]
    assert header == "method,round,MB,mean,low,high,runs,stopped"


def test_where_one_client_holds_all_rows_nothing_is_drawn_along_bytes(store: RunStore) -> None:
    toml = 'name = "all"\n[skew]\nname = "pooled"\n'
    run = store.add_run(name="all", experiment=toml, experiment_hash="", seed=0, partition_seed=0, rounds=1)
    store.write_round(run, 1, [(None, "test", "accuracy", 0.9), (None, "round", "bytes_up", 1.0)])
    store.update(run, status="finished")
    assert set(curves(results(store), primary_of(store.runs()), "bytes")["method"]) == {"cheap", "dear"}


@pytest.mark.parametrize(
    ("what", "along", "message"),
    [
        ("accuracy", "joules", r"along: unknown 'joules'; did you mean"),
        ("differences", "bytes", r"along: 'differences' is no curve over rounds; leave it out"),
        ("accuracy", "u", r"these runs have not measured u"),
    ],
)
def test_wrong_axes_give_one_line_errors(store: RunStore, what: str, along: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        plot(results(store), what, along=along)
