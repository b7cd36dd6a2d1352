"""What grows with the number of runs, methods and rounds: queries, parsed texts, points of a figure, imported libraries."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from fedskew.cli.main import main
from fedskew.report import experiments, html, plots
from fedskew.report.series import Results
from fedskew.store.runs import RunStore
from tests.commands import output_of

TEXT = """
name = "fedavg"
[algorithm]
name = "fedavg"
[training]
seed = {seed}
rounds = 3
"""


def store_of(folder: Path, seeds: int) -> RunStore:
    """A store with a comparison of two methods with this many seeds and three rounds."""
    store = RunStore(folder)
    comparison = store.add_comparison("fedavg vs fedprox")
    for seed in range(seeds):
        for number, name in enumerate(("fedavg", "fedprox")):
            run = store.add_run(
                name=name, experiment=TEXT.format(seed=seed).replace("fedavg", name), experiment_hash="", seed=seed,
                partition_seed=seed, rounds=3, comparison=comparison,
            )  # fmt: skip
            for round_ in range(4):
                accuracy = 0.2 * round_ + 0.01 * seed + 0.1 * number
                rows = [
                    (None, "test", "accuracy", accuracy),
                    (None, "round", "seconds", 1.0),
                    (0, "client", "steps", 2),
                ]
                store.write_round(run, round_, rows)
            store.update(run, status="finished")
    return store


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("verb", ["list", "watch c1", "show c1", "report c1", "resume c1"])
def test_number_of_queries_does_not_grow_with_the_runs(verb: str, tmp_path, monkeypatch) -> None:
    counts, query = [], RunStore.query
    for seeds in (2, 7):
        store_of(tmp_path / str(seeds), seeds)
        queries: list[str] = []
        monkeypatch.setattr(
            RunStore, "query", lambda self, text, *v, log=queries: log.append(text) or query(self, text, *v)
        )
        assert main([*verb.split(), "--runs", str(tmp_path / str(seeds))]) == 0
        counts.append(len(queries))
    assert counts[0] == counts[1]


def test_list_parses_one_text_for_each_method_and_show_each_text_once(tmp_path, monkeypatch) -> None:
    texts: list[str] = []
    parse = experiments.toml_table
    monkeypatch.setattr(experiments, "toml_table", lambda text, where: texts.append(text) or parse(text, where))
    store_of(tmp_path, 5)
    for verb, number in (("list", 2), ("show c1", 10)):
        experiments.table_of.cache_clear()
        texts.clear()
        assert main([*verb.split(), "--runs", str(tmp_path)]) == 0
        assert len(texts) == number


def test_verbs_of_stored_runs_load_no_pytorch(tmp_path) -> None:
    store_of(tmp_path, 1)
    code = (
        "import sys; from fedskew.cli.main import main\n"
        "for words in ('list', 'tag 1 good', 'rename c1 mine', 'show c1', 'report c1', 'watch c1', 'rm c1 --yes'):\n"
        "    assert main([*words.split(), '--runs', sys.argv[1]]) == 0, words\n"
        "    assert 'torch' not in sys.modules, words\n"
    )
    words = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_a_table_of_thousands_of_rows_is_aligned_like_a_short_one(tmp_path) -> None:
    store_of(tmp_path, 6)
    head, *lines = output_of("list", "--runs", tmp_path).splitlines()
    assert {len(line) for line in lines} == {len(head)}


def test_a_figure_draws_at_most_so_many_points_and_says_how_many() -> None:
    rounds = [*range(1001), *range(1001)]
    table = pd.DataFrame({"method": ["a"] * 1001 + ["b"] * 1001, "round": rounds, "mean": 0.5, "stopped": 0})
    table.loc[777, "stopped"] = 1
    whole, nothing = plots.thinned(table, "round", ["a", "b"], html.MOST_POINTS)
    assert (len(whole), nothing) == (2002, "")
    methods = [str(i) for i in range(50)]
    thin, text = plots.thinned(table, "round", methods, html.MOST_POINTS)
    assert text == " The lines show 100 of 1,001 rounds, evenly spaced."
    assert {0, 777, 1000} <= set(thin["round"])
    assert len(thin) == 2 * 100 + 1


@pytest.mark.usefixtures("undrawn")
def test_report_says_which_rounds_its_lines_show(tmp_path, monkeypatch) -> None:
    store = store_of(tmp_path, 2)
    monkeypatch.setattr(html, "MOST_POINTS", 6)
    assert "The lines show 3 of 4 rounds, evenly spaced." in html.page(Results(store, store.runs()))
    monkeypatch.setattr(html, "MOST_POINTS", 5_000)
    assert "The lines show" not in html.page(Results(store, store.runs()))


def test_resume_asks_for_trust_only_in_runs_that_it_continues(tmp_path, capsys) -> None:
    store = store_of(tmp_path, 2)
    with store.transaction():
        store.db.execute("UPDATE runs SET experiment='[algorithm]\nname = \"/nowhere/evil.py::M\"\n'")
    assert main(["resume", "c1", "--runs", str(tmp_path)]) == 0
    assert "nothing to resume" in capsys.readouterr().err
