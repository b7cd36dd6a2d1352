"""Tables of stored runs against arithmetic by hand, and the names of runs that differ in more than seeds."""

import math
from pathlib import Path

import pytest

from fedskew.api.functions import Runs
from fedskew.cli.output import summary_json
from fedskew.measure.registry import Measures
from fedskew.measure.statistics import mean_interval
from fedskew.report import answer as signs, experiments, plots, series
from fedskew.report.files import texts_of
from fedskew.report.series import Results
from fedskew.store.runs import RunStore
from tests.report import add, toml

T2, T3 = 4.302652730, 3.182446305  # 97.5 % points of Student's t with 2 and 3 degrees of freedom, from a printed table


def test_summary_agrees_with_arithmetic_by_hand(store: RunStore) -> None:
    table = Results(store, store.runs()).summary.set_index("method")
    assert list(table.index) == ["fedavg", "fedprox:mu=0.1", "scaffold"]
    avg, prox = table.loc["fedavg"], table.loc["fedprox:mu=0.1"]
    assert (avg.runs, avg.finished, avg.unfinished, avg.seeds) == (4, 4, 0, 4)
    assert (prox.runs, prox.finished, prox.unfinished, prox.seeds) == (4, 3, 1, 3)
    assert avg.accuracy == pytest.approx((0.84 + 0.80 + 0.78 + 0.82) / 4)
    # deviations .03 .01 .03 .01 around .81: variance .002 / 3, standard error sqrt(.002 / 12)
    assert avg.accuracy_half == pytest.approx(T3 * math.sqrt(0.002 / 12))
    assert avg.best_accuracy == pytest.approx((0.9 + 0.80 + 0.78 + 0.82) / 4)
    # clients 0.5, 0.9 and 0.7, each 0.05 better with its own model
    assert avg.personal == pytest.approx(0.75)
    assert avg.worst_personal == pytest.approx(0.55)
    assert avg.worst_client == pytest.approx(0.5)
    assert (avg.drift, avg.divergence) == (3.0, 4.5)
    assert (avg.drift_half, avg.divergence_half) == (0.0, 0.0)
    assert (avg.megabytes_up, avg.megabytes_down, avg.seconds) == (2.0, 1.0, 0.5)


def test_differences_pair_runs_by_their_seeds(store: RunStore) -> None:
    prox = Results(store, store.runs()).summary.set_index("method").loc["fedprox:mu=0.1"]
    # seeds 0, 1, 2: .03, .04, .01; deviations from .08/3: 1/300, 4/300, 5/300
    assert prox.pairs == 3
    assert prox.difference == pytest.approx(0.08 / 3)
    assert prox.difference_half == pytest.approx(T2 * math.sqrt((1 + 16 + 25) / 300**2 / 2 / 3))
    assert prox.verdict == "undecided"


