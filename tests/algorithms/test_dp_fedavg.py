"""DP-FedAvg, Poisson sampling and the privacy loss of whole runs."""

import math
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, get_epsilon_gaussian
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import compute_epsilon
from torch import Tensor

from fedskew.algorithms import DpFedAvg, FedAvg
from fedskew.api.functions import compare, run as run_experiment
from fedskew.core.errors import BadInput
from fedskew.core.records import Cohort, Privacy, Upload
from fedskew.core.seeding import torch_stream
from fedskew.core.trees import pick
from fedskew.loop.round import start
from fedskew.measure.privacy import ORDERS, divergence, epsilon
from fedskew.slots import Poisson
from tests.blobs import DATA, small
from tests.commands import output_of
from tests.reference import Only, assert_close, f64, ragged
from tests.small import X0, Linear, exact_clients, play

SILENT = {"clip": math.inf, "noise": 0.0}


def drawn(seed: int, round_: int, size: int) -> Tensor:
    """Return the standard normal numbers of a round."""
    return torch.randn(size, generator=torch_stream(seed, "noise", round_), dtype=torch.float64)


# the rounds


def test_a_golden_round() -> None:
    # one step of 1/2 along -(3, 4), (0.6, 0) and (0, 8), sizes 1, 3 and 1, S = 1, z = 1/4, q = 0.4:
    # -(1.5, 2) -> -(0.6, 0.8);  (0.3, 0) stays;  client 3 is not there
    # x = (1, 1) + ((-0.3, -0.8) + N / 4) / (0.4 * 3)
    rows = [[3.0, 4.0], *[[-0.6, 0.0]] * 3, [0.0, -8.0]]
    fed = exact_clients(Linear(), rows, (1, 1, 1), DpFedAvg(clip=1.0, noise=0.25, q=0.4), lr=0.5, sizes=[1, 3, 1])
    outcome = play(replace(fed, selection=Only((0, 1))), [1.0, 1.0], 1)[0]
    assert_close(outcome.done.uploads.delta, [[-0.6, -0.8], [0.3, 0.0]])
    assert_close(outcome.server.x, 1 + (f64([-0.3, -0.8]) + drawn(0, 0, 2) / 4) / 1.2)
    assert outcome.bytes_up == 2 * 2 * 8


@pytest.mark.parametrize("clip", [1e-3, 0.05, 0.3, 100.0])
def test_no_update_is_longer_than_the_clip_and_short_ones_stay(clip: float) -> None:
    plain, clipped = (play(ragged(a), X0, 1)[0].done.uploads.delta for a in (FedAvg(), DpFedAvg(clip=clip)))
    assert_close(clipped.norm(dim=1), plain.norm(dim=1).clamp(max=clip))
    assert_close(clipped * plain.norm(dim=1, keepdim=True), plain * clipped.norm(dim=1, keepdim=True))


def test_an_update_of_length_zero_stays() -> None:
    for clip in (1.0, math.inf):
        fed = exact_clients(Linear(), [[0.0, 0.0]], (3,), DpFedAvg(clip=clip, noise=0.0, q=1.0), lr=0.5)
        assert_close(play(fed, [2.0, -1.0], 1)[0].server.x, [2.0, -1.0], 0.0)


def test_the_server_clips_received_updates() -> None:
    dp = DpFedAvg(clip=0.5, noise=0.0, q=1.0)
    fed = ragged(dp)
    rows = torch.stack([10 * X0 / X0.norm(), 0.3 * X0 / X0.norm()])
    cohort = Cohort(pick(fed.info, torch.arange(2)), Upload(rows, {}, {}))
    assert_close(dp.aggregate(fed.view(start(fed, X0)), cohort)[0], (0.5 + 0.3) * X0 / X0.norm() / 7)


def test_an_empty_round_adds_noise_only() -> None:
    dp = DpFedAvg(clip=0.5, noise=2.0, q=0.3)
    fed = ragged(dp)
    server = fed.view(start(fed, X0))._replace(round=3)
    empty_cohort = Cohort(pick(fed.info, torch.arange(0)), Upload(X0.new_zeros(0, len(X0)), {}, {}))
    delta, state = dp.aggregate(server, empty_cohort)
    assert_close(delta, 2.0 * 0.5 * drawn(7, 3, len(X0)) / (0.3 * 7))
    assert state == {}
    assert_close(replace(dp, noise=0.0).aggregate(server, empty_cohort)[0], torch.zeros_like(X0), 0.0)


