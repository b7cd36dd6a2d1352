"""Augmentation: against padding and cropping by PyTorch, drawn by round and client, the same in both engines."""

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedskew.core.errors import BadInput
from fedskew.data.dataset import Dataset
from fedskew.engine import ENGINES
from fedskew.engine.states import ClientStates
from fedskew.execution.build import assemble
from fedskew.experiment.config import Experiment
from fedskew.loop.plan import Local, SeededPlanner
from fedskew.loop.round import play_round, start
from fedskew.loop.work import warped
from fedskew.slots import CropFlip


def test_a_warp_is_padding_by_reflection_then_cropping_then_flipping():
    rng = np.random.default_rng(0)
    x = torch.as_tensor(rng.standard_normal((40, 3, 7, 9)))
    change = CropFlip(padding=3).draw((40,), rng)
    assert set(change[:, 0]) == set(change[:, 1]) == set(range(-3, 4))
    assert set(change[:, 2]) == {0, 1}
    padded = F.pad(x, (3, 3, 3, 3), mode="reflect")
    for got, image, (down, right, mirrored) in zip(warped(x, torch.as_tensor(change)), padded, change, strict=True):
        crop = image[:, 3 + down : 10 + down, 3 + right : 12 + right]
        assert torch.equal(got, crop.flip(-1) if mirrored else crop)


def test_many_clients_at_once_are_the_same():
    rng = np.random.default_rng(1)
    x, change = torch.as_tensor(rng.standard_normal((4, 5, 2, 6, 6))), torch.as_tensor(CropFlip().draw((4, 5), rng))
    assert torch.equal(warped(x, change), torch.stack([warped(a, b) for a, b in zip(x, change, strict=True)]))


def test_each_draw_of_a_row_differs_and_batches_stay_as_they_were():
    rows = np.arange(20)
    plain = SeededPlanner(Local(epochs=2, batch_size=8), 3)
    planner = dataclasses.replace(plain, augmentation=CropFlip())
    plan = planner.train(1, 2, rows)
    assert np.array_equal(plan.index, plain.train(1, 2, rows).index)
    assert plan.warp.shape == (*plan.index.shape, 3)
    assert np.array_equal(plan.warp, planner.train(1, 2, rows).warp)
    assert not np.array_equal(plan.warp, planner.train(2, 2, rows).warp)
    assert not np.array_equal(plan.warp, planner.train(1, 3, rows).warp)
    assert not np.array_equal(plan.warp[:3], plan.warp[3:]), "another epoch, other changes"
    cut = plan.first(2)
    assert np.array_equal(cut.warp, plan.warp[:2])
    assert len(cut.index) == 2


def pictures(side: int = 6) -> Dataset:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((60, 1, side, side)), rng.integers(0, 3, 60)
    return Dataset(x=x, y=y, x_test=x, y_test=y, classes=("a", "b", "c"), name="pictures")


def trained(engine: str, augment: str) -> torch.Tensor:
    experiment = Experiment(
        model="cnn:hidden=4",
        skew="label-dirichlet:alpha=0.5",
        clients={"number": 4},
        training={"rounds": 2, "dtype": "float64"},
        local={"epochs": 2, "batch_size": 7},
        augment=augment,
    )
    made = assemble(experiment, pictures())
    server, states = start(made.federation, made.x0), ClientStates()
    for _ in range(2):
        server = play_round(made.federation, ENGINES[engine](), server, states).server
    return server.x


def test_engines_train_on_the_same_images():
    one, two = trained("sequential", "crop-flip:padding=2"), trained("stacked", "crop-flip:padding=2")
    torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)
    plain = trained("sequential", "none")
    assert float((one - plain).abs().max()) > 1e-6


def test_a_padding_that_cannot_be_gives_a_one_line_error():
    with pytest.raises(BadInput, match="padding"):
        trained("sequential", "crop-flip:padding=6")


def test_rows_that_are_no_images_are_refused():
    flat = Dataset(
        x=np.zeros((4, 9)), y=np.arange(4) % 2, x_test=np.zeros((2, 9)), y_test=np.arange(2), classes=("a", "b")
    )
    with pytest.raises(BadInput, match=r"needs images .* shape \(9,\); use --augment none"):
        assemble(Experiment(model="mlp", skew="iid", clients={"number": 2}, augment="crop-flip"), flat)
