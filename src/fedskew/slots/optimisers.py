"""Local solvers and server optimisers: one step of a flat vector of parameters.

A local solver's state is new in every round. A server optimiser's gradient is minus the cohort's mean delta.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from msgspec import Meta
from torch import Tensor

from fedskew.core.errors import require
from fedskew.core.limits import BelowOne, NonNegativeFloat, PositiveFloat, PositiveOrInf, PositiveShare, Share
from fedskew.core.privacy import after_noise, alone
from fedskew.core.trees import Tree


def gathered(beta: float, t: Tensor) -> Tensor:
    """Return ``1 - beta**t``, the total weight of t values in an exponential mean. It is accurate for ``beta`` near 1, too."""
    return -torch.expm1(t * (math.log(beta) if beta else -math.inf))


RateSchedule = Annotated[
    str,
    Meta(
        pattern=r"^(warm-up:[1-9]\d{0,8}$|(warm-up:[1-9]\d{0,8}\+)?(cosine|step:[1-9]\d{0,8}(:0?\.\d+)?)$"
        r"|warm-up:[1-9]\d{0,8}\+0?\.\d+$)",
        description="cosine, step:30 or step:30:0.1 (ROUNDS:FACTOR), warm-up:5, warm-up:5+cosine",
    ),
]
"""A schedule of the learning rate as text, see `rate_factor`."""


def rate_factor(decay: float | str, round_: int, rounds: int) -> float:
    """Return the factor (0..1) of the learning rate after ``round_`` of the run's ``rounds``.

    A number is the factor from round to round. ``cosine`` falls from 1 towards 0, as in `torch.optim.lr_scheduler`'s
    ``CosineAnnealingLR``; ``step:30:0.1`` takes a tenth (the default) after every 30 rounds; ``warm-up:5`` rises to 1 in 5 equal
    steps. After ``+`` stands what follows the warm-up. After the last round the factor of the last round holds.
    """
    if not isinstance(decay, str):
        return decay**round_
    first, _, then = decay.rpartition("+")
    kind, *numbers = (first or then).split(":")
    warm = int(numbers[0]) if kind == "warm-up" else 0
    at = min(round_, rounds - 1)
    if at < warm:
        return (at + 1) / warm
    at, rounds = at - warm, rounds - warm
    kind, *numbers = then.split(":")
    if kind == "cosine":
        return (1 + math.cos(math.pi * at / rounds)) / 2
    if kind == "step":
        return float(numbers[1] if numbers[1:] else 0.1) ** (at // int(numbers[0]))
    return 1.0 if kind == "warm-up" else float(kind) ** at


@dataclass(frozen=True, kw_only=True)
class Sgd:
    """SGD as in `torch.optim.SGD` with dampening 0. The learning rate is ``lr * lr_decay ** round``, or follows a schedule.

    Schedules by round are ``lr_decay="cosine"``, ``"step:30:0.1"``, ``"warm-up:5"``, ``"warm-up:5+cosine"``, see `rate_factor`.
    Weight decay is part of the local loss: the local loop adds ``weight_decay * w`` to each gradient.
    """

    lr: PositiveFloat = 0.1
    momentum: BelowOne = 0.0
    weight_decay: NonNegativeFloat = 0.0
    lr_decay: PositiveShare | RateSchedule = 1.0
    private = alone

    linear: ClassVar[bool] = True

    @property
    def plain(self) -> bool:
        return not self.momentum

    def init(self, w: Tensor) -> Tree:
        return {"momentum": torch.zeros_like(w)} if self.momentum else {}

    def update(self, g: Tensor, opt: Tree, w: Tensor, lr: Tensor) -> tuple[Tensor, Tree]:
        if self.momentum:
            g = torch.add(g, opt["momentum"], alpha=self.momentum)
            opt = {"momentum": g}
        return torch.addcmul(w, g, lr, value=-1), opt

    def unit_response(self, steps: Tensor) -> Tensor:
        """Return the displacement divided by -lr after ``steps`` steps with constant gradient 1 (FedNova's ||a||_1)."""
        r = self.momentum
        return (steps - r * (1 - r**steps) / (1 - r)) / (1 - r) if r else steps

    def respond(self, g: Tensor, momentum: Tensor, position: Tensor, lr: Tensor) -> tuple[Tensor, Tensor]:
        """Take one step on scalars; return the new position and momentum."""
        momentum = self.momentum * momentum + g
        return position - lr * momentum, momentum


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """AdamW as in `torch.optim.AdamW`: bias-corrected, decoupled weight decay. ``lr_decay`` as in `Sgd`."""

    lr: PositiveFloat = 1e-3
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.999
    eps: PositiveOrInf = 1e-8
    weight_decay: float = 0.01
    lr_decay: PositiveShare | RateSchedule = 1.0

    cites: ClassVar[tuple[str, ...]] = ("adamw",)
    private = alone

    # The step is not linear in the gradients, so there is no unit response. Methods that need one are refused.
    linear: ClassVar[bool] = False
    plain: ClassVar[bool] = False

    def init(self, w: Tensor) -> Tree:
        return {"m": torch.zeros_like(w), "v": torch.zeros_like(w), "t": w.new_zeros(())}

    def update(self, g: Tensor, opt: Tree, w: Tensor, lr: Tensor) -> tuple[Tensor, Tree]:
        t = opt["t"] + 1
        m = torch.lerp(opt["m"], g, 1 - self.beta1)
        v = torch.lerp(opt["v"], g * g, 1 - self.beta2)
        if self.weight_decay:
            w = w * (1 - lr * self.weight_decay)
        # Correcting scalars instead of m and v saves two passes. `clamp` avoids roots of numbers near 0, which are slow.
        correction = gathered(self.beta2, t).sqrt()
        root = v.clamp(min=torch.finfo(v.dtype).tiny).sqrt()
        step = m / (root + self.eps * correction)
        return torch.addcmul(w, step, lr * correction / gathered(self.beta1, t), value=-1), {"m": m, "v": v, "t": t}


@dataclass(frozen=True, kw_only=True)
class ServerSgd:
    """``w + lr * delta``. With ``lr = 1`` this is plain averaging."""

    lr: NonNegativeFloat = 1.0

    cites: ClassVar[tuple[str, ...]] = ("fedavg",)
    private = after_noise

    def init(self, x: Tensor) -> Tree:
        return {}

    def update(self, g: Tensor, opt: Tree, x: Tensor) -> tuple[Tensor, Tree]:
        return torch.add(x, g, alpha=-self.lr), opt


@dataclass(frozen=True, kw_only=True)
class Momentum:
    """FedAvgM: momentum over the rounds. ``form="ema"`` is heavy ball with ``lr * (1 - beta)``."""

    lr: NonNegativeFloat = 1.0
    beta: BelowOne = 0.9
    form: Literal["heavy-ball", "nesterov", "ema"] = "heavy-ball"

    cites: ClassVar[tuple[str, ...]] = ("fedavgm",)
    private = after_noise

    def init(self, x: Tensor) -> Tree:
        return {"v": torch.zeros_like(x)}

    def update(self, g: Tensor, opt: Tree, x: Tensor) -> tuple[Tensor, Tree]:
        delta = -g
        fresh = (1 - self.beta) * delta if self.form == "ema" else delta
        v = self.beta * opt["v"] + fresh
        step = delta + self.beta * v if self.form == "nesterov" else v
        return x + self.lr * step, {"v": v}


def first_state(x: Tensor, tau: float, initial_v: str) -> Tree:
    """Return the state before the first step. v starts at tau squared, as in the paper, or at 0, as in implementations."""
    return {
        "m": torch.zeros_like(x),
        "v": torch.full_like(x, tau**2 if initial_v == "tau-squared" else 0.0),
        "t": x.new_zeros(()),
    }


@dataclass(frozen=True, kw_only=True)
class Adagrad:
    """FedAdagrad: v is the sum of squares. ``beta1`` is 0, as in the paper's experiments."""

    lr: NonNegativeFloat = 0.01
    beta1: BelowOne = 0.0
    tau: PositiveOrInf = 1e-3
    initial_v: Literal["tau-squared", "zero"] = "tau-squared"

    cites: ClassVar[tuple[str, ...]] = ("fedopt",)
    private = after_noise

    def init(self, x: Tensor) -> Tree:
        return first_state(x, self.tau, self.initial_v)

    def update(self, g: Tensor, opt: Tree, x: Tensor) -> tuple[Tensor, Tree]:
        m = self.beta1 * opt["m"] + (1 - self.beta1) * -g
        v = opt["v"] + g * g
        return x + self.lr * m / (v.sqrt() + self.tau), {"m": m, "v": v, "t": opt["t"] + 1}


@dataclass(frozen=True, kw_only=True)
class _Averaging(ABC):
    """Algorithm 2 of Reddi et al. with v as a running mean: ``x + lr * m / (sqrt(v) + tau)``.

    ``bias_correction`` corrects both means for their start at 0. Common implementations do this; the paper does not.
    """

    lr: NonNegativeFloat = 0.01
    beta1: BelowOne = 0.9
    tau: PositiveOrInf = 1e-3
    initial_v: Literal["tau-squared", "zero"] = "tau-squared"
    beta2: Share = 0.99
    bias_correction: bool = False

    cites: ClassVar[tuple[str, ...]] = ("fedopt",)

    def __post_init__(self) -> None:
        reason = "bias_correction needs beta2 below 1: at 1 the step would be 0"
        require(self.beta2 < 1 or not self.bias_correction, reason)

    @abstractmethod
    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """Return the new v (P,)."""

    def init(self, x: Tensor) -> Tree:
        return first_state(x, self.tau, self.initial_v)

    def update(self, g: Tensor, opt: Tree, x: Tensor) -> tuple[Tensor, Tree]:
        t = opt["t"] + 1
        rate: Tensor | float = self.lr
        if self.bias_correction:
            rate = self.lr * gathered(self.beta2, t).sqrt() / gathered(self.beta1, t)
        m = self.beta1 * opt["m"] + (1 - self.beta1) * -g
        v = self.second_moment(opt["v"], g * g)
        return x + rate * m / (v.sqrt() + self.tau), {"m": m, "v": v, "t": t}


@dataclass(frozen=True, kw_only=True)
class Adam(_Averaging):
    """FedAdam: v is an exponential mean of the squares. Common implementations use ``bias_correction``; the paper does not."""

    private = after_noise

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True, kw_only=True)
class Yogi(_Averaging):
    """FedYogi: v moves towards the squares by a bounded amount. ``bias_correction`` as in `Adam`."""

    private = after_noise

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * torch.sign(v - square)
