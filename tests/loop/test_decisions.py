"""What a method decides: stored by client and round, by hand, in both engines, and never sent for it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from fedskew.algorithms import Afl, FedAvg, FedBS, FedGA, FedPBS, Ifca, Krum, QFedAvg
from fedskew.api.functions import run
from fedskew.api.runs import Runs
from fedskew.core.algorithm import Algorithm, Solver
from fedskew.core.errors import BadInput
from fedskew.core.records import Carry, Cohort, ServerView, Upload, View
from fedskew.core.trees import Tree
from fedskew.data.dataset import Dataset
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked
from fedskew.experiment.config import Experiment, decisions_of
from fedskew.flower.node import upload_tree
from tests.reference import assert_close, f64, sized_pair
from tests.small import X0, Quadratic, exact_clients, play, ragged

ENGINES = [Sequential(), Stacked()]


@dataclass(frozen=True, kw_only=True)
class Odd(Algorithm):
    """FedAvg with decisions: a note and a report of each client, and a number of the server."""

    decides: ClassVar[Mapping[str, str]] = {
        "client/steps_left": "ten minus the local steps",
        "client/odd": "1 for an odd id; nothing for the others",
        "client/rows": "rows of the client",
        "round/largest": "rows of the largest client of the round",
    }

    def local_final(self, solver: Solver, view: View, carry: Carry, after: Tree) -> tuple[Upload, Tree]:
        nothing = torch.full_like(carry.steps, torch.nan)
        notes = {"odd": torch.where(view.info.index % 2 == 1, torch.ones_like(nothing), nothing), "undeclared": nothing}
        return Upload(carry.w - view.x, {}, {"steps_left": 10 - carry.steps}, notes), view.state

    def aggregate(self, server: ServerView, cohort: Cohort) -> tuple[Tensor, Tree]:
        assert cohort.uploads.notes == {}
        return self.mean_delta(server, cohort), server.state

    def decided(self, server: ServerView, cohort: Cohort) -> Tree:
        assert cohort.uploads.notes == {}
        return {"rows": cohort.info.num_examples, "largest": cohort.info.num_examples.max()}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_round_has_the_declared_values(engine: object) -> None:
    outcome = play(ragged(Odd()), X0, 1, engine)[0]
    sizes = [5.0, 17.0, 40.0, 3.0, 1.0, 9.0, 24.0]
    assert outcome.decisions.keys() == Odd.decides.keys()
    assert outcome.decisions["client/rows"].tolist() == sizes
    assert float(outcome.decisions["round/largest"]) == 40.0
    assert outcome.decisions["client/steps_left"].tolist() == [10.0 - int(s) for s in outcome.steps]
    assert outcome.decisions["client/odd"].nan_to_num(0.0).tolist() == [0, 1, 0, 1, 0, 1, 0]


def test_a_note_is_not_sent() -> None:
    plain, odd = (play(ragged(method), X0, 1)[0] for method in (FedAvg(), Odd()))
    assert odd.bytes_up == plain.bytes_up + 7 * 8  # the report: one number of eight bytes from each client
    assert odd.bytes_down == plain.bytes_down
    assert torch.equal(odd.server.x, plain.server.x)
    assert upload_tree(odd.done.uploads).keys() == {"delta", "extras", "report"}


def experiment(**options: object) -> Experiment:
    settings = {"skew": "iid", "model": "softmax", "clients": {"number": 6}, "training": {"rounds": 4}}
    return Experiment(**{**settings, **options})


def data() -> Dataset:
    x, y = np.random.default_rng(0).standard_normal((90, 4)), np.arange(90) % 2
    return Dataset(x=x, y=y, x_test=x[:20], y_test=y[:20], classes=("no", "yes"))


def stored(runs: Runs, name: str, split: str = "client") -> list[tuple[int, int, float]]:
    """Return round, client (-1: none) and value of each measurement of this name."""
    frame = runs.measurements().query("split == @split and name == @name").fillna({"client": -1})
    return sorted(zip(frame["round"], frame["client"], frame["value"], strict=True))


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_values_are_stored_of_the_clients_that_took_part(engine: str, tmp_path: Path) -> None:
    options = {"selection": "uniform:clients=4", "system": {"dropout": 0.3, "stragglers": 0.3, "drop_stragglers": True}}
    runs = run(experiment(algorithm=Odd, engine=engine, **options), data=data(), runs=tmp_path)
    took_part = [(r, c) for r, c, _ in stored(runs, "steps")]
    assert 4 < len(took_part) < 16
    assert stored(runs, "rows") == [(r, c, 12.0) for r, c in took_part]
    assert stored(runs, "odd") == [(r, c, 1.0) for r, c in took_part if c % 2]
    assert stored(runs, "largest", "round") == [(r, -1, 12.0) for r in sorted({r for r, _ in took_part})]
    assert stored(runs, "undeclared") == []


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("mu", "decides has 'mu'; write 'client/NAME' or 'round/NAME'"),
        ("test/mu", "write 'client/NAME' or 'round/NAME'"),
        ("client/My mu", "write 'client/NAME' or 'round/NAME'"),
        ("client/steps", "decides has 'client/steps', which every run stores; give it another name"),
        ("round/clients", "which every run stores"),
    ],
)
def test_a_name_that_does_not_fit_is_refused(key: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        decisions_of({key: "a number"}, "mine")


# the methods, by hand


def test_qfedavg_weights() -> None:
    """F = 1/2 and 8, moved -0.19 and 1.28, eta 0.1: L F / (h_1 + h_2) with h = (3.61 + 5, 163.84 + 80)."""
    decided = play(sized_pair(QFedAvg(q=1.0)), [1.0], 1)[0].decisions
    assert_close(decided["client/weight"], [5 / 252.45, 80 / 252.45], 1e-9)


def test_afl_weights_before_and_after_a_round() -> None:
    """F = 1/2 and 8: lambda (1/2, 1/2) + 0.1 (1/2, 8) = (0.55, 1.3), which the simplex moves by 0.425 each."""
    first, second = play(sized_pair(Afl(weighting="uniform")), [1.0], 2)
    assert first.decisions["client/weight"].tolist() == [0.5, 0.5]
    assert_close(second.decisions["client/weight"], [0.125, 0.875])


@pytest.mark.parametrize(
    ("method", "taken"),
    [(Krum(f=1), 1), (Krum(f=2, c=3), 3), (FedGA(), None), (FedGA(eps=0.5, weighting="uniform"), None)],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_methods_that_choose_updates_say_which(method: Algorithm, taken: int | None, engine: object) -> None:
    """The new model is the old one plus the updates with these weights: 1 / c each, or n_k over the chosen clients' rows."""
    outcome = play(ragged(method), X0, 1, engine)[0]
    weight, deltas = outcome.decisions["client/weight"], outcome.done.uploads.delta
    assert_close(outcome.server.x - X0, weight @ deltas, 1e-12)
    assert_close(weight.sum(), 1.0, 1e-12)
    if taken:
        assert sorted(weight.tolist()) == [0.0] * (7 - taken) + [1 / taken] * taken