def test_noise_has_its_size_and_is_new_in_every_round_and_seed() -> None:
    size = 20_000
    dp = DpFedAvg(clip=0.5, noise=1.5, q=0.25)
    rows = [[0.0] * size] * 4

    def moves(seed: int) -> Tensor:
        fed = replace(exact_clients(Linear(), rows, (1,) * 4, dp, lr=1.0), seed=seed)
        return torch.stack([o.server.x for o in play(fed, torch.zeros(size), 3)]).diff(
            dim=0, prepend=torch.zeros(1, size)
        )

    noise = torch.cat([moves(0), moves(1)])
    expected = 1.5 * 0.5 / (0.25 * 4)
    assert abs(noise.mean(1)).max() < 5 * expected / math.sqrt(size)
    assert abs(noise.std(1) / expected - 1).max() < 5 / math.sqrt(2 * size)
    assert abs(torch.corrcoef(noise) - torch.eye(6)).max() < 5 / math.sqrt(size)
    assert torch.equal(moves(0), noise[:3])


def test_the_model_keeps_its_type() -> None:
    fed = ragged(DpFedAvg(q=1.0))
    server = fed.view(start(fed, X0.float()))
    delta = torch.zeros(2, len(X0), dtype=torch.float32)
    info = pick(fed.info, torch.arange(2))
    info = info._replace(num_examples=info.num_examples.float())
    assert DpFedAvg(q=1.0).aggregate(server, Cohort(info, Upload(delta, {}, {})))[0].dtype == torch.float32


# sampling


def test_poisson_sampling_draws_clients_independently() -> None:
    rng, draws, rate = np.random.default_rng(0), 4000, 0.3
    table = np.zeros((draws, 6))
    for row in table:
        chosen = Poisson(rate=rate).select(np.arange(6), rng)
        assert (np.diff(chosen) > 0).all()
        row[chosen] = 1
    pairs = table.T @ table
    for value, share in ((np.diag(pairs), rate), (pairs[np.triu_indices(6, 1)], rate**2)):
        assert (abs(value - draws * share) < 5 * np.sqrt(draws * share * (1 - share))).all()
    sizes = np.bincount(table.sum(1).astype(int), minlength=7) / draws
    expected = [math.comb(6, m) * rate**m * (1 - rate) ** (6 - m) for m in range(7)]
    assert sizes[0] > 0
    assert abs(sizes - expected).max() < 5 * math.sqrt(0.25 / draws)
    assert Poisson(rate=1.0).select(np.arange(6), rng).tolist() == list(range(6))


# the accountant


def test_the_known_value_of_fourteen_thousand_steps() -> None:
    # dp-accounting's accountant of privacy loss distributions, with 0.0001 as the step of its grid, gives 2.3817
    assert 2.3817 < epsilon(Privacy(256 / 60000, 1.1, 1e-5), 14_062) < 2.384


@pytest.mark.parametrize(("z", "rounds"), [(1.0, 1), (5.0, 10), (8.0, 3), (30.0, 100)])
def test_full_participation_has_the_exact_loss_of_the_gaussian_mechanism(z: float, rounds: int) -> None:
    exact = get_epsilon_gaussian(z / math.sqrt(rounds), 1e-5)
    assert exact <= epsilon(Privacy(1.0, z, 1e-5), rounds) < 1.001 * exact


@pytest.mark.parametrize(("q", "z", "rounds"), [(0.1, 1.0, 1), (0.1, 1.1, 50)])
def test_sampled_rounds_against_a_finer_grid(q: float, z: float, rounds: int) -> None:
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(PoissonSampledDpEvent(q, GaussianDpEvent(z)), rounds)
    assert epsilon(Privacy(q, z, 1e-5), rounds) == pytest.approx(accountant.get_epsilon(1e-5), rel=2e-3)
    renyi = compute_epsilon(ORDERS, rounds * divergence(q, z), 1e-5)[0]
    assert epsilon(Privacy(q, z, 1e-5), rounds) < 0.9 * renyi


