"""The guarantee of a private method beside every slot: accepted is what says that it keeps it, and measured to keep it."""

import dataclasses
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from fedskew.algorithms import DpFedAvg
from fedskew.core.algorithm import Contract
from fedskew.core.component import build
from fedskew.core.errors import BadInput
from fedskew.core.privacy import alone, check_part
from fedskew.core.records import Privacy
from fedskew.engine.sequential import Sequential
from fedskew.engine.states import ClientStates
from fedskew.experiment.config import COMPONENTS, SETTINGS, Experiment, check_private
from fedskew.experiment.settings import GIVEN
from fedskew.loop.federation import Federation
from fedskew.loop.plan import System
from fedskew.loop.round import play_round, start
from fedskew.slots import Clip, Poisson, ServerSgd
from tests.covering import covering
from tests.slot_options import fits, made, method_of, options
from tests.small import Linear, exact_clients

torch.set_num_threads(1)

CLIP, Q = 0.05, 0.7
METHOD = f"dp-fedavg:clip={CLIP},noise=0.0,q={Q}"


@dataclass(frozen=True)
class Without:
    """A selection of all available clients except one. With -1 it selects all."""

    left_out: int

    def select(self, clients: Any, rng: Any) -> Any:
        return clients[clients != self.left_out]


def without_last(fed: Federation) -> Federation:
    """Return the federation without its last client."""
    return replace(fed, partition=fed.partition.only(np.arange(len(fed.partition) - 1)))


def largest_change(fed: Federation, x0: torch.Tensor) -> float:
    """Return how much the sum of the second round changes without one client, in units of the clip.

    Every second client in turn is not selected, or (key K) the last one does not exist.
    """
    server, states = start(fed, x0), ClientStates()
    server, sums = play_round(fed, Sequential(), server, states, False).server._replace(opt={}), {}
    for left_out in (-1, *range(0, len(fed.partition), 2)):
        one = replace(fed, selection=Without(left_out), server_optimiser=ServerSgd())
        after = play_round(one, Sequential(), server, ClientStates.restore(*states.export()), False).server
        sums[left_out] = (after.x - server.x) * Q * len(fed.partition)
    fewer = replace(without_last(fed), selection=Without(-1), server_optimiser=ServerSgd())
    after = play_round(fewer, Sequential(), server, ClientStates.restore(*states.export()), False).server
    sums[len(fed.partition)] = (after.x - server.x) * Q * len(fewer.partition)
    return max(float((sums[-1] - one).norm()) for one in sums.values()) / CLIP


def slots() -> dict[str, dict[str, Any]]:
    """Return all slots that act in a round, except the selection: the method sets it."""
    return {slot: tried for slot, tried in options().items() if slot not in ("selection", "evaluation")}


def accepted() -> dict[str, list[str]]:
    return {
        slot: [name for name, one in tried.items() if not isinstance(made(METHOD, **{slot: one}), str)]
        for slot, tried in slots().items()
    }


def test_one_client_changes_the_sum_by_the_clip_at_most_beside_all_that_is_accepted() -> None:
    known = slots()

    def allowed(case: dict[str, str]) -> bool:
        return fits(METHOD, **{slot: known[slot][name] for slot, name in case.items()})

    cases = covering(accepted(), allowed)
    changes = []
    for case in cases:
        assembly = made(METHOD, **{slot: known[slot][name] for slot, name in case.items()})
        assert not isinstance(assembly, str), (case, assembly)
        changes.append(largest_change(assembly.federation, assembly.x0))
        assert changes[-1] <= 1 + 1e-9, (changes[-1], case)
    assert np.median(changes) > 0.99, "the clip binds in most cases"


@pytest.mark.parametrize(
    ("slots", "words"),
    [
        ({"refine": "distillation:steps=2"}, ["refine distillation", "before noise is added", "--refine none"]),
        ({"selection": "everyone"}, ["selection", "--selection poisson:rate=0.7"]),
        ({"selection": "poisson:rate=0.6"}, ["selection", "--selection poisson:rate=0.7"]),
        ({"availability": "blocks:phase=label"}, ["availability blocks", "one client changes the groups of others"]),
        ({"availability": "blocks"}, ["availability blocks", "use random:p=0.5"]),
        ({"faults": {"share": 0.1, "kinds": ["missing"]}}, ["faults", "stop the run", "faults.share"]),
        ({"faults": {"longest": 1.0}}, ["faults", "stop the run", "faults.longest"]),
        (
            {"faults": {"attackers": 0.8, "attack": "scaled", "strength": 1e30}},
            ["faults", "faults.strength at most 1e+06"],
        ),
    ],
    ids=str,
)
def test_parts_that_break_the_guarantee_are_refused_with_a_remedy(slots: Any, words: list[str]) -> None:
    refused = made(METHOD, **slots)
    assert isinstance(refused, str)
    assert refused.startswith("dp-fedavg bounds its privacy loss")
    assert "\n" not in refused
    assert all(word in refused for word in words), refused


