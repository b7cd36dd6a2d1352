"""Batch sizes that follow resources and variance: the rule by hand, in both engines, and with every method."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedskew.algorithms import FedAvg, FedPBS, Scaffold
from fedskew.api.functions import run
from fedskew.core.errors import BadInput
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked
from fedskew.execution.build import check_needs
from fedskew.experiment.config import Experiment
from fedskew.loop.batches import by_terciles
from fedskew.loop.federation import Federation
from fedskew.loop.plan import Local, System, adapted
from tests.blobs import DATA, small
from tests.small import X0, play, ragged

LOCAL = Local(epochs=1, batch_size=16)


@pytest.mark.parametrize(
    ("base", "share", "factor", "size"),
    [
        (64, 1.0, 1.0, 64),
        (64, 1.0, 2.0, 128),
        (64, 1.0, 0.5, 32),
        (64, 0.5, 1.0, 32),
        (64, 0.3, 1.0, 16),  # 19.2
        (64, 0.3, 2.0, 32),  # 38.4
        (64, 0.1, 0.5, 8),  # 3.2, but at least 8
        (100, 1.0, 1.0, 64),
        (1, 1.0, 2.0, 4),  # at least 8, but at most 4 times the base
    ],
)
def test_the_rule(base: int, share: float, factor: float, size: int) -> None:
    assert adapted(Local(batch_size=base), share * factor) == size


@pytest.mark.parametrize(
    ("variances", "factors"),
    [
        ([5.0], [1.0]),
        ([5.0, 1.0], [0.5, 2.0]),
        ([3.0, 1.0, 2.0], [0.5, 2.0, 1.0]),
        ([1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]),
        ([1.0, 1.0, 2.0, 3.0, 4.0, 4.0], [2.0, 2.0, 1.0, 1.0, 0.5, 0.5]),
    ],
)
def test_terciles_of_the_variance(variances: list[float], factors: list[float]) -> None:
    assert by_terciles(torch.tensor(variances)) == factors


def federation(method: object, **options: object) -> Federation:
    fed, system = ragged(method, local=LOCAL), System(**options)
    planner = replace(fed.planner, by_client=system.own_work(LOCAL, 7, fed.seed))
    return replace(fed, planner=planner, system=system)


@pytest.mark.parametrize("engine", [Sequential(), Stacked()])
@pytest.mark.parametrize("method", [FedAvg(), Scaffold(), FedPBS()])
def test_low_variance_gives_large_batches_to_every_method(method: object, engine: object) -> None:
    """16 rows times 2, 1 or 1/2, and never more than the clients' 5, 17, 40, 3, 1, 9 and 24 rows."""
    fed = federation(method, variance="loss")
    outcome = play(fed, X0, 1, engine)[0]
    losses = [
        fed.task.loss(fed.task.logits(X0, fed.x[rows]), fed.y[rows]) for rows in map(fed.partition.rows, range(7))
    ]
    variances = torch.stack([values.var(correction=0) for values in losses])
    sizes = [16 * c for c in by_terciles(variances)]
    expected = [min(b, n) for b, n in zip(sizes, [5, 17, 40, 3, 1, 9, 24], strict=True)]
    assert outcome.decisions["client/batch_size"].tolist() == expected
    assert outcome.steps.tolist() == [math.ceil(n / b) for n, b in zip([5, 17, 40, 3, 1, 9, 24], expected, strict=True)]
    plain = play(federation(method), X0, 1, engine)[0]
    assert (outcome.bytes_up - plain.bytes_up, outcome.bytes_down - plain.bytes_down) == (56, 56)
    assert len(set(sizes)) == 3


def test_resources_are_drawn_once_and_scale_the_batch() -> None:
    system = System(resources=(1.0, 0.25), variance="loss")
    shares = system.shares(50, 3)
    assert set(shares) == {1.0, 0.25}
    work = System(resources=(1.0, 0.25)).own_work(Local(batch_size=64), 50, 3)
    assert [w.batch_size for w in work] == [64 if share == 1.0 else 16 for share in shares]
    fed = federation(FedAvg(), resources=(0.5,))
    first, second = play(fed, X0, 2)
    assert first.decisions["client/batch_size"].tolist() == [5, 8, 8, 3, 1, 8, 8]
    assert torch.equal(first.decisions["client/batch_size"], second.decisions["client/batch_size"])


def test_clients_of_several_architectures_answer_the_survey(tmp_path: Path) -> None:
    models, settings = "mixed:models=[softmax,mlp:hidden=[4]]", {"server_data": {"share": 0.1}, "rounds": 1}
    runs = run(small("fedmd", model=models, system="variance=loss", **settings), data=DATA, runs=tmp_path)
    sizes = runs.store.curves([1], ["client/batch_size"], per_client=True)
    assert {m.value for m in sizes} <= {8, 16, 32}


def test_batch_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BadInput, match="leave out batch_sizes, or the others"):
        System(resources=(0.5,), batch_sizes="2-6")
    with pytest.raises(BadInput, match=r"set local\.batch_size to a number"):
        check_needs(Experiment(system={"variance": "loss"}, local={"batch_size": "all"}))
    private = {"algorithm": "dp-fedavg", "selection": "poisson:rate=0.1", "system": {"variance": "loss"}}
    with pytest.raises(BadInput, match="variance makes a client's batches depend on the other clients"):
        check_needs(Experiment(**private))
    assert not {"resources", "variance"} & Experiment().table()["system"].keys(), "the hashes of older runs hold"
