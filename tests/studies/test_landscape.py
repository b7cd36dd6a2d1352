"""Loss slices: of a quadratic as in closed form, of a network with the stored loss in the centre."""

import dataclasses
import inspect
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedskew as fs
from fedskew.api.functions import run
from fedskew.cli.verbs import LANDSCAPE
from fedskew.core.errors import BadInput
from fedskew.core.trees import ParameterSpace
from fedskew.execution.rounds import state_of
from fedskew.experiment.config import Experiment
from fedskew.experiment.keywords import LandscapeKeywords, declared
from fedskew.report.html import page
from fedskew.report.plots import kept
from fedskew.report.series import Results
from fedskew.store.runs import RunStore
from fedskew.studies.landscape import (
    Grid,
    around,
    filter_normalised,
    landscape,
    losses_on,
    models_of,
    sharpness,
    through,
    through_path,
)
from tests.commands import error_of, output_of

A = torch.tensor(np.diag([1.0, 4.0, 9.0]))
CENTRE = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)


def bowl(w: torch.Tensor) -> torch.Tensor:
    return (w - CENTRE) @ A @ (w - CENTRE) / 2


def test_a_slice_of_a_quadratic_is_the_closed_form() -> None:
    w, d, e = torch.tensor([[0.0, 0.5, 1.0], [1.0, 0.0, 2.0], [0.0, 1.0, 1.0]], dtype=torch.float64)
    window = around(w, d, e, reach=2.0, points=5)
    found = losses_on(window, lambda v: bowl(v)[None])[0]
    g = A @ (w - CENTRE)
    for i, b in enumerate(window.b):
        for j, a in enumerate(window.a):
            slope, curve = a * (g @ d) + b * (g @ e), (a * d + b * e) @ A @ (a * d + b * e) / 2
            assert found[i, j] == pytest.approx(float(bowl(w) + slope + curve))
    assert found[2, 2] == pytest.approx(float(bowl(w)))


def test_the_plane_through_three_models_holds_them() -> None:
    models = torch.tensor(np.random.default_rng(0).standard_normal((3, 6)))
    window, at = through(models, points=7)
    for model, (a, b) in zip(models, at, strict=True):
        torch.testing.assert_close(window.at(a, b), model)
    assert float(window.first @ window.second) == pytest.approx(0, abs=1e-12)
    assert float(window.second.norm()) == pytest.approx(1)
    assert at[1, 1] == 0
    assert window.a[0] < at[:, 0].min()
    assert window.b[-1] > at[:, 1].max()


def test_models_that_nearly_lie_on_one_line_make_a_plane() -> None:
    models = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [2.0, 0.01, 0.0]], dtype=torch.float64)
    window, at = through(models, points=3)
    assert at[2] == pytest.approx([2, 0.01])
    torch.testing.assert_close(window.second, torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64))


def test_a_model_that_has_not_moved_lies_on_the_line_to_the_other() -> None:
    w, step = torch.ones(4, dtype=torch.float64), torch.tensor([0.0, 3.0, 0.0, 4.0], dtype=torch.float64)
    for models, expected in (([w, w, w + step], [0, 5]), ([w, w + step, w], [5, 0])):
        window, at = through(torch.stack(models), points=5)
        assert window.second is None
        assert at[1:, 0] == pytest.approx(expected)
        torch.testing.assert_close(window.at(5.0, 0), w + step)
    with pytest.raises(BadInput, match="the three models are equal"):
        through(torch.stack([w, w, w]), points=5)


def test_random_directions_have_the_filters_lengths_and_leave_biases() -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(3, 4))
    space = ParameterSpace(net)
    w = space.flatten(net)
    d = filter_normalised(w, space, torch.Generator().manual_seed(0))
    own, drawn = space.unflatten(w), space.unflatten(d)
    for name in own:
        if own[name].dim() == 1:
            assert drawn[name].abs().sum() == 0
        else:
            torch.testing.assert_close(drawn[name].flatten(1).norm(dim=1), own[name].flatten(1).norm(dim=1))
    again = filter_normalised(w, space, torch.Generator().manual_seed(0))
    assert torch.equal(d, again)


