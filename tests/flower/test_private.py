"""Differential privacy between machines: the server draws from a secret that is new at each start and never leaves it."""

import base64
import itertools
import logging
import math
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
from fedskew.execution.build import assemble
from fedskew.experiment.config import Experiment
from fedskew.flower.server import serve
from fedskew.flower.wire import Kind, Reply, Request, unpack
from fedskew.loop.round import play_round, start
from fedskew.measure.privacy import epsilon
from fedskew.store.runs import RunStore
from tests.flower_nodes import VERSIONS, Direct, configuration, final, nodes_of, served, small

CLIP, NOISE, CLIENTS = 0.05, 2.0, 4


def private(q: float = 0.5, noise: float = NOISE, **sections: object) -> Experiment:
    return small(
        f"dp-fedavg:q={q},clip={CLIP},noise={noise}", selection=f"poisson:rate={q}", **{"rounds": 4, **sections}
    )


def known(monkeypatch: pytest.MonkeyPatch, *made: bytes) -> None:
    """Replace the operating system's random bytes by these. The last ones repeat."""
    drawn = itertools.chain(made, itertools.repeat(made[-1]))
    monkeypatch.setattr(seeding, "token_bytes", lambda size: next(drawn)[:size])


def models(channel: Direct) -> dict[int, Tensor]:
    """Return number of finished rounds -> model that the nodes received."""
    received = [unpack(request, Request) for _, kind, request, _ in channel.seen if kind != "meet"]
    return {request.round: tree["x"] for request, tree in received}


def updates(channel: Direct, round_: int) -> dict[int, Tensor]:
    """Return the update of each client in a round."""
    replies = [unpack(reply, Reply) for _, kind, _, reply in channel.seen if kind == "train"]
    return {reply.client: tree["delta"]["values"] for reply, tree in replies if reply.round == round_}


def test_sampling_and_noise_come_from_the_servers_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator with the same secret gives the same model to the last bit."""
    secret, experiment = bytes(range(32)), private()
    known(monkeypatch, secret)
    channel, store = served(experiment, tmp_path)
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
    x = final(store)["x"]
    assert torch.equal(x, ends[0][0])
    assert [sorted(updates(channel, t)) for t in range(4)] == ends[0][1] != ends[1][1]
    assert not torch.equal(x, ends[1][0])


def test_the_noise_has_the_stated_size_and_does_not_follow_from_the_recipe(tmp_path: Path) -> None:
    """The step of the model minus all updates is the noise."""
    experiment = private()
    channel, _ = served(experiment, tmp_path)
    at = models(channel)
    for t in range(4):
        sent = updates(channel, t)
        total = sum(sent.values(), torch.zeros_like(at[0])).double()
        left = ((at[t + 1] - at[t]).double() * 0.5 * CLIENTS - total) / (NOISE * CLIP)
        assert abs(left.std() - 1) < 5 / math.sqrt(2 * len(left))
        guessed = normals(experiment.training.seed, len(left), "noise", t)
        assert abs(torch.corrcoef(torch.stack([left, guessed]))[0, 1]) < 5 / math.sqrt(len(left))


@pytest.mark.parametrize("kept", [False, True], ids=["new secret", "same secret"])
def test_a_round_that_is_played_again_does_not_reveal_an_update(
    kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Round 3 is lost with the server after nodes received its model, and is played again without client 2.

    With the same noise, the two models of the round would differ by exactly that client's update.
    """
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
    rest = (before - models(channel)[3]) * CLIENTS - one
    noise = NOISE * CLIP * math.sqrt(2 * len(one))
    assert (rest.norm() < 1e-4 * CLIP) == kept
    assert kept or abs(rest.norm() / noise - 1) < 0.2


def test_lost_rounds_and_one_more_at_each_restart_count_in_the_privacy_loss(tmp_path: Path) -> None:
    """The first stop loses rounds 4 and 5, the second none. At each, a further round may have been in progress."""
    experiment = private(1.0, rounds=7).replace(checkpoint__every=3)
    stops = [5, 6, 99]

    def spoil(client: int, kind: Kind, round_: int, data: bytes) -> bytes | None:
        if round_ >= stops[0] and kind == "train":
            raise KeyboardInterrupt
        return data

    channel = Direct(nodes_of(experiment, tmp_path), spoil)
    options = configuration(experiment, tmp_path)
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
    """Return the forms in which a secret could be written."""
    numbers = [int.from_bytes(secret, order) for order in ("little", "big")]
    texts = [secret.hex(), base64.b64encode(secret).decode().rstrip("="), *map(str, numbers), str(list(secret))]
    return [secret, secret[:8], secret[-8:], repr(secret)[2:-1].encode(), *(text.encode() for text in texts)]


def test_no_message_file_or_output_holds_the_secret_or_the_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    secret, experiment = np.random.default_rng(0).bytes(32), private()
    known(monkeypatch, secret)
    printed: list[str] = []
    with caplog.at_level(logging.DEBUG):
        channel = Direct(nodes_of(experiment, tmp_path))
        serve(channel, configuration(experiment, tmp_path), VERSIONS, lambda progress: printed.append(str(progress)))
    assert main(["report", "1", "--runs", str(tmp_path / "runs"), "--output", str(tmp_path / "page.html")]) == 0
    assert main(["show", "1", "--json", "--runs", str(tmp_path / "runs")]) == 0
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    travelled = [data for _, _, request, reply in channel.seen for data in (request, reply)]
    output = [*capfd.readouterr(), caplog.text, *printed]
    noise = [normals(Secret(secret), 650, "noise", t) for t in range(4)]
    drawn = [kind(z).numpy().tobytes()[:64] for z in noise for kind in (Tensor.double, Tensor.float)]
    assert len(written) > 8
    assert len(travelled) > 20
    for text in (*written, *travelled, *(text.encode() for text in output)):
        assert not [form for form in (*forms(secret), *drawn) if form in text]


def test_a_secret_is_random_and_does_not_show_when_it_is_printed() -> None:
    """The secret has 256 random bits of the operating system."""
    made = {Secret.fresh() for _ in range(50)}
    assert len(made) == 50
    assert {len(one) for one in made} == {32}
    secret = Secret(b"0123456789abcdef0123456789abcdef")
    for shown in (str(secret), repr(secret), f"{secret}", f"{(secret,)} {secret!s}"):
        assert "secret" in shown
        assert "0123" not in shown
