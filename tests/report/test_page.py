"""The report: numbers against arithmetic done by hand, honest words, and a page that is safe, complete and self-contained."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from fedskew.cli.output import print_summary, summary_json
from fedskew.core.errors import BadInput, FedskewError
from fedskew.experiment.results import Runs
from fedskew.measure.intervals import mean_interval
from fedskew.measure.registry import primary
from fedskew.report import experiments, html, plots, series, tables, words
from fedskew.report.files import write_tables
from fedskew.report.html import write_report
from fedskew.report.svg import inline
from fedskew.store.runs import Row, RunStore

OF_ONE_DATA_SET = [what for what in plots.pictures() if what != "ranks"]
T2, T3 = 4.302652730, 3.182446305  # 97.5 % points of Student's t with 2 and 3 degrees of freedom, from a printed table


def toml(name: str, seed: int, partition_seed: int, rounds: int, **more: Any) -> str:
    settings = {"lr": 0.1, "held_out": 0.0} | more
    return (
        f'name = "{name}"\n\n[dataset]\nname = "digits"\n\n[skew]\nname = "label-dirichlet"\nalpha = 0.1\n\n'
        f"[clients]\nnumber = 3\npartition_seed = {partition_seed}\nheld_out = {settings['held_out']}\n\n"
        f'[model]\nname = "mlp"\nhidden = [64]\n\n[algorithm]\nname = "{name}"\n\n[solver]\nname = "sgd"\n'
        f"lr = {settings['lr']}\n\n[training]\nrounds = {rounds}\nseed = {seed}\n"
    )


def measured(round_: int, accuracy: float, clients: Sequence[float]) -> list[Row]:
    """The rows of a round; before training the clients are half as accurate as they become."""
    clients = [value if round_ else value / 2 for value in clients]
    rows: list[Row] = [(None, "test", "accuracy", accuracy), (None, "test", "loss", 1 - accuracy)]
    if clients:
        rows.append((None, "clients", "accuracy_worst", min(clients)))
        rows += [(k, "global-model", "accuracy", value) for k, value in enumerate(clients)]
        rows += [
            (None, "personal", f"accuracy_{name}", of(clients) + 0.05) for name, of in (("mean", mean), ("worst", min))
        ]
    if round_:
        values = {
            "drift": 2.0 * round_,
            "divergence": 3.0 * round_,
            "bytes_up": 1e6,
            "bytes_down": 5e5,
            "seconds": 0.25,
        }
        rows += [(None, "round", name, value) for name, value in values.items()]
    return rows


def add(
    store: RunStore,
    name: str,
    seed: int,
    accuracies: Sequence[float],
    *,
    partition_seed: int = 0,
    status: str = "finished",
    message: str = "",
    rounds: int | None = None,
    clients: Sequence[float] = (0.5, 0.9, 0.7),
    comparison: int | None = None,
    experiment: str | None = None,
    **more: Any,
) -> int:
    """A run whose test accuracy after round 0, 1, ... is given."""
    rounds = len(accuracies) - 1 if rounds is None else rounds
    text = toml(name, seed, partition_seed, rounds, **more) if experiment is None else experiment
    run = store.add_run(
        name=name,
        experiment=text,
        experiment_hash="0",
        seed=seed,
        partition_seed=partition_seed,
        rounds=rounds,
        comparison=comparison,
    )
    for round_, accuracy in enumerate(accuracies):
        store.write_round(run, round_, measured(round_, accuracy, clients))
    store.update(run, status=status, message=message)
    return run


def mixed_store(folder: Path) -> RunStore:
    """Three methods, seeds in mixed order, one run diverged, one interrupted."""
    made = RunStore(folder)
    comparison = made.add_comparison("Which method?")
    add(made, "fedavg", 2, [0.1, 0.9, 0.84], comparison=comparison)
    add(made, "fedprox:mu=0.1", 1, [0.1, 0.5, 0.86], comparison=comparison)
    add(made, "fedavg", 0, [0.1, 0.6, 0.80], comparison=comparison)
    add(
        made, "fedprox:mu=0.1", 3, [0.1, 0.2], comparison=comparison,
        status="diverged", message="round 2, client 1: the loss is no longer finite", rounds=2,
    )  # fmt: skip
    add(made, "fedprox:mu=0.1", 2, [0.1, 0.5, 0.85], comparison=comparison)
    add(made, "fedavg", 3, [0.1, 0.6, 0.78], comparison=comparison)
    add(made, "fedprox:mu=0.1", 0, [0.1, 0.5, 0.83], comparison=comparison)
    add(made, "fedavg", 1, [0.1, 0.6, 0.82], comparison=comparison)
    add(made, "scaffold", 0, [0.1], comparison=comparison, status="interrupted", rounds=2)
    first = made.runs()[0].id
    made.set_partition(first, [(0, "0", "7", 30), (0, "0", "10", 2), (1, "1", "9", 5)])
    made.add_facts(
        first,
        {
            "partition": {"clients": 3, "empty": 1, "rows": 1437, "label_distance": 0.6134},
            "engine": {"name": "stacked", "estimated_seconds_a_round": {"sequential": 0.5, "stacked": 0.01}},
            "versions": {"torch": "2.9.0"},
            "data": {"name": "digits", "source": "https://example.org/digits", "fingerprint": "abc123"},
        },
    )
    return made


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return mixed_store(tmp_path / "runs")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report on `mixed_store`."""
    folder = tmp_path_factory.mktemp("report")
    return report(mixed_store(folder / "runs"), folder)


