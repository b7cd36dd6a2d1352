"""Server optimisers: a step of the global model. The gradient is minus the cohort's mean delta."""

import math
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
    """``w + lr * delta``: plain averaging at ``lr = 1``."""

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
    """FedAvgM: momentum over the rounds. ``ema`` is heavy ball at ``lr * (1 - beta)``."""

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


@dataclass(frozen=True, kw_only=True)
class _Adaptive:
    """Algorithm 2 of Reddi et al.: ``x + lr * m / (sqrt(v) + tau)``. v starts at tau squared, or at 0, as implementations do."""

    lr: float = 0.01
    beta1: float = 0.9
    tau: float = 1e-3
    initial_v: Literal["tau-squared", "zero"] = "tau-squared"

    paper: ClassVar[str] = "Reddi et al. 2021, arXiv:2003.00295, Algorithm 2"
    cites: ClassVar[tuple[str, ...]] = ("fedopt",)

    def __post_init__(self) -> None:
        check_rate(self.lr)
        require(0 <= self.beta1 < 1, f"beta1 must be at least 0 and below 1, got {self.beta1}")
        require(self.tau > 0, f"tau must be above 0, got {self.tau}")
        self.check_own()

    def check_own(self) -> None:
        """Raise `BadInput` for a wrong option of the subclass."""

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """The new v (P,)."""
        raise NotImplementedError

    def rate(self, t: Tensor) -> Tensor | float:
        """The rate of step t, counted from 1."""
        return self.lr

    def init(self, x: Tensor) -> Tree:
        start = self.tau**2 if self.initial_v == "tau-squared" else 0.0
        return {"m": torch.zeros_like(x), "v": torch.full_like(x, start), "t": x.new_zeros(())}

    def update(self, g: Tensor, opt: Tree, x: Tensor) -> tuple[Tensor, Tree]:
        delta, t = -g, opt["t"] + 1
        m = self.beta1 * opt["m"] + (1 - self.beta1) * delta
        v = self.second_moment(opt["v"], delta * delta)
        return x + self.rate(t) * m / (v.sqrt() + self.tau), {"m": m, "v": v, "t": t}


@dataclass(frozen=True, kw_only=True)
class Adagrad(_Adaptive):
    """FedAdagrad: v sums the squares; ``beta1`` 0 as in the paper's experiments."""

    beta1: float = 0.0
    private = after_noise

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square


def check_beta2(beta2: float, bias_correction: bool) -> None:
    require(0 <= beta2 <= 1, f"beta2 must be between 0 and 1, got {beta2}")
    require(beta2 < 1 or not bias_correction, "bias_correction needs beta2 below 1: at 1 the step would be 0")


def corrected(lr: float, beta1: float, beta2: float, t: Tensor) -> Tensor:
    """The rate of step t with the corrections of both means for their start at 0."""
    return lr * gathered(beta2, t).sqrt() / gathered(beta1, t)


@dataclass(frozen=True, kw_only=True)
class Adam(_Adaptive):
    """FedAdam: v is an exponential mean of the squares. Common implementations use ``bias_correction``, the paper does not."""

    beta2: float = 0.99
    bias_correction: bool = False
    private = after_noise

    def check_own(self) -> None:
        check_beta2(self.beta2, self.bias_correction)

    def rate(self, t: Tensor) -> Tensor | float:
        return corrected(self.lr, self.beta1, self.beta2, t) if self.bias_correction else self.lr

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True, kw_only=True)
class Yogi(_Adaptive):
    """FedYogi: v moves towards the squares by a bounded amount. ``bias_correction`` as in `Adam`."""

    beta2: float = 0.99
    bias_correction: bool = False
    private = after_noise

    def check_own(self) -> None:
        check_beta2(self.beta2, self.bias_correction)

    def rate(self, t: Tensor) -> Tensor | float:
        return corrected(self.lr, self.beta1, self.beta2, t) if self.bias_correction else self.lr

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * torch.sign(v - square)
