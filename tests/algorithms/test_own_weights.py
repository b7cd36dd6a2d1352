"""The clients' own weights in averages: ``weighting="own"``."""

from pathlib import Path

import pytest
import torch

from fedskew.algorithms import FedAvg, Scaffold
from fedskew.api.functions import run
from fedskew.core.errors import BadInput
from fedskew.core.records import Cohort, Upload
from fedskew.execution.build import assemble
from fedskew.loop.round import start
from tests.blobs import DATA, numbers, small

OWN = ["1:weight=3", "4:weight=0.5,epochs=1"]


def assembly_of(method: str, own: list[str] | None):
    return assemble(small(method, clients__own=own), DATA)


def test_weights_are_the_clients_own_and_1_for_others() -> None:
    assembly = assembly_of("fedavg:weighting=own", OWN)
    fed = assembly.federation
    view = fed.view(start(fed, assembly.x0))
    assert view.weights.tolist() == [1, 3, 1, 1, 0.5, 1]
    at = torch.tensor([1, 2, 4])
    info = fed.info._replace(**{name: value[at] for name, value in fed.info._asdict().items()})
    deltas = torch.eye(3, assembly.x0.numel())
    cohort = Cohort(info, Upload(deltas, {}, {}))
    assert fed.algorithm.weights(view, cohort).tolist() == pytest.approx([3 / 4.5, 1 / 4.5, 0.5 / 4.5])
    torch.testing.assert_close(fed.algorithm.mean_delta(view, cohort)[:3], torch.tensor([3.0, 1.0, 0.5]) / 4.5)
    assert Scaffold(weighting="own").shares(view, cohort).tolist() == pytest.approx([3 / 7.5, 1 / 7.5, 0.5 / 7.5])


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fednova"])
def test_equal_weights_are_uniform_weights(method: str, tmp_path: Path) -> None:
    runs = [
        run(small(f"{method}:weighting={weighting}"), data=DATA, runs=tmp_path / weighting)
        for weighting in ("own", "uniform")
    ]
    assert numbers(runs[0]) == numbers(runs[1])


def test_weights_equal_to_the_numbers_of_rows_are_the_usual_weights(tmp_path: Path) -> None:
    usual = run(small(), data=DATA, runs=tmp_path / "usual")
    rows = usual.store.partition(1).groupby("client")["rows"].sum()
    own = [f"{k}:weight={n}" for k, n in rows.items()]
    weighted = run(small("fedavg:weighting=own", clients__own=own), data=DATA, runs=tmp_path / "own")
    assert numbers(weighted) == numbers(usual)
    assert FedAvg().weighting == "samples"


@pytest.mark.parametrize(
    ("method", "own", "message"),
    [
        ("fedavg", OWN, "clients: own: 1: a weight needs weighting=own, as in --algorithm fedavg:weighting=own"),
        ("fedavg:weighting=own", ["1:weight=0"], "clients: own: 1: weight must be a finite number above 0, got 0"),
        ("median:weighting=own", None, "weighting must be uniform, got 'own'"),
    ],
)
def test_weights_without_effect_are_refused(method: str, own: list[str] | None, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        assembly_of(method, own)
