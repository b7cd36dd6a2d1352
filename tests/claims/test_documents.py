"""Documents: each is whole and can be built; a reproduction resumes, and repeats nothing."""

import argparse
import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from fedskew.api.caller import Caller
from fedskew.api.execute import complete
from fedskew.claims import reproduce
from fedskew.claims.document import DOCUMENTS, OVER_ROUNDS, STATISTICS, Document, document_from, load
from fedskew.claims.page import markdown
from fedskew.claims.quantities import reader
from fedskew.claims.reproduce import estimate, experiment_of, missing, plan, results
from fedskew.claims.verdicts import cells, verdicts
from fedskew.cli.reproduce import announced
from fedskew.core.errors import BadInput
from fedskew.execution.build import check_needs
from fedskew.experiment.config import Experiment
from fedskew.store.runs import RunStore


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_are_whole(name: str) -> None:
    """Every arm can be built at every scale, belongs to a table or a claim, and every number that a claim is about exists."""
    document = load(name)
    used = {arm for part in (*document.tables, *document.claims) for arm in part.arms}
    assert used == set(document.arms)
    assert set(document.scales) == ({"quick"} if name == "contradictions" else {"quick", "standard", "full"})
    for scale in document.scales:
        experiments = [experiment_of(document, scale, arm, 3) for arm in document.arms]
        assert len({e.hash() for e in experiments}) == len(experiments)
        assert all(e.training.seed == e.clients.partition_seed == 3 for e in experiments)
        for experiment in experiments:
            check_needs(experiment)
        assert all(e.training.threads >= 1 for e in experiments), "what is left open would change the hash"
    for table in document.tables:
        assert all(map(reader, table.measures))
    for one in document.claims:
        if one.kind not in ("share of rounds", "largest gap"):
            assert reader(one.of), one.name
        assert not one.against or reader(one.against), one.name


@pytest.mark.parametrize(("scale", "level"), [("quick", "0.85"), ("standard", "0.4"), ("full", "0.6")])
def test_how_far_is_far_enough_depends_on_the_scale(scale: str, level: str) -> None:
    claims = {claim.name: claim.of for claim in load("iid-to-noniid").at(scale).claims}
    assert claims["batch-speed"] == claims["epochs-speed"] == claims["rate-speed"] == f"rounds-to:{level}"
    assert claims["one-epoch-best-iid"] == "accuracy"


@pytest.mark.parametrize("scale", ["quick", "standard", "full"])
def test_arms_that_are_matched_have_the_same_update_amount(scale: str) -> None:
    """Third document: a round's update amount is u = eta E |D| / (B K)."""
    document = load("iid-to-noniid")

    def amount(arm: str) -> float:
        of = experiment_of(document, scale, arm, 0)
        return of.solver.lr * of.local.epochs / (of.local.batch_size * of.clients.number)

    matched = [arm for table in document.tables if table.name == "figure-3" for arm in table.arms]
    assert [amount(arm) for arm in matched] == pytest.approx([amount("K=1")] * len(matched))
    assert amount("IID, smallest batch") == pytest.approx(amount("IID, epochs for smallest batch"))
    batches = ["IID, largest batch", "IID, larger batch", "IID, base", "IID, smallest batch"]
    rates = ["IID, smallest rate", "IID, smaller rate", "IID, base", "IID, larger rate", "IID, largest rate"]
    for arms in (batches, rates):
        assert (np.diff([amount(arm) for arm in arms]) > 0).all()