def test_sharpness_of_a_quadratic() -> None:
    w = torch.tensor([1.0, 2.0, 2.0], dtype=torch.float64)
    found = sharpness(bowl, w, 0.1, torch.Generator().manual_seed(0))
    # the gradient is (0, 0, -9): one step of 0.1 along it goes from 4.5 to 9 / 2 * 1.1 ** 2
    assert found.rise == pytest.approx(4.5 * (1.1**2 - 1))
    assert found.eigenvalue == pytest.approx(9, rel=1e-6)


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> RunStore:
    folder = tmp_path_factory.mktemp("landscape")
    small = Experiment(model="mlp:hidden=[8]", training={"rounds": 3}, local={"epochs": 1}, engine="stacked")
    return run(small, runs=folder).store


@pytest.mark.parametrize("kind", ["line", "surface"])
def test_the_centre_is_the_stored_loss(store: RunStore, kind) -> None:
    found = landscape(store, 1, Grid(kind=kind, clients=(4, 2), points=3))
    rows = store.measurements([1])
    rows = rows[rows["round"] == 3]
    stored = rows[(rows["split"] == "test") & (rows["name"] == "loss")]["value"].item()
    assert found.sheets["test set"][len(found.window.b) // 2, 1] == pytest.approx(stored, abs=1e-9)
    own = rows[(rows["split"] == "global-model") & (rows["name"] == "loss")].set_index("client")["value"]
    assert found.sheets["client 4"][len(found.window.b) // 2, 1] == pytest.approx(own[4], abs=1e-9)
    assert list(found.sheets) == ["test set", "client 4", "client 2"]


def test_the_plane_shows_that_a_client_lowers_its_own_loss(store: RunStore) -> None:
    found = landscape(store, 1, Grid(points=9))
    window = found.window
    assert found.points["global"] == (0, 0)
    assert set(found.points) == {"global", "client 0", "client 1", "next global"}
    for name in ("client 0", "client 1"):
        a, b = found.points[name]
        near = found.sheets[name][np.abs(window.b - b).argmin(), np.abs(window.a - a).argmin()]
        start = found.sheets[name][np.abs(window.b).argmin(), np.abs(window.a).argmin()]
        assert near < start
    assert -1 <= found.overlap <= 1
    assert store.run(1).status == "finished"


def test_the_command_draws_and_says_what_is_wrong(store: RunStore, tmp_path) -> None:
    words = ["landscape", "1", "--runs", str(store.folder), "--points", "3"]
    assert json.loads(output_of(*words, "--output", tmp_path / "plane.svg", "--json"))["kind"] == "plane"
    assert "<svg" in (tmp_path / "plane.svg").read_text()
    out = output_of(*words, "--kind", "line", "--output", tmp_path / "line.png")
    assert "sharpness: the training loss rises by" in out
    for wrong, message in (
        (["--clients", "0", "10"], "there is no client 10; they are 0 to 9"),
        (["--clients", "3"], "name two"),
        (["--output", "plane.doc"], "it must end in svg, png, pdf"),
        (["--points", "2"], "points must be at least 3"),
    ):
        assert message in error_of(*words, *wrong)
    for reach in (0, math.inf, math.nan):
        with pytest.raises(BadInput, match="landscape: reach must be a finite number above 0"):
            fs.landscape(fs.open(store.folder)[1], "line", reach=reach)


def test_defaults_of_a_landscape_stand_in_its_grid_only() -> None:
    keywords = declared(LandscapeKeywords)
    assert {field.name: field.default for field in dataclasses.fields(Grid)} == {
        name: inspect.signature(fs.landscape).parameters[name].default for name in keywords
    }
    assert not [option.name for option in LANDSCAPE if option.name.strip("-") in keywords and "default" in option.how]


def test_the_plane_of_a_path_holds_models_that_lie_in_a_plane() -> None:
    random = np.random.default_rng(0)
    weights, directions, end = (torch.tensor(random.standard_normal(shape)) for shape in ((5, 2), (2, 7), (7,)))
    models = torch.cat([end + weights @ directions, end[None]])
    window, at = through_path(models, points=9)
    assert list(at[-1]) == [0, 0]
    for model, (a, b) in zip(models, at, strict=True):
        assert window.at(a, b).numpy() == pytest.approx(model.numpy())
    assert window.a[0] < at[:, 0].min() <= at[:, 0].max() < window.a[-1]
    with pytest.raises(BadInput, match="has not moved"):
        through_path(end.expand(3, 7), points=9)
    line, on_it = through_path(torch.stack([end, 2 * end, 4 * end]), points=9)
    assert line.second is None
    assert np.diff(on_it[:, 0]) == pytest.approx(
        np.sign(on_it[1, 0] - on_it[0, 0]) * float(end.norm()) * np.array([1, 2])
    )


def test_the_path_repeats_the_run_and_stands_in_its_report(tmp_path: Path) -> None:
    experiment = Experiment(
        algorithm="scaffold", model="softmax", clients={"number": 3}, local={"epochs": 1}, training={"rounds": 3, "threads": 1},
        engine="sequential",
    )  # fmt: skip
    store = run(experiment, runs=tmp_path).store
    assert "fedskew landscape 1 --kind path" in page(Results(store, store.runs()))
    found = landscape(store, 1, Grid(kind="path", clients=(0,), points=3))
    assembly, server, _ = state_of(store, 1)
    assert torch.equal(models_of(assembly, 3)[-1], server.x)
    assert len(found.path) == 4
    assert found.path[-1] == (0.0, 0.0)
    [numbers] = kept(store.run_folder(1))
    assert numbers == json.loads(json.dumps(found.numbers()))
    text = page(Results(store, store.runs()))
    assert text.count("loss landscape of SCAFFOLD, ") >= 2
    assert "after round 3" in text
    assert "fedskew landscape 1 --kind path" not in text
    (store.run_folder(1) / "landscape-path.json").write_text('{"losses": 1}')
    assert "loss landscape of" not in page(Results(store, store.runs()))


@pytest.mark.parametrize("begun", [{"init": "1:2"}, {"faults__attackers": 0.4, "faults__attack": "scaled"}])
def test_the_path_ends_at_the_model_of_a_run_that_goes_on_or_is_attacked(tmp_path: Path, begun) -> None:
    """A run begun after round 2 has four rounds until round 6."""
    small: Any = {"model": "softmax", "clients": 5, "epochs": 1, "runs": tmp_path, "engine": "sequential"}
    fs.run(rounds=2, **small)
    fs.run(rounds=6, **small, **begun)
    assembly, server, _ = state_of(fs.open(tmp_path)[2].store, 2)
    models = models_of(assembly, 6)
    assert torch.equal(models[-1], server.x)
    assert len(models) == 1 + 6 - assembly.initial.round


def test_sharpness_is_of_the_rows_of_all_clients(tmp_path: Path) -> None:
    """The first 2,048 training rows are the first client's."""
    y = np.repeat([0, 1], 3000)
    rows = fs.Dataset(x=np.eye(2)[y], y=y, x_test=np.eye(2), y_test=np.arange(2), groups=y, classes=("no", "yes"))
    small: Any = {"skew": "natural", "model": "softmax", "rounds": 1, "clients__held_out": 0.0, "runs": tmp_path}
    found = fs.landscape(fs.run(data=rows, dtype="float64", **small), "line", points=3)
    assembly, server, _ = state_of(fs.open(tmp_path)[1].store, 1, rows)
    task, x = assembly.federation.task, torch.eye(2, dtype=torch.float64)
    curvature = torch.func.hessian(lambda w: task.loss(task.logits(w, x), torch.tensor([0, 1])).mean())(server.x)
    assert found.sharpness.eigenvalue == pytest.approx(float(torch.linalg.eigvalsh(curvature)[-1]), rel=1e-4)


@pytest.mark.parametrize("algorithm", ["ifca", "fedper"])
def test_a_landscape_needs_one_model_of_all_clients(tmp_path: Path, algorithm) -> None:
    small: Any = {"model": "softmax", "clients": 3, "rounds": 1, "epochs": 1, "runs": tmp_path}
    with pytest.raises(BadInput, match="the clients of run 1 have separate models"):
        fs.landscape(fs.run(algorithm=algorithm, **small))
