"""What must hold in every round, whatever method and slots: each function raises `AssertionError` where it does not."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fedskew.core.algorithm import PUBLIC, Algorithm
from fedskew.core.records import Cohort, Server, ServerView
from fedskew.core.trees import leaves, map_leaves, num_bytes, pick
from fedskew.engine.sequential import Sequential
from fedskew.engine.states import ClientStates
from fedskew.execution.build import Assembly
from fedskew.execution.measurements import at_most, inexactness_rows, measured_every, model_rows, round_rows
from fedskew.execution.site import LocalClients
from fedskew.loop.federation import Federation
from fedskew.loop.round import shared_model, start, transmit
from fedskew.loop.work import Outcome

Given = list[tuple[ServerView, Cohort]]

OTHER_MEANS = {
    "DpFedAvg": "divides by the expected number of clients",
    "FedDyn": "subtracts the dual variable",
    "FedSmoo": "subtracts the dual variable",
    "FedNova": "weighs each client by its steps",
    "QFedAvg": "weighs each client by its loss over the curvature",
    "Ifca": "averages over the clients of each cluster",
    "FedMd": "sends no models",
}
"""Methods whose step is not a weighted mean of the updates, and why."""

ON_AVERAGE = {
    "Afl": "of some clients it takes the stochastic form, whose weights sum to one on average over the cohorts"
}
"""Methods whose weights sum to one only where all clients answer, and why."""

DUAL = {"Scaffold": ("c", "c_k"), "FedDyn": ("h", "g_k"), "FedSmoo": ("lambda", "lambda_k")}
"""Methods whose server holds the mean of what all clients hold, clients that never took part holding 0."""


@dataclass(frozen=True)
class NoClients:
    def select(self, clients: Any, rng: Any) -> Any:
        return clients[:0]


def watched(algorithm: Algorithm, given: Given) -> Algorithm:
    """Return the same method. It records the arguments of its hook ``aggregate``."""
    cls = type(algorithm)

    def aggregate(self: Any, server: ServerView, cohort: Cohort) -> Any:
        given.append((server, cohort))
        return cls.aggregate(algorithm, server, cohort)

    copy = object.__new__(type(cls.__name__, (cls,), {"aggregate": aggregate}))
    copy.__dict__.update(vars(algorithm))
    return copy


def play(assembly: Assembly, rounds: int = 3) -> None:
    """Play the rounds as a run does, with all checks after each; then a resumed last round, and an empty one."""
    given: Given = []
    fed = replace(assembly.federation, algorithm=watched(assembly.federation.algorithm, given))
    experiment = assembly.experiment
    site, states = LocalClients(Sequential(), experiment.faults), ClientStates()
    every, measured = measured_every(assembly), at_most(fed.clients, assembly)
    server, copies = start(fed, assembly.x0), []
    for t in range(rounds):
        copies.append((server, states.export()))
        now = t == 0 or (t + 1) % every == 0
        outcome = site.play_round(fed, server, states, now and experiment.evaluation.local_models)
        assert outcome.server.round == t + 1
        numbers_are_finite(outcome)
        turnout_shrinks(fed, outcome)
        bytes_add_up(fed, outcome)
        kept_entries_stay(fed, assembly.x0, outcome.server)
        others_keep_their_states(states, copies[-1][1], outcome)
        server_holds_the_mean(fed, experiment.faults.attackers > 0, outcome.server, states)
        rows = round_rows(assembly, outcome) + inexactness_rows(assembly, Sequential(), outcome)
        if now:
            before = states.export()
            rows += model_rows(assembly, site, outcome.server, states, measured)
            assert same(states.export()[1], before[1]), "measuring changes what clients keep"
        no_row_twice(rows)
        server = outcome.server
    for before, cohort in given:
        if cohort.size and (type(fed.algorithm).__name__ not in ON_AVERAGE or cohort.size == len(fed.partition)):
            weights_sum_to_one(fed.algorithm, before, cohort)
            a_common_step_is_taken(fed.algorithm, before, cohort)
    resumed(fed, site, copies[-1], server, states, rounds)
    an_empty_first_round_is_only_counted(fed, site, assembly.x0, copies[1][0])
    empty_rounds_move_nothing(fed, site, server, states)


def numbers_are_finite(outcome: Outcome) -> None:
    server = outcome.server
    for name, leaf in leaves({"x": server.x, "opt": server.opt, "state": server.state, "clients": outcome.done.states}):
        assert bool(leaf.double().isfinite().all()), f"{name} is not finite"


def turnout_shrinks(fed: Federation, outcome: Outcome) -> None:
    turnout, clients = outcome.work.turnout, outcome.work.clients
    assert turnout.answered <= turnout.selected <= turnout.available <= len(fed.partition)
    assert np.array_equal(clients, np.unique(clients))
    assert fed.program.convenes or len(clients) <= turnout.answered
    assert len(clients) == len(outcome.done.uploads.delta) == len(outcome.work.plans) == len(outcome.steps)


def bytes_add_up(fed: Federation, outcome: Outcome) -> None:
    """Down: a model and what the method adds for everyone who was reached; up: the codec's messages, and what the method adds."""
    work, uploads = outcome.work, outcome.done.uploads
    shared = len(fed.own_part.others) if fed.own_part else len(work.view.x)
    one = shared * work.view.x.element_size() + num_bytes(
        {name: part for name, part in work.view.extras.items() if name != PUBLIC}
    )
    # batch sizes that follow the variance: a number of each client that trains, up and down
    trained = work.turnout.answered - work.turnout.stragglers * fed.system.drop_stragglers
    survey = trained * work.view.x.element_size() if fed.system.variance else 0
    assert outcome.bytes_down == work.turnout.answered * one + survey or fed.program.convenes
    rows = fed.own_part.sent(uploads.delta) if fed.own_part else uploads.delta
    sent = num_bytes((uploads.extras, uploads.report))
    arrived, slack = len(rows) + (outcome.done.rejected or 0), 0
    if shared and len(rows):
        model, encoded = shared_model(fed), transmit(fed, work, outcome.done)
        sent += sum(num_bytes(fed.codec.pack(pick(encoded.coded, i), model)) for i in range(len(rows)))
        # each field of a message is whole bytes, and so is their sum
        slack = arrived * len(model.space.layers())
    sent = sent * arrived // max(len(rows), 1)  # a rejected reply counts as the mean of the others
    survey_bytes = outcome.bytes_up - sent - survey
    assert -slack <= survey_bytes <= 0 or (fed.program.convenes and survey_bytes >= -slack), (outcome.bytes_up, sent)


