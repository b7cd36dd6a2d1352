"""Harmonisation on nodes: each node changes its own rows or keeps its own intercept, and models equal the simulation's."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedskew.api.functions import run
from fedskew.core.errors import BadInput, Interrupted
from fedskew.data.datasets.table import TableData
from fedskew.diagnosis.questions import LEAVES
from fedskew.execution.learned import kept
from fedskew.flower.limits import Limits
from fedskew.flower.node import Node
from fedskew.flower.server import serve
from fedskew.flower.tables import Rows, read_rows, write_rows
from fedskew.flower.wire import Reply, pack, unpack
from fedskew.report.html import board_page
from fedskew.report.series import Results
from fedskew.store.runs import RunStore
from tests.flower_nodes import RUN, VERSIONS, Direct, configuration, final, nodes_of, request, served, small

MODELS = ["global-model", "personal-model"]


@pytest.mark.parametrize("harmonisation", ["site-scale", "site-bias:rate=2", "prior"])
def test_models_and_clients_scores_equal_the_simulation_s(harmonisation: str, tmp_path: Path) -> None:
    """Test rows differ: the server changes them by its own rows, because means of sites stay at the sites."""
    experiment = small(harmonisation=harmonisation, rounds=2)
    simulated = run(experiment, runs=tmp_path / "simulated")
    channel, store = served(experiment, tmp_path, labels=True)
    scores = []
    for each in (simulated.store, store):
        frame = each.measurements([1], per_client=True)
        frame = frame[frame["split"].isin(MODELS)].sort_values(["round", "client", "split", "name"])
        scores.append(frame.reset_index(drop=True))
    assert torch.equal(final(simulated.store)["x"], final(store)["x"])
    assert set(scores[0]["split"]) == {*MODELS[: 1 + (harmonisation != "site-scale")]}
    assert scores[0].drop(columns=["run", "value"]).equals(scores[1].drop(columns=["run", "value"]))
    np.testing.assert_allclose(scores[0]["value"], scores[1]["value"], atol=1e-6)
    learned = kept(store, 1)
    assert learned is not None
    assert learned.by_site.names == (tuple(f"site {k}" for k in range(4)) if harmonisation == "prior" else ())
    assert ("the server's own rows stand for them" in learned.by_site.unknown) == (harmonisation == "site-scale")
    if harmonisation != "prior":
        assert all(b"totals" not in request or b'"totals":[]' in request for _, _, request, _ in channel.seen)


def sharing(nodes: list[Node], fewest: int) -> list[Node]:
    """The nodes of owners who agree to send sums of columns."""
    return [replace(node, limits=Limits(summary=True, fewest=fewest)) for node in nodes]


def kinds(channel: Direct) -> list[str]:
    return [kind for _, kind, _, _ in channel.seen]


@pytest.mark.parametrize(
    ("options", "data"),
    [
        ("", {"skew": "feature-affine:strength=0.5"}),
        (":shrinkage=false", {"skew": "feature-affine:strength=0.5"}),
        (":protected=[age,cp]", {"dataset": "heart", "skew": "natural"}),
    ],
)
def test_combat_of_nodes_that_send_sums_equals_the_simulation_s(
    options: str, data: dict[str, object], tmp_path: Path
) -> None:
    experiment = small(harmonisation=f"combat{options}", rounds=2, dtype="float64", **data)
    simulated = run(experiment, runs=tmp_path / "simulated")
    channel = Direct(sharing(nodes_of(experiment, tmp_path), fewest=1))
    serve(channel, configuration(experiment, tmp_path), VERSIONS)
    stores = simulated.store, RunStore(tmp_path / "runs")
    learned = [kept(store, 1).by_site for store in stores]
    assert learned[1].names == ("site 0", "site 1", "site 2", "site 3")
    assert learned[0].unknown == learned[1].unknown == "left as they are"
    for one, other in zip(*(site.maps for site in learned), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
    assert np.ptp(learned[1].maps.factor[:-1], axis=0).max() > 0.1
    torch.testing.assert_close(*(final(store)["x"] for store in stores), rtol=1e-12, atol=1e-12)
    scores = [store.curves([1], ["test/loss", "global-model/loss"], per_client=True) for store in stores]
    assert [m.value for m in scores[0]] == pytest.approx([m.value for m in scores[1]], rel=1e-12)
    assert kinds(channel).count("harmonise") == 8, "each of four nodes sends its sums and gets its change, once"
    left = stores[1].run(1).facts["left"]["harmonise"]
    width, protected = learned[1].maps.factor.shape[1], len(learned[1].protected)
    assert left == {"mean": width, "squares": width, "products": protected * width}
    board = board_page(Results(stores[1], stores[1].runs()))
    assert "Once, for the harmonisation, with its owner’s consent (--share-summary)" in board
    assert "constant if one of them has fewer rows" in board


def test_sums_leave_a_node_only_as_its_owner_s_list_says_and_about_enough_rows(tmp_path: Path) -> None:
    experiment = small(harmonisation="combat", rounds=1)
    nodes = nodes_of(experiment, tmp_path)
    x, y = np.random.default_rng(1).normal(size=(20, 64)), np.arange(20) % 10
    x[:, 0] = np.arange(20) < 4  # a value of four rows
    x[:, 1] = np.arange(20) < 5
    x[:, 2] = np.arange(20) > 3  # all but four rows
    np.savez(nodes[0].rows, x=x.astype(np.float32), y=y)
    sent = answer(sharing(nodes, fewest=5)[0], protected=(3,))
    assert {("harmonise", name) for name in sent} == {
        (leaf.step, leaf.name) for leaf in LEAVES if leaf.step == "harmonise"
    }
    hidden = x.astype(np.float32).astype(np.float64)
    hidden[:, 0], hidden[:, 2] = 0, 1
    apart = hidden - hidden.mean(0)
    np.testing.assert_allclose(sent["mean"], hidden.mean(0), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(sent["squares"], (apart**2).sum(0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(sent["products"], apart[:, [3]].T @ apart, rtol=1e-12, atol=1e-12)
    assert (sent["squares"][[0, 2]] == 0).all()
    assert sent["squares"][1] > 0
    whole = answer(sharing(nodes, fewest=1)[0])
    np.testing.assert_allclose(whole["mean"][:3], [0.2, 0.25, 0.8], rtol=1e-12)
    with pytest.raises(AssertionError, match="this site has 20 training rows, and sends no sums of fewer than 21"):
        answer(sharing(nodes, fewest=21)[0])
    persons = replace(sharing(nodes, fewest=5)[0], table=TableData(path=str(tmp_path / "t.csv"), label="y", person="p"))
    write_rows(persons.file(RUN), read_rows(nodes[0].rows))
    with pytest.raises(AssertionError, match="sums of rows, not of persons"):
        answer(persons)


def answer(node: Node, **facts: Any) -> dict[str, torch.Tensor]:
    message = pack(request(small(harmonisation="combat"), "harmonise", node.client, **facts))
    reply, tensors = unpack(node.answer(message), Reply)
    assert reply.kind == "harmonise", reply.reason
    return tensors


def test_a_resumed_run_asks_for_no_sums_again_and_goes_on_exactly(tmp_path: Path) -> None:
    experiment = small(harmonisation="combat", rounds=3).replace(checkpoint__every=1)
    nodes = sharing(nodes_of(experiment, tmp_path), fewest=5)
    serve(Direct(nodes), configuration(experiment, tmp_path / "whole"), VERSIONS)
    stop, options = iter([False, True]), configuration(experiment, tmp_path / "parts")
    with pytest.raises(Interrupted):
        serve(Direct(nodes), options, VERSIONS, stop=lambda: next(stop, True))
    channel = Direct(nodes)
    serve(channel, {**options, "resume": 1}, VERSIONS)
    assert "harmonise" not in kinds(channel)
    assert torch.equal(*(final(RunStore(tmp_path / name / "runs"))["x"] for name in ("whole", "parts")))


@pytest.mark.parametrize(
    ("harmonisation", "settings", "words"),
    [
        (
            "combat",
            {},
            "harmonisation: site 3: this node sends no sums of its columns; its owner can start it with --share-summary",
        ),
        ("combat:protected=[age]", {}, "harmonisation: protected: there is no column 'age'"),
        ("prior", {}, "prior needs the rows of each class at each site; set deployment.labels"),
        ("site-scale", {"dataset": "adult", "skew": "iid"}, "nodes do not know which columns stay as they are"),
    ],
)
def test_harmonisations_that_nodes_cannot_do_are_refused_in_one_line(
    harmonisation: str, settings: dict[str, object], words: str, tmp_path: Path
) -> None:
    experiment = small(harmonisation=harmonisation, rounds=1, **settings)
    with pytest.raises(BadInput, match=words) as error:
        served(experiment, tmp_path)
    assert "\n" not in str(error.value)


def test_a_site_with_one_row_has_no_scale_of_its_own(tmp_path: Path) -> None:
    """A simulation treats it as an unknown site, by all sites' rows, which a node does not know."""
    experiment = small(harmonisation="site-scale", rounds=1)
    nodes = nodes_of(experiment, tmp_path)
    write_rows(nodes[0].rows, Rows(*(part[:1] for part in vars(read_rows(nodes[0].rows)).values())))
    serve(Direct(nodes), configuration(experiment, tmp_path), VERSIONS)
    store = RunStore(tmp_path / "runs")
    faults = store.curves([1], ["fault/refused"], per_client=True)
    assert [m.client for m in faults] == [0]
