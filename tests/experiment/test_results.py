"""The export that the page of results is made from: the same numbers and verdicts as the store, without the store."""

import json

import numpy as np
import pytest

from fedskew.claims import export
from fedskew.claims.document import DOCUMENTS, Document, document_from, load
from fedskew.claims.quantities import quantity
from fedskew.claims.verdicts import Results, cells, verdicts
from fedskew.cli.main import main
from fedskew.core.errors import BadInput
from fedskew.experiment.reproduce import plan, registered, results
from fedskew.store.runs import RunStore


def two_arms() -> Document:
    """Return a document with one table and three claims: on final values, on curves, and on a number outside the table."""
    claims = [("ends", "difference", "accuracy", "> 0"), ("curves", "share of rounds", "accuracy", "> 0.5"),
              ("drift", "ratio", "drift", "< 1")]  # fmt: skip
    return document_from(
        {
            "name": "drift-demo", "title": "Two arms",
            "scales": {"quick": {"seeds": 3, "base": {"training": {"rounds": 3}, "engine": "stacked"}}},
            "arms": {"a": {"algorithm": "scaffold"}, "b": {}},
            "tables": [{"name": "t", "title": "T", "arms": ["a", "b"], "measures": ["accuracy", "worst-client"]}],
            "claims": [
                {"name": name, "text": name, "where": "p. 1", "table": "t", "kind": kind, "of": of, "arms": ["a", "b"],
                 "expect": expect} for name, kind, of, expect in claims
            ] + [{"name": "bytes", "text": "t", "where": "p. 1", "table": "t", "kind": "correlation", "of": "accuracy",
                  "against": "megabytes", "arms": ["a", "b", "a"], "expect": "-0.5..0.5"}],
        },
        "two arms",
    )  # fmt: skip


def filled(store: RunStore, document: Document) -> Results:
    """Return its runs with invented numbers. The worst client was not measured."""
    random = np.random.default_rng(0)
    planned = plan(document, "quick")
    for number in registered(store, planned, "t"):
        better = store.run(number).name == "a"
        for round_ in range(4):
            rows = [(None, "test", "accuracy", 0.2 * round_ + 0.1 * better + 0.01 * random.random() / 3)]
            rows += [(None, "round", "drift", 2.0 - better), (None, "round", "seconds", 0.5)] if round_ else []
            store.write_round(number, round_, rows)
        store.update(number, status="finished")
    return results(store, planned)


def test_the_export_gives_the_tables_and_verdicts_of_the_store(tmp_path) -> None:
    document = two_arms()
    known = filled(RunStore(tmp_path), document)
    made = json.loads(json.dumps(export.exported(document, "quick", known, {"cores": "2 cores"}), allow_nan=False))
    again = export.known(made)
    judged, kept = verdicts(document, known), verdicts(document, again)
    # only the first number varies over the seeds
    assert [j.verdict for j in kept] == [j.verdict for j in judged] == ["holds", *["undecided"] * 3]
    for one, other in zip(judged, kept, strict=True):
        assert other.evidence.values == pytest.approx(one.evidence.values, rel=1e-8)
    ours, kept_cells = (cells(document.tables[0], runs) for runs in (known, again))
    for arm, row in ours.items():
        other = kept_cells[arm]
        assert (other["accuracy"].mean, other["accuracy"].half) == pytest.approx(
            (row["accuracy"].mean, row["accuracy"].half), abs=1e-8
        )
        assert np.isnan(other["worst-client"].mean)
    assert again["b"][2].seconds == 1.5
    assert made["versions"] == {}
    with pytest.raises(BadInput, match="has no fluctuation"):
        quantity("fluctuation", again["a"][0])