def tiny() -> Document:
    base = {
        "dataset": "digits", "engine": "stacked", "training": {"rounds": 2, "threads": 1},
        "local": {"epochs": 1, "batch_size": 32}, "model": "softmax", "clients": {"number": 3},
    }  # fmt: skip
    return document_from(
        {
            "name": "tiny",
            "title": "A document",
            "scales": {"quick": {"seeds": 2, "base": base, "arms": {"longer": {"training.rounds": 5}}}},
            "arms": {
                "one": {"local.epochs": 1},
                "longer": {"training.rounds": 4, "solver": "sgd:lr=0.2", "solver.momentum": 0.5},
                "momentum": {"algorithm": "fedavgm:beta=0.5"},
            },
            "tables": [
                {"name": "first", "title": "First", "arms": ["one", "longer"], "measures": ["accuracy"],
                 "printed": {"one": {"accuracy": 0.5}, "longer": {"accuracy": 0.4}}},
                {"name": "second", "title": "Second", "arms": ["momentum"], "measures": ["drift"]},
            ],
            "claims": [
                {"name": "true", "text": "longer is better", "where": "p. 1", "table": "first", "kind": "difference",
                 "of": "accuracy", "arms": ["longer", "one"], "expect": "> 0"},
            ],
        },
        "tiny",
    )  # fmt: skip


def test_arms_change_the_base() -> None:
    longer = experiment_of(tiny(), "quick", "longer", 4)
    assert (longer.training.rounds, longer.solver.lr, longer.solver.momentum) == (5, 0.2, 0.5)
    assert (longer.name, longer.training.seed, longer.clients.partition_seed) == ("longer", 4, 4)
    assert experiment_of(tiny(), "quick", "momentum", 0).server.beta == 0.5


def test_scale_defines_its_parts_and_the_settings_that_are_seeds() -> None:
    table = msgspec.to_builtins(tiny())
    table["arms"]["one"] = {"part": "images", "local.epochs": 3}
    quick = table["scales"]["quick"]
    quick["parts"] = {"images": {"local.epochs": 2, "local.batch_size": 8}}
    table["scales"]["full"] = {**quick, "parts": {"images": {"solver": "sgd:lr=0.7"}}, "seeded": ["training.seed"]}
    document = document_from(table, "tiny")
    one = experiment_of(document, "quick", "one", 4)
    assert (one.local.epochs, one.local.batch_size, one.clients.partition_seed) == (3, 8, 4)
    one = experiment_of(document, "full", "one", 4)
    assert (one.local.batch_size, one.solver.lr, one.training.seed, one.clients.partition_seed) == (32, 0.7, 4, 0)
    del quick["parts"]
    with pytest.raises(BadInput, match="there is no 'images'"):
        document_from(table, "tiny")


def test_a_reproduction_runs_once_goes_on_and_gives_verdicts(tmp_path) -> None:
    document, store = tiny(), RunStore(tmp_path)
    planned = plan(document, "quick")
    assert [(p.arm, p.seed) for p in planned[:4]] == [("one", 0), ("longer", 0), ("momentum", 0), ("one", 1)]

    def carry_out(part) -> None:
        complete(store, [p.experiment for p in part], "tiny", 1, Caller(progress=False))

    carry_out(planned[:3])
    assert missing(store, planned) == planned[3:]
    assert verdicts(document, results(store, planned))[0].verdict == "undecided"
    carry_out(missing(store, planned))
    assert missing(store, planned) == []
    assert len(store.runs()) == 6
    known = results(store, planned)
    judged = verdicts(document, known)[0]
    assert (judged.verdict, judged.seeds, judged.diverged) == ("holds", (0, 1), 0)
    assert judged.evidence.in_document == pytest.approx(-0.1)
    cell = cells(document.tables[0], known)["one"]["accuracy"]
    assert cell.document == 0.5
    assert 0.2 < cell.mean < 1
    page = markdown(document, "quick", known)
    assert "| one | 0.5 | " in page
    assert "**holds** · longer is better (p. 1)" in page


