"""Heart disease in four hospitals, as published numbers have it: pooled training, and FedAvg at a tuned rate, over five splits.

`python -m pytest -m slow -s tests/tasks/test_heart_numbers.py` prints the accuracies that docs/data/index.md states.
"""

import numpy as np
import pytest
import torch

import fedskew as fs
from fedskew.data.dataset import Ints, numbered
from fedskew.data.datasets.heart import CSV, read
from fedskew.data.splits import share_of_strata

SPLITS, ROUNDS = 5, 40


def hospitals_of_test_rows(split: int) -> tuple[Ints, tuple[str, ...]]:
    """The hospital of each test row, and the hospitals' names."""
    table = read(CSV)
    hospital, names = numbered(table["hospital"])
    ill = (np.array(table["num"], dtype=float) > 0).astype(np.int64)
    return hospital[share_of_strata(2 * hospital + ill, 1 / 3, split)], names


@pytest.mark.slow
def test_tuned_fedavg_is_as_good_as_pooled_training_in_every_hospital(tmp_path) -> None:
    found: dict[str, list[np.ndarray]] = {"centralised": [], "fedavg": []}
    names: tuple[str, ...] = ()
    for split in range(SPLITS):
        data = f"heart:split_seed={split}"
        tuned = fs.tune(
            [*found], dataset=data, model="softmax", rounds=ROUNDS, grid={"solver.lr": [0.01, 0.03, 0.1]},
            held_out=0.0, runs=tmp_path / "tune", progress=False,
        )  # fmt: skip
        runs = tuned.compare(seeds=1, progress=False)
        hospital, names = hospitals_of_test_rows(split)
        loaded = fs.load(data)
        for number, method in zip(runs.ids, found, strict=True):
            with torch.no_grad():
                answers = runs[number].model()(torch.as_tensor(loaded.x_test)).argmax(1).numpy()
            right = answers == loaded.y_test
            found[method].append(np.array([right.mean(), *(right[hospital == k].mean() for k in range(len(names)))]))
    means = {method: np.mean(rows, axis=0) for method, rows in found.items()}
    for place, at in zip(("all rows", *names), range(len(names) + 1), strict=True):
        print(f"{place:14}" + "".join(f" {method} {100 * means[method][at]:.1f} %" for method in means))
    assert abs(means["centralised"][0] - 0.80) <= 0.03
    assert np.abs(means["fedavg"] - means["centralised"]).max() <= 0.03