def test_the_page_says_how_many_of_the_planned_runs_it_rests_on(tmp_path) -> None:
    document = load("drift-demo")
    arms = list(document.arms)[:2]
    run = {"status": "diverged", "rounds": 3, "seconds": 30.0, "curves": {}}
    values = dict.fromkeys(("accuracy", "drift", "last-drift", "megabytes"), 0.5)
    made = {
        "document": "drift-demo", "scale": "quick", "began": "2026-01-01T00:00:00", "ended": "2026-01-01T01:00:00",
        "hardware": {"cores": "2 cores"}, "versions": {"torch": ["2.9.0"]},
        "runs": {arm: {"1": {**run, "values": values}} for arm in arms},
        "listing": [{"skew": "IID", "epochs": 1, "drift": 2.1, "drift_in_document": 2.1, "accuracy": 0.5,
                     "accuracy_in_document": 0.5, "agrees": True}],
    }  # fmt: skip
    pages = export.pages([made])
    text, index = pages["drift-demo-quick"], pages["documents"]
    planned = document.scale("quick").seeds * len(document.arms)
    assert f"2 of {planned} runs, 2 diverged, 1.0 minutes of rounds in all" in text
    assert "on 2 cores; torch 2.9.0." in text
    once = sum(set(claim.arms) <= set(arms) for claim in document.claims)
    claims = len(document.claims)
    assert f"| quick | 2 of {planned} | {claims} | 0 | 0 | {once} | {claims - once} |" in index
    assert f"**{claims} claims: 0 hold, 0 fail, {once} undecided, {claims - once} not run.**" in text
    left = ", ".join(arm for arm in document.tables[0].arms if arm not in arms)
    assert f"Not run: {left}." in text
    assert text.count("**not run**") == claims - once
    assert "| IID | 1 | 2.100 (2.100) | 0.500 (0.500) | same |" in text
    assert [line for line in text.splitlines() if line.startswith("# ")] == [f"# {document.title}: quick scale"]


def test_a_run_of_fewer_settings_is_the_same_under_their_defaults(tmp_path) -> None:
    document, store = two_arms(), RunStore(tmp_path)
    known = filled(store, document)
    with store.transaction():
        store.db.execute("UPDATE runs SET experiment_hash='of another version'")
        store.db.execute("UPDATE runs SET experiment=replace(experiment, 'classes = false', '') WHERE name='a'")
        store.db.execute(
            "UPDATE runs SET experiment=replace(experiment, 'classes = false', 'classes = true') WHERE name='b'"
        )
    again = results(store, plan(document, "quick"))
    assert set(known) == {"a", "b"}
    assert set(again) == {"a"}


def test_an_export_of_nothing_is_refused(tmp_path, capsys) -> None:
    folder = ["--runs", str(tmp_path), "--as-stored", "--export", str(tmp_path / "x.json")]
    assert main(["reproduce", "dualmetric", *folder]) == BadInput.exit_code
    assert "holds no finished run" in capsys.readouterr().err
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize(
    "name", [name if name == "fedpbs" else pytest.param(name, marks=pytest.mark.slow) for name in DOCUMENTS]
)
def test_every_number_of_a_document_is_in_its_export(tmp_path, name: str) -> None:
    """All tables and claims of a document can be made from its export alone."""
    document, store = load(name).at("quick"), RunStore(tmp_path)
    planned = plan(document, "quick")
    for number in registered(store, planned[: 2 * len(document.arms)], name):
        rows = [(None, "test", "accuracy", 0.5), (None, "test", "loss", 0.5)]
        rows += [(None, "round", name, 1.0) for name in ("drift", "divergence", "bytes_up", "bytes_down", "seconds")]
        rows += [(layer, "layer", "cosine", 0.5) for layer in (0, 1)]
        store.write_round(number, 1, rows)
        store.write_round(number, 2, rows)
        store.update(number, status="finished")
    known = results(store, planned)
    made = json.loads(json.dumps(export.exported(document, "quick", known, {}), allow_nan=False))
    assert [j.verdict for j in verdicts(document, export.known(made))] == [j.verdict for j in verdicts(document, known)]
    assert f"# {document.title}: quick scale" in export.page({**made, "listing": []})