def test_fedpbs_and_fedbs() -> None:
    """At w = 1 the losses w^2/2 and (w - 2)^2/2 are equal, V = 0; the other client's, (w - 1)^2/2 and (w - 5)^2/2, are 0 and 8."""
    rows = [[1.0, 0.0], [1.0, 2.0], [1.0, 1.0], [1.0, 5.0]]
    fed = exact_clients(Quadratic(), rows, (1, 1), FedPBS(mu=0.3, batch_threshold=0.5), lr=0.1, sizes=[2, 2])
    first, second = play(fed, [1.0], 2)
    assert first.decisions["client/variance"].tolist() == [0.0, 16.0]
    assert first.decisions["client/batch_size"].tolist() == [2.0, 2.0]
    assert first.decisions["client/weight"].tolist() == [0.5, 0.5]
    assert first.decisions["client/steady"].tolist() == [0.0, 0.0]  # no variance is below the first threshold, 0
    assert first.decisions["client/mu"].tolist() == [0.3, 0.3]
    assert float(first.decisions["round/variance_threshold"]) == 0.0
    # x moves by 0.1 (0 + 2) / 2 to 1.1: losses 0.605, 0.405 and 0.005, 7.605
    assert_close(second.decisions["client/variance"], [0.01, 3.8**2])
    assert float(second.decisions["round/variance_threshold"]) == 8.0
    assert second.decisions["client/steady"].tolist() == [1.0, 0.0]
    assert second.decisions["client/mu"].tolist() == [0.0, 0.3]
    fed = exact_clients(
        Quadratic(),
        rows,
        (1, 1),
        FedBS(cohort=1.0, variance="loss", tau_scale="absolute", tau=16.0),
        lr=0.1,
        sizes=[2, 2],
    )
    decided = play(fed, [1.0], 1)[0].decisions
    assert decided["client/variance"].tolist() == [0.0, 16.0]
    assert_close(decided["client/weight"], f64([1.0, np.exp(-1)]) / (1 + np.exp(-1)))


@pytest.mark.parametrize("engine", ENGINES)
def test_ifca_says_which_cluster(engine: object) -> None:
    outcome = play(ragged(Ifca(k=3)), X0, 1, engine)[0]
    assert torch.equal(outcome.decisions["client/cluster"], outcome.done.uploads.report["cluster"])
    assert outcome.decisions["client/cluster"].unique().tolist() != [0.0]


def test_a_method_without_decisions_has_none() -> None:
    assert play(ragged(FedAvg()), X0, 1)[0].decisions == {}
