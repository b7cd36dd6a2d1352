"""What every view says of some stores, as snapshots: the terminal, the page, Markdown, LaTeX, and the heads of CSV files.

A changed text is one diff to review: ``pytest tests/report/test_views.py --snapshot-update`` writes the new texts.
"""

import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from fedskew.cli.output import print_notices, print_ranks, print_summary
from fedskew.execution.facts import defaults
from fedskew.experiment.config import Experiment
from fedskew.measure.history import Warned
from fedskew.report import files, html, plots, style
from fedskew.report.budgets import budget_from
from fedskew.report.series import Layout, Results
from fedskew.store.runs import RunStore
from tests.report import add, compared, mixed_store, test_budget as budgets, toml
from tests.report.test_equivalence import OTHERS, store as with_margin


def on_held_out_rows(folder: Path) -> RunStore:
    store = RunStore(folder)
    add(store, "a", 0, [0.1, 0.5], held_out=0.2)
    return store


def with_settings(folder: Path) -> RunStore:
    """Return a run with settings that are no defaults, tuned, with warnings."""
    store = RunStore(folder)
    experiment = Experiment(codec="int8", model="mlp:hidden=[32,16]", faults__longest_ratio=0, solver__momentum=0.9)
    run = add(store, "a", 0, [0.1, 0.5], experiment=experiment.toml())
    candidates = [
        {"setting": "solver.lr=0.1", "ended": "finished", "best": True, "value": 0.8125},
        {"setting": "solver.lr=9", "ended": "diverged", "best": False},
    ]
    warned = [
        Warned(kind, 1, "something was seen", "threshold 1", "a study", "something else")
        for kind in ("collapsed", "oscillating")
    ]
    store.add_facts(
        run,
        {
            "defaults": defaults(experiment),
            "tuned": {"setting": {"solver.lr": 0.1}, "tried": 2, "candidates": candidates},
            "warnings": [warning._asdict() | {"line": warning.line()} for warning in warned],
            "profile": {"setting up": 1.0, "training": 6.0, "evaluation": 2.0},
            "measured_every": 5,
        },
    )
    return store


def with_skew(folder: Path, skew: str) -> RunStore:
    store = RunStore(folder)
    for seed in range(2):
        text = Experiment(dataset="heart", skew=skew).toml()
        run = add(store, "a", seed, [0.1, 0.5], experiment=text, partition_seed=seed)
        store.set_partition(run, [(0, "0", "no", 30), (1, "1", "yes", 5)])
        store.add_facts(run, {"partition": {"clients": 2, "unmeasured": seed}})
    return store


def several_data_sets(folder: Path) -> RunStore:
    store = RunStore(folder)
    for number, accuracies in enumerate([(0.9, 0.8, 0.7), (0.5, 0.6, 0.4), (0.9, 0.2, 0.1)]):
        for name, accuracy in zip("abc", accuracies, strict=True):
            budgets.add(store, name, 0, [accuracy], toml=f'[dataset]\nname = "d{number}"\n')
    return store


def of_different_rates(folder: Path) -> RunStore:
    store = RunStore(folder)
    for lr in (0.1, 0.001):
        for seed in range(2):
            add(store, "a", seed, [0.1, 0.5 + lr + seed / 100], lr=lr)
    return store


def planned(folder: Path) -> RunStore:
    store = RunStore(folder)
    store.add_run(name="a", experiment=toml("a", 0, 0, 3), experiment_hash="0", seed=0, partition_seed=0, rounds=3)
    return store


CASES: dict[str, tuple[Callable[[Path], RunStore], dict[str, Any]]] = {
    "several methods, some unfinished": (mixed_store, {}),
    "columns": (mixed_store, {"layout": Layout(spread="std", columns=("worst_client", "round/drift", "seeds"))}),
    "held-out rows": (on_held_out_rows, {}),
    "settings, tuning, warnings, profile": (with_settings, {}),
    "natural clients": (lambda folder: with_skew(folder, "natural"), {}),
    "dealt clients": (lambda folder: with_skew(folder, "iid"), {}),
    "margin": (lambda folder: with_margin(folder, 1.0, OTHERS), {}),
    "budget of rounds": (lambda folder: budgets.sparse(folder, 4), {"budget": budget_from("rounds=7")}),
    "budget of bytes": (lambda folder: budgets.sparse(folder, 4), {"budget": budget_from("bytes=17")}),
    "several data sets": (several_data_sets, {}),
    "different settings": (of_different_rates, {}),
    "wide intervals": (lambda folder: compared(folder, {"a": {0: 0.452, 1: 0.702}, "b": {0: 0.99, 1: 0.20}}), {}),
    "not begun": (planned, {}),
}


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("case", CASES)
def test_every_view_says_the_same(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, snapshot: object
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    of_page: dict[str, style.Picture] = {}
    monkeypatch.setattr(html, "pictures", lambda *given: of_page.update(plots.pictures(*given)) or dict(of_page))
    monkeypatch.setattr(files, "pictures", lambda results: of_page)  # its tables have the same heads
    make, options = CASES[case]
    store = make(tmp_path / "runs")
    results = Results(store, store.runs(), **options)
    for show in (print_summary, print_ranks):
        show(results)
    print_notices(store.runs())
    said = {"terminal": capsys.readouterr().out, "page": text_of(html.page(results))}
    for name, text in files.texts_of(results).items():
        said[name] = text.partition("\n")[0] if name.endswith("csv") else text
    assert {name: [line.rstrip() for line in text.split("\n")] for name, text in said.items()} == snapshot


def text_of(page: str) -> str:
    """Return the words of a page, a line for each element that has some. Pictures are left out, and so is the date."""
    body = re.sub(r"<(svg|script|style|pre)\b.*?</\1>", "", page, flags=re.DOTALL)
    lines = (unescape(re.sub("<[^>]*>", "", line)).strip() for line in body.split("\n"))
    return re.sub(r"\d{4}-\d\d-\d\d", "DATE", "\n".join(filter(None, lines)))
