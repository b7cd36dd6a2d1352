"""Differential privacy between machines: what the server draws is its own secret, anew at each start, and nothing tells it."""

from __future__ import annotations

import base64
import itertools
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("dp_accounting")

from fedskew.cli.main import main
from fedskew.core import seeding
from fedskew.core.records import Privacy
from fedskew.core.seeding import Secret, normals
from fedskew.engine.sequential import Sequential
from fedskew.engine.states import ClientStates
from fedskew.experiment.build import assemble
from fedskew.experiment.config import Experiment
from fedskew.flower.server import serve
from fedskew.flower.wire import Kind, Reply, Request, unpack
from fedskew.loop.round import play_round, start
from fedskew.measure.privacy import epsilon
from fedskew.store.runs import RunStore
from tests.flower.test_deployed import VERSIONS, final
from tests.flower_nodes import Direct, Spoil, configuration, nodes_of, small

CLIP, NOISE, CLIENTS = 0.05, 2.0, 4


def private(q: float = 0.5, noise: float = NOISE, **sections: object) -> Experiment:
    return small(
        f"dp-fedavg:q={q},clip={CLIP},noise={noise}", selection=f"poisson:rate={q}", **{"rounds": 4, **sections}
    )


def known(monkeypatch: pytest.MonkeyPatch, *made: bytes) -> None:
    """The operating system's randomness is this, the last of it again and again."""
    drawn = itertools.chain(made, itertools.repeat(made[-1]))
    monkeypatch.setattr(seeding, "token_bytes", lambda size: next(drawn)[:size])


def models(channel: Direct) -> dict[int, Tensor]:
    """The models that nodes were sent, by the number of rounds finished."""
    told = [unpack(request, Request) for _, kind, request, _ in channel.seen if kind != "meet"]
    return {request.round: tree["x"] for request, tree in told}


def updates(channel: Direct, round_: int) -> dict[int, Tensor]:
    """What each client sent in a round."""
    told = [unpack(reply, Reply) for _, kind, _, reply in channel.seen if kind == "train"]
    return {reply.client: tree["delta"]["values"] for reply, tree in told if reply.round == round_}


def served(experiment: Experiment, folder: Path, spoil: Spoil | None = None) -> Direct:
    channel = Direct(nodes_of(experiment, folder), *([spoil] if spoil else []))
    serve(channel, configuration(experiment, folder), VERSIONS)
    return channel


def test_sampling_and_noise_come_from_the_servers_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator's rounds with the same secret give the same model to the last bit."""
    secret, experiment = bytes(range(32)), private()
    known(monkeypatch, secret)
    channel = served(experiment, tmp_path)
    assembly = assemble(experiment, experiment.dataset.load())
    ends = []
    for hidden in (Secret(secret), None):
        fed, states, cohorts = replace(assembly.federation, hidden=hidden), ClientStates(), []
        server = start(fed, assembly.x0)
        for _ in range(4):
            outcome = play_round(fed, Sequential(), server, states)
            server = outcome.server
            cohorts.append(outcome.work.clients.tolist())
        ends.append((server.x, cohorts))
    told = final(RunStore(tmp_path / "runs"), 1)["x"]
    assert torch.equal(told, ends[0][0])
    assert [sorted(updates(channel, t)) for t in range(4)] == ends[0][1] != ends[1][1]
    assert not torch.equal(told, ends[1][0])


def test_the_noise_is_as_large_as_stated_and_not_what_the_recipe_would_give(tmp_path: Path) -> None:
    """Seen by somebody who knows all updates: what is left of the step of the model is the noise alone."""
    experiment = private()
    channel = served(experiment, tmp_path)
    at = models(channel)
    for t in range(4):
        sent = updates(channel, t)
        total = sum(sent.values(), torch.zeros_like(at[0])).double()
        left = ((at[t + 1] - at[t]).double() * 0.5 * CLIENTS - total) / (NOISE * CLIP)
        assert abs(left.std() - 1) < 5 / math.sqrt(2 * len(left))
        guessed = normals(experiment.training.seed, len(left), "noise", t)
        assert abs(torch.corrcoef(torch.stack([left, guessed]))[0, 1]) < 5 / math.sqrt(len(left))


def test_two_servers_with_one_recipe_draw_differently(tmp_path: Path) -> None:
    ends = []
    for name in "ab":
        served(private(), tmp_path / name)
        ends.append(final(RunStore(tmp_path / name / "runs"), 1)["x"])
    assert (ends[0] - ends[1]).norm() > CLIP