def compared(tmp_path: Path, methods: Mapping[str, Mapping[int, float]]) -> RunStore:
    """A store of finished one-round runs: method -> seed -> last accuracy."""
    store = RunStore(tmp_path / "compared")
    for name, runs in methods.items():
        for seed, accuracy in runs.items():
            add(store, name, seed, [0.1, accuracy])
    return store


def report(store: RunStore, tmp_path: Path) -> str:
    return write_report(store, store.runs(), tmp_path / "out" / "report.html").read_text(encoding="utf-8")


# tables


def test_summary_agrees_with_arithmetic_by_hand(store: RunStore) -> None:
    table = tables.summary(store, store.runs()).set_index("method")
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
    prox = tables.summary(store, store.runs()).set_index("method").loc["fedprox:mu=0.1"]
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
    row = tables.summary(store, store.runs()).iloc[1]
    assert (row.seeds, row.pairs, row.verdict) == (4, 3, "higher")
    assert row.difference == pytest.approx(0.1)


def test_a_repeated_run_is_no_new_evidence(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    for seed, accuracy in ((0, 0.5), (1, 0.7), (1, 0.7), (1, 0.7)):
        add(store, "a", seed, [0.1, accuracy])
    row = tables.summary(store, store.runs()).iloc[0]
    assert (row.finished, row.seeds) == (4, 2)
    assert (row.accuracy, row.accuracy_half) == pytest.approx(mean_interval([0.5, 0.7]))


@pytest.mark.parametrize(
    ("methods", "told"),
    [
        ({"a": {0: "finished", 1: "finished"}, "b": {0: "finished", 1: "interrupted"}}, "over 1 to 2 seeds;"),
        ({"a": {0: "finished", 1: "finished", 2: "interrupted"}}, "over 2 seeds;"),
        ({"a": {0: "finished", 1: "interrupted"}}, "one seed: no interval"),
        ({"a": {0: "interrupted"}}, "no run has finished"),
    ],
)
def test_the_table_counts_seeds_and_not_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], methods: Mapping[str, Mapping[int, str]], told: str
) -> None:
    store = RunStore(tmp_path)
    for _ in range(2):
        for name, runs in methods.items():
            for seed, status in runs.items():
                add(store, name, seed, [0.1, 0.5 + seed / 10], status=status)
    print_summary(store, store.runs())
    assert told in " ".join(capsys.readouterr().out.split())