def kept_entries_stay(fed: Federation, x0: torch.Tensor, server: Server) -> None:
    """Check that entries that clients keep do not change in the server's model."""
    assert fed.own_part is None or torch.equal(fed.own_part.of_model(server.x), fed.own_part.of_model(x0))


def others_keep_their_states(states: ClientStates, before: Any, outcome: Outcome) -> None:
    ids, rows = before
    now, after = states.export()
    assert set(now) == set(ids) | set(outcome.work.clients)
    for i, k in enumerate(ids):
        if k not in outcome.work.clients:
            assert same(pick(after, int(np.flatnonzero(now == k)[0])), pick(rows, i)), f"client {k} took no part"


def server_holds_the_mean(fed: Federation, attacked: bool, server: Server, states: ClientStates) -> None:
    """Check that the server has the mean of the clients' values. Attackers are left out: they send other values than they store."""
    name = type(fed.algorithm).__name__
    ids, rows = states.export()
    if name not in DUAL or attacked or not len(ids):
        return
    own = rows.get("algorithm", rows)[DUAL[name][1]]
    everyone = Cohort(pick(fed.info, torch.as_tensor(ids)), None)  # type: ignore[arg-type]
    mean = fed.algorithm.shares(fed.view(server), everyone) @ own
    off = float((server.state[DUAL[name][0]] - mean).norm() / mean.norm().clamp(min=1e-12))
    assert off < 1e-9, f"the server's {DUAL[name][0]} is off the mean of the clients' {DUAL[name][1]} by {off:.1e}"