def components() -> list[tuple[str, type]]:
    """Return the components of all fields of an experiment, except methods and fields with effects only before round 0."""
    found = []
    for field in dataclasses.fields(Experiment):
        if field.metadata == GIVEN or field.name == "algorithm":
            continue
        classes = COMPONENTS[field.name].values() if field.name in COMPONENTS else [SETTINGS[field.name]]
        found += [(field.name, cls) for cls in classes]
    return found


@pytest.mark.parametrize(("section", "cls"), components(), ids=lambda one: getattr(one, "__name__", one))
def test_a_new_component_of_every_kind_is_refused_until_it_answers(section: str, cls: type) -> None:
    """This includes a component that extends one of fedskew's, because that one answers only for its own code."""
    assert "private" in vars(cls)
    new = dataclass(frozen=True, kw_only=True)(type("New", (cls,), {}))
    table = {"fraction": 0.5} if cls.__name__ == "Uniform" else {}
    with pytest.raises(
        BadInput, match=f"{section} New does not say .*; use another one, or write `private = alone` into New"
    ):
        check_part("dp-fedavg", section, new(**table), Privacy(Q, 1.0, 1e-5))
    new.private = alone
    check_part("dp-fedavg", section, new(**table), Privacy(Q, 1.0, 1e-5))


def test_new_slot_is_refused_until_its_component_states_its_privacy() -> None:
    @dataclass(frozen=True)
    class Secret:
        pass

    @dataclass(frozen=True, kw_only=True)
    class Extended(Experiment):
        secret: Any = Secret()
        shown: bool = False

    experiment = Extended(
        **{field.name: getattr(method_of(METHOD), field.name) for field in dataclasses.fields(Experiment)}
    )
    with pytest.raises(BadInput, match="secret Secret does not say"):
        check_private(experiment, "dp-fedavg")
    Secret.private = alone
    with pytest.raises(BadInput, match="shown bool does not say"):
        check_private(experiment, "dp-fedavg")
    check_private(method_of(METHOD), "dp-fedavg")


def test_a_slot_that_is_registered_is_refused_through_the_front_door(monkeypatch) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Smooth(Clip):
        pass

    monkeypatch.setitem(COMPONENTS["codec"].ours, "smooth", Smooth)
    assert "codec Smooth does not say" in made(METHOD, codec="smooth")
    assert not isinstance(made("fedavg", codec="smooth"), str)
    Smooth.private = alone
    assert not isinstance(made(METHOD, codec="smooth"), str)


def test_a_method_that_extends_a_private_one_states_its_own_bound() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Noiseless(DpFedAvg):
        pass

    experiment = method_of(METHOD)
    object.__setattr__(experiment := replace(experiment), "algorithm", Noiseless(clip=CLIP, q=Q))
    with pytest.raises(BadInput, match="inherits its privacy loss"):
        check_private(experiment, "mine.py::Noiseless")
    Noiseless.contract = lambda self: Contract()
    check_private(experiment, "mine.py::Noiseless")


@pytest.mark.parametrize(("dropout", "drop"), [(0.0, False), (0.3, True)])
@pytest.mark.parametrize(
    "online", ["always", "random:p=0.7", "day-night:period=3", "unequal", "on-off:leave=0.3,join=0.3"]
)
def test_one_client_more_changes_the_sum_by_one_clip_in_every_round(online: str, dropout: float, drop: bool) -> None:
    """Updates of neighbours are opposed. With ranks over all clients in place of coins, the sum changes by two clips."""
    rows = [[3.0 * (-1) ** k, 0.0] for k in range(9)]
    fed = replace(
        exact_clients(Linear(), rows, (4,) * 9, DpFedAvg(clip=1.0, noise=0.0, q=Q), lr=0.1),
        system=System(stragglers=0.5, drop_stragglers=drop, dropout=dropout),
        availability=build("availability", COMPONENTS["availability"], online),
        selection=Poisson(rate=Q),
    )
    changes = []
    for round_ in range(20):
        server, sums = start(fed, torch.zeros(2, dtype=torch.float64))._replace(round=round_), []
        for one in (fed, without_last(fed)):
            after = play_round(one, Sequential(), server, ClientStates(), False).server
            sums.append(after.x * Q * len(one.partition))
        changes.append(float((sums[0] - sums[1]).norm()))
    assert 0.29 < max(changes) <= 1 + 1e-9