@pytest.mark.slow
def test_the_table_of_epsilon_beside_renyi_divergences() -> None:
    for q, z, rounds, delta in (
        (0.1, 1.0, 1, 1e-5),
        (0.1, 1.0, 100, 1e-5),
        (0.01, 0.6, 1000, 1e-6),
        (0.5, 0.5, 50, 1e-2),
    ):
        loss = epsilon(Privacy(q, z, delta), rounds)
        renyi = compute_epsilon(ORDERS, rounds * divergence(q, z), delta)[0]
        print(f"| {q:g} | {z:g} | {rounds:,} | {delta:g} | {loss:.2f} | {renyi:.2f} |")
        assert loss < renyi


def test_epsilon_grows_with_rounds_and_q_and_falls_with_noise_and_delta() -> None:
    base = Privacy(0.1, 1.0, 1e-5)
    for worse in (base._replace(q=0.2), base._replace(noise=0.9), base._replace(delta=1e-6)):
        assert epsilon(worse, 50) > epsilon(base, 50)
    losses = [epsilon(base, rounds) for rounds in range(0, 60, 5)]
    assert losses[0] == 0
    assert all(a < b for a, b in pairwise(losses))
    assert epsilon(base._replace(q=0.0), 50) == 0
    assert epsilon(base._replace(noise=0.0), 1) == math.inf


# whole runs


def private(options: str = "clip=0.3,noise=2.0", q: float = 0.7, **changes):
    return small(f"dp-fedavg:{options},q={q}", selection=f"poisson:rate={q}", **changes)


def test_the_loss_of_all_rounds_so_far_is_stored_after_each(tmp_path) -> None:
    runs = run_experiment(private(evaluation={"every": 3}), data=DATA, runs=tmp_path)
    stored = runs.measurements().query("name == 'epsilon'")
    assert set(stored["split"]) == {"round"}
    assert list(stored["round"]) == [1, 2, 3, 4]
    assert list(stored["value"]) == [epsilon(Privacy(0.7, 2.0, 1e-5), r) for r in (1, 2, 3, 4)]
    assert float(runs.table()["epsilon"].iloc[0]) == stored["value"].iloc[-1]


def test_tables_and_the_report_show_it_where_there_is_one(tmp_path) -> None:
    base = small(selection="poisson:rate=0.7")
    methods = ["fedavg", "dp-fedavg:noise=2.0,q=0.7", "dp-fedavg:noise=0.0,q=0.7"]
    runs = compare(base, methods, seeds=1, data=DATA, runs=tmp_path)
    loss = epsilon(Privacy(0.7, 2.0, 1e-5), 4)
    assert runs.table()["epsilon"].isna().tolist() == [True, False, True]
    html = runs.report(tmp_path / "page.html").read_text()
    assert ">epsilon<" in html
    assert f'<td data-label="epsilon">{loss:.2f}</td>' in html
    printed = output_of("show", "c1", "--runs", tmp_path)
    assert "epsilon" in printed
    assert f"{loss:.2f}" in printed
    plain = run_experiment(small(), data=DATA, runs=tmp_path / "plain")
    assert "epsilon" not in plain.report(tmp_path / "plain.html").read_text().lower()
    assert "epsilon" not in output_of("show", "--runs", tmp_path / "plain")


@pytest.mark.parametrize(
    ("experiment", "words"),
    [
        (private().replace(selection="everyone"), ["dp-fedavg", "q = 0.7", "--selection poisson:rate=0.7"]),
        (private().replace(selection="uniform:clients=4"), ["dp-fedavg", "--selection poisson:rate=0.7"]),
        (private().replace(selection="poisson:rate=0.6"), ["dp-fedavg", "--selection poisson:rate=0.7"]),
        (private("noise=0.0").replace(selection="everyone"), ["dp-fedavg", "poisson"]),
        (private(refine="distillation", server_data={"share": 0.1}), ["dp-fedavg", "--refine none"]),
        (private("delta=0.2"), ["delta", "1 / clients", "6 clients", "delta=0.1"]),
    ],
)
def test_settings_that_void_the_guarantee_are_refused(tmp_path, experiment, words: list[str]) -> None:
    with pytest.raises(BadInput) as caught:
        run_experiment(experiment, data=DATA, runs=tmp_path / "runs")
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_a_missing_accountant_is_named_with_its_remedy(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(BadInput, match="needs the package dp-accounting; pip install dp-accounting"):
        run_experiment(private(), data=DATA, runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
    assert run_experiment(private("noise=0.0"), data=DATA, runs=tmp_path).records[0].status == "finished"
