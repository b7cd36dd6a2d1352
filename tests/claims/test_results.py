"""The export that the page of results is made from: the same numbers and verdicts as the store, without the store."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedskew.claims import export
from fedskew.claims.document import DOCUMENTS, Document, document_from, load
from fedskew.claims.page import tally
from fedskew.claims.quantities import OF_CLIENTS, quantity
from fedskew.claims.reproduce import plan, results
from fedskew.claims.verdicts import cells, verdicts
from fedskew.cli import reproduce
from fedskew.cli.main import main
from fedskew.core.errors import BadInput, Interrupted
from fedskew.experiment.config import from_toml
from fedskew.measure.registry import MEASURES, OF_MODELS, measures_of
from fedskew.store.runs import RunStore
from fedskew.studies.runner import to_execute
from tests.commands import error_of
from tests.pages import loaded


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


EXPORTED = {
    "status": "finished", "rounds": 3, "seconds": 1.0, "hash": "h", "planned": 9, "began": "", "ended": "", "facts": {},
    "measured": [],
}  # fmt: skip


def test_claims_are_counted_by_verdict_over_all_sections() -> None:
    claims = [SimpleNamespace(verdict=verdict) for verdict in [*["holds"] * 3, *["fails"] * 2, "undecided"]]
    sections = [SimpleNamespace(claims=claims[:2]), SimpleNamespace(claims=claims[2:])]
    assert tally(sections) == "6 claims: 3 hold, 2 fail, 1 undecided"


def test_the_page_says_how_many_of_the_planned_runs_it_rests_on(tmp_path) -> None:
    document = load("drift-demo")
    arms = list(document.arms)[:2]
    measured = [{"rounds": [1, 2, 3], "values": {"test/accuracy": 0.5, "round/drift": [0.5, 0.4, 0.3]}}]
    run = {**EXPORTED, "status": "diverged", "seconds": 30.0, "measured": measured}
    made = {
        "document": "drift-demo", "scale": "quick", "began": "2026-01-01T00:00:00", "ended": "2026-01-01T01:00:00",
        "hardware": {"cores": "2 cores"}, "versions": {"torch": ["2.9.0"]},
        "runs": {arm: {"1": run} for arm in arms},
        "extras": {"listing-14.4.1": [{"skew": "IID", "epochs": 1, "drift": 2.1, "drift_in_document": 2.1, "accuracy": 0.5,
                                       "accuracy_in_document": 0.5, "agrees": True}]},
    }  # fmt: skip
    pages = loaded("docs/builder/documents.py").pages([made])
    text, index = pages["drift-demo-quick"], pages["documents"]
    planned = document.scale("quick").seeds * len(document.arms)
    assert f"2 of {planned} runs, 2 diverged, 1.0 minutes of rounds in all" in text
    assert "on 2 cores; torch 2.9.0." in text
    once = sum(set(claim.arms) <= set(arms) for claim in document.claims)
    claims = len(document.claims)
    assert f"| quick | 2 of {planned} | {claims} | 0 | 0 | {once} | {claims - once} |" in index
    assert f"**{claims} claims: 0 hold, 0 fail, {once} undecided, {claims - once} not run.**" in text
    left = "; ".join(
        arm for table in document.tables if table.name == "output-14.4.1" for arm in table.arms if arm not in arms
    )
    assert f"Not run: {left}." in text
    assert text.count("**not run**") == claims - once
    assert "| IID | 1 | 2.100 | 2.100 | 0.500 | 0.500 | same |" in text
    assert [line for line in text.splitlines() if line.startswith("# ")] == [f"# {document.title}: quick scale"]


def call(folder: Path, file: Path, capsys, *words: str) -> tuple[int, str]:
    """Reproduce the planted document with an export; return the exit code and what was said, in one line."""
    code = main(["reproduce", "drift-demo", "--runs", str(folder), "--export", str(file), "--jobs", "1", *words])
    return code, " ".join(capsys.readouterr().err.split())


@pytest.fixture
def planted(monkeypatch) -> Document:
    """Make `fedskew reproduce` load a document with six runs, whose figure draws the clients' losses."""
    document = two_arms()
    table = dataclasses.replace(document.tables[0], clients=("local-model/loss",))
    document = dataclasses.replace(document, tables=(table,))
    monkeypatch.setattr(reproduce, "load", lambda name: document)
    return document