def no_row_twice(rows: list[Any]) -> None:
    keys = [row[:3] for row in rows]
    twice = {key for key in keys if keys.count(key) > 1}
    assert not twice, f"stored twice: {sorted(twice, key=str)[:3]}"
    assert all(np.isfinite(row[3]) for row in rows)


def weights_sum_to_one(algorithm: Algorithm, server: ServerView, cohort: Cohort) -> None:
    total = float(algorithm.weights(server, cohort).sum())
    assert abs(total - 1) < 1e-9, f"the weights of {cohort.size} clients sum to {total}"


def a_common_step_is_taken(algorithm: Algorithm, server: ServerView, cohort: Cohort) -> None:
    """Check that the mean of equal updates is this update."""
    if type(algorithm).__name__ in OTHER_MEANS:
        return
    step = torch.linspace(-1, 1, len(server.x), dtype=server.x.dtype) / 100
    same_step = cohort._replace(uploads=cohort.uploads._replace(delta=step.expand(cohort.size, -1)), dispersion=None)
    delta = type(algorithm).__mro__[1].aggregate(algorithm, server, same_step)[0]
    off = float((delta - step).abs().max() / step.abs().max())
    assert off < 1e-9, f"all {cohort.size} clients take one step, and the model moves otherwise, by {off:.1e} of it"


def resumed(fed: Federation, site: LocalClients, copy: Any, server: Server, states: ClientStates, rounds: int) -> None:
    """Check that the last round, played again from exported states, is bitwise equal."""
    before, (ids, rows) = copy
    again = ClientStates.restore(ids, map_leaves(torch.clone, rows))
    after = site.play_round(fed, before, again, False).server
    assert after.round == rounds
    assert torch.equal(after.x, server.x), "a resumed round differs"
    assert same((after.opt, after.state), (server.opt, server.state)), "a resumed round differs"
    assert same(again.export()[1], states.export()[1]), "a resumed round differs"


def empty_rounds_move_nothing(fed: Federation, site: LocalClients, server: Server, states: ClientStates) -> None:
    kept = states.export()
    outcome = site.play_round(replace(fed, selection=NoClients()), server, states, False)
    after = outcome.server
    assert after.round == server.round + 1
    assert (outcome.bytes_down, outcome.bytes_up) == (0, 0)
    assert same(states.export()[1], kept[1]), "an empty round changes what clients keep"
    if not fed.contract.steps_alone:
        assert torch.equal(after.x, server.x), "an empty round moves the model"
        assert same((after.opt, after.state), (server.opt, server.state)), "an empty round changes the server"


def an_empty_first_round_is_only_counted(fed: Federation, site: LocalClients, x0: torch.Tensor, first: Server) -> None:
    """What sums to one after the first round (``first``) sums to one after an empty round and then one with clients."""
    states = ClientStates()
    server = site.play_round(replace(fed, selection=NoClients()), start(fed, x0), states, False).server
    server = site.play_round(fed, server, states, False).server
    if not len(states.clients):
        return
    now = dict(leaves(server.state))
    for name, leaf in leaves(first.state):
        if abs(float(leaf.double().sum()) - 1) < 1e-9 and bool((leaf < 1).all()):  # and no count of one client
            total = float(now[name].sum())
            assert abs(total - 1) < 1e-9, f"{name} sums to {total} after an empty first round"


def same(one: Any, two: Any) -> bool:
    """Return True if two trees have bitwise equal numbers of the same types."""
    a, b = dict(leaves(one)), dict(leaves(two))
    return a.keys() == b.keys() and all(a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]) for name in a)
