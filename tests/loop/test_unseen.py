"""Unseen clients: nothing of theirs enters training, and their curve agrees with the models computed by hand."""

import dataclasses

import numpy as np
import pytest
import torch

from fedskew.api.functions import resume, run
from fedskew.core.errors import BadInput
from fedskew.engine import Sequential
from fedskew.engine.states import ClientStates
from fedskew.execution.build import adaptation_of, assemble, check_needs, setup_of
from fedskew.experiment.config import Experiment
from fedskew.loop.personal import ROWS, adaptation_curve
from fedskew.loop.round import play_round, start
from fedskew.report.series import Results
from tests.blobs import DATA, blobs, numbers, small

PEOPLE = dataclasses.replace(blobs(rows=240), groups=np.arange(240) % 8)
"""Eight natural clients of 30 rows: 24 to train or adapt on, 6 held out."""


def people(method: str = "fedavg", **changes) -> Experiment:
    """Two of the eight clients are unseen."""
    clients = {"held_out": 0.2, "unseen": 0.25}
    return small(method, skew="natural", selection="everyone", **{"clients": clients} | changes)


def test_unseen_clients_take_no_part(tmp_path) -> None:
    experiment = people(local={"epochs": 1, "batch_size": 1})
    made = assemble(experiment, PEOPLE)
    unseen = made.data.unseen
    assert unseen is not None
    assert (len(made.partition), len(unseen)) == (6, 2)
    assert {*made.partition.names, *unseen.names} == set("01234567")
    trained = [set(made.partition.rows(k)) | set(made.partition.measured_rows(k)) for k in range(6)]
    apart = [set(unseen.rows(k)) | set(unseen.measured_rows(k)) for k in range(2)]
    assert sum(map(len, trained + apart)) == len(set().union(*trained, *apart)) == 240
    runs = run(experiment, data=PEOPLE, runs=tmp_path)
    steps = runs.measurements().query("split == 'client' and name == 'steps' and round == 1")["value"]
    assert steps.tolist() == [24] * 6
    assert runs.records[0].facts["partition"]["unseen"] == 2


@pytest.mark.parametrize("method", ["scaffold", "ifca:k=2"])
def test_training_does_not_depend_on_what_unseen_clients_hold(tmp_path, method: str) -> None:
    unseen = assemble(people(method), PEOPLE).data.unseen
    assert unseen is not None
    assert unseen.held_out is not None
    rows = np.concatenate([unseen.indices, unseen.held_out[0]])
    x, y = PEOPLE.x.copy(), PEOPLE.y.copy()
    x[rows], y[rows] = 100 - x[rows], (y[rows] + 1) % 3
    other = dataclasses.replace(PEOPLE, x=x, y=y)
    one, two = (run(people(method), data=d, runs=tmp_path / str(i)) for i, d in enumerate((PEOPLE, other)))
    own = ("unseen", "adaptation")
    # all rows of the data set decide which class is the rarest, and which constant answer is the best
    of_data = ("recall_of_rarest", "constant")
    others = ([row for row in numbers(of) if row[2] not in own and row[3] not in of_data] for of in (one, two))
    assert next(others) == next(others)
    assert [row for row in numbers(one) if row[2] in own] != [row for row in numbers(two) if row[2] in own]


def played(experiment: Experiment, engine=None):
    """The assembly, and the server after the rounds."""
    made = assemble(experiment, PEOPLE)
    server, states = start(made.federation, made.x0), ClientStates()
    for _ in range(experiment.training.rounds):
        server = play_round(made.federation, engine or Sequential(), server, states).server
    return made, server


EXACT = {
    "training": {"rounds": 2, "dtype": "float64", "threads": 1},
    "local": {"epochs": 3, "batch_size": "all"},
    "solver": "sgd:lr=0.2",
}


def test_the_curve_begins_with_the_global_model_and_ends_with_fine_tuning() -> None:
    made, server = played(people(**EXACT))
    fed, unseen = made.federation, made.data.unseen
    assert unseen is not None
    curve = adaptation_curve(fed, Sequential(), server, unseen, adaptation_of(made.experiment), np.arange(2))
    assert len(curve) == len(ROWS)
    for k in range(2):
        held = unseen.measured_rows(k)
        for rows, scores in zip((0, 5, 10, 20, 24, 24), curve, strict=True):
            own, w = unseen.rows(k)[:rows], server.x
            for _ in range(3 if rows else 0):
                leaf = w.detach().requires_grad_()
                logits = fed.task.logits(leaf, fed.x[own])
                (slope,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, fed.y[own]), leaf)
                w = w - 0.2 * slope
            logits = fed.task.logits(w, fed.x[held])
            loss = torch.nn.functional.cross_entropy(logits, fed.y[held])
            right = (logits.argmax(1) == fed.y[held]).double().mean()
            assert float(scores["loss"][k]) == pytest.approx(float(loss), rel=1e-12)
            assert float(scores["accuracy"][k]) == float(right)


def test_a_new_client_of_ditto_starts_from_the_global_model() -> None:
    """It has no personal model yet, so that Ditto's curve is FedAvg's."""
    made, server = played(people("ditto", **EXACT))
    plain = assemble(people(**EXACT), PEOPLE).federation
    assert made.data.unseen is not None
    one, two = (
        adaptation_curve(fed, Sequential(), server, made.data.unseen, adaptation_of(made.experiment), np.arange(2))
        for fed in (made.federation, plain)
    )
    assert all(torch.equal(a["loss"], b["loss"]) for a, b in zip(one, two, strict=True))


def test_a_resumed_run_and_its_views_have_the_numbers(tmp_path) -> None:
    whole = run(people("scaffold"), data=PEOPLE, runs=tmp_path / "whole")
    frame = whole.measurements()
    curve = frame[frame["split"] == "adaptation"].sort_values("client")["value"].tolist()
    row = whole.table().iloc[0]
    assert (row["unseen"], row["unseen_adapted"]) == (curve[0], curve[-1])
    assert set(frame.loc[frame["split"] == "unseen", "round"]) == {4}
    names = Results(whole.store, whole.records).parts.query("split == 'adaptation'")["part"].tolist()
    assert names == ["0", "5", "10", "20", "50", "all"]

    def stop(progress) -> None:
        if progress.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(people("scaffold"), data=PEOPLE, runs=tmp_path / "cut", listener=stop)
    assert numbers(resume(data=PEOPLE, runs=tmp_path / "cut", progress=False)) == numbers(whole)


def test_clients_who_share_nothing_have_no_model_for_a_new_one(tmp_path) -> None:
    frame = run(people("local-only"), data=PEOPLE, runs=tmp_path).measurements()
    assert not set(frame["split"]) & {"unseen", "adaptation"}


@pytest.mark.parametrize(
    ("clients", "reason"),
    [
        ({"number": 6, "held_out": 0.2, "unseen": 0.2}, "unseen 0.2 of 6 clients leaves 1 with held-out rows"),
        ({"number": 60, "held_out": 0.2, "unseen": 0.5}, "unseen 0.5 of 60 clients leaves 0 with held-out rows"),
        ({"held_out": 0.0, "unseen": 0.2}, "unseen clients are measured on held-out rows; set held_out above 0"),
    ],
)
def test_impossible_numbers_of_unseen_clients_are_refused(clients, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        assemble(small(skew="iid", clients=clients), DATA)


def test_nodes_leave_no_client_out() -> None:
    experiment = people()
    check_needs(experiment)
    with pytest.raises(BadInput, match="clients: unseen: on nodes every client trains; leave it out"):
        check_needs(experiment, dataclasses.replace(setup_of(experiment), simulated=False))
