"""Comparisons by what each site's model reaches: verdicts, the table by site, and the columns of methods without a shared model."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedskew as fs
from fedskew.cli.main import main
from fedskew.core.errors import BadInput
from fedskew.execution import facts
from fedskew.measure.statistics import over_common_rows, over_seeds_and_rows
from fedskew.report.experiments import provenance
from fedskew.report.files import texts_of
from fedskew.report.html import page as page_of
from fedskew.report.series import Layout, Results, readable_by_site
from fedskew.report.tables import by_method, splits, values_of_rows
from tests.commands import output_of

METHODS = ["fedavg", "local-only", "ditto"]


def compared(folder: Path, dataset: str, **settings) -> fs.Runs:
    settings = {"skew": "natural", "seeds": 3, "rounds": 2, "baselines": False} | settings
    return fs.compare(METHODS, dataset=dataset, runs=folder / "runs", progress=False, **settings)


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> fs.Runs:
    return compared(tmp_path_factory.mktemp("fixed"), "heart:redraw=false")


@pytest.fixture(scope="module")
def redrawn(tmp_path_factory: pytest.TempPathFactory) -> fs.Runs:
    return compared(tmp_path_factory.mktemp("redrawn"), "heart")


def at_sites(runs: fs.Runs) -> Results:
    return Results(runs.store, runs.records, layout=Layout(by="sites"))


def test_a_method_without_a_shared_model_gets_a_verdict_at_the_sites(fixed: fs.Runs) -> None:
    test, sites = fixed.table().set_index("method"), fixed.table(by="sites").set_index("method")
    assert np.isnan(test.loc["local-only", "accuracy"])
    assert test.loc["local-only", "verdict"] == ""
    assert sites.loc["local-only", "verdict"] in ("higher", "lower", "undecided")
    gap = sites["sites"]["local-only"] - sites["sites"]["fedavg"]
    assert sites.loc["local-only", "difference"] == pytest.approx(gap)
    assert sites["sites"]["fedavg"] == pytest.approx(test["accuracy"]["fedavg"])
    assert test.loc["fedavg", "covers"] == "seeds and test rows"


def test_a_method_without_a_shared_model_shows_no_classes_of_the_initial_one_and_no_drift(tmp_path: Path) -> None:
    runs = compared(tmp_path, "heart", seeds=1, evaluation={"classes": True})
    assert set(runs.results().parts["run"]) == {1, 3}
    assert "class (" not in output_of("show", "2", "--runs", runs.store.folder)
    assert np.isnan(runs.table().set_index("method").loc["local-only", "drift"])
    assert set(runs.curves("drift")["method"]) == {"fedavg", "ditto"}


def rows_by_hand(runs: fs.Runs, method: str) -> list[np.ndarray]:
    by_row = by_method(runs.store, runs.records, "sites")
    keys = list(by_row[method])
    return [rows.values for rows in values_of_rows(by_row[method], by_row["fedavg"], keys)]


def test_the_interval_covers_seeds_and_fixed_rows(fixed: fs.Runs) -> None:
    row = fixed.table(by="sites").set_index("method").loc["local-only"]
    assert row["covers"] == "seeds and test rows"
    assert row["difference_half"] == pytest.approx(
        over_seeds_and_rows(np.stack(rows_by_hand(fixed, "local-only"))).half()
    )


def test_the_interval_covers_redrawn_rows(redrawn: fs.Runs) -> None:
    row = redrawn.table(by="sites").set_index("method").loc["local-only"]
    assert row["covers"] == "seeds and redrawn test rows"
    by_row, drawn = by_method(redrawn.store, redrawn.records, "sites"), splits(redrawn.records, "sites")
    units = [stored.units for stored in by_row["local-only"].values()]
    every = np.unique(np.concatenate(units))
    assert len(every) < sum(map(len, units)), "splits have rows in common, which have one id"
    table = np.full((3, len(every)), np.nan)
    for at, (ids, values) in enumerate(zip(units, rows_by_hand(redrawn, "local-only"), strict=True)):
        table[at, np.searchsorted(every, ids)] = values
    assert row["difference_half"] == pytest.approx(over_common_rows(table, drawn.ratio).half())


def test_folds_of_rows_are_tested_at_the_sites(tmp_path: Path) -> None:
    runs = compared(tmp_path, "heart", seeds=1, folds="3")
    table = runs.table(by="sites").set_index("method")
    assert table.loc["ditto", "covers"] == "seeds and folds of rows"
    assert table.loc["fedavg", "sites"] == pytest.approx(runs.table().set_index("method").loc["fedavg", "accuracy"])


def test_held_out_rows_of_each_partition_are_redrawn_rows(tmp_path: Path) -> None:
    runs = compared(tmp_path, "digits", skew="label-dirichlet:alpha=1", clients=4, rounds=1)
    drawn = splits(runs.records, "sites")
    facts = runs.records[0].facts["partition"]
    assert drawn.ratio == pytest.approx(facts["held_out"] / facts["rows"], rel=0.01)
    assert splits(runs.records) is None, "all seeds have the same test rows"
    assert runs.table(by="sites").set_index("method").loc["ditto", "covers"] == "seeds and redrawn test rows"
    assert len(runs.sites()) == 0, "clients of a label skew have no names"


def test_the_table_by_site_has_the_stored_values(fixed: fs.Runs) -> None:
    table = fixed.sites().set_index(["site", "method"])
    assert list(table.columns) == ["rows", "accuracy", "recall_of_rarest"]
    frame = fixed.measurements().query("split == 'sites' and client == 3 and name == 'accuracy'")
    ids = [record.id for record in fixed.records if record.name == "local-only"]
    mean = frame[frame["run"].isin(ids)]["value"].mean()
    assert table.loc[("Switzerland", "Local only"), "accuracy"] == pytest.approx(mean)
    fedavg = table.xs("FedAvg", level="method")
    weighted = (fedavg["accuracy"] * fedavg["rows"]).sum() / fedavg["rows"].sum()
    assert weighted == pytest.approx(fixed.table(by="sites")["sites"][0])
    assert texts_of(at_sites(fixed))["sites.csv"].splitlines()[0] == "site,method,rows,accuracy,recall_of_rarest"


def test_readers_see_a_column_of_each_method(fixed: fs.Runs) -> None:
    columns = readable_by_site(at_sites(fixed).titled)
    recalls = [f"{name}, recall of healthy %" for name in ("FedAvg", "Local only", "Ditto")]
    assert list(columns) == ["site", "rows", "FedAvg", "Local only", "Ditto", *recalls]
    assert columns["site"] == ["Budapest", "Cleveland", "Long Beach", "Switzerland"]


def test_no_column_has_numbers_of_personal_models_only(fixed: fs.Runs) -> None:
    keys = [measure.key for measure in Results(fixed.store, fixed.records).columns("table")]
    assert "sites" in keys
    assert "personal" not in keys
    alone = Results(fixed.store, [record for record in fixed.records if record.name == "fedavg"])
    assert "sites" not in [measure.key for measure in alone.columns("table")], "it is the accuracy"


def test_the_command_line_and_the_page_show_sites_by_name(fixed: fs.Runs, tmp_path: Path) -> None:
    folder = str(fixed.store.folder)
    shown = output_of("show", "--runs", folder, "--by", "sites")
    assert "by site: accuracy at the sites %" in shown
    assert "Switzerland" in shown
    assert main(["report", "--runs", folder, "--by", "sites", "--output", str(tmp_path / "p.html")]) == 0
    page = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert "Difference from FedAvg" in page
    assert '<th scope="row">Long Beach</th>' in page
    assert all("–" not in line for line in output_of("list", "--runs", folder).splitlines() if "Local only" in line)


def test_the_page_begins_with_the_comparison_and_the_sites(redrawn: fs.Runs) -> None:
    page = page_of(at_sites(redrawn))
    places = [page.index(f'<section id="{name}">') for name in ("differences", "sites", "summary", "figures")]
    assert places == sorted(places)
    assert places[0] < page.index("</header>")
    headings = re.findall(r'<th scope="col"[^>]*>([^<]*)', page[places[2] :])
    assert headings[:3] == ["method", "accuracy at the sites", "vs FedAvg"], "what compares them comes first"
    assert "<h3>accuracy by client<" in page, "of the server's model, not at the sites"


def test_notes_on_the_data_stand_once_for_all_splits(redrawn: fs.Runs) -> None:
    lines = {line.label: line.values for line in provenance(redrawn.records)}
    assert len(lines["data"]) == 3, "each seed has a fingerprint"
    assert [value.text for value in lines["notes"]] == [redrawn.records[0].facts["data"]["notes"]]


def test_wrong_requests_get_one_line(fixed: fs.Runs, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"^by: unknown 'clients'; known are test, sites$"):
        fixed.table(by="clients")
    none = compared(tmp_path, "digits", skew="iid", clients={"number": 3, "held_out": 0}, rounds=1)
    with pytest.raises(BadInput, match=r"^by sites: no run has values at the sites yet; [^\n]*$"):
        none.table(by="sites")
    first, other = fixed.records[:2]
    other = replace(other, facts=other.facts | {"sites": {"rows": "held-out"}})
    mixed = Results(fixed.store, [first, other], layout=Layout(by="sites"))
    with pytest.raises(BadInput, match=r"^by sites: some runs measure test rows, others held-out rows; [^\n]*$"):
        mixed.columns("table")


def test_a_client_without_a_stored_name_is_not_mixed_with_the_one_of_that_name(tmp_path: Path, monkeypatch) -> None:
    """Sites 1 and 2 are clients 0 and 1. Where the store had no name for client 1, it was called 1, too: two sites became one."""
    rng, sites = np.random.default_rng(0), np.repeat([1, 2], 30)
    y = np.where((rng.normal(size=60) > 0) & (sites == 1), "ill", "well")
    frame = pd.DataFrame({"x": rng.normal(size=60), "site": sites, "y": y})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    options = {"rounds": 1, "model": "softmax", "runs": tmp_path / "runs", "progress": False}
    whole = fs.run(dataset=f"table:{tmp_path / 'rows.csv'},label=y,client=site", **options).sites()
    monkeypatch.setattr(facts, "SHOWN_CLIENTS", 1)
    few = fs.run(dataset=f"table:{tmp_path / 'rows.csv'},label=y,client=site", **options).sites()
    assert whole["accuracy"].nunique() == 2
    assert few["accuracy"].tolist() == whole["accuracy"].tolist()
    assert (whole["site"].tolist(), few["site"].tolist()) == (["1", "2"], ["1", "client 1"])