def test_a_second_folder_continues_from_the_export(tmp_path, planted: Document, capsys) -> None:
    """Two runs are taken out of the file. The second folder executes these two, and the file is what it was."""
    file = tmp_path / "x.json"
    assert call(tmp_path / "1", file, capsys)[0] == 0
    whole = json.loads(file.read_text())
    less = json.loads(file.read_text())
    del less["runs"]["a"]["1"], less["runs"]["b"]["0"]
    file.write_text(json.dumps(less))
    code, said = call(tmp_path / "2", file, capsys)
    assert code == 0
    assert "x.json: 4 runs read" in said
    assert "6 runs, 2 to do" in said
    written = file.read_bytes()
    again = json.loads(written)
    times = {"began", "ended", "seconds"}
    first, second = (results(RunStore(tmp_path / name), plan(planted, "quick")) for name in "12")
    for arm, runs in whole["runs"].items():
        for seed, run in runs.items():
            other = again["runs"][arm][seed]
            if seed in less["runs"][arm]:
                assert other == run
            rounds = first[arm][int(seed)].curve("round", "seconds")
            assert run["seconds"] == pytest.approx(rounds.sum(), rel=1e-5)
            for part, copy in zip(run["measured"], other["measured"], strict=True):
                part["values"].pop("round/seconds", None), copy["values"].pop("round/seconds", None)
            assert {k: v for k, v in other.items() if k not in times} == {
                k: v for k, v in run.items() if k not in times
            }
    assert first["a"][0].series.keys() >= {("local-model", "loss", 0), ("round", "bytes_up", None)}
    assert [j.verdict for j in verdicts(planted, first)] == [j.verdict for j in verdicts(planted, second)]
    for arm, runs in second.items():
        for seed, run in runs.items():
            for key, (rounds, values) in run.series.items():
                assert rounds.tolist() == first[arm][seed].series[key][0].tolist()
                assert key[1] == "seconds" or values == pytest.approx(first[arm][seed].series[key][1], rel=1e-5)
            assert quantity("late-local-loss", run) == pytest.approx(
                quantity("late-local-loss", first[arm][seed]), 1e-5
            )
    assert call(tmp_path / "3", file, capsys, "--as-stored")[0] == 0
    assert file.read_bytes() == written  # restored and written again: nothing changes
    assert main(["show", "1", "--runs", str(tmp_path / "3")]) == 0


def test_a_stopped_reproduction_writes_what_is_done_and_continues(tmp_path, planted, capsys, monkeypatch) -> None:
    file, whole = tmp_path / "x.json", reproduce.complete

    def stopped(store: RunStore, experiments, *args) -> None:
        whole(store, experiments[:2], *args)
        raise Interrupted("stopped")

    monkeypatch.setattr(reproduce, "complete", stopped)
    assert call(tmp_path / "1", file, capsys)[0] == Interrupted.exit_code
    assert sum(map(len, json.loads(file.read_text())["runs"].values())) == 2
    monkeypatch.setattr(reproduce, "complete", whole)
    assert "2 runs read" in (said := call(tmp_path / "2", file, capsys)[1])
    assert "6 runs, 4 to do" in said
    assert "6 runs, 0 to do" in call(tmp_path / "2", file, capsys)[1]


def test_a_missing_data_set_is_an_error_before_the_first_run(tmp_path, planted: Document, capsys, monkeypatch) -> None:
    absent = dataclasses.replace(planted, arms={**planted.arms, "last": {"dataset": "mnist"}})
    monkeypatch.setattr(reproduce, "load", lambda name: absent)
    for variable in ("FEDSKEW_DATA", "HOME"):
        monkeypatch.setenv(variable, str(tmp_path / "none"))
    code, said = call(tmp_path / "1", tmp_path / "x.json", capsys)
    assert (code, RunStore(tmp_path / "1").runs()) == (BadInput.exit_code, [])
    assert "mnist" in said


