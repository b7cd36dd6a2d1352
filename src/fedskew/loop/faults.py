"""Simulated faults: some clients' replies are broken or malicious. This works with any engine.

(seed, round, client) determines which client fails and how, for every method and engine alike. Surveys and evaluation have no
faults.
"""

from dataclasses import dataclass, field
from math import ceil
from typing import Annotated, Literal, get_args

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor

from fedskew.core.contract import Setup
from fedskew.core.errors import require
from fedskew.core.limits import NonNegativeOrInf, PositiveInt, PositiveOrInf, PositiveShare, Share
from fedskew.core.records import Privacy
from fedskew.core.seeding import stream, torch_stream
from fedskew.core.trees import all_finite, pick
from fedskew.loop.federation import Federation
from fedskew.loop.limits import RATIO, check_enough, length_fault, too_far
from fedskew.loop.work import Done, Engine, Work, by_group, members_of
from fedskew.skew.partition import Ints

Kind = Literal["missing", "not_finite", "too_long", "wrong_shape"]
Attack = Literal["none", "label-flip", "sign-flip", "scaled", "gaussian"]
KINDS: tuple[Kind, ...] = get_args(Kind)
HUGE = 1e6
"""Factor of the fault "too_long". With a larger factor the computed length could overflow."""


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Which replies are broken or malicious, and which replies are rejected. Without options there are no faults.

    ``share`` is the probability that a client's reply in a round is broken. The way is drawn from ``kinds``: "missing",
    "not_finite" (one entry is NaN), "too_long" (multiplied by a million) or "wrong_shape" (one entry is lost).
    ``attackers`` is the share of all clients that attack; they are the same clients in every round. An ``attack`` is "label-flip"
    (training on labels K - 1 - y), "sign-flip" (the update times -1), "scaled" (the update times ``strength``) or "gaussian"
    (normal noise with ``strength`` times the update's length).

    A reply is rejected if it is missing, not finite, of another shape, or longer than ``longest`` (0: no limit). The client is then
    asked again, up to ``attempts`` times in all. Bytes count each reply that arrives. After that the round continues without this
    client, which keeps its old state.
    If there are three or more updates, an update is also rejected if it is longer than the model, and longer than
    ``longest_ratio`` (0: no limit) times the median length. For a client with m times the median number of local steps, this limit
    is m times as large. The run stops if less than the share ``fewest`` of a cohort is left.
    """

    share: Share = 0.0
    kinds: Annotated[tuple[Kind, ...], Meta(min_length=1)] = KINDS
    attackers: Share = 0.0
    attack: Attack = "none"
    strength: PositiveOrInf = 10.0
    longest: NonNegativeOrInf = 0.0
    longest_ratio: NonNegativeOrInf = RATIO
    fewest: PositiveShare = 0.5
    attempts: PositiveInt = 1

    def accepts(self, setup: Setup) -> str:
        if not self.some:
            return ""
        if self.attack == "label-flip" and setup.target != "classes":
            return "label-flip flips classes, and these targets are not; use attack=sign-flip"
        if self.attackers and setup.clients and not len(self.malicious(setup.clients, seed=0)):
            return f"attackers={self.attackers:g} of {setup.clients} clients is nobody; {1 / setup.clients:.2g} is one client"
        if self.attackers and setup.inexactness:
            return "attackers send other models than they train, and inexactness is measured at these; leave one of them out"
        if not setup.simulated:
            return (
                "only simulated runs have them; nodes fail by themselves, and deployment.longest and deployment.fewest say when "
                "an answer is rejected; leave them out"
            )
        if setup.shares_model and setup.one_architecture:
            return ""
        return "they change updates of one shared model, and there is none; leave them out, or use another method and model"

    def private(self, privacy: Privacy) -> str:
        """Return why these faults break the method's privacy guarantee; empty if they do not.

        Attacks are clipped like any update, and who attacks is drawn once, as the clients' rows are. But a rejection reveals who
        took part.
        """
        if not self.share and not self.longest and self.strength <= HUGE:
            return ""
        return (
            "faults: too few usable answers stop the run, which shows who took part; leave out faults.share and "
            f"faults.longest, and keep faults.strength at most {HUGE:g}"
        )

    def __post_init__(self) -> None:
        require(
            (self.attack == "none") == (self.attackers == 0),
            f"attack {self.attack} and attackers {self.attackers:g} do not go together; set both, or neither",
        )
        require(
            self.longest > 0 or not self.share or "too_long" not in self.kinds,
            "kind too_long is detected only with a limit; set longest, or leave it out of kinds",
        )

    @property
    def some(self) -> bool:
        """True if any fault or rejection is possible."""
        return self.share > 0 or self.attackers > 0 or self.longest > 0

    def broken(self, num_clients: int, round_: int, seed: int, attempt: int = 0) -> dict[int, Kind]:
        """Return the clients whose replies are broken in this attempt of a round, with the kind of fault."""
        luck = stream(seed, "faults", round_, *((attempt,) if attempt else ())).random((num_clients, 2))
        return {int(k): self.kinds[int(luck[k, 1] * len(self.kinds))] for k in np.flatnonzero(luck[:, 0] < self.share)}

    def malicious(self, num_clients: int, seed: int) -> Ints:
        """Return the clients that attack, ascending."""
        return np.sort(stream(seed, "attackers").permutation(num_clients)[: int(self.attackers * num_clients + 0.5)])


@dataclass(frozen=True, eq=False)
class Faulty:
    """Breaks the replies of a cohort that the engine trained, and rejects those that a server would reject."""

    inner: Engine
    faults: Faults
    fed: Federation
    rejected: list[tuple[int, str]] = field(default_factory=list)  # (client, kind) of all rounds

    def received(self, work: Work, done: Done) -> Done:
        done, before = self.attacked(work, done), len(self.rejected)
        selected = len(work.clients)
        left = dict(enumerate(work.clients.tolist()))  # by position: clients without a usable reply
        for attempt in range(self.faults.attempts):
            broken = self.faults.broken(len(self.fed.partition), work.round, self.fed.seed, attempt)
            for i, k in list(left.items()):
                delta = done.uploads.delta[i]
                if fault := self.fault_of(spoiled(delta, broken.get(k)), delta):
                    self.rejected.append((k, fault))
                else:
                    del left[i]
        at = np.asarray([i for i in range(selected) if i not in left], dtype=np.int64)
        sent = pick({"delta": done.uploads.delta, "extras": done.uploads.extras}, at)
        far = too_far(self.fed, work, at, sent, self.faults.longest_ratio)
        self.rejected.extend((int(work.clients[at[i]]), "too_long") for i in far)
        at = np.delete(at, list(far))
        cure = "raise faults.attempts, lower faults.fewest, or select more clients"
        check_enough(self.fed, work.round, len(at), selected, max(1, ceil(self.faults.fewest * selected)), cure)
        arrived = sum(kind != "missing" for _, kind in self.rejected[before:])
        return Done(pick(done.uploads, at), pick(done.states, at), pick(done.scores, at), at, arrived)

    def fault_of(self, received: Tensor | None, sent: Tensor) -> Kind | None:
        """Return the kind of fault for which an update is rejected; None if it is accepted."""
        if received is None:
            return "missing"
        if received.shape != sent.shape:
            return "wrong_shape"
        if not all_finite(received):
            return "not_finite"
        return "too_long" if length_fault(received, self.faults.longest) else None

    def attacked(self, work: Work, done: Done) -> Done:
        """Return the result of training with the attackers' updates replaced."""
        at = np.flatnonzero(np.isin(work.clients, self.faults.malicious(len(self.fed.partition), self.fed.seed)))
        if not len(at):
            return done
        deltas = done.uploads.delta.clone()
        if self.faults.attack == "label-flip":
            x, y = self.fed.x, self.fed.task.num_classes - 1 - self.fed.targets(work.round)
            engine, attackers = self.inner, members_of(work, at)
            altered = by_group(self.fed.programs, attackers, lambda p, part: engine.run(p, part, x, y)).uploads.delta
        else:
            altered = torch.stack([self.altered(deltas[i], work.round, int(work.clients[i])) for i in at])
        deltas.index_copy_(0, torch.as_tensor(at, device=deltas.device), altered)
        return done._replace(uploads=done.uploads._replace(delta=deltas))

    def altered(self, delta: Tensor, round_: int, client: int) -> Tensor:
        """Return the update (P,) that an attacker sends instead of its own."""
        if self.faults.attack == "sign-flip":
            return -delta
        if self.faults.attack == "scaled":
            return self.faults.strength * delta
        generator = torch_stream(self.fed.seed, "attack", round_, client)
        noise = torch.randn(len(delta), generator=generator, dtype=delta.dtype)
        return (self.faults.strength * delta.norm() / noise.norm()).to(delta) * noise.to(delta)


def spoiled(delta: Tensor, kind: Kind | None) -> Tensor | None:
    """Return the update (P,) as the server receives it with this kind of fault; None if it is missing."""
    if kind == "missing":
        return None
    if kind == "wrong_shape":
        return delta[:-1]
    if kind == "too_long":
        return HUGE * delta
    return torch.cat([delta[:-1], delta.new_full((1,), torch.nan)]) if kind == "not_finite" else delta
