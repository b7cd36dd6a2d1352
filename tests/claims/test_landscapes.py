"""Figures 1 and 11 of From IID to Non-IID: exact quadratic losses, paths in closed form, the same numbers from the same seed."""

import json

import numpy as np
import pytest

from fedskew.claims.landscapes import (
    LOCAL_RATE,
    LOCAL_STEPS,
    RATE,
    Surface,
    batch_sizes,
    draw_part,
    rows_of,
    two_clients,
)

PATHS, CLIENTS = batch_sizes(), two_clients()


def parts_of(values):
    return np.array(values["hessian"]), np.array(values["lowest"])


def test_numbers_are_plain_and_the_same_each_time() -> None:
    assert json.loads(json.dumps([PATHS, CLIENTS])) == [batch_sizes(), two_clients()]


def test_gradient_descent_is_the_closed_form() -> None:
    """w_t - lowest = (I - rate H)^t (w_0 - lowest)."""
    part = PATHS["gradient descent"]
    hessian, lowest = parts_of(part["whole"])
    path = np.array(part["path"])
    for step in (1, 7, 80):
        there = lowest + np.linalg.matrix_power(np.eye(2) - RATE * hessian, step) @ (path[0] - lowest)
        assert path[step] == pytest.approx(there, rel=1e-9)


def test_smaller_batches_take_longer_paths() -> None:
    lengths = [np.linalg.norm(np.diff(part["path"], axis=0), axis=1).sum() for part in PATHS.values()]
    assert lengths == sorted(lengths)
    assert lengths[2] > 2 * lengths[0]
    assert [part["row"][1] for part in PATHS.values()] == pytest.approx(lengths)


def test_a_server_on_quadratic_losses_follows_the_closed_form() -> None:
    """A client's model is lowest + (I - rate H)^steps (server - lowest). The server is the mean."""
    for part in CLIENTS.values():
        server = np.array(part["path"])
        models = []
        for values in part["clients"].values():
            hessian, lowest = parts_of(values)
            shrink = np.linalg.matrix_power(np.eye(2) - LOCAL_RATE * hessian, LOCAL_STEPS)
            models.append(lowest + (server[:-1] - lowest) @ shrink.T)
        assert server[1:] == pytest.approx(np.mean(models, axis=0), rel=1e-9)


def test_the_whole_loss_is_the_mean_of_the_clients_losses() -> None:
    at = np.array([[0.3, -1.0], [2.0, 0.5]])
    for part in CLIENTS.values():
        losses = [Surface(**values).at(at) for values in part["clients"].values()]
        assert Surface(**part["whole"]).at(at) == pytest.approx(np.mean(losses, axis=0), rel=1e-9)


def test_only_non_iid_clients_miss_the_lowest_loss() -> None:
    iid, skewed = (np.array(CLIENTS[name]["row"]) for name in ("IID", "non-IID"))
    assert (skewed > 20 * iid).all()
    assert iid[2] < 1e-5
    assert skewed[2] > 0.03


def test_a_part_is_drawn_with_its_paths_and_lowest_points() -> None:
    assert [row[:2] for row in rows_of(PATHS)] == [("gradient descent", "64"), ("mini-batch SGD", "8"), ("SGD", "1")]
    axes = draw_part(CLIENTS, "non-IID").axes[0]
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert lines["server"].get_xydata() == pytest.approx(np.array(CLIENTS["non-IID"]["path"]))
    assert lines["lowest loss"].get_xydata()[0] == pytest.approx(np.array(CLIENTS["non-IID"]["whole"]["lowest"]))
    limits = [draw_part(PATHS, name).axes[0].get_xlim() for name in PATHS]
    assert limits[0] == limits[1] == limits[2]