@pytest.mark.parametrize("kept", [False, True], ids=["anew", "were it kept"])
def test_a_round_that_is_played_again_does_not_give_a_client_away(
    kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Round 3 is lost with the server after its model went out, and then client 2 is gone: with the noise of before, the two
    models of the round would differ by that client's update and nothing else."""
    known(monkeypatch, *([bytes(32)] if kept else [bytes(32), bytes([1] * 32)]))
    experiment = private(q=1.0).replace(checkpoint__every=2)
    dead = {"on": True}

    def spoil(client: int, kind: Kind, round_: int, data: bytes) -> bytes | None:
        if dead["on"] and round_ == 3 and kind == "train":
            raise KeyboardInterrupt
        return None if not dead["on"] and (client, kind, round_) == (2, "train", 2) else data

    channel = Direct(nodes_of(experiment, tmp_path), spoil)
    options = configuration(experiment, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        serve(channel, options, VERSIONS)
    before, one = models(channel)[3], updates(channel, 2)[2]
    dead["on"] = False
    channel.seen.clear()
    serve(channel, {**options, "resume": 1}, VERSIONS)
    assert sorted(updates(channel, 2)) == [0, 1, 3]
    told = (before - models(channel)[3]) * CLIENTS - one
    noise = NOISE * CLIP * math.sqrt(2 * len(one))
    assert (told.norm() < 1e-4 * CLIP) == kept
    assert kept or abs(told.norm() / noise - 1) < 0.2


def test_rounds_that_were_lost_count_and_one_more_at_each_restart(tmp_path: Path) -> None:
    """Lost are rounds 4 and 5, then none; a stop says nothing of whether a further one was on its way."""
    experiment = private(rounds=7).replace(checkpoint__every=3)
    stops = [5, 6, 99]

    def spoil(client: int, kind: Kind, round_: int, data: bytes) -> bytes | None:
        if round_ >= stops[0] and kind == "train":
            raise KeyboardInterrupt
        return data

    known_to_all = experiment.replace(algorithm__q=1.0, selection="poisson:rate=1.0")
    channel = Direct(nodes_of(known_to_all, tmp_path), spoil)
    options = configuration(known_to_all, tmp_path)
    for resume in (0, 1):
        with pytest.raises(KeyboardInterrupt):
            serve(channel, {**options, "resume": resume}, VERSIONS)
        stops.pop(0)
    serve(channel, {**options, "resume": 1}, VERSIONS)
    store = RunStore(tmp_path / "runs")
    assert store.run(1).facts["flower"]["repeated"] == (2 + 1) + (0 + 1)
    frame = store.measurements([1]).query("name == 'epsilon'")
    privacy = Privacy(1.0, NOISE, 1e-5)
    assert frame.value.tolist() == [epsilon(privacy, n) for n in (1, 2, 3, 4 + 3, 5 + 3, 6 + 3, 7 + 4)]


def forms(secret: bytes) -> list[bytes]:
    """How a secret may come to be written."""
    numbers = [int.from_bytes(secret, order) for order in ("little", "big")]
    texts = [secret.hex(), base64.b64encode(secret).decode().rstrip("="), *map(str, numbers), str(list(secret))]
    return [secret, secret[:8], secret[-8:], repr(secret)[2:-1].encode(), *(text.encode() for text in texts)]


def test_nothing_that_is_sent_stored_reported_or_said_holds_the_secret_or_the_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    secret, experiment = np.random.default_rng(0).bytes(32), private()
    known(monkeypatch, secret)
    said: list[str] = []
    with caplog.at_level(logging.DEBUG):
        channel = Direct(nodes_of(experiment, tmp_path))
        serve(channel, configuration(experiment, tmp_path), VERSIONS, lambda progress: said.append(str(progress)))
    assert main(["report", "1", "--runs", str(tmp_path / "runs"), "--output", str(tmp_path / "page.html")]) == 0
    assert main(["show", "1", "--json", "--runs", str(tmp_path / "runs")]) == 0
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    travelled = [data for _, _, request, reply in channel.seen for data in (request, reply)]
    told = [*capfd.readouterr(), caplog.text, *said]
    noise = [normals(Secret(secret), 650, "noise", t) for t in range(4)]
    drawn = [kind(z).numpy().tobytes()[:64] for z in noise for kind in (Tensor.double, Tensor.float)]
    assert len(written) > 8
    assert len(travelled) > 20
    for text in (*written, *travelled, *(text.encode() for text in told)):
        assert not [form for form in (*forms(secret), *drawn) if form in text]


SHOWN: list[Callable[[Secret], str]] = [str, repr, "{}".format, lambda secret: f"{(secret,)} {secret!s}"]


@pytest.mark.parametrize("show", SHOWN)
def test_a_secret_does_not_show_where_it_is_printed(show: Callable[[Secret], str]) -> None:
    shown = show(Secret(b"0123456789abcdef0123456789abcdef"))
    assert "secret" in shown
    assert "0123" not in shown


def test_a_secret_has_256_bits_of_the_operating_systems() -> None:
    made = {Secret.fresh() for _ in range(50)}
    assert len(made) == 50
    assert {len(one) for one in made} == {32}
