"""The part of a model that clients keep: found by position, name or type, and refused for methods that cannot use it."""

import pytest
import torch
from torch import nn

from fedskew.algorithms import FedAvg
from fedskew.api.functions import compare, run as run_experiment
from fedskew.core.errors import BadInput
from fedskew.core.trees import ParameterSpace
from fedskew.execution.build import assemble
from fedskew.experiment.config import Experiment
from fedskew.models import Cnn, Cnn1d, Mlp
from fedskew.slots import Everyone, Norm, Personal
from tests.blobs import DATA, small
from tests.small import NET, TASK


def made(model, shape=(1, 4, 4), classes: int = 3) -> tuple[nn.Module, ParameterSpace]:
    net = model.build(shape, classes, torch.Generator().manual_seed(0))
    return net, ParameterSpace(net)


def names(sharing, model, shape=(1, 4, 4)) -> list[str]:
    """Return the names of the kept parameters. Each is kept completely."""
    net, space = made(model, shape)
    at = sharing.kept(net, space)
    assert at.tolist() == sorted(set(at.tolist()))
    mask = torch.zeros(space.size).index_fill(0, at, 1.0)
    parts = space.unflatten(mask)
    assert all(part.unique().numel() == 1 for part in parts.values())
    return [name for name, part in parts.items() if part.any()]


OUT, FC = ["out.weight", "out.bias"], ["fc1.weight", "fc1.bias"]
NORMS = [f"norm{i}.{kind}" for i in (1, 2) for kind in ("weight", "bias")]


def test_heads_are_counted_from_the_end() -> None:
    assert names(Personal(), Cnn(hidden=4)) == OUT
    assert names(Personal(head=2), Cnn(hidden=4)) == FC + OUT
    conv = ["conv2.weight", "conv2.bias"]
    assert names(Personal(head=3), Cnn(hidden=4)) == conv + FC + OUT
    assert names(Personal(head=3), Cnn(hidden=4, norm="group")) == conv + NORMS[2:] + FC + OUT
    hidden = [f"hidden.1.{i}.{kind}" for i in (0, 1) for kind in ("weight", "bias")]
    assert names(Personal(head=2), Mlp(hidden=(5, 4), norm="group")) == hidden + OUT


def test_layers_are_found_by_name() -> None:
    assert names(Personal(layers=("fc*",)), Cnn(hidden=4)) == FC
    assert names(Personal(layers=("out", "conv1")), Cnn(hidden=4)) == ["conv1.weight", "conv1.bias", *OUT]
    assert len(names(Personal(layers=("*",)), Cnn(hidden=4, norm="group"))) == 12


def test_normalisation_layers_are_found_by_type() -> None:
    assert names(Norm(), Cnn(hidden=4, norm="group")) == NORMS
    assert names(Norm(), Cnn1d(filters=2, hidden=4, norm="group"), (2, 32)) == NORMS
    assert names(Norm(), Mlp(hidden=(5,), norm="group")) == ["hidden.0.1.weight", "hidden.0.1.bias"]


@pytest.mark.parametrize(
    ("sharing", "words"),
    [
        (Personal(head=5), ["head of 5", "has 4"]),
        (Personal(layers=("fc9",)), ["'fc9'", "conv1, conv2, fc1, out"]),
        (Norm(), ["has none", "norm=group"]),
    ],
)
def test_a_part_that_the_model_lacks_is_refused(sharing, words: list[str]) -> None:
    with pytest.raises(BadInput) as caught:
        sharing.kept(*made(Cnn(hidden=4)))
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("method", ["scaffold", "feddyn", "moon", "ditto", "ifca"])
def test_methods_with_vectors_over_the_model_are_refused_with_reason_and_fix(tmp_path, method: str) -> None:
    with pytest.raises(BadInput, match=f"{method} stores vectors of the size of the whole model.*--sharing all"):
        run_experiment(small(method, sharing="personal:head=1"), data=DATA, runs=tmp_path)


@pytest.mark.parametrize(
    "options", [{"algorithm": "fedga"}, {"refine": "distillation:steps=1"}], ids=["method", "refine"]
)
def test_evaluating_models_on_the_server_is_refused_if_clients_keep_a_part(options) -> None:
    with pytest.raises(BadInput, match=r"on the server's rows.*--sharing all"):
        assemble(small("fedavg", sharing="personal:head=1", server_data={"share": 0.1}).replace(**options), DATA)


def test_fedper_fedbn_and_local_only_are_fedavg_with_a_kept_part() -> None:
    assert small("fedper:head=2").sharing == Personal(head=2)
    assert small("fedbn").sharing == Norm()
    assert small("local-only").sharing == Personal(layers=("*",))
    assert all(small(name).algorithm == FedAvg() for name in ("fedper", "fedbn", "local-only"))
    assert Experiment().sharing.kept(NET, TASK.space) is None


def test_a_comparison_measures_personal_models_and_bytes(tmp_path) -> None:
    base = small(
        model="mlp:hidden=[6],norm=group",
        clients={"number": 6, "held_out": 0.3},
        selection=Everyone(),
        evaluation={"adapt_steps": 2},
    )
    runs = compare(base, ["fedavg", "fedper", "fedbn", "local-only"], seeds=1, data=DATA, runs=tmp_path)
    table = runs.table().set_index("method")
    assert table["personal"].notna().all()
    parameters = {"fedavg": 61 + 2 * 6 - 4, "fedper": 42 + 6, "fedbn": 61 - 4, "local-only": 0}
    assert (parameters["fedavg"], parameters["fedbn"]) == (36 + 12 + 21, 36 + 21)
    for name, sent in parameters.items():
        assert table["megabytes_up"][name] == pytest.approx(4 * 6 * 4 * sent / 1e6)
    frame = runs.measurements().query("split == 'test' and name == 'accuracy'")
    alone = frame[frame["run"] == runs.ids[3]]["value"]
    assert alone.nunique() == 1, "the server's model never moves if clients keep all of it"


def test_runs_of_one_model_share_one_program() -> None:
    """Engines trace a program only once for several runs."""
    one, two = (assemble(small("fedper", training__seed=seed), DATA).federation for seed in (0, 1))
    assert one.own_part is two.own_part
    assert one.program is two.program