@pytest.mark.parametrize(("name", "lines"), [("failure-modes", 1), ("drift-demo", 0)])
def test_reproduce_notes_a_precision_that_is_slow_on_this_machine(name, lines, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("fedskew.report.progress.LINE_EVERY", -1.0)
    monkeypatch.setattr("fedskew.cli.reproduce.estimate", lambda *given: given[-1]("estimating", 0.1) or 60.0)
    monkeypatch.setattr("fedskew.execution.plan.slow_bf16", lambda: "precision bf16: slower on this processor")
    document = load(name).at("standard")
    options = argparse.Namespace(jobs=1, scale="standard")
    announced(RunStore(tmp_path), document, plan(document, "standard")[-1:], options)
    printed = capsys.readouterr().err
    assert printed.count("precision bf16: slower on this processor") == lines
    assert re.search(r"^estimating: \d+ s so far$", printed, re.M), "its parts are unequal, so no end is foretold"


def test_an_estimate_that_takes_too_long_times_one_arm_of_each_data_set_and_model(monkeypatch) -> None:
    """The other arms count by their rounds and local epochs."""
    document, timed = tiny(), []

    def three_seconds(experiment, dataset) -> float:
        timed.append(experiment.name)
        return 3.0

    monkeypatch.setattr(reproduce, "a_round", three_seconds)
    planned = plan(document, "quick")
    rounds = [p.experiment.training.rounds for p in planned]
    assert len(set(rounds)) > 1
    assert estimate(planned, jobs=2) == 3.0 * sum(rounds) / 2
    assert sorted(set(timed)) == sorted(document.arms)
    monkeypatch.setattr(reproduce, "PATIENCE", -1.0)
    timed.clear()
    assert estimate(planned, jobs=1) == pytest.approx(3.0 * sum(rounds))
    assert len(timed) == 1
    other = {"model": "mlp", "local": {"epochs": 10}, "training": {"rounds": 1}}
    more = dataclasses.replace(
        document, arms={**document.arms, "other": other, "again": {**other, "training": {"rounds": 7}}}
    )
    timed.clear()
    arms = {p.arm: p.experiment for p in plan(more, "quick")}
    seeds = len(plan(more, "quick")) // len(arms)
    expected = seeds * 3.0 * sum(e.training.rounds for e in arms.values())
    assert estimate(plan(more, "quick"), jobs=1) == pytest.approx(expected)
    assert len(timed) == 2
    monkeypatch.setattr(reproduce, "PATIENCE", 60.0)
    timed.clear()
    surveying = dataclasses.replace(document, arms={**document.arms, "fedbs": {"algorithm": "fedbs"}})
    estimate(plan(surveying, "quick"), jobs=1)
    assert sorted(timed) == sorted(document.arms)


@pytest.mark.parametrize(
    ("times", "sizes", "each"),
    [([10.0, 10.01, 20.0, 20.25], [(1, 1), (2, 2)], 0.125), ([10.0, 10.5], [(1, 1)], 0.5)],
    ids=["rows that are fast to score: more are timed", "rows that are slow to score"],
)
def test_scoring_time_of_some_rows_is_scaled_to_all_rows(
    times: list[float], sizes: list[tuple[int, int]], each: float, monkeypatch
) -> None:
    scored, clock, data = [], iter(times), Experiment().dataset.load()
    monkeypatch.setattr(reproduce, "SCORED", (1, 2))
    monkeypatch.setattr(reproduce, "estimate_seconds", lambda *_, **__: 1.0)
    monkeypatch.setattr(reproduce, "evaluate", lambda task, w, x, y: scored.append((len(x), len(y))))
    monkeypatch.setattr(reproduce, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    rows = len(data.y) + len(data.y_test)
    assert reproduce.a_round(Experiment(engine="sequential"), data) == pytest.approx(1 + each * rows)
    assert scored == sizes


def test_one_table_alone_needs_its_arms_only() -> None:
    second = tiny().only("second")
    assert list(second.arms) == ["momentum"]
    assert second.claims == ()
    assert second.scales["quick"].arms == {}
    with pytest.raises(BadInput, match="did you mean 'first'"):
        tiny().only("frst")
    with pytest.raises(BadInput, match="no scale 'full'; known are: quick"):
        plan(tiny(), "full")


def test_the_page_on_claims_counts_them() -> None:
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "claims.md").read_text()
    for name in DOCUMENTS:
        assert f"| `{name}` | {len(load(name).claims)} |" in text
    assert all(f"`{kind}`" in text for kind in [*STATISTICS, *OVER_ROUNDS])
