"""Harmonisation on nodes: each node changes its own rows or keeps its own intercept, and models equal the simulation's."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fedskew.api.functions import run
from fedskew.core.errors import BadInput
from fedskew.execution.learned import kept
from fedskew.flower.server import serve
from fedskew.store import checkpoints
from fedskew.store.runs import RunStore
from tests.flower_nodes import Direct, configuration, nodes_of, small

MODELS = ["global-model", "personal-model"]


@pytest.mark.parametrize("harmonisation", ["site-scale", "site-bias:rate=2", "prior"])
def test_models_and_clients_scores_equal_the_simulation_s(harmonisation: str, tmp_path: Path) -> None:
    """Test rows differ: the server changes them by its own rows, because means of sites stay at the sites."""
    experiment = small(harmonisation=harmonisation, rounds=2)
    simulated = run(experiment, runs=tmp_path / "simulated")
    channel = Direct(nodes_of(experiment, tmp_path))
    number = serve(channel, configuration(experiment, tmp_path, labels=True), {"flwr": "none"})
    store = RunStore(tmp_path / "runs")
    models, scores = [], []
    for s, n in ((simulated.store, 1), (store, number)):
        models.append(checkpoints.load(checkpoints.latest(s.run_folder(n)))[0]["x"])
        frame = s.measurements([n], per_client=True)
        frame = frame[frame["split"].isin(MODELS)].sort_values(["round", "client", "split", "name"])
        scores.append(frame.reset_index(drop=True))
    assert torch.equal(*models)
    assert set(scores[0]["split"]) == {*MODELS[: 1 + (harmonisation != "site-scale")]}
    assert scores[0].drop(columns=["run", "value"]).equals(scores[1].drop(columns=["run", "value"]))
    np.testing.assert_allclose(scores[0]["value"], scores[1]["value"], atol=1e-6)
    learned = kept(store, number)
    assert learned is not None
    assert learned.by_site.names == (tuple(f"site {k}" for k in range(4)) if harmonisation == "prior" else ())
    assert ("the server's own rows stand for them" in learned.by_site.unknown) == (harmonisation == "site-scale")
    if harmonisation != "prior":
        assert all(b"totals" not in request or b'"totals":[]' in request for _, _, request, _ in channel.seen)


@pytest.mark.parametrize(
    ("harmonisation", "settings", "words"),
    [
        ("combat", {}, "harmonisation combat needs sums of all sites, which nodes do not send; use site-scale"),
        ("prior", {}, "prior needs the rows of each class at each site; set deployment.labels"),
        ("site-scale", {"dataset": "adult", "skew": "iid"}, "nodes do not know which columns stay as they are"),
    ],
)
def test_what_nodes_cannot_do_is_refused_in_one_line(
    harmonisation: str, settings: dict[str, object], words: str, tmp_path: Path
) -> None:
    experiment = small(harmonisation=harmonisation, rounds=1, **settings)
    with pytest.raises(BadInput, match=words) as error:
        serve(Direct(nodes_of(experiment, tmp_path)), configuration(experiment, tmp_path), {"flwr": "none"})
    assert "\n" not in str(error.value)
