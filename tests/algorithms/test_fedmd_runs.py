"""FedMD in whole runs: what is measured, what is refused, and the warm-up of each architecture."""

import numpy as np
import pytest
import torch
from torch import nn

from fedskew import Experiment
from fedskew.api.functions import compare, run
from fedskew.core.component import build, label, parse
from fedskew.core.errors import BadInput
from fedskew.data.dataset import Dataset
from fedskew.execution.build import assemble
from fedskew.experiment.config import from_toml
from fedskew.models import MODELS, Mixed
from fedskew.models.mixed import MixedNet
from fedskew.report.answer import remarks
from fedskew.report.series import Results


def small_data() -> Dataset:
    rng = np.random.default_rng(0)
    y = np.arange(240) % 3
    x = rng.standard_normal((240, 5)) + np.eye(5)[y] * 2
    return Dataset(x=x, y=y, x_test=x[:60], y_test=y[:60], classes=("a", "b", "c"))


def experiment(**changes) -> Experiment:
    options = {
        "algorithm": "fedmd:steps=5",
        "model": "mixed:models=[softmax,mlp:hidden=[8]]",
        "server_data": {"share": 0.2},
        "clients": {"number": 5},
        "training": {"rounds": 3, "dtype": "float64"},
        "local": {"epochs": 1},
        "engine": "sequential",
    }
    return Experiment(**(options | changes))


def test_the_servers_untrained_model_is_not_compared(tmp_path) -> None:
    runs = compare(
        experiment(model="softmax", training={"rounds": 1}),
        ["fedavg", "fedmd:steps=1"],
        seeds=2,
        data=small_data(),
        runs=tmp_path,
        baselines=False,
        progress=False,
    )
    table = Results(runs.store, runs.records).summary
    assert table["accuracy"].isna().tolist() == [False, True]
    assert table["verdict"].tolist() == ["", ""]
    assert table["personal"][1] > 0
    assert any("clients share no model" in line for line in remarks(runs.records))


def test_a_run_measures_the_clients_own_models(tmp_path) -> None:
    one = experiment()
    assert from_toml(one.toml()) == one
    frame = run(one, data=small_data(), runs=tmp_path).measurements()
    stored = frame[(frame["split"] == "personal") & (frame["name"] == "accuracy_mean")]["value"]
    assert stored.iloc[-1] > 0.8
    both = run(experiment(engine="stacked"), data=small_data(), runs=tmp_path).measurements()
    again = both[(both["split"] == "personal") & (both["name"] == "accuracy_mean")]["value"]
    assert list(again) == pytest.approx(list(stored), abs=1e-12)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algorithm": "fedavg"}, "no common parameters"),
        ({"algorithm": "fedavg", "sharing": "personal"}, "no common parameters"),
        ({"server_data": {}}, "--server-data"),
        ({"server": "adam"}, "exchanges no models"),
        ({"codec": "int8"}, "exchanges no models"),
        ({"sharing": "personal"}, "exchanges no models"),
        ({"refine": "distillation"}, "exchanges no models"),
        ({"evaluation": {"inexactness": True}}, "exchanges no models"),
    ],
)
def test_impossible_settings_are_refused(changes, words) -> None:
    with pytest.raises(BadInput, match=words):
        assemble(experiment(**changes), small_data())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Experiment(model=Mixed(models=("mlp",))), "a list of 2 or more"),
        (lambda: Mixed(models=("mlp", "mpl")), "mlp"),
        (lambda: Mixed(models=("mlp", "mixed")), "mixed"),
        (lambda: Experiment(server_data={"warm_up": 3}), "share"),
        (lambda: Experiment(server_data={"share": 0.1, "warm_up": -3}), "warm_up"),
    ],
)
def test_bad_options_are_named(make, words) -> None:
    with pytest.raises(BadInput, match=words):
        make()


def test_local_only_takes_clients_of_different_architectures() -> None:
    one = experiment(algorithm="fedavg", sharing="personal:layers=[*]")
    assert len(assemble(one, small_data()).federation.programs) == 2


@pytest.mark.parametrize(
    ("solver", "optimiser_of"),
    [
        ("sgd", lambda p: torch.optim.SGD(p, lr=0.1)),
        ("sgd:momentum=0.5,weight_decay=0.3", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5, weight_decay=0.3)),
        ("adamw:lr=0.1,weight_decay=0.3", lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.3)),
    ],
    ids=["sgd", "decay", "adamw"],
)
def test_the_warm_up_is_the_local_solver_on_the_servers_rows(solver: str, optimiser_of) -> None:
    """Each architecture gets the same result as with `torch.optim`, including weight decay."""
    cold, warm = (
        assemble(experiment(solver=solver, server_data={"share": 0.2, "warm_up": w}), small_data()) for w in (0, 6)
    )
    fed, data = cold.federation, cold.federation.server_data
    net = fed.task.model.using(0)
    for g in (0, 1):
        used = MixedNet(
            [build("model", MODELS, s).build((5,), 3, torch.Generator()) for s in cold.experiment.model.models]
        )
        used = used.using(g).double()
        nn.utils.vector_to_parameters(cold.x0.clone(), used.parameters())
        optimiser = optimiser_of(used.nets[g].parameters())
        for _ in range(6):
            optimiser.zero_grad()
            nn.functional.cross_entropy(used(data.x)[1], data.y).backward()
            optimiser.step()
        trained = nn.utils.parameters_to_vector(used.nets[g].parameters())
        first = sum(p.numel() for p in net.nets[0].parameters())
        place = slice(None, first) if g == 0 else slice(first, None)
        torch.testing.assert_close(warm.x0[place], trained.detach(), rtol=1e-12, atol=1e-12)


def test_compact_forms_of_lists_within_lists() -> None:
    spec = "mixed:models=[softmax,mlp:hidden=[8,4],mlp:hidden=[3]]"
    made = build("model", MODELS, spec)
    assert made.models == ("softmax", "mlp:hidden=[8,4]", "mlp:hidden=[3]")
    assert label(made, MODELS) == spec
    assert parse('mlp:hidden=[8,4],norm="group"', "model")[1] == {"hidden": [8, 4], "norm": "group"}