def test_numbers_that_do_not_exist_are_nan(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    add(store, "a", 0, [0.1, 0.5], clients=())
    add(store, "b", 0, [0.1], status="running", rounds=5)
    a, b = (row for _, row in tables.summary(store, store.runs()).iterrows())
    assert a.accuracy == 0.5
    assert all(math.isnan(a[column]) for column in ("accuracy_half", "worst_client", "drift_half", "difference"))
    assert (b.finished, b.pairs, b.verdict) == (0, 0, "undecided")
    assert all(math.isnan(b[column]) for column in ("accuracy", "best_accuracy", "megabytes_up", "difference"))
    assert a.verdict == ""
    store.write_round(1, 2, [(None, "round", "seconds", math.nan), (None, "test", "accuracy", math.nan)])
    store.write_round(2, 1, [(None, "round", "bytes_up", math.nan)])
    store.update(2, status="finished")
    a, b = (row for _, row in tables.summary(store, store.runs()).iterrows())
    assert math.isnan(a.accuracy)
    assert a.best_accuracy == 0.5
    assert a.seconds == 0.25
    assert math.isnan(b.megabytes_up)


def test_unfinished_runs_are_listed(store: RunStore) -> None:
    left = tables.unfinished(store.runs())
    assert left[["method", "status", "rounds_done", "rounds"]].to_numpy().tolist() == [
        ["fedprox:mu=0.1", "diverged", 1, 2],
        ["scaffold", "interrupted", 0, 2],
    ]
    assert "client 1" in left.message[0]
    assert left.run.tolist() == [4, 9]


def test_curves_use_every_run_as_far_as_it_came(store: RunStore) -> None:
    table = series.curves(store, store.runs(), primary()).set_index(["method", "round"])
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
    table = series.per_client(store, store.runs())
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
    table = series.per_client(store, store.runs()).set_index("method")
    assert table.loc["b", "client_name"].tolist() == ["0", "2", "1"]
    assert table.loc["a", "client_name"].tolist() == (["0", "2", "1"] if named else ["", "", ""])


def test_each_sign_of_trouble_is_told_once_with_who_shows_it(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    numbers = [add(store, name, seed, [0.1, 0.5]) for name in ("a", "b") for seed in (0, 1)]
    for number in (numbers[1], numbers[2], numbers[3]):
        store.add_facts(number, {"warnings": [{"kind": "exploding", "line": f"round {number}: it grows"}]})
    only = experiments.warnings([store.run(numbers[1])])
    assert only == ["exploding, round 2: it grows"]
    assert experiments.warnings(store.runs("id > 1")) == ["exploding in all 3 runs: run 2, round 2: it grows"]
    assert experiments.warnings(store.runs()) == [
        "exploding in 1 of 2 runs of a and 2 of 2 runs of b: run 2, round 2: it grows"
    ]


# words

SEEDS = (0, 1, 2)


@pytest.mark.parametrize(
    ("methods", "expected"),
    [
        ({"a": (0.5, 0.6, 0.7), "b": (0.6, 0.7, 0.81)}, "b has the highest"),
        ({"a": (0.5, 0.6, 0.7), "b": (0.9, 0.5, 0.8)}, "Undecided. b has the highest"),
        ({"a": (0.5, 0.6, 0.7), "b": (0.4, 0.5, 0.59)}, "Of the others, lower with"),
        ({"a": (0.5, 0.6, 0.7), "b": (0.4, 0.5, 0.9), "c": (0.3, 0.4, 0.49)}, "c; undecided: b"),
        ({"a": (0.5, 0.6, 0.7), "b": (0.4, 0.59, 0.75)}, "Undecided. a, the first method"),
        ({"a": (0.5,), "b": (0.6,)}, "Undecided. b has the highest mean test accuracy, 60.0\xa0%, against"),
        ({"a": (0.5,), "b": (0.4,)}, "with one seed nothing can be said about certainty"),
        ({"a": (0.5,)}, "With one seed nothing can be said about certainty"),
        ({"a": (0.5, 0.6), "b": (0.51, 0.61)}, "is +1.00 points in every one, too few that do not vary."),
        ({"a": (0.5, 0.6), "b": (0.49, 0.59)}, "Undecided. a, the first method"),
        ({"a": (0.5, 0.5, 0.56)}, "52.0 ± 8.6\xa0% after round 1"),
    ],
)
def test_answer_claims_no_more_than_the_intervals_allow(
    tmp_path: Path, methods: dict[str, tuple[float, ...]], expected: str
) -> None:
    store = compared(tmp_path, {name: dict(zip(SEEDS, values, strict=False)) for name, values in methods.items()})
    said = words.answer(tables.summary(store, store.runs()))
    assert expected in said
    decided = "leaves out zero" in said
    assert decided != ("Undecided" in said or len(methods) == 1)


def test_differences_that_do_not_vary_have_no_interval_and_need_six_seeds(tmp_path: Path) -> None:
    for seeds, verdict in ((5, "undecided"), (6, "higher")):
        a = {seed: 0.5 + seed / 30 for seed in range(seeds)}
        store = compared(tmp_path / str(seeds), {"a": a, "b": {seed: value + 1 / 90 for seed, value in a.items()}})
        table = tables.summary(store, store.runs())
        row = table.iloc[1]
        assert (row["p"], row["verdict"]) == (2.0 ** (1 - seeds), verdict)
        assert math.isnan(row["difference_half"])
        assert math.isnan(row["effect"])
        assert ("Undecided" in words.answer(table)) == (verdict == "undecided")
        assert "in every one" in words.answer(table)


def test_answer_without_finished_runs_or_without_pairs(tmp_path: Path) -> None:
    store = compared(tmp_path, {"a": {0: 0.5, 1: 0.6}, "b": {2: 0.9, 3: 0.9}})
    assert "no seed was finished by both" in words.answer(tables.summary(store, store.runs()))
    store = RunStore(tmp_path / "none")
    add(store, "a", 0, [0.1], status="failed", rounds=3)
    assert words.answer(tables.summary(store, store.runs())) == "No run has finished, so there is no answer yet."


def test_numbers_as_people_read_them() -> None:
    assert [words.figures(v) for v in (0.0, 2.5, 0.0123, 12345.0, 1e-9, math.nan)] == [
        "0.00", "2.50", "0.0123", "12\u202f345", "1.00e-09", "–",
    ]  # fmt: skip
    assert words.figures(0.0031, like=0.92) == "0.003"
    assert words.points(-0.0123) == "−1.23"
    assert words.half("0.0", 1e-5) == "<0.1"
    assert (words.half("0.0", 0.0), words.half("0.2", 0.002)) == ("0.0", "0.2")
    assert words.ranges([3, 0, 1, 7, 1]) == "0–1, 3, 7"


# what was asked


def test_where_runs_differ_is_said(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    for seed in (0, 1, 2, 4):
        add(store, "a", seed, [0.1, 0.5])
    add(store, "a", 2, [0.1, 0.5], experiment=toml("a", 2, 0, 1) + '[engine]\nname = "sequential"\n')
    add(store, "b", 0, [0.1, 0.5], lr=0.5)
    add(store, "b", 1, [0.1, 0.5, 0.6], lr=0.7)
    asked = {
        line.label: [(answer.text, answer.methods) for answer in line.answers]
        for line in experiments.asked(store.runs())
    }
    assert asked["dataset"] == [("digits", "")]
    assert asked["skew"] == [("label-dirichlet (alpha = 0.1)", "")]
    assert asked["solver"] == [("sgd (lr = 0.1)", "a"), ("sgd (lr = 0.5)", "b"), ("sgd (lr = 0.7)", "b")]
    assert asked["rounds"] == [("1", "a and b"), ("2", "b")]
    assert asked["training seeds"] == [("0–2, 4", "a"), ("0–1", "b")]
    assert "seed" not in asked["clients"][0][0]
    assert tables.methods(experiments.distinct(store.runs())) == [
        "a",
        "b, solver.lr=0.5, training.rounds=1",
        "b, solver.lr=0.7, training.rounds=2",
    ]


def test_runs_are_one_line_only_if_they_differ_in_nothing_but_seeds(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    for seed in (0, 1):
        add(store, "a", seed, [0.1, 0.5], lr=0.1)
        add(store, "a", seed, [0.1, 0.7 + seed / 100], lr=0.001)
    names = ["a, solver.lr=0.1", "a, solver.lr=0.001"]
    assert tables.summary(store, store.runs())["method"].tolist() == names
    assert tables.summary(store, store.runs())["accuracy"].tolist() == pytest.approx([0.5, 0.705])
    assert Runs(store, (1, 2)).table()["method"].tolist() == names
    assert [row["method"] for row in summary_json(store, store.runs())["methods"]] == names
    assert series.per_client(store, store.runs())["method"].drop_duplicates().tolist() == names
    assert [line.get_label() for line in plots.plot(store, store.runs()).axes[0].lines[:3:2]] == names
    text = report(store, tmp_path)
    assert all(f"a, <wbr>{name[3:]}" in text or name in text for name in names)
    write_tables(store, store.runs(), tmp_path / "tables")
    for name in ("methods.csv", "methods.md", "accuracy.csv"):
        assert all(method in (tmp_path / "tables" / name).read_text(encoding="utf-8") for method in names)
    assert experiments.distinct(experiments.distinct(store.runs())) == experiments.distinct(store.runs())


def test_runs_on_a_file_that_has_changed_are_not_one_line(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    for seed, rows in enumerate(("db749bf4aa", "44bd1e7cbb", "")):
        number = add(store, "a", seed, [0.1, 0.5])
        store.add_facts(number, {"data": {"name": "table", "fingerprint": rows}})
    assert tables.methods(experiments.distinct(store.runs())) == [
        "a, data=db749bf4",
        "a, data=44bd1e7c",
        "a, data=unknown",
    ]
    assert tables.methods(experiments.distinct(store.runs()[1:])) == ["a"]


def test_options_of_another_component_are_not_listed(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    for number, solver in enumerate(('"sgd"\nlr = 0.1\nmomentum = 0.0', '"adamw"\nlr = 0.01', '"adamw"\nlr = 0.02')):
        text = f'[solver]\nname = {solver}\n[engine]\nname = "engine-{number}"\n'
        add(store, "a", 0, [0.1, 0.5], experiment=text)
    assert tables.methods(experiments.distinct(store.runs())) == [
        "a, solver=sgd, solver.lr=0.1",
        "a, solver=adamw, solver.lr=0.01",
        "a, solver=adamw, solver.lr=0.02",
    ]


def test_runs_that_differ_in_seeds_share_a_recipe(store: RunStore) -> None:
    add(store, "fedavg", 9, [0.1, 0.5, 0.6], lr=0.2)
    add(store, "fedavg", 10, [0.1, 0.5, 0.6], experiment="no TOML at all [")
    found = experiments.recipes(store.runs())
    assert [(recipe.method, len(recipe.runs)) for recipe in found] == [
        ("fedavg", 4), ("fedprox:mu=0.1", 4), ("scaffold", 1), ("fedavg", 1), ("fedavg", 1),
    ]  # fmt: skip
    assert found[0].toml == store.runs()[0].experiment


# the page


class Outline(HTMLParser):
    """Ids, references and nesting of a page."""

    VOID = ("meta", "link", "br", "wbr", "path", "use")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.references: list[str] = []
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            outside = re.match("https?:|//", value or "") and not name.startswith("xmlns")
            if outside or name in ("src", "href", "xlink:href", "srcset", "action", "data"):
                self.references.append(value or "")
            self.references += re.findall(r"url\(([^)]*)\)", value or "")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_page_is_complete(page: str) -> None:
    outline = Outline(page)
    assert outline.open == []
    assert {"answer", "asked", "summary", "figures", "partition", "unfinished", "repeat"} <= set(outline.ids)
    assert "<title>Which method? · fedskew</title>" in page
    for expected in (
        "Undecided. fedprox:mu=0.1 has the highest mean test accuracy, 84.7\xa0%",
        "2 of 9 runs have not finished",
        "fedprox:<wbr>mu=0.1",
        '<td class="main">81.0 <span class="half">± 4.1</span>',
        "diverged</span> after 1 of 2 rounds",
        "round 2, client 1: the loss is no longer finite",
        "interrupted</span> after 0 of 2 rounds",
        "<code>fedskew run run-1.toml</code>",
        "run 8: seed 1, partition seed 0",
        "own training rows",
        "failure-modes study",
        "book section on non-IID data",
        "1\u202f437",
        "fingerprint = abc123",
        "torch = 2.9.0",
        "stacked = 0.01",
    ):
        assert expected in page, expected
    assert page.count("<figure>") == len(OF_ONE_DATA_SET)


def test_page_says_on_which_rows_clients_are_measured(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    add(store, "a", 0, [0.1, 0.5], held_out=0.2)
    assert experiments.measured_rows(store.runs()) == "rows held out from its training"
    add(store, "a", 1, [0.1, 0.5])
    assert "held out from its training in some runs" in experiments.measured_rows(store.runs())


@pytest.mark.parametrize(
    ("held_out", "rows", "phrase"), [(0.0, "training", "own training rows"), (0.2, "held-out", "held out")]
)
def test_every_view_says_on_which_rows_clients_are_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], held_out: float, rows: str, phrase: str
) -> None:
    store = RunStore(tmp_path / "runs")
    add(store, "a", 0, [0.1, 0.5], held_out=held_out)
    print_summary(store, store.runs())
    assert f"worst client and personal: on each client's {phrase}" in " ".join(capsys.readouterr().out.split()).replace(
        "rows held out", "held out"
    )
    assert f"worst client<small>%, {rows} rows" in report(store, tmp_path)
    assert tables.summary(store, store.runs())["client_rows"].tolist() == [rows]
    write_tables(store, store.runs(), tmp_path / "tables")
    for name in ("methods.md", "methods.tex"):
        text = (tmp_path / "tables" / name).read_text(encoding="utf-8")
        assert "clients' rows" in text
        assert rows in text
    for name in ("worst-client.csv", "personal.csv", "clients.csv"):
        lines = (tmp_path / "tables" / name).read_text(encoding="utf-8").splitlines()
        assert "client_rows" in lines[0]
        assert all(rows in line for line in lines[1:])
    label = plots.plot(store, store.runs(), "worst-client").axes[0].get_ylabel()
    assert label == f"accuracy of the worst client, {rows} rows"


def test_an_interval_does_not_leave_the_possible_range(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    store = compared(tmp_path, {"a": {0: 0.452, 1: 0.702}, "b": {0: 0.99, 1: 0.20}})
    print_summary(store, store.runs())
    printed = capsys.readouterr().out
    assert "57.7 (0 to 100)" in printed  # 57.7 ± 158.8
    assert "+1.8 (-100 to +100)" in printed
    assert '57.7 <span class="half">(0 to 100)</span>' in report(store, tmp_path)
    write_tables(store, store.runs(), tmp_path / "tables")
    assert "57.7 (0 to 100)" in (tmp_path / "tables" / "methods.md").read_text(encoding="utf-8")
    assert "57.7 (0 to 100)" in words.answer(tables.summary(store, store.runs()).head(1))


def test_intervals_as_people_read_them() -> None:
    assert words.interval(0.925, 0.012) == "92.5 ± 1.2"
    assert words.interval(0.925, 1e-5) == "92.5 ± <0.1"
    assert words.interval(0.99, 0.02) == "99.0 (97 to 100)"
    assert words.interval(1.0, 0.0) == "100.0 ± 0.0"
    assert words.interval(0.5, math.nan) == "50.0"
    assert words.interval(math.nan, math.nan) == "–"
    assert words.interval(-0.2, 0.1, words.signed, low=-1.0) == "-20.0 ± 10.0"


def test_page_needs_no_network_and_its_ids_are_unique(page: str) -> None:
    outline = Outline(page)
    assert len(outline.ids) == len(set(outline.ids))
    assert len(outline.references) > 50
    assert all(reference.startswith("#") for reference in outline.references)
    assert {reference[1:] for reference in outline.references} <= set(outline.ids)
    assert "@import" not in page
    assert not {"script", "img", "link", "iframe", "object"} & outline.tags
    assert "default-src 'none'" in page


def test_figures_take_their_colours_from_the_page(page: str) -> None:
    svgs = re.findall(r"<svg viewBox.*?</svg>", page, re.S)
    assert len(svgs) >= len(OF_ONE_DATA_SET)
    assert not [
        style for svg in svgs for style in re.findall(r'style="[^"]*"', svg) if "#" in style.replace("url(#", "")
    ]
    used = set(re.findall(r"var\((--[\w-]+)\)", page))
    assert {"--series-1", "--series-2", "--ink", "--muted", "--grid"} <= used
    light, dark = page.split("prefers-color-scheme: dark", 1)
    assert all(f"{name}:" in light and f"{name}:" in dark for name in used)


def test_what_comes_from_the_store_is_escaped(tmp_path: Path) -> None:
    evil = "<script>alert('1')</script>&\"$x"
    store = RunStore(tmp_path / "runs")
    comparison = store.add_comparison(evil)
    add(store, evil, 0, [0.1, 0.5], comparison=comparison, experiment=f"[model]\nname = '''{evil}'''\n")
    add(store, "b", 0, [0.1], comparison=comparison, status="failed", message=evil, rounds=3, experiment=evil)
    store.set_partition(1, [(0, evil, evil, 3), (1, "$a$", "^", 2)])
    store.add_facts(1, {key: {"name": evil, evil: evil} for key in ("versions", "engine", "data")})
    store.add_facts(1, {"partition": {"clients": evil, "rows": None}})
    text = report(store, tmp_path) + inline(plots.plot(store, store.runs(), "partition"), "figure", evil)
    assert "<script" not in text
    assert "alert('1')" not in text
    assert "script" not in Outline(text).tags
    assert text.count("&lt;script&gt;") > 10


def test_single_run_of_one_round(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    add(store, "fedavg", 0, [0.1, 0.5], clients=(0.5,))
    text = report(store, tmp_path)
    assert "With one seed nothing can be said about certainty" in text
    assert "<title>fedavg · fedskew</title>" in text
    assert "verdict" not in text.partition("<body>")[2]
    assert "Nothing: all runs finished." in text
    assert "No partition was noted." in text


def test_run_that_has_not_begun(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    store.add_run(name="a", experiment="", experiment_hash="0", seed=0, partition_seed=0, rounds=3)
    text = report(store, tmp_path)
    assert "No run has finished" in text
    assert "No round has been measured yet." in text
    assert "planned</span> after 0 of 3 rounds" in text


def test_many_methods_with_long_names(tmp_path: Path) -> None:
    names = [f"a-rather-long-method-name:option={i},another_option=true,third=0.12345" for i in range(15)]
    store = compared(tmp_path, {name: {0: 0.5 + i / 100} for i, name in enumerate(names)})
    text = report(store, tmp_path)
    assert "and 14 other methods" in text
    assert all(name in text for name in names)
    looks = {str(plots.line_style(i, 99)) for i in range(28)}
    assert len(looks) == 28
    assert plots.plot(store, store.runs(), "drift").get_axes()[0].get_position().height > 0.1


def test_report_is_replaced_in_one_step(store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(html, "page", lambda *_: "the new one")
    assert write_report(store, store.runs(), path).read_text() == "the new one"
    path.write_text("the one before")
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(FedskewError, match="No space left"):
        write_report(store, store.runs(), path)
    assert path.read_text() == "the one before"
    assert [p.name for p in tmp_path.glob("report*")] == ["report.html"]


def test_report_without_runs_is_refused(store: RunStore, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no runs"):
        write_report(store, [], tmp_path / "report.html")


# figures


@pytest.mark.parametrize("what", OF_ONE_DATA_SET)
def test_every_figure_can_be_drawn(store: RunStore, what: str) -> None:
    figure = plots.plot(store, store.runs(), what)
    assert figure.get_size_inches()[0] * 72 == pytest.approx(plots.WIDTH)
    lines = {line.get_label() for line in figure.axes[0].get_lines()}
    if what != "partition":
        assert "fedavg" in lines


def test_unknown_figure_is_refused_with_the_nearest_name(store: RunStore) -> None:
    with pytest.raises(BadInput, match="did you mean 'accuracy'"):
        plots.plot(store, store.runs(), "acuracy")
    with pytest.raises(BadInput, match="run 2 has not noted its partition"):
        plots.plot(store, store.runs()[1:], "partition")


def test_colour_belongs_to_the_method_even_where_others_have_no_numbers(store: RunStore) -> None:
    axes = plots.plot(store, store.runs(), "clients").axes[0]
    colours = {str(line.get_label()): line.get_color() for line in axes.get_lines()}
    assert colours["fedprox:mu=0.1"] == plots.SERIES[1]
    axes = plots.plot(store, [r for r in store.runs() if r.name != "fedavg"], "clients").axes[0]
    assert axes.get_lines()[0].get_color() == plots.SERIES[0]


@pytest.mark.parametrize(
    ("values", "scale"), [([5.0, 1.0, 0.6], "linear"), ([50.0, 1.0, 0.6], "log"), ([9.0, 0.0], "linear")]
)
def test_axis_is_logarithmic_where_more_than_a_decade_is_spanned(
    tmp_path: Path, values: list[float], scale: str
) -> None:
    store = RunStore(tmp_path)
    run = add(store, "a", 0, [0.1])
    for round_, value in enumerate([*values, math.inf]):
        store.write_round(run, round_ + 1, [(None, "round", "drift", value)])
    axes = plots.plot(store, store.runs(), "drift").axes[0]
    assert axes.get_yscale() == scale
    low, high = axes.get_ylim()
    assert low < min(values)
    assert max(values) < high < 2 * max(values)


def test_wide_intervals_do_not_squash_the_curves(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    add(store, "a", 0, [0.2, 0.3, 0.5])
    add(store, "a", 1, [0.2, 0.7, 0.6])
    low, high = plots.plot(store, store.runs(), "loss").axes[0].get_ylim()
    assert 0.8 - 0.45 < high - low < 0.8
    add(store, "b", 0, [0.1, 0.99])
    add(store, "b", 1, [0.1, 0.85])
    low, high = plots.plot(store, store.runs(), "accuracy").axes[0].get_ylim()
    assert -0.02 < low < 0
    assert 1 < high < 1.02


def test_partition_shows_sixty_clients_and_says_how_many_more(store: RunStore) -> None:
    store.set_partition(1, [(k, f"client-number-{k}", str(c), k + c + 1) for k in range(70) for c in (10, 9)])
    store.add_facts(1, {"partition": {"clients": 2000}})
    axes = plots.plot(store, store.runs(), "partition").axes[0]
    assert len(axes.get_yticks()) == 60
    assert [label.get_text() for label in axes.get_xticklabels()] == ["9", "10"]
    assert axes.get_xlabel() == "and 1940 more clients"
    totals = [text.get_text() for text in axes.texts]
    assert totals[0] == str(0 + 9 + 1 + 0 + 10 + 1)


def test_partition_prints_counts_where_there_is_room(store: RunStore) -> None:
    texts = [text.get_text() for text in plots.plot(store, store.runs(), "partition").axes[0].texts]
    assert texts == ["30", "2", "5", "32", "5", "rows"]


def test_importing_the_room_is_quick() -> None:
    code = (
        "import sys, fedskew.report.html, fedskew.report.plots; "
        "print([m for m in ('pandas', 'matplotlib', 'jinja2', 'scipy', 'torch') if m in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100).stdout
        == "[]\n"
    )


# personal models


def test_personal_models_are_shown_where_they_were_measured(tmp_path: Path, page: str) -> None:
    assert "personal models" in page
    assert "Accuracy of each client’s own model" in page
    bare = RunStore(tmp_path / "bare")
    add(bare, "fedavg", 0, [0.1, 0.5], clients=())
    assert math.isnan(tables.summary(bare, bare.runs()).iloc[0].personal)
    assert "personal" not in report(bare, tmp_path)
    with pytest.raises(BadInput, match="none of these runs has measured accuracy of the personal models"):
        plots.plot(bare, bare.runs(), "personal")
