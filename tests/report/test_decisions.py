"""What methods decide about clients: printed, drawn, exported and read, from the store alone."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedskew.api.runs import open as open_store
from fedskew.cli.main import main
from fedskew.core.errors import BadInput
from fedskew.report import files, html, plots
from fedskew.report.files import write_tables
from fedskew.report.html import page
from fedskew.report.plots import plot
from fedskew.report.series import Results
from fedskew.report.style import Picture
from fedskew.store.runs import RunStore
from tests.commands import output_of
from tests.report import add

MU = {"split": "client", "name": "mu", "note": "strength of the proximal term", "views": []}
RULE = {"split": "client", "name": "rule_number", "note": "1 intra, 2 inter", "views": []}
LIMIT = {"split": "round", "name": "limit", "note": "the server's threshold", "views": ["curve"]}


def of_decisions(results: Results, most_points: int = 0) -> dict[str, Picture]:
    """Build the figures of what a method decided; the others take most of a page's time."""
    built = plots.builders(results, most_points)
    return {what: built[what]() for what in built if what.startswith(("mu", "rule", "limit"))}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    """Return a store with a run of fedavg, and a run whose method decided about clients 0 and 1, in turn and then both."""
    monkeypatch.setenv("COLUMNS", "120")
    for module in (html, files):
        monkeypatch.setattr(module, "pictures", of_decisions)
    store = RunStore(tmp_path / "runs")
    add(store, "fedavg", 0, [0.2, 0.3, 0.4])
    run = add(store, "dualmetric", 0, [0.1, 0.2, 0.3])
    store.add_facts(run, {"measures": [MU, RULE, LIMIT]})
    rows = {1: {0: 0.01}, 2: {1: 0.02}, 3: {0: 0.5}}
    for round_, of_clients in rows.items():
        decided = [(k, "client", "mu", v) for k, v in of_clients.items()]
        decided += [(k, "client", "rule_number", 2.0) for k in of_clients]
        store.write_round(run, round_, [*decided, (None, "round", "limit", 7.5)])
    store.set_partition(run, [(0, "north", "a", 5), (1, "south", "a", 5)])
    return store


def test_show_prints_the_last_decision_about_each_client(store: RunStore) -> None:
    lines = [line.split() for line in output_of("show", "2", "--runs", store.folder).splitlines()]
    at = lines.index(["client", "round", "mu", "rule_number"])
    assert lines[at + 1 : at + 3] == [["north", "3", "0.5", "2"], ["south", "2", "0.02", "2"]]
    assert ["rule_number:", "1", "intra,", "2", "inter"] in lines
    [run] = json.loads(output_of("show", "2", "--runs", store.folder, "--json"))["runs"]
    assert run["decided"][0] == {"round": 1, "client": 0, "client_name": "north", "name": "mu", "value": 0.01}
    assert len(run["decided"]) == 6
    assert "rule_number" not in output_of("show", "1", "--runs", store.folder)


def test_the_report_draws_a_line_for_each_client(store: RunStore, tmp_path: Path) -> None:
    results = Results(store, store.runs())
    axes = plot(results, "mu-by-client").axes[0]
    lines = {str(line.get_label()): line for line in axes.get_lines() if len(line.get_xdata())}
    assert lines.keys() == {"north", "south"}
    assert lines["north"].get_xydata().tolist() == [[1, 0.01], [3, 0.5]]
    assert lines["south"].get_xydata().tolist() == [[2, 0.02]]
    assert axes.get_ylabel() == "mu"
    text = page(results)
    assert 'aria-label="mu of each client over rounds"' in text
    assert 'aria-label="rule number of each client over rounds"' in text
    assert "Strength of the proximal term. Run 2, " in text
    assert 'aria-label="limit over rounds"' in text
    write_tables(results, tmp_path)
    table = (tmp_path / "mu-by-client.csv").read_text().splitlines()
    assert table[:2] == ["method,run,round,client,client_name,value", "dualmetric,2,1,0,north,0.01"]
    with pytest.raises(BadInput, match="there is no figure 'mu-by-client'"):
        plot(Results(store, store.runs()[:1]), "mu-by-client")


def test_many_clients_are_drawn_in_part(store: RunStore, capsys: pytest.CaptureFixture[str]) -> None:
    store.write_round(2, 4, [(k, "client", "mu", float(k)) for k in range(2, 40)])
    results = Results(store, store.runs())
    assert len({line.get_label() for line in plot(results, "mu-by-client").axes[0].get_lines()}) == 12 + 12
    assert "Drawn are 12 of 40 clients." in page(results)
    main(["show", "2", "--runs", str(store.folder)])
    assert "20 more clients: --json has them" in capsys.readouterr().out


def test_python_reads_them_as_a_table(store: RunStore) -> None:
    runs = open_store(store.folder).runs()
    frame = runs.curves("mu")
    assert list(frame.columns) == ["method", "run", "round", "client", "client_name", "value"]
    assert frame["value"].tolist() == [0.01, 0.02, 0.5]
    assert frame["client_name"].tolist() == ["north", "south", "north"]
    assert np.isclose(runs.curves("limit")["mean"], 7.5).all()
    with pytest.raises(BadInput, match="there is no curve of 'muu'; did you mean 'mu'"):
        runs.curves("muu")