def test_partition_seed_belongs_to_the_pair(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    for partition_seed, low, high in ((0, 0.2, 0.3), (1, 0.6, 0.71), (2, 0.4, 0.49)):
        add(store, "a", 7, [0.1, low], partition_seed=partition_seed)
        add(store, "b", 7, [0.1, high], partition_seed=partition_seed)
    add(store, "b", 7, [0.1, 0.0], partition_seed=9)
    row = Results(store, store.runs()).summary.iloc[1]
    assert (row.seeds, row.pairs, row.verdict) == (4, 3, "higher")
    assert row.difference == pytest.approx(0.1)


def test_a_pair_of_a_partition_has_the_same_training_seeds(tmp_path: Path) -> None:
    """Method b is 0.1 better than a with every seed; on the last partition its better seed was interrupted."""
    store = RunStore(tmp_path)
    for partition_seed, worse, better in ((0, 0.5, 0.6), (1, 0.4, 0.6), (2, 0.5, 0.9)):
        for seed, accuracy in ((0, worse), (1, better)):
            add(store, "a", seed, [0.1, accuracy], partition_seed=partition_seed)
            status = "interrupted" if (partition_seed, seed) == (2, 1) else "finished"
            add(store, "b", seed, [0.1, accuracy + 0.1], partition_seed=partition_seed, status=status)
    row = Results(store, store.runs()).summary.iloc[1]
    assert (row.observed, row.seeds, row.pairs) == ("partition", 3, 2)
    assert row.difference == pytest.approx(0.1)


def test_a_repeated_run_is_no_new_evidence(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    for seed, accuracy in ((0, 0.5), (1, 0.7), (1, 0.7), (1, 0.7)):
        add(store, "a", seed, [0.1, accuracy])
    row = Results(store, store.runs()).summary.iloc[0]
    assert (row.finished, row.seeds) == (4, 2)
    assert (row.accuracy, row.accuracy_half) == pytest.approx(mean_interval([0.5, 0.7]))


def test_numbers_that_do_not_exist_are_nan(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    add(store, "a", 0, [0.1, 0.5], clients=())
    add(store, "b", 0, [0.1], status="running", rounds=5)
    a, b = (row for _, row in Results(store, store.runs()).summary.iterrows())
    assert a.accuracy == 0.5
    assert all(math.isnan(a[column]) for column in ("accuracy_half", "worst_client", "drift_half", "difference"))
    assert (b.finished, b.pairs, b.verdict) == (0, 0, "")
    assert all(math.isnan(b[column]) for column in ("accuracy", "best_accuracy", "megabytes_up", "difference"))
    assert a.verdict == ""
    store.write_round(1, 2, [(None, "round", "seconds", math.nan), (None, "test", "accuracy", math.nan)])
    store.write_round(2, 1, [(None, "round", "bytes_up", math.nan)])
    store.update(2, status="finished")
    a, b = (row for _, row in Results(store, store.runs()).summary.iterrows())
    assert math.isnan(a.accuracy)
    assert a.best_accuracy == 0.5
    assert a.seconds == 0.25
    assert math.isnan(b.megabytes_up)


def test_curves_use_every_run_as_far_as_it_came(store: RunStore) -> None:
    table = series.curves(Results(store, store.runs()), Measures().primary()).set_index(["method", "round"])
    assert list(dict.fromkeys(table.index.get_level_values(0))) == ["fedavg", "fedprox:mu=0.1", "scaffold"]
    first = table.loc["fedprox:mu=0.1", 1]
    mean, half = mean_interval([0.5, 0.5, 0.5, 0.2])
    assert (first["mean"], first.low, first.high) == pytest.approx((mean, mean - half, mean + half))
    assert (first.runs, first.stopped) == (4, 1)
    assert (table.loc["fedprox:mu=0.1", 2].runs, table.loc["fedprox:mu=0.1", 2].stopped) == (3, 0)
    alone = table.loc["scaffold", 0]
    assert (alone["mean"], alone.stopped) == (0.1, 1)
    assert math.isnan(alone.low)


def test_clients_are_ranked_within_each_run(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    add(store, "a", 0, [0.1, 0.5], clients=(0.9, 0.2, 0.4))
    add(store, "a", 1, [0.1, 0.5], clients=(0.6, 0.1, 1.0))
    add(store, "a", 2, [0.1, 0.5], clients=(0.0, 0.0, 0.0), status="diverged")
    store.set_partition(1, [(k, f"hospital {k}", "0", 1) for k in range(3)])
    store.set_partition(2, [(k, f"hospital {k}", "0", 1) for k in range(3)])
    table = series.per_client(Results(store, store.runs()))
    assert table["rank"].tolist() == [1, 2, 3]
    assert table.accuracy.tolist() == pytest.approx([0.15, 0.5, 0.95])
    assert table.runs.tolist() == [2, 2, 2]
    assert table.client_name.tolist() == ["hospital 1", "", ""]


@pytest.mark.parametrize(("skew", "named"), [("label-dirichlet", False), ("natural", True), ("from-folder", True)])
def test_a_number_names_no_client_over_several_partition_seeds(tmp_path: Path, skew: str, named: bool) -> None:
    store = RunStore(tmp_path)
    for seed in (0, 1):
        text = toml("a", seed, seed, 1).replace("label-dirichlet", skew)
        add(store, "a", seed, [0.1, 0.5], partition_seed=seed, experiment=text)
        add(store, "b", seed, [0.1, 0.5], partition_seed=7, experiment=text)
    table = series.per_client(Results(store, store.runs())).set_index("method")
    assert table.loc["b", "client_name"].tolist() == ["0", "2", "1"]
    assert table.loc["a", "client_name"].tolist() == (["0", "2", "1"] if named else ["", "", ""])


def test_each_warning_is_shown_once_with_its_methods(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    numbers = [add(store, name, seed, [0.1, 0.5]) for name in ("a", "b") for seed in (0, 1)]
    for number in (numbers[1], numbers[2], numbers[3]):
        store.add_facts(number, {"warnings": [{"kind": "exploding", "line": f"round {number}: it grows"}]})
    only = signs.warnings([store.run(numbers[1])])
    assert only == ["exploding, round 2: it grows"]
    assert signs.warnings(store.runs("id > 1")) == ["exploding in all 3 runs: run 2, round 2: it grows"]
    assert signs.warnings(store.runs()) == [
        "exploding in 1 of 2 runs of a and 2 of 2 runs of b: run 2, round 2: it grows"
    ]


def test_settings_name_the_methods_that_differ(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    for seed in (0, 1, 2, 4):
        add(store, "a", seed, [0.1, 0.5])
    add(store, "a", 2, [0.1, 0.5], experiment=toml("a", 2, 0, 1) + '[engine]\nname = "sequential"\n')
    add(store, "b", 0, [0.1, 0.5], lr=0.5)
    add(store, "b", 1, [0.1, 0.5, 0.6], lr=0.7)
    settings = {
        line.label: [(value.text, value.methods) for value in line.values]
        for line in experiments.settings(store.runs())
    }
    assert settings["dataset"] == [("digits", "")]
    assert settings["skew"] == [("label-dirichlet (alpha = 0.1)", "")]
    assert settings["solver"] == [("sgd (lr = 0.1)", "a"), ("sgd (lr = 0.5)", "b"), ("sgd (lr = 0.7)", "b")]
    assert settings["rounds"] == [("1", "a and b"), ("2", "b")]
    assert settings["training seeds"] == [("0–2, 4", "a"), ("0–1", "b")]
    assert "seed" not in settings["clients"][0][0]
    both = ["b, solver.lr=0.5, training.rounds=1", "b, solver.lr=0.7, training.rounds=2"]
    assert Results(store, store.runs()).methods == ["a", *both]


def test_runs_are_one_line_only_if_they_differ_in_nothing_but_seeds(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    for seed in (0, 1):
        add(store, "a", seed, [0.1, 0.5], lr=0.1)
        add(store, "a", seed, [0.1, 0.7 + seed / 100], lr=0.001)
    names, titles = ["a, solver.lr=0.1", "a, solver.lr=0.001"], ["a, solver.lr = 0.1", "a, solver.lr = 0.001"]
    summary = Results(store, store.runs()).summary
    assert summary["method"].tolist() == names
    assert summary["accuracy"].tolist() == pytest.approx([0.5, 0.705])
    assert Runs(store, (1, 2)).table()["method"].tolist() == names
    assert [row["method"] for row in summary_json(Results(store, store.runs()))["methods"]] == names
    assert series.per_client(Results(store, store.runs()))["method"].drop_duplicates().tolist() == names
    assert [line.get_label() for line in plots.plot(Results(store, store.runs())).axes[0].lines[:3:2]] == titles
    assert all(name in texts_of(Results(store, store.runs()))["accuracy.csv"] for name in names)
    assert experiments.distinct(experiments.distinct(store.runs())) == experiments.distinct(store.runs())


def test_runs_on_a_file_that_has_changed_are_not_one_line(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    for seed, rows in enumerate(("db749bf4aa", "44bd1e7cbb", "")):
        number = add(store, "a", seed, [0.1, 0.5])
        store.add_facts(number, {"data": {"name": "table", "fingerprint": rows}})
    assert Results(store, store.runs()).methods == [
        "a, data=db749bf4",
        "a, data=44bd1e7c",
        "a, data=unknown",
    ]
    assert Results(store, store.runs()[1:]).methods == ["a"]


def test_options_of_another_component_are_not_listed(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    for number, solver in enumerate(('"sgd"\nlr = 0.1\nmomentum = 0.0', '"adamw"\nlr = 0.01', '"adamw"\nlr = 0.02')):
        text = f'[solver]\nname = {solver}\n[engine]\nname = "engine-{number}"\n'
        add(store, "a", 0, [0.1, 0.5], experiment=text)
    assert Results(store, store.runs()).methods == [
        "a, solver=sgd, solver.lr=0.1",
        "a, solver=adamw, solver.lr=0.01",
        "a, solver=adamw, solver.lr=0.02",
    ]


def test_runs_that_differ_in_seeds_share_a_recipe(store: RunStore) -> None:
    add(store, "fedavg", 9, [0.1, 0.5, 0.6], lr=0.2)
    add(store, "fedavg", 10, [0.1, 0.5, 0.6], experiment="no TOML at all [")
    recipes = experiments.recipes(store.runs())
    assert [(runs[0].name, len(runs)) for runs in recipes] == [
        ("fedavg", 4), ("fedprox:mu=0.1", 4), ("scaffold", 1), ("fedavg", 1), ("fedavg", 1),
    ]  # fmt: skip