def test_runs_of_a_changed_experiment_are_not_read_back(tmp_path, planted: Document, capsys, monkeypatch) -> None:
    file = tmp_path / "x.json"
    call(tmp_path / "1", file, capsys)
    changed = dataclasses.replace(planted, arms={**planted.arms, "b": {"solver": {"name": "sgd", "lr": 0.02}}})
    monkeypatch.setattr(reproduce, "load", lambda name: changed)
    code, said = call(tmp_path / "2", file, capsys)
    assert code == 0
    assert "3 runs read; 3 runs left out, of other experiments or seeds than the document now has" in said
    assert "6 runs, 3 to do" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no JSON", "not an export of `fedskew reproduce`"),
        ("[1]", "not an export of `fedskew reproduce`"),
        ({"measured": [{"rounds": [1, 2], "values": {"test/accuracy": [0.5, 0.5, 0.5]}}]}, "not an export"),
        ({"measured": [{"rounds": [1], "values": {"accuracy": 0.5}}]}, "not an export"),
        ({"facts": {"versions": "2.9"}}, "not an export"),
        ({"hash": None}, "not an export"),
        ("quick", "of drift-demo at scale standard; name another file"),
    ],
)
def test_a_file_that_cannot_be_read_back_is_refused_and_kept(tmp_path, planted, capsys, text, said) -> None:
    file = tmp_path / "x.json"
    made = {
        "document": "drift-demo", "scale": "standard", "began": "", "ended": "", "hardware": {}, "versions": {},
        "runs": {} if text == "quick" else {"a": {"0": {**EXPORTED, **(text if isinstance(text, dict) else {})}}},
    }  # fmt: skip
    file.write_text(text if text in ("no JSON", "[1]") else json.dumps(made))
    before = file.read_text()
    code, err = call(tmp_path / "1", file, capsys)
    assert code == BadInput.exit_code
    assert said in err
    assert file.read_text() == before


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.99999997, "1"), (1.0, "1"), (1234567.0, "1234567"), (1234567.5, "1234570"), (0.1234567, "0.123457"), (1e300, "1e+300"),
     (float("nan"), "null"), (float("-inf"), "null")],
)  # fmt: skip
def test_a_rounded_number_is_written_the_same_after_reading(value: float, text: str) -> None:
    assert json.dumps(export.rounded(value)) == text
    assert text == "null" or json.dumps(export.rounded(float(text))) == text


def test_an_export_of_nothing_is_refused(tmp_path) -> None:
    folder = ["--runs", str(tmp_path), "--as-stored", "--export", str(tmp_path / "x.json")]
    assert "holds no finished run" in error_of("reproduce", "dualmetric", *folder)
    assert not (tmp_path / "x.json").exists()


@pytest.mark.first
@pytest.mark.parametrize(
    "name", [name if name == "fedpbs" else pytest.param(name, marks=pytest.mark.slow) for name in DOCUMENTS]
)
def test_every_number_of_a_document_is_in_its_export(tmp_path, name: str) -> None:
    """All tables and claims of a document can be made from its export alone."""
    document, store = load(name).at("quick"), RunStore(tmp_path)
    planned = plan(document, "quick")
    for number in to_execute(store, [p.experiment for p in planned[: 2 * len(document.arms)]], name):
        rows = [(None, m.split, m.name, 0.5) for m in MEASURES if m.stored and m.split in (*OF_MODELS, "round")]
        store.add_facts(number, from_toml(store.run(number).experiment).declared)
        stored = measures_of([store.run(number).facts]).stored
        of_clients = [key for of in OF_CLIENTS if (key := tuple(of.split("/"))) in stored]
        rows += [(i, *key, 0.5 + i) for i in (0, 1) for key in of_clients]
        for round_ in range(7):
            store.write_round(number, round_, rows)
        store.update(number, status="finished")
    known = results(store, planned)
    made = json.loads(json.dumps(export.exported(document, "quick", known, {}), allow_nan=False))
    assert [j.verdict for j in verdicts(document, export.results_of(made))] == [
        j.verdict for j in verdicts(document, known)
    ]
    assert f"# {document.title}: quick scale" in loaded("docs/builder/documents.py").page(made)
    for table in document.tables:
        assert str(cells(table, export.results_of(made))) == str(cells(table, known))
    for claim, one, other in zip(
        document.claims, *(verdicts(document, k) for k in (known, export.results_of(made))), strict=True
    ):
        assert str(one.evidence) == str(other.evidence), claim.name
