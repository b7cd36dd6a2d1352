"""A partition that leaves rows or clients out says how many, before training, in the store and in the report."""

from pathlib import Path

import numpy as np
import pytest

import fedskew as fs
from fedskew.claims.document import DOCUMENTS, load
from fedskew.claims.reproduce import experiment_of
from fedskew.diagnosis.subject import from_experiment
from fedskew.execution.deal import dealt_rows
from fedskew.experiment.config import Experiment, from_toml
from fedskew.report.answer import remarks
from fedskew.skew import SKEWS, LabelDirichlet

DROP = "label-dirichlet:alpha=1000,remainder=drop"
FLOOR = "1,285 of 1,438 rows go to no client (remainder=largest deals all rows)"


def test_label_dirichlet_deals_all_rows_of_even_clients() -> None:
    data = fs.load("digits")
    part = dealt_rows(Experiment(skew="label-dirichlet:alpha=1000", clients=150, held_out=0), data)
    assert (part.unassigned, part.empty, part.note) == (0, 0, "")
    assert (part.sizes.min(), part.sizes.max()) >= (8, 9)


def test_stored_experiments_keep_their_rule() -> None:
    """Every stored TOML names the rule, so the new default changes no stored run."""
    for rule in ("drop", "largest"):
        experiment = Experiment(skew=f"label-dirichlet:alpha=0.1,remainder={rule}")
        assert f'remainder = "{rule}"' in experiment.toml()
        assert from_toml(experiment.toml()).hash() == experiment.hash()
    assert Experiment().skew == (LabelDirichlet(alpha=0.1, remainder="largest"),)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_keep_the_floor_of_their_rule(name: str) -> None:
    document = load(name)
    for scale in document.scales:
        skews = [s for arm in document.arms for s in experiment_of(document, scale, arm, 0).skew]
        assert {s.remainder for s in skews if isinstance(s, LabelDirichlet)} <= {"drop"}


@pytest.mark.parametrize(
    ("skew", "clients", "text"),
    [
        (DROP, 150, f"{FLOOR}; 38 of 150 clients have no rows and take no part (use fewer clients, "),
        ("label-shards:shards=2", 150, "238 of 1,438 rows go to no client (label-similarity:similarity=0 deals all rows"),
        ("label-classes:k=1", 7, "426 of 1,438 rows go to no client (with more clients or a larger k "),
        ("quantity-sizes:rows=[30,20]", 2, "1,388 of 1,438 rows go to no client (larger sizes deal all rows)"),
        ([DROP, "quantity-sizes:rows=[30,20]"], 2, "1,388 of 1,438 rows go to no client (larger sizes deal all rows)"),
        ("label-dirichlet-per-class:alpha=1e-3,min_size=0", 150, "127 of 150 clients have no rows and take no part (use "),
        ([DROP, "quantity-lognormal"], 150, ""),
    ],
)  # fmt: skip
def test_each_skew_that_leaves_something_out_says_so(skew: object, clients: int, text: str) -> None:
    part = dealt_rows(Experiment(skew=skew, clients=clients), fs.load("digits"))
    assert part.note.startswith(text)
    assert bool(part.note) == bool(text)


def test_no_skew_leaves_rows_or_clients_out_without_a_word() -> None:
    """All skews with their defaults and with extreme strengths: the text is empty exactly if every row and client is used."""
    labels = fs.load("digits")
    for name in set(SKEWS) - {"from-folder", "natural", "column-dirichlet", "quantile-dirichlet", "feature-text"}:
        for changes in ({}, {"alpha": 1e-3}, {"alpha": 1e3}, {"sigma": 20.0}, {"alpha": 1e-3, "min_size": 0}):
            if not set(changes) <= set(getattr(SKEWS[name], "__dataclass_fields__", {})) or name == "quantity-sizes":
                continue
            experiment = Experiment(skew=[{"name": name, **changes}], clients=10 if name == "label-blocks" else 97)
            part = dealt_rows(experiment, labels)
            used = len(part.indices) + (0 if part.held_out is None else len(part.held_out[0]))
            whole = used == len(labels.y) and (len(part) == experiment.clients.number or name == "pooled")
            assert (part.note == "") == whole, (name, changes)


def test_natural_clients_whose_rows_are_all_reserved_are_counted() -> None:
    x = np.random.default_rng(0).normal(size=(60, 2))
    data = fs.Dataset(
        x=x, y=np.arange(60) % 2, x_test=x, y_test=np.arange(60) % 2, groups=np.arange(60) // 2, classes=("a", "b")
    )
    part = dealt_rows(Experiment(skew="natural", server_data=0.5, held_out=0), data)
    assert part.empty > 0
    assert part.note == f"{part.empty} of 30 clients have no rows and take no part (lower server_data and shared_data)"


def test_runs_note_rows_left_out_and_store_the_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = fs.compare(
        ["fedavg", "fedprox"], skew=DROP, clients=150, held_out=0, rounds=1, seeds=2, model="softmax", runs=tmp_path,
        engine="stacked",
    )  # fmt: skip
    assert f"partition 1 of 2: {FLOOR}; 38 of 150 clients have no rows" in capsys.readouterr().err.replace("\n", " ")
    assert FLOOR in runs.records[0].facts["partition"]["note"]
    assert sum(FLOOR in line for line in remarks(runs.records)) == 1
    assert FLOOR in Path(runs.report(tmp_path / "report.html")).read_text(encoding="utf-8")


def test_diagnose_notes_rows_left_out() -> None:
    assert from_experiment(Experiment(skew=DROP, clients=150), "digits").source.notes[0].startswith(FLOOR)
