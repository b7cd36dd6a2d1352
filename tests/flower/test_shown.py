"""What is shown of a run between sites: that it is one, its sites, and what left them."""

import json
import re
from dataclasses import replace
from html import escape, unescape
from pathlib import Path

import pytest

from fedskew.core.trees import leaves
from fedskew.experiment.config import from_toml
from fedskew.flower.server import serve
from fedskew.flower.wire import Kind, Reply, unpack
from fedskew.report.html import board_page, page
from fedskew.report.series import Results
from fedskew.store.runs import RunStore
from tests.commands import line_of, output_of
from tests.flower_nodes import VERSIONS, Direct, configuration, nodes_of, served, small

SITES = ["Cleveland", "Budapest", "site 2", "Long <Beach>"]
"""The owner of client 2 gave no name."""


def spoil(client: int, kind: Kind, round_: int, data: bytes) -> bytes | None:
    """Budapest is killed in round 3 (after two), and the answer of Long <Beach> in round 2 cannot be read."""
    if client == 1 and round_ >= 2:
        return None
    return data[:-1] if (client, kind, round_) == (3, "train", 1) else data


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """Run 1 took place between four sites."""
    folder, experiment = tmp_path_factory.mktemp("shown"), small("scaffold", 3)
    names = [name.replace("site 2", "") for name in SITES]
    nodes = [replace(node, name=name) for node, name in zip(nodes_of(experiment, folder), names, strict=True)]
    channel = Direct(nodes, spoil)
    serve(channel, configuration(experiment, folder, fewest=0.75, labels=True), VERSIONS)
    return RunStore(folder / "runs")


def test_a_run_between_sites_has_no_skew_and_is_not_repeated_by_a_simulation(store: RunStore) -> None:
    record = store.run(1)
    assert from_toml(record.experiment).labels("skew") == ["natural"]
    assert record.facts["partition"]["skews"] == "natural"
    shown, written = line_of("show", "--runs", store.folder), page(Results(store, [record]))
    assert "run 1: SCAFFOLD between sites, finished" in shown
    again = f"flower init app-1 --recipe {store.folder}/1/experiment.toml --runs {store.folder}; flwr run app-1 --run-config "
    settings = "'deployment.fewest=0.75 deployment.labels=true deployment.wait=1.0'"
    assert again + settings in shown
    assert again + settings.replace("'", "&#39;") in written
    for text in (shown, written):
        assert "between sites" in text
        for simulated in ("dirichlet", "fedskew run", "--seeds", "local-only", "dealt"):
            assert simulated not in text.replace("rows dealt at random", "").replace("rows dealt to train on", "")


def test_the_sites_of_a_run_have_their_rows_and_scores(store: RunStore) -> None:
    sites = json.loads(output_of("show", "--json", "--runs", store.folder))["sites"]
    population = store.run(1).facts["flower"]["population"]
    # Budapest did not report what the last model reaches
    assert [site["site"] for site in sites] == [name for name in SITES if name != "Budapest"]
    assert [site["rows"] for site in sites] == [rows[1] for k, rows in enumerate(population) if k != 1]
    assert all(0 < site["accuracy"] <= 1 for site in sites)


def test_a_site_is_named_with_its_rounds_and_faults(store: RunStore) -> None:
    shown, written = output_of("show", "--runs", store.folder), page(Results(store, store.runs()))
    table = [line for line in shown.splitlines() if line.startswith(tuple(SITES))]
    rows = [str(sizes[0]) for sizes in store.run(1).facts["flower"]["population"]]
    words = [line.replace(name, "").split()[:6] for name, line in zip(SITES, table, strict=True)]
    assert [cells[:4] for cells in words] == [[n, taken, "of", "3"] for n, taken in zip(rows, "3232", strict=True)]
    assert "away or too late in round 2–3" in table[1]  # it measured no model after round 2
    assert table[1].split()[-2:] == ["–", "–"]
    assert "garbage in round 2" in table[3]
    for name in SITES:
        assert f'<th scope="row">{escape(name)}</th>' in written
    assert "Long <Beach>" not in written


@pytest.mark.parametrize("method", ["drfa", "scaffold"])
def test_the_record_names_every_number_that_left_a_site(method: str, tmp_path: Path) -> None:
    """The messages have the same names and sizes, and no others."""
    experiment = small(method, 2, codec="top-k:share=0.1") if method == "scaffold" else small(method, 2)
    channel, store = served(experiment, tmp_path, labels=True)
    sent: dict[str, dict[str, int]] = {}
    for _, kind, _, data in channel.seen:
        sizes = {path: leaf.numel() for path, leaf in leaves(unpack(data, Reply)[1])}
        sent.setdefault(kind, {}).update(sizes)
    assert sent.pop("meet") == {}
    assert store.run(1).facts["left"] == sent
    assert {"train", "measure"} | ({"survey"} if method == "drfa" else set()) == sent.keys()


def test_the_page_for_a_board_says_what_left_each_site_and_what_protects_it(store: RunStore) -> None:
    path = store.folder / "out" / "mine.html"
    out = output_of("report", "--runs", store.folder, "--output", path)
    assert out.split() == ["report:", str(path), str(path.with_name("mine-sites.html"))]
    board = text_of(path.with_name("mine-sites.html").read_text())
    for line in (
        "What left the sites: SCAFFOLD on digits",
        "4 sites trained one model together",
        "The run is finished after 3 of 3 rounds.",
        "away or too late in round 2–3",
        "Last columns: the rows on which the site measured the model, and its accuracy, %.",
        "and its number of rows of each class.",
        "In each round in which it trains: delta/values, 650 numbers: the change of the model by the site's training",
        "extras/c, 650 numbers: a vector or number that the method needs beside it",
        "When models are measured: global/accuracy, 1 number: mean of a score of the server's model, over the site's rows",
        "There is no secure aggregation",
        "There is no noise",
        "no limit that its owner set",
        "The server rejects answers that are not finite, too long or impossible",
    ):
        assert line in board, line
    for line in ("epsilon", "--share-summary", "--fewest"):
        assert line not in board


def test_the_page_for_a_board_states_clipping_and_noise(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    experiment = small("dp-fedavg:q=1,clip=0.05,noise=2", selection="poisson:rate=1", rounds=2)
    _, store = served(experiment, tmp_path)
    board = text_of(board_page(Results(store, store.runs())))
    [epsilon] = store.last([1], ["round/epsilon"])
    assert "is cut to length 0.05 before it leaves" in board
    assert f"After all rounds epsilon is {epsilon.value:.3g}, at the method's delta, for one whole site" in board
    assert "The noise protects nobody from the server." in board
    assert "The server rejects answers that are not finite or impossible" in board
    assert "There is no noise" not in board
    assert "no limit that its owner set" not in board


def text_of(written: str) -> str:
    return " ".join(unescape(re.sub("<[^>]+>", "", written)).split())
