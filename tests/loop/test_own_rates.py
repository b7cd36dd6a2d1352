"""The learning rate of a named client, which it has in place of the solver's."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedskew.algorithms import FedAvg, Scaffold
from fedskew.api.functions import run
from fedskew.core.errors import BadInput
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked
from fedskew.experiment.config import from_toml
from tests.blobs import DATA, numbers, small
from tests.reference import assert_close
from tests.small import RAGGED, X0, Quadratic, exact_clients, play, ragged

ENGINES = (Sequential(), Stacked())


@pytest.mark.parametrize("engine", ENGINES)
def test_a_round_of_two_clients_with_one_step_each_equals_the_numbers_by_hand(engine) -> None:
    """Gradients of (w - 2)^2 / 2 and 3 (w + 1)^2 / 2 at 0.5: -1.5 and 4.5. At rates 0.1 and 0.02: 0.65 and 0.41."""
    clients = Quadratic(), [[1.0, 2.0], [3.0, -1.0]], (1, 1)
    fed = replace(exact_clients(*clients, FedAvg(), lr=0.1), rates=np.array([0.1, 0.02]))
    outcome = play(fed, [0.5], 1, engine)[0]
    assert_close(outcome.done.uploads.delta, [[0.15], [-0.09]])
    assert_close(outcome.server.x, [0.53])
    # SCAFFOLD's control variates are gradients: each update is divided by the client's own rate
    fed = replace(exact_clients(*clients, Scaffold(), lr=0.1), rates=fed.rates)
    server = play(fed, [0.5], 1, engine)[0].server
    assert_close(server.x, [0.53])
    assert_close(server.state["c"], [1.5])


@pytest.mark.parametrize("engine", ENGINES)
def test_each_client_trains_as_in_a_federation_in_which_all_have_its_rate(engine) -> None:
    """With momentum and a schedule of the rate, which all rates follow."""
    rates = np.array([0.1, 0.3, 0.1, 0.02, 0.3, 0.1, 0.1])
    fed = ragged(FedAvg())
    fed = replace(fed, rounds=3, solver=replace(fed.solver, momentum=0.5, lr_decay="warm-up:2"))
    outcome = play(replace(fed, rates=rates), X0, 1, engine)[0]
    for rate in np.unique(rates):
        alike = play(replace(fed, rates=np.full(len(RAGGED), rate)), X0, 1, engine)[0]
        usual = play(replace(fed, solver=replace(fed.solver, lr=float(rate))), X0, 1, engine)[0]
        assert (alike.done.uploads.delta == usual.done.uploads.delta).all()
        assert_close(outcome.done.uploads.delta[rates == rate], alike.done.uploads.delta[rates == rate])


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_the_solver_s_rate_for_a_named_client_changes_no_bit(engine: str, tmp_path: Path) -> None:
    settings = {"engine": engine, "evaluation__adapt_steps": 2, "solver": "sgd:lr=0.3,lr_decay=0.9"}
    usual = run(small(**settings), data=DATA, runs=tmp_path / "usual")
    alike = run(small(clients__own=["2:lr=0.3"], **settings), data=DATA, runs=tmp_path / "alike")
    all_ = run(
        small(clients__own=[f"{k}:lr=0.3" for k in range(6)], **settings | {"solver": "sgd:lr=0.1,lr_decay=0.9"}),
        data=DATA,
        runs=tmp_path / "all",
    )
    assert numbers(usual) == numbers(alike)
    whole = [[row for row in numbers(runs) if row[3] != "update_amount"] for runs in (usual, all_)]
    assert whole[0] == whole[1]
    assert from_toml(alike.records[0].experiment).clients.own == ("2:lr=0.3",)


@pytest.mark.parametrize(
    "changes",
    [{"evaluation__adapt_steps": 3}, {"method": "local-only", "model": "mixed:models=[softmax,mlp:hidden=[4]]"}],
)
def test_only_the_named_client_s_own_model_changes(changes: dict[str, object], tmp_path: Path) -> None:
    """It is as in a run in which all have its rate: tuned before the first round, or trained alone."""
    last = 0 if "evaluation__adapt_steps" in changes else 2

    def losses(name: str, **settings: object) -> pd.Series:
        settings = {"rounds": 2, "selection": "everyone", "engine": "sequential"} | changes | settings
        frame = run(small(**settings), data=DATA, runs=tmp_path / name).measurements()
        rows = frame[(frame["split"] == "personal-model") & (frame["name"] == "loss") & (frame["round"] == last)]
        return rows.set_index("client")["value"]

    own, usual = losses("own", clients__own=["2:lr=0.5"]), losses("usual")
    assert own[2] == losses("high", solver="sgd:lr=0.5")[2] != usual[2]
    assert own.drop(2).equals(usual.drop(2))
    if not last:
        fixed = {"evaluation__adapt_lr": 0.2}
        assert losses("fixed", **fixed).equals(losses("own fixed", clients__own=["2:lr=0.5"], **fixed))


def test_the_amount_of_local_work_counts_each_client_s_rate(tmp_path: Path) -> None:
    runs = run(
        small(clients__own=["2:lr=0.5,steps=4"], steps=2, rounds=1, selection="everyone", solver="sgd:lr=0.1"),
        data=DATA,
        runs=tmp_path,
    )
    rows = runs.store.partition(1).groupby("client")["rows"].sum()
    frame = runs.measurements()
    amount = frame[frame["name"] == "update_amount"]["value"].iloc[0]
    expected = sum(rows[k] * (0.5 * 4 if k == 2 else 0.1 * 2) for k in rows.index) / rows.sum()
    assert amount == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("method", "own", "message"),
    [
        ("fedavg", ["2:lr=0"], "clients: own: 2: lr must be"),
        (
            "fednova",
            ["2:lr=0.1"],
            "fednova computes with one learning rate for all clients; leave lr out of clients.own, or",
        ),
        ("qfedavg:q=2", ["2:lr=0.1"], "qfedavg computes with one learning rate for all clients"),
    ],
)
def test_a_rate_that_does_not_fit_is_refused(method: str, own: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as error:
        run(small(method, clients__own=own), data=DATA, runs=tmp_path)
    assert str(error.value).startswith(message)
