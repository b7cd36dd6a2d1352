"""The conformance room: good methods pass, and each way of being wrong is found and named."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from fedskew.algorithms import ALGORITHMS, DpFedAvg
from fedskew.conformance.promises import PROMISES, Subject, Verdict, check, examined
from fedskew.core.algorithm import Algorithm, Contract, GradFn, Solver
from fedskew.core.records import Batch, Carry, Cohort, Privacy, ServerView, Upload, View
from fedskew.core.seeding import normals
from fedskew.core.task import Task
from fedskew.core.trees import Tree
from fedskew.slots import ServerSgd
from tests.commands import error_of, output_of

NUMBER = {promise.__name__: promise.__doc__ for promise in PROMISES}


def reason(algorithm: Algorithm, name: str) -> str:
    """How this promise is broken; empty if it is kept."""
    promise = next(promise for promise in PROMISES if promise.__name__ == name)
    return examined("", promise, Subject(algorithm, ServerSgd(), ALGORITHMS)).reason


@dataclass(frozen=True, kw_only=True)
class Base(Algorithm):
    idea: ClassVar[str] = "an example"
    changes: ClassVar[str] = "nothing"


@dataclass(frozen=True, kw_only=True)
class NotFinite(Base):
    def aggregate(self, server: ServerView, cohort: Cohort) -> tuple[Tensor, Tree]:
        return self.mean_delta(server, cohort), {"log": server.x.new_zeros(()).log()}


@dataclass(frozen=True, kw_only=True)
class ForgetsTheMask(Base):
    def objective(self, task: Task, view: View, w: Tensor, batch: Batch) -> Tensor:
        return task.loss(task.logits(w, batch.x), batch.y).mean()


@dataclass(frozen=True, kw_only=True)
class Branches(Base):
    def direction(self, grad_fn: GradFn, view: View, w: Tensor, scratch: Tree) -> tuple[Tensor, Tree]:
        g = grad_fn(w)[0]
        return (g if g.sum() > 0 else 2 * g), scratch


@dataclass(frozen=True, kw_only=True)
class Overwrites(Base):
    def client_init(self, x: Tensor) -> Tree:
        return {"v": torch.zeros_like(x)}

    def local_final(self, solver: Solver, view: View, carry: Carry, after: Tree) -> tuple[Upload, Tree]:
        view.state["v"].add_(1)
        return Upload(carry.w - view.x, {}, {}), view.state


CALLS: list[int] = []


@dataclass(frozen=True, kw_only=True)
class RemembersElsewhere(Base):
    def aggregate(self, server: ServerView, cohort: Cohort) -> tuple[Tensor, Tree]:
        CALLS.append(1)
        return self.mean_delta(server, cohort) * (1 + 1e-6 * len(CALLS)), server.state


@dataclass(frozen=True, kw_only=True)
class CountsClients(Base):
    def local_final(self, solver: Solver, view: View, carry: Carry, after: Tree) -> tuple[Upload, Tree]:
        CALLS.append(1)
        return Upload((carry.w - view.x) * (1 + 1e-6 * len(CALLS)), {}, {}), view.state


@dataclass(frozen=True, kw_only=True)
class Grows(Base):
    def server_init(self, server: ServerView) -> Tree:
        return {"history": server.x.new_zeros(1)}

    def aggregate(self, server: ServerView, cohort: Cohort) -> tuple[Tensor, Tree]:
        return self.mean_delta(server, cohort), {"history": torch.cat([server.state["history"], server.x[:1]])}


@dataclass(frozen=True, kw_only=True)
class Silent(Base):
    idea: ClassVar[str] = ""
    ranges: ClassVar[Mapping[str, str]] = {"mu": "1"}


@dataclass(frozen=True, kw_only=True)
class FalseReduction(Base):
    scale: float = 0.5
    reduces_to: ClassVar[Mapping[str, str]] = {"scale=1": "fedavg", "": "fedavg", "scale=2": "no-such-method"}

    def aggregate(self, server: ServerView, cohort: Cohort) -> tuple[Tensor, Tree]:
        return self.scale * self.mean_delta(server, cohort), server.state


@dataclass(frozen=True, kw_only=True)
class Raises(Base):
    def broadcast(self, server: ServerView) -> Tree:
        raise KeyError("gone")


@dataclass(frozen=True, kw_only=True)
class ClipsAtClientsOnly(DpFedAvg):
    """A codec or an attacker can make an update longer on its way."""

    def contract(self) -> Contract:
        return Contract(privacy=Privacy(self.q, self.noise, self.delta, by=ClipsAtClientsOnly))

    def aggregate(self, server: ServerView, cohort: Cohort) -> tuple[Tensor, Tree]:
        z = normals(server.seed, len(server.x), "noise", server.round)
        return (cohort.uploads.delta.sum(0) + self.noise * self.clip * z) / (self.q * server.num_clients), server.state


@dataclass(frozen=True, kw_only=True)
class LittleNoise(ClipsAtClientsOnly):
    def aggregate(self, server: ServerView, cohort: Cohort) -> tuple[Tensor, Tree]:
        delta, state = DpFedAvg.aggregate(self, server, cohort)
        silent, _ = DpFedAvg.aggregate(replace(self, noise=0.0), server, cohort)
        return silent + (delta - silent) / 2, state


@pytest.mark.parametrize("method", [ClipsAtClientsOnly(), LittleNoise()], ids=lambda m: type(m).__name__)
def test_a_false_privacy_loss_is_found(method: Algorithm) -> None:
    assert "hides" in reason(method, "hides_each_client")
    assert not reason(DpFedAvg(), "hides_each_client")


def test_a_good_method_keeps_every_promise() -> None:
    verdicts = list(check(ALGORITHMS["scaffold"]()))
    assert [v for v in verdicts if not v.kept] == []
    assert [v.promise for v in verdicts[: len(PROMISES)]] == [p.__doc__ for p in PROMISES]
    assert len(verdicts) == len(PROMISES) + len(ALGORITHMS["scaffold"].reduces_to)
    assert all("\n" not in v.promise and len(v.promise) < 100 for v in verdicts)


def test_a_number_that_is_not_finite_ends_the_check() -> None:
    assert list(check(NotFinite())) == [Verdict(NUMBER["trains"], False, "round 1: server state/log is not finite")]


def test_an_error_of_the_method_gives_a_one_line_error() -> None:
    assert list(check(Raises())) == [Verdict(NUMBER["trains"], False, "KeyError: 'gone'")]


@pytest.mark.parametrize(
    ("method", "promise", "words"),
    [
        (ForgetsTheMask(), "padding_changes_nothing", " differs by "),
        (Branches(), "engines_agree", "data-dependent"),
        (Overwrites(), "nothing_is_changed", "state/v differs by "),
        (RemembersElsewhere(), "resume_is_exact", "x differs by "),
        (CountsClients(), "order_does_not_matter", "delta differs by "),
        (
            Grows(),
            "states_keep_their_shape",
            "server state '0/history' after round 1 has another name, shape or type than at the start",
        ),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, Algorithm) else "",
)
def test_a_fault_is_found(method: Algorithm, promise: str, words: str) -> None:
    assert words in reason(method, promise)


def test_a_class_that_cannot_be_pickled_is_found() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Local(Base):
        pass

    assert "pickle" in reason(Local(), "is_a_value")


def test_missing_and_false_declarations_are_found() -> None:
    assert reason(Silent(), "says_what_it_is") == 'idea missing; write idea: ClassVar[str] = "one line" in the class'

    @dataclass(frozen=True, kw_only=True)
    class Wrong(Silent):
        idea: ClassVar[str] = "told"

    assert reason(Wrong(), "says_what_it_is") == "ranges names 'mu', which is not an option"

    class Undecided(Base):
        decides: ClassVar[Mapping[str, str]] = {"client/trust": "how far the server trusts the client, 0..1"}

    assert "decides has 'client/trust', but neither" in reason(Undecided(), "has_what_it_decides")

    class Once(Undecided):
        def decided(self, server: ServerView, cohort: Cohort) -> Tree:
            return {"trust": cohort.info.num_examples.sum()}

    assert reason(Once(), "has_what_it_decides") == (
        "the value of 'client/trust' must be a tensor (5,); it is a tensor ()"
    )


def test_a_false_reduction_is_found_and_a_true_one_is_not() -> None:
    found = {v.promise: v.reason for v in check(FalseReduction()) if not v.kept}
    assert set(found) == {
        "takes the steps of fedavg with its default options",
        "takes the steps of no-such-method with scale=2",
    }
    assert found["takes the steps of fedavg with its default options"].startswith(
        "round 1, solver sgd, epochs: x differs"
    )
    assert "no-such-method" in found["takes the steps of no-such-method with scale=2"]


def test_check_on_the_command_line() -> None:
    out = output_of("check", "fedprox:mu=0.3")
    assert len([line for line in out.splitlines() if line.startswith("ok ")]) == len(PROMISES) + 2
    assert "fedprox:mu=0.3: keeps its promises" in out
    assert "did you mean 'fedprox'?" in error_of("check", "fedpro")
