"""Simulated faults and attacks: which updates are rejected, and that the others are aggregated as without faults."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedskew.api.functions import run
from fedskew.core.errors import BadInput, TooFew
from fedskew.engine.sequential import Sequential
from fedskew.engine.states import ClientStates
from fedskew.execution.build import assemble
from fedskew.experiment.config import Experiment
from fedskew.loop.faults import KINDS, Faults, Faulty
from fedskew.loop.limits import RATIO, length_fault, outliers, too_far
from fedskew.loop.round import prepare, start
from fedskew.measure.registry import Measures
from tests.flower_nodes import final, small, without


def last(experiment: Experiment, folder: Path) -> tuple[torch.Tensor, object]:
    done = run(experiment, runs=folder)
    return final(done.store)["x"], done.measurements()


@pytest.mark.parametrize("method", ["scaffold", "median", "ditto"])
def test_a_round_with_broken_replies_is_the_round_without_these_clients(method: str, tmp_path: Path) -> None:
    """Every fault has its row in the store."""
    faults = Faults(share=0.3, longest=1e3, fewest=0.1)
    experiment = small(method, rounds=6).replace(faults=faults)
    x, frame = last(experiment, tmp_path)
    broken = [faults.broken(4, r, experiment.training.seed) for r in range(6)]
    assert any(broken)
    assert torch.equal(x, without(small(method, rounds=6), broken))
    stored = frame[frame.split == "fault"][["round", "client", "name", "value"]].values.tolist()
    assert sorted(stored) == sorted([r + 1, k, kind, 1.0] for r in range(6) for k, kind in broken[r].items())
    rejected = frame[(frame.split == "round") & (frame.name == "rejected")].value.tolist()
    assert rejected == [float(len(one)) for one in broken]


def test_kinds_of_faults_are_equally_likely_and_sum_to_the_share() -> None:
    drawn = [kind for r in range(200) for kind in Faults(share=0.1, longest=1.0).broken(100, r, 0).values()]
    # standard deviations: sqrt(20000 x 0.1 x 0.9) = 42, sqrt(20000 x 0.025 x 0.975) = 22
    assert len(drawn) == pytest.approx(2000, abs=5 * 42)
    assert all(drawn.count(kind) == pytest.approx(500, abs=5 * 22) for kind in KINDS)
    assert set(KINDS) <= {name for split, name in Measures().stored if split == "fault"}


def updates(faults: Faults) -> list[torch.Tensor]:
    """Updates of the first round: without faults, with training on labels 9 - y, and with faults."""
    assembly = assemble(small(), small().dataset.load())
    fed = assembly.federation
    _, work, _ = prepare(fed, Sequential(), start(fed, assembly.x0), ClientStates(), False)
    done, flipped = (Sequential().run(fed.program, work, fed.x, y) for y in (fed.y, 9 - fed.y))
    return [part.uploads.delta for part in (done, flipped, Faulty(Sequential(), faults, fed).received(work, done))]


@pytest.mark.parametrize("attack", ["sign-flip", "scaled", "gaussian", "label-flip"])
def test_an_attack_changes_only_the_updates_of_attackers(attack: str) -> None:
    faults = Faults(attackers=0.5, attack=attack, strength=3.0)
    plain, flipped, sent = updates(faults)
    bad = faults.malicious(4, 0)
    assert len(bad) == 2
    for k in range(4):
        if k not in bad:
            assert torch.equal(plain[k], sent[k])
        elif attack == "sign-flip":
            assert torch.equal(-plain[k], sent[k])
        elif attack == "scaled":
            assert torch.equal(3 * plain[k], sent[k])
        elif attack == "gaussian":
            assert float(sent[k].norm()) == pytest.approx(3 * float(plain[k].norm()), rel=1e-5)
            assert abs(float(torch.cosine_similarity(sent[k], plain[k], dim=0))) < 0.2
        else:
            assert torch.equal(flipped[k], sent[k])


def test_an_attack_far_longer_than_the_other_updates_is_rejected_and_stored(tmp_path: Path) -> None:
    """The rounds are those without the attackers. Without a limit (0) the attack decides the model."""
    faults = Faults(attackers=0.25, attack="scaled", strength=1e6)
    experiment = small(rounds=3).replace(faults=faults)
    x, frame = last(experiment, tmp_path / "limited")
    bad = faults.malicious(4, 0).tolist()
    stored = frame[frame.split == "fault"][["round", "client", "name", "value"]].values.tolist()
    assert stored == [[r, k, "too_long", 1.0] for r in (1, 2, 3) for k in bad]
    assert torch.equal(x, without(small(rounds=3), [bad] * 3))
    unlimited, _ = last(experiment.replace(faults__longest_ratio=0.0), tmp_path / "unlimited")
    assert float(unlimited.norm()) > 1e4 * float(x.norm())


def test_own_rates_do_not_divide_the_cohort_whose_faults_are_counted(tmp_path: Path) -> None:
    """Each learning rate was a cohort of its own: a run stopped with "0 of 1 clients", and medians were of a part."""
    faults = Faults(share=0.3, kinds=("missing",), fewest=0.1)
    same = [f"{k}:lr={0.1 + 1e-9 * k}" for k in range(4)]  # four rates that are one in float32
    (x, frame), (grouped, of_groups) = (
        last(small(rounds=3).replace(faults=faults, lr=0.1, clients__own=own), tmp_path / str(len(own)))
        for own in ([], same)
    )
    assert torch.equal(x, grouped)
    assert frame[frame.split == "fault"].equals(of_groups[of_groups.split == "fault"])


def test_rejected_replies_that_arrive_count_in_bytes(tmp_path: Path) -> None:
    """They were not counted. A missing reply has no bytes."""
    sums = []
    for kind in ("missing", "not_finite"):
        faults = Faults(share=0.5, kinds=(kind,), attempts=5)
        _, frame = last(small(rounds=3).replace(faults=faults), tmp_path / kind)
        sums.append(
            {
                name: frame[(frame.split == "round") & (frame.name == name)].value.sum()
                for name in ("bytes_up", "rejected", "clients")
            }
        )
    missing, broken = sums
    assert missing["rejected"] == broken["rejected"] > 0
    one = missing["bytes_up"] / missing["clients"]
    assert broken["bytes_up"] == one * (broken["clients"] + broken["rejected"])


def cohort(*lengths: float, size: int = 4) -> dict[str, torch.Tensor]:
    return {"delta": torch.tensor(lengths)[:, None] * torch.eye(size)[0]}


@pytest.mark.parametrize(
    ("lengths", "steps", "model", "found"),
    [
        ((1, 1, 19.9), (5, 5, 5), 0.0, []),
        ((1, 1, 20.1), (5, 5, 5), 0.0, [2]),
        ((1, 1, 20.1), (5, 5, 5), 30.0, []),  # shorter than the model
        ((1, 1, 199), (5, 5, 50), 0.0, []),  # ten times the steps
        ((1, 1, 201), (5, 5, 50), 0.0, [2]),
        ((1, 201), (5, 5), 0.0, []),  # of two, it is not known which is wrong
        ((0, 0, 1), (5, 5, 5), 0.0, []),  # a median of 0 is no scale
        ((1, 1, 99, 99), (5, 5, 5, 5), 0.0, [2, 3]),
        ((1, 1, 1e38), (5, 5, 5), 0.0, [2]),
    ],
)
def test_an_outlier_is_longer_than_the_model_and_than_ratio_times_the_median(lengths, steps, model, found) -> None:
    x = torch.tensor([model, 0.0])
    assert list(outliers(cohort(*lengths), np.asarray(steps), x, 20.0)) == found
    assert outliers(cohort(*lengths), np.asarray(steps), x, 0.0) == {}


def test_length_limits_are_the_given_one_and_the_overflow_of_squares() -> None:
    update = torch.ones(4)
    assert length_fault(update, 0.0) == length_fault(update, 2.0) == ""
    assert "of length 2; the limit is 1.9" in length_fault(update, 1.9)
    assert "the limit is 1.84e+19" in length_fault(1e19 * update, 0.0)


def test_a_private_method_has_no_outliers() -> None:
    """One client's presence must not decide about another's update: the guarantee counts single updates."""
    found = []
    for method in ("fedavg", "dp-fedavg:noise=0,q=1"):
        experiment = small(method, selection="poisson:rate=1")
        fed = assemble(experiment, experiment.dataset.load()).federation
        work = SimpleNamespace(plans=[SimpleNamespace(index=[0])] * 3, view=SimpleNamespace(x=torch.zeros(4)))
        found.append(list(too_far(fed, work, np.arange(3), cohort(1, 1, 100), 20.0)))
    assert found == [[2], []]


@pytest.mark.slow
@pytest.mark.parametrize(
    "skew", ["label-dirichlet:alpha=0.1", "label-dirichlet:alpha=0.05 quantity-dirichlet:beta=0.1"]
)
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fednova"])
def test_no_honest_client_is_rejected_by_default(method: str, skew: str, tmp_path: Path) -> None:
    """Not even at a quarter of the default ratio. The numbers are those without limits."""
    experiment = Experiment(algorithm=method, model="softmax", skew=skew.split(), engine="stacked").replace(
        clients__number=20, training__rounds=20, training__threads=1
    )
    x, _ = last(experiment, tmp_path / "plain")
    # a limit that no update reaches turns the checks on
    faults = Faults(longest=1e6, longest_ratio=RATIO / 4)
    limited, frame = last(experiment.replace(faults=faults), tmp_path / "limited")
    assert torch.equal(x, limited)
    assert frame[frame.split == "fault"].empty


def test_too_few_usable_replies_stop_the_run() -> None:
    with pytest.raises(TooFew, match="round 1: 0 of 4 clients gave a usable answer, but 2 are needed"):
        updates(Faults(share=1.0, kinds=("missing",)))


def test_asking_until_each_reply_is_usable_changes_no_number(tmp_path: Path) -> None:
    """The store counts the attempts of each client before the first usable reply."""
    faults = Faults(share=0.5, longest=1e3, attempts=40)
    x, frame = last(small(rounds=2).replace(faults=faults), tmp_path / "faulty")
    assert torch.equal(x, last(small(rounds=2), tmp_path / "plain")[0])
    expected = 0
    for r in range(2):
        left = set(range(4))
        for attempt in range(40):
            left &= set(faults.broken(4, r, 0, attempt))
            expected += len(left)
        assert not left
    assert expected > 4
    assert frame[(frame.split == "round") & (frame.name == "rejected")].value.sum() == expected


def test_a_method_that_needs_more_clients_names_the_cure(tmp_path: Path) -> None:
    experiment = small("krum:f=2", rounds=9).replace(clients__number=10, system__dropout=0.5)
    with pytest.raises(
        TooFew, match=r"^round \d: \d of 10 clients .* 7 are needed; select more clients, or let the method assume"
    ):
        run(experiment, runs=tmp_path)


ATTACKED, INEXACT = {"attackers": 0.5, "attack": "sign-flip"}, {"inexactness": True}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"faults": {"share": 0.1}}, "set longest"),
        ({"faults": {"attack": "scaled"}}, "do not go together"),
        ({"faults": {"attackers": 0.1}}, "do not go together"),
        ({"faults": ATTACKED, "evaluation": INEXACT}, "inexactness is measured"),
        ({"algorithm": "fedpa", "evaluation": INEXACT}, "inexactness is measured"),
        ({"faults": ATTACKED | {"attackers": 0.1}}, "attackers=0.1 of 4 clients is nobody; 0.25 is one client"),
        (
            {"algorithm": "fedmd", "server_data": 0.05, "faults": {"share": 0.1, "kinds": ["missing"]}},
            "one shared model",
        ),
    ],
)
def test_faults_that_do_not_fit_are_refused(settings: dict[str, object], reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        assemble(small(**settings), small().dataset.load())
