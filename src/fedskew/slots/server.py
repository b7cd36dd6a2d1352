"""Server optimisers: they update the global model. The gradient is minus the cohort's mean delta."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedskew.core.errors import require
from fedskew.core.privacy import after_noise
from fedskew.core.trees import Tree
from fedskew.slots.solvers import gathered


def check_rate(lr: float) -> None:
    require(math.isfinite(lr) and lr >= 0, f"the server's lr must be a finite number, at least 0, got {lr}")


@dataclass(frozen=True, kw_only=True)
class ServerSgd:
    """``w + lr * delta``. With ``lr = 1`` this is plain averaging."""

    lr: float = 1.0

    paper: ClassVar[str] = "McMahan et al. 2017, arXiv:1602.05629"
    cites: ClassVar[tuple[str, ...]] = ("fedavg",)
    private = after_noise

    def __post_init__(self) -> None:
        check_rate(self.lr)

    def init(self, x: Tensor) -> Tree:
        return {}

    def update(self, g: Tensor, opt: Tree, x: Tensor) -> tuple[Tensor, Tree]:
        return torch.add(x, g, alpha=-self.lr), opt


@dataclass(frozen=True, kw_only=True)
class Momentum:
    """FedAvgM: momentum over the rounds. ``form="ema"`` is heavy ball with ``lr * (1 - beta)``."""

    lr: float = 1.0
    beta: float = 0.9
    form: Literal["heavy-ball", "nesterov", "ema"] = "heavy-ball"

    paper: ClassVar[str] = "Hsu, Qi, Brown 2019, arXiv:1909.06335"
    cites: ClassVar[tuple[str, ...]] = ("fedavgm",)
    private = after_noise

    def __post_init__(self) -> None:
        check_rate(self.lr)
        require(0 <= self.beta < 1, f"beta must be at least 0 and below 1, got {self.beta}")

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


def check_adaptive(lr: float, beta1: float, tau: float) -> None:
    check_rate(lr)
    require(0 <= beta1 < 1, f"beta1 must be at least 0 and below 1, got {beta1}")
    require(tau > 0, f"tau must be above 0, got {tau}")


@dataclass(frozen=True, kw_only=True)
class Adagrad:
    """FedAdagrad: v is the sum of squares. ``beta1`` is 0, as in the paper's experiments."""

    lr: float = 0.01
    beta1: float = 0.0
    tau: float = 1e-3
    initial_v: Literal["tau-squared", "zero"] = "tau-squared"

    paper: ClassVar[str] = "Reddi et al. 2021, arXiv:2003.00295, Algorithm 2"
    cites: ClassVar[tuple[str, ...]] = ("fedopt",)
    private = after_noise

    def __post_init__(self) -> None:
        check_adaptive(self.lr, self.beta1, self.tau)

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

    lr: float = 0.01
    beta1: float = 0.9
    tau: float = 1e-3
    initial_v: Literal["tau-squared", "zero"] = "tau-squared"
    beta2: float = 0.99
    bias_correction: bool = False

    paper: ClassVar[str] = "Reddi et al. 2021, arXiv:2003.00295, Algorithm 2"
    cites: ClassVar[tuple[str, ...]] = ("fedopt",)

    def __post_init__(self) -> None:
        check_adaptive(self.lr, self.beta1, self.tau)
        require(0 <= self.beta2 <= 1, f"beta2 must be between 0 and 1, got {self.beta2}")
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
