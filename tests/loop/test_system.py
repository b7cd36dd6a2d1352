"""Stragglers, dropouts, availability and unequal devices: what befalls whom is a function of (seed, round, client) alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from fedskew.algorithms import FedAvg, FedNova, Scaffold
from fedskew.core.algorithm import Algorithm
from fedskew.core.component import build
from fedskew.core.errors import BadInput, TooFew
from fedskew.core.records import Info
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked
from fedskew.engine.states import ClientStates
from fedskew.loop.plan import Local, SeededPlanner
from fedskew.loop.round import call, play_round, prepare, start
from fedskew.loop.system import System
from fedskew.slots import AVAILABILITIES, Always, Blocks, DayNight, Everyone, OnOff, Random, Sgd, Unequal, Uniform
from tests.methods import FIRST, federation, record
from tests.methods import assert_close as same_numbers
from tests.reference import assert_close, f64, matrices, matrix_clients, optimum
from tests.small import RAGGED, X0, Linear, Quadratic, exact_clients, play, ragged

torch.set_num_threads(1)

SEED = 3


def population(labels: list[int], num_classes: int) -> Info:
    """One client a label, with most of its rows of that class."""
    counts = np.ones((len(labels), num_classes))
    counts[np.arange(len(labels)), labels] = 5
    k = torch.arange(len(labels))
    return Info(k, torch.as_tensor(counts.sum(1)), torch.as_tensor(counts), torch.ones(len(labels)))


def times(availability: Any, clients: Info, rounds: int, seed: int = SEED) -> np.ndarray[Any, Any]:
    """(rounds, K): who is there when."""
    return np.stack([availability.available(clients, t, seed) for t in range(rounds)])


# availability


def test_always_is_everybody() -> None:
    assert times(Always(), population([0] * 5, 2), 4).all()


@pytest.mark.parametrize("p", [0.2, 0.8, 1.0])
def test_random_availability_has_its_probability_in_every_client_and_round(p: float) -> None:
    there = times(Random(p=p), population([0] * 40, 2), 1000)
    sigma = np.sqrt(p * (1 - p))
    assert np.abs(there.mean(0) - p).max() <= 4.5 * sigma / np.sqrt(1000)
    assert np.abs(there.mean(1) - p).max() <= 5 * sigma / np.sqrt(40)
    if p < 1:  # neither neighbours nor successive rounds go together
        assert abs(np.corrcoef(there[1:].ravel(), there[:-1].ravel())[0, 1]) < 4 / np.sqrt(40_000)
        assert abs(np.corrcoef(there[:, 1:].ravel(), there[:, :-1].ravel())[0, 1]) < 4 / np.sqrt(40_000)


def test_by_day_and_by_night_in_two_opposite_time_zones() -> None:
    """With two classes the phases are 0 and 1/2: at noon of the one it is midnight for the other."""
    there = times(DayNight(period=10, phase="label"), population([0, 1] * 50, 2), 40)
    for t in range(0, 40, 10):
        assert there[t, 0::2].all()
        assert not there[t, 1::2].any()
        assert not there[t + 5, 0::2].any()
        assert there[t + 5, 1::2].all()


@pytest.mark.parametrize("peak", [1.0, 0.6])
def test_the_probability_follows_a_cosine_from_peak_to_zero(peak: float) -> None:
    rounds, period = 4000, 8
    there = times(DayNight(period=period, peak=peak, phase="label"), population([0, 1, 2, 3] * 5, 4), rounds)
    for k in range(4):
        own = there[:, k::4].reshape(rounds // period, period, 5).mean((0, 2))
        expected = peak * (1 + np.cos(2 * np.pi * (np.arange(period) / period - k / 4))) / 2
        assert np.abs(own - expected).max() < 4.5 * 0.5 / np.sqrt(2500)


def test_time_zones_by_chance_are_spread_over_the_day_and_belong_to_the_client() -> None:
    there = times(DayNight(period=20), population([0] * 500, 2), 2000)
    assert abs(there.mean() - 0.5) < 0.005
    by_hour = there.reshape(100, 20, 500).mean(0)
    noon = np.angle((by_hour * np.exp(2j * np.pi * np.arange(20) / 20)[:, None]).sum(0)) / (2 * np.pi) % 1
    assert stats.kstest(noon, "uniform").pvalue > 0.001
    assert (by_hour.max(0) - by_hour.min(0)).min() > 0.8, "each client has its own day and night"
    # where its day begins tells nothing of its luck in any one round
    assert abs(there[0].mean() - 0.5) < 4.5 * 0.5 / np.sqrt(500)
    assert abs(np.corrcoef(there[0], np.cos(2 * np.pi * noon))[0, 1] - np.sqrt(0.5)) < 0.1


@pytest.mark.parametrize("blocks", [1, 2, 3])
@pytest.mark.parametrize("phase", ["random", "label"])
def test_blocks_take_turns(blocks: int, phase: str) -> None:
    labels = [2, 0, 1, 2, 0, 1, 1]
    there = times(Blocks(blocks=blocks, rounds=4, phase=phase), population(labels, 3), 4 * blocks * 2)
    turns = there.reshape(2 * blocks, 4, 7)
    assert (turns == turns[:, :1]).all(), "the same all through a turn"
    assert np.array_equal(turns[:blocks], turns[blocks:]), "and again in the next cycle"
    assert (turns[:blocks, 0].sum(0) == 1).all(), "each client has one turn in a cycle"
    sizes = turns[:blocks, 0].sum(1)
    assert sizes.max() - sizes.min() <= 1
    if phase == "label" and blocks == 3:
        # in the order of the classes, ties by number: 1, 4 | 2, 5, 6 | 0, 3, cut at 7/3 and 14/3
        assert [set(np.flatnonzero(turn[0])) for turn in turns[:3]] == [{1, 4, 2}, {5, 6}, {0, 3}]


def test_blocks_by_chance_are_the_seeds() -> None:
    clients = population([0] * 40, 2)
    one, again, other = (times(Blocks(rounds=1), clients, 1, seed) for seed in (1, 1, 2))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    assert not np.array_equal(one[0], np.arange(40) < 20)


@pytest.mark.parametrize(("leave", "join"), [(0.1, 0.1), (0.05, 0.3), (0.5, 0.5)])
def test_clients_come_and_go_with_their_probabilities(leave: float, join: float) -> None:
    there = times(OnOff(leave=leave, join=join), population([0] * 500, 2), 60)
    before, after = there[:-1], there[1:]
    assert (~after[before]).mean() == pytest.approx(leave, abs=5 * np.sqrt(leave / before.sum()))
    assert after[~before].mean() == pytest.approx(join, abs=5 * np.sqrt(join / (~before).sum()))
    share = join / (leave + join)
    assert there[0].mean() == pytest.approx(share, abs=5 * np.sqrt(0.25 / 500)), "from the first round on"
    assert there.mean() == pytest.approx(share, abs=0.05)


def test_each_client_has_a_probability_of_its_own() -> None:
    """Shares of 200 rounds under Beta(2, 6): mean 1/4, variance 12/(64 x 9), and 1/200 of E p(1 - p) of the draws."""
    share = times(Unequal(a=2, b=6), population([0] * 1500, 2), 200).mean(0)
    variance = 12 / (64 * 9)
    assert share.mean() == pytest.approx(0.25, abs=5 * np.sqrt(variance / 1500))
    assert share.var() == pytest.approx(variance + (0.25 * 0.75 - variance) / 200, rel=0.2)


@pytest.mark.parametrize("wrong", ["on-off:leave=0", "on-off:leave=0.6,join=0.6", "unequal:a=0", "unequal:b=inf"])
def test_impossible_availability_is_refused(wrong: str) -> None:
    with pytest.raises(BadInput, match="above 0"):
        build("availability", AVAILABILITIES, wrong)


@pytest.mark.parametrize("availability", [Random(p=0.4), DayNight(period=5), Always(), Unequal(), OnOff()], ids=repr)
def test_a_client_is_there_or_not_whatever_the_population(availability: Any) -> None:
    few, many = (times(availability, population([0] * k, 2), 30) for k in (7, 11))
    assert np.array_equal(few, many[:, :7])


# dropouts and stragglers


def test_dropouts_have_their_probability_and_are_nested() -> None:
    kept = np.stack([System(dropout=0.3).reached(50, t, SEED) for t in range(1000)])
    assert np.abs(kept.mean(0) - 0.7).max() < 4.5 * np.sqrt(0.21 / 1000)
    more = np.stack([System(dropout=0.5).reached(50, t, SEED) for t in range(1000)])
    assert (kept | ~more).all(), "who does not drop out at 0.5 does not at 0.3"
    assert System(dropout=0.0).reached(50, 0, SEED).all()
    assert not System(dropout=1.0).reached(50, 0, SEED).any()
    assert np.array_equal(System(dropout=0.3).reached(20, 4, SEED), kept[4, :20])


@pytest.mark.parametrize(
    ("share", "size", "count"),
    [(0.0, 10, 0), (0.5, 10, 5), (0.9, 10, 9), (1.0, 10, 10), (0.5, 3, 2), (0.1, 4, 0), (0.29, 100, 29), (0.5, 0, 0)],
)
def test_so_many_of_all_clients_are_stragglers(share: float, size: int, count: int) -> None:
    for t in range(20):
        late = System(stragglers=share).late(np.arange(size), size, t, SEED)
        assert len(late) == count
        assert set(late) <= set(range(size))
        assert all(0 <= luck < 1 for luck in late.values())


def test_stragglers_are_anybody_and_nested() -> None:
    cohort = np.arange(10)
    chosen = np.zeros(10)
    for t in range(2000):
        some, more = (set(System(stragglers=s).late(cohort, 10, t, SEED)) for s in (0.3, 0.6))
        assert some <= more
        chosen[list(some)] += 1
    assert np.abs(chosen / 2000 - 0.3).max() < 4.5 * np.sqrt(0.21 / 2000)


def test_a_straggler_in_a_part_of_the_cohort_is_one_there_with_the_same_luck() -> None:
    for share in (0.5, 1.0):
        all_late = System(stragglers=share).late(np.arange(10), 10, 5, SEED)
        some_late = System(stragglers=share).late(np.array([2, 7]), 10, 5, SEED)
        assert some_late == {k: all_late[k] for k in (2, 7) if k in all_late}


def unreliable(**options: Any) -> Any:
    """Seven clients of 1 to 40 rows under FedAvg, batches of 7, five epochs."""
    local = options.pop("local", Local(epochs=5, batch_size=7))
    fed = ragged(options.pop("algorithm", FedAvg()), local=local, selection=options.pop("selection", Everyone()))
    availability, system = options.pop("availability", Always()), System(**options)
    planner = SeededPlanner(local, fed.seed, system.own_work(local, len(RAGGED), fed.seed))
    return replace(fed, availability=availability, system=system, planner=planner, rounds=6)


def works(fed: Any, rounds: int) -> list[Any]:
    """What is planned for each round; nobody trains."""
    server = start(fed, X0)
    return [prepare(fed, Sequential(), server._replace(round=t), ClientStates(), False)[1] for t in range(rounds)]


def per_epoch(batch_size: int = 7) -> np.ndarray[Any, Any]:
    return -(-np.asarray(RAGGED) // batch_size)


def test_a_straggler_takes_the_first_whole_epochs_of_its_plan_and_fewer_than_all() -> None:
    ideal = works(unreliable(), 30)
    done = []
    for full, work in zip(ideal, works(unreliable(stragglers=0.5), 30), strict=True):
        assert (work.turnout.stragglers, len(work.clients)) == (4, 7)
        steps = np.asarray([len(plan.index) for plan in work.plans])
        epochs = steps / per_epoch()
        assert (epochs == epochs.astype(int)).all()
        assert (epochs < 5).sum() == 4
        done += epochs[epochs < 5].astype(int).tolist()
        assert work.view.steps.tolist() == steps.tolist()
        for mine, whole in zip(work.plans, full.plans, strict=True):
            assert np.array_equal(mine.index, whole.index[: len(mine.index)])
            assert np.array_equal(mine.mask, whole.mask[: len(mine.mask)])
    counts = np.bincount(done, minlength=5)
    assert counts[0] == 0
    assert stats.chisquare(counts[1:]).pvalue > 0.001, "uniform over 1 to 4"


@pytest.mark.parametrize("batches", ["shuffled", "independent"])
def test_where_steps_are_set_a_straggler_does_fewer_steps(batches: str) -> None:
    local = Local(steps=4, batch_size=5, batches=batches)
    steps = np.concatenate(
        [[len(p.index) for p in w.plans] for w in works(unreliable(stragglers=1.0, local=local), 40)]
    )
    counts = np.bincount(steps, minlength=5)
    assert counts[0] == counts[4] == 0
    assert stats.chisquare(counts[1:4]).pvalue > 0.001


def test_two_epochs_leave_a_straggler_one() -> None:
    work = works(unreliable(stragglers=1.0, local=Local(epochs=2, batch_size=7)), 1)[0]
    assert [len(plan.index) for plan in work.plans] == per_epoch().tolist()


def test_dropped_stragglers_leave_the_cohort_and_have_been_sent_the_model() -> None:
    kept, dropped = (unreliable(stragglers=0.5, drop_stragglers=d) for d in (False, True))
    for one, two in zip(play(kept, X0, 4), play(dropped, X0, 4), strict=True):
        in_time = [
            k
            for k, plan, n in zip(one.work.clients, one.work.plans, per_epoch(), strict=True)
            if len(plan.index) == 5 * n
        ]
        assert two.work.clients.tolist() == in_time
        assert two.work.turnout == one.work.turnout == (7, 7, 7, 4)
        vector = 8 * len(X0)
        assert (two.bytes_down, two.bytes_up) == (7 * vector, 3 * vector)


def test_a_cohort_of_stragglers_dropped_to_the_last_is_a_round_without_clients() -> None:
    outcome = play(unreliable(stragglers=1.0, drop_stragglers=True), X0, 1)[0]
    assert torch.equal(outcome.server.x, X0)
    assert outcome.work.turnout == (7, 7, 7, 7)


def test_clients_that_do_not_answer_take_no_part_and_keep_their_state() -> None:
    fed, states = unreliable(dropout=0.4, algorithm=Scaffold()), ClientStates()
    server, before = start(fed, X0), {}
    for t in range(6):
        answering = np.flatnonzero(System(dropout=0.4).reached(7, t, fed.seed))
        outcome = play_round(fed, Sequential(), server, states)
        server = outcome.server
        assert outcome.work.clients.tolist() == answering.tolist()
        assert outcome.work.turnout == (7, 7, len(answering), 0)
        ids, rows = states.export()
        now = dict(zip(ids.tolist(), rows["c_k"], strict=True))
        assert set(now) == set(before) | set(answering.tolist())
        for k in set(before) - set(answering.tolist()):
            assert torch.equal(now[k], before[k])
        assert all(not torch.equal(now[k], before[k]) for k in set(before) & set(answering.tolist()))
        before = now


# selection among those that are there


def test_the_selection_asks_those_that_are_there_and_takes_all_where_they_are_few() -> None:
    fed = unreliable(availability=Random(p=0.5), selection=Uniform(clients=4))
    sizes = set()
    for t in range(40):
        there = np.flatnonzero(fed.availability.available(fed.info, t, fed.seed))
        cohort, _, turnout = call(fed, t)
        assert set(cohort) <= set(there)
        assert len(cohort) == min(4, len(there))
        assert turnout == (len(there), len(cohort), len(cohort), 0)
        sizes.add(len(there))
    assert min(sizes) < 4 < max(sizes)


def test_a_fraction_is_one_of_those_that_are_there() -> None:
    fed = unreliable(availability=Random(p=0.6), selection=Uniform(fraction=0.5))
    for t in range(20):
        cohort, _, turnout = call(fed, t)
        assert len(cohort) == (max(turnout.available // 2, 1) if turnout.available else 0)


def test_an_ideal_system_changes_nothing() -> None:
    fed = ragged(FedAvg(), selection=Uniform(clients=3))
    explicit = replace(fed, system=System(stragglers=0.0, dropout=0.0), availability=Random(p=1.0))
    for one, two in zip(play(fed, X0, 3), play(explicit, X0, 3), strict=True):
        assert torch.equal(one.server.x, two.server.x)


# devices


def test_each_client_has_its_own_epochs_and_batch_size() -> None:
    fed = unreliable(epochs=(1, 3), batch_sizes=(2, 30))
    drawn = set()
    for work in works(fed, 2):
        for k, plan in enumerate(work.plans):
            own = fed.planner.work(k)
            width = min(own.batch_size, RAGGED[k])
            assert float(work.view.info.batch_size[k]) == float(fed.info.batch_size[k]) == width
            assert plan.index.shape == (own.epochs * -(-RAGGED[k] // width), width)
            drawn.add((own.epochs, own.batch_size))
    assert len(drawn) > 2


def test_devices_are_drawn_uniformly_from_lists_and_ranges() -> None:
    own = System(epochs="2-6", batch_sizes=(8, 16, 32)).own_work(Local(), 6000, SEED)
    epochs, sizes = np.asarray([w.epochs for w in own]), np.asarray([w.batch_size for w in own])
    assert set(epochs) == {2, 3, 4, 5, 6}
    assert stats.chisquare(np.bincount(epochs)[2:]).pvalue > 0.001
    assert stats.chisquare(np.unique(sizes, return_counts=True)[1]).pvalue > 0.001
    assert abs(np.corrcoef(epochs, sizes)[0, 1]) < 4 / np.sqrt(6000)
    alone = System(epochs="2-6").own_work(Local(batch_size="all"), 50, SEED)
    assert [w.epochs for w in alone] == epochs[:50].tolist(), "neither the population nor the batch sizes matter"
    assert {w.batch_size for w in alone} == {"all"}
    assert System().own_work(Local(), 50, SEED) == ()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stragglers": 1.2}, "stragglers must be between 0 and 1"),
        ({"dropout": float("nan")}, "dropout must be between 0 and 1"),
        ({"epochs": ()}, "epochs"),
        ({"epochs": (0, 2)}, "epochs: needs one or more numbers of at least 1"),
        ({"epochs": "3"}, "a range such as 2-6"),
        ({"batch_sizes": "6-2"}, "batch_sizes: needs one or more numbers of at least 1"),
    ],
)
def test_a_system_that_cannot_be_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        System(**options)


@pytest.mark.parametrize(
    ("system", "local"),
    [
        (System(stragglers=0.5), Local(epochs=1)),
        (System(stragglers=0.5), Local(steps=1)),
        (System(stragglers=0.5, epochs=(1, 1)), Local(epochs=5)),
        (System(epochs=(1, 2)), Local(steps=5)),
    ],
)
def test_options_that_would_mean_nothing_are_refused(system: System, local: Local) -> None:
    with pytest.raises(BadInput, match=r"local\.|epochs"):
        system.check(local)
    replace(system, stragglers=0.0, epochs=None).check(local)
    replace(system, drop_stragglers=True, epochs=None).check(local)


# every method sees the same system

HARSH = {"stragglers": 0.5, "dropout": 0.2, "epochs": (1, 2, 4), "batch_sizes": "3-9"}


def harsh(spec: str) -> Any:
    fed, system = federation(spec, selection=Uniform(clients=5)), System(**HARSH)
    own = system.own_work(Local(epochs=2, batch_size=7), len(RAGGED), fed.seed)
    return replace(
        fed,
        system=system,
        availability=DayNight(period=3),
        planner=SeededPlanner(Local(epochs=2, batch_size=7), fed.seed, own),
    )


@pytest.mark.parametrize("spec", FIRST)
def test_every_method_runs_and_sees_the_same_system(spec: str) -> None:
    fed = harsh(spec)
    fewest = min(len(work.clients) for work in works(fed, 5) if len(work.clients))
    if fed.contract.updates_needed(fewest) > fewest:
        # a method that cannot do with so few updates says so, and works where enough come, partial ones too
        with pytest.raises(TooFew, match="the method needs so many"):
            play(fed, X0, 5)
        fed = replace(federation(spec), selection=Everyone(), system=System(stragglers=0.5))
        assert play(fed, X0, 5)[-1].work.turnout.stragglers == 4
        return
    outcomes = play(fed, X0, 5)
    assert all(outcome.server.x.isfinite().all() for outcome in outcomes)
    if fed.program.convenes:
        return
    for work, other in zip((o.work for o in outcomes), works(harsh("fedavg"), 5), strict=True):
        assert work.turnout == other.turnout
        assert np.array_equal(work.clients, other.clients)
        for mine, theirs in zip(work.plans, other.plans, strict=True):
            assert np.array_equal(mine.index, theirs.index)
            assert np.array_equal(mine.mask, theirs.mask)


@pytest.mark.parametrize("spec", ["fedavg", "scaffold:option=I", "fednova:mu=0.3"])
def test_engines_agree(spec: str) -> None:
    numbers = []
    for engine in (Sequential(), Stacked()):
        states = ClientStates()
        outcomes = play(harsh(spec), X0, 4, engine, states=states)
        numbers.append(record(outcomes, states))
    same_numbers(numbers[1], numbers[0])
    assert len({len(outcome.work.clients) for outcome in outcomes}) > 1
    assert sum(outcome.work.turnout.stragglers for outcome in outcomes) > 2


@dataclass(frozen=True, kw_only=True)
class Greedy(Algorithm):
    """Surveys, then wants everybody, asked or not."""

    def answer(self, view):
        return {"n": view.info.num_examples}

    def convene(self, server, candidates, answers):
        assert len(candidates.index) == len(answers["n"])
        return server.state, server.clients.index


def test_a_method_that_convenes_gets_only_those_that_are_there_and_answer() -> None:
    options = {"algorithm": Greedy(), "dropout": 0.3, "stragglers": 0.5, "drop_stragglers": True}
    fed = unreliable(availability=Random(p=0.7), selection=Uniform(clients=3), **options)
    for t, outcome in enumerate(play(fed, X0, 12)):
        there = Random(p=0.7).available(fed.info, t, fed.seed) & System(dropout=0.3).reached(7, t, fed.seed)
        cohort = np.flatnonzero(there) if outcome.work.turnout.answered else np.arange(0)
        late = fed.system.late(cohort, 7, t, fed.seed)
        assert outcome.work.turnout.stragglers == len(late)
        assert outcome.work.clients.tolist() == [k for k in cohort if k not in late]
        # the surveyed answered with one number each, those in time with a model
        assert outcome.bytes_up == 8 * (outcome.work.turnout.answered + len(outcome.work.clients) * len(X0))


# what unequal work does to the optimum


def test_by_hand_drops_leave_the_round_to_the_others() -> None:
    """Two clients w and 4 (w - 3), two steps of 0.1 from 1: 0.81 and 2.28. Whoever is late, the other decides."""
    fed = exact_clients(Quadratic(), [[1.0, 0.0], [4.0, 3.0]], (2, 2), FedAvg(), lr=0.1)
    for t in range(8):
        dropping = replace(fed, system=System(stragglers=0.5, drop_stragglers=True), seed=t)
        outcome = play(dropping, [1.0], 1)[0]
        assert_close(outcome.server.x, [[0.81], [2.28]][int(outcome.work.clients[0])])
        # partial work: one step instead of two, so 0.9 or 1.8, averaged with the other's two
        late = 1 - int(outcome.work.clients[0])
        partly = play(replace(dropping, system=System(stragglers=0.5)), [1.0], 1)[0]
        assert_close(partly.server.x, [[(0.9 + 2.28) / 2], [(0.81 + 1.8) / 2]][late])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fednova_keeps_the_true_direction_under_stragglers_and_fedavg_does_not(momentum: float) -> None:
    """Constant gradients: every FedNova round is a multiple of the mean gradient, whoever is late."""
    g = f64([[1.0, -2.0], [0.5, 3.0], [-4.0, 1.0], [2.0, 2.0]])
    directions = {}
    for algorithm in (FedNova(), FedAvg()):
        fed = exact_clients(Linear(), g.tolist(), (6,) * 4, algorithm, lr=None, solver=Sgd(lr=0.1, momentum=momentum))
        fed = replace(fed, system=System(stragglers=0.5))
        outcomes = play(fed, [0.0, 0.0], 12)
        assert all(o.work.turnout.stragglers == 2 and min(o.steps) < 6 for o in outcomes)
        moves = torch.diff(torch.stack([f64([0.0, 0.0])] + [o.server.x for o in outcomes]), dim=0)
        directions[type(algorithm)] = torch.cosine_similarity(moves, -g.mean(0)[None], dim=1)
    assert_close(directions[FedNova], torch.ones(12))
    assert float(directions[FedAvg].min()) < 0.9


def test_fednova_comes_near_the_optimum_under_unequal_epochs_and_fedavg_does_not() -> None:
    """Both stop where the weighted sum of M_k (w - b_k) vanishes, M_k = I - (I - eta A_k)^tau_k; FedNova's weights are p / tau."""
    a, b = matrices(4)
    seed, lr = 3, 0.02
    own = System(epochs=(1, 2, 10)).own_work(Local(batch_size="all"), 4, seed)
    tau = [w.epochs for w in own]
    assert len(set(tau)) > 1
    identity = torch.eye(2, dtype=torch.float64)
    m = torch.stack(
        [identity - torch.linalg.matrix_power(identity - lr * a_k, t) for a_k, t in zip(a, tau, strict=True)]
    )
    ends = {}
    for algorithm, p in ((FedAvg(), f64([0.25] * 4)), (FedNova(), 0.25 / f64(tau))):
        fed = matrix_clients(a, b, (1,) * 4, algorithm, lr=lr)
        fed = replace(fed, planner=SeededPlanner(Local(batch_size="all"), seed, own))
        ends[type(algorithm)] = play(fed, [0.0, 0.0], 250)[-1].server.x
        assert_close(ends[type(algorithm)], optimum(m, b, p), 1e-4)
    best = optimum(a, b, f64([0.25] * 4))
    assert (ends[FedAvg] - best).norm() > 0.2
    assert (ends[FedNova] - best).norm() < (ends[FedAvg] - best).norm() / 5
