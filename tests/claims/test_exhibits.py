"""Tables and figures without training runs, against closed forms, and against what the documents print and claim."""

import numpy as np
import pytest

from fedskew.claims.document import load
from fedskew.claims.exhibits import (
    HISTOGRAMS,
    PRINTED,
    PULL_RATE,
    SCENARIOS,
    SHOWN_STEPS,
    class_counts,
    draw_counts,
    draw_pulls,
    of_table,
    optimum,
    pulls,
    rows_of_counts,
    rows_of_pulls,
    rows_of_skews,
    skews_to_name,
)
from fedskew.claims.reproduce import experiment_of


def test_the_printed_class_counts_are_too_mild_for_their_algorithm() -> None:
    """Table V: all five clients have 800 rows, and the mean squared distance from equal shares is 0.0994."""
    assert PRINTED.sum(1).tolist() == [800] * 5
    assert PRINTED.sum(0).tolist() == [1000] * 4
    assert of_table(PRINTED) == pytest.approx([0.0994, 4, 800], abs=5e-5)
    numbers = class_counts()
    one = numbers["one draw of Algorithm 3"]
    printed, mean, mildest, extreme = of_table(PRINTED), one["mean"], one["mildest"], one["extreme"]
    assert one["ours"] == of_table(np.array(one["counts"]))
    assert 3980 <= np.sum(one["counts"]) <= 4000
    assert mildest[0] > 2 * printed[0]
    # the specification's means of 10,000 draws
    assert mean[:2] == pytest.approx([0.469, 1.87], rel=0.03)
    assert extreme[1] == pytest.approx(1.27, rel=0.03)
    rows = rows_of_counts(numbers)
    assert [len(row) for row in rows] == [6, 6, 6]
    assert rows[2][:2] == ("smallest client", "800")
    for name, part in numbers.items():
        axes = draw_counts(numbers, name).axes[0]
        drawn = [int(text.get_text()) for text in axes.texts if text.get_text().isdigit()]
        assert drawn == [n for row in part["counts"] for n in row if n] + [sum(row) for row in part["counts"]]


def test_distance_counts_and_smallest_client_of_a_table() -> None:
    """Shares (1, 0) and (1/2, 1/2): squared distances 1/2 and 0; a share of exactly a twentieth does not count as a class."""
    assert of_table(np.array([[4, 0], [3, 3]])) == [0.25, 1.5, 4.0]
    assert of_table(np.array([[19, 1], [10, 10]]))[1] == 1.5


def test_clients_pull_towards_the_logarithms_of_their_shares() -> None:
    numbers = pulls()
    ((name, part),) = numbers.items()
    paths, optima, whole = (np.array(part[key]) for key in ("paths", "optima", "whole"))
    # after one step from equal scores the average is a step on the whole objective, whose gradient is 1/3 - mean shares
    assert paths[0] == pytest.approx(np.zeros((3, 2)))
    lengths = np.linalg.norm(paths[1], axis=1)
    assert lengths == pytest.approx(PULL_RATE * np.linalg.norm(HISTOGRAMS - 1 / 3, axis=1))
    assert np.linalg.norm(paths[1].mean(0)) == pytest.approx(PULL_RATE * np.linalg.norm(HISTOGRAMS.mean(0) - 1 / 3))
    # at its optimum a client's scores give its shares; the plane keeps distances
    scores = np.exp(optimum(HISTOGRAMS))
    assert scores / scores.sum(1, keepdims=True) == pytest.approx(HISTOGRAMS)
    assert np.linalg.norm(optima, axis=1) == pytest.approx(np.linalg.norm(optimum(HISTOGRAMS), axis=1))
    left = np.linalg.norm(paths - optima, axis=2)
    assert (np.diff(left, axis=0) < 0).all()
    assert (np.diff(part["drift"]) > 0).all()
    assert part["to_own"][-1] > 0.5
    assert np.linalg.norm(optima.mean(0) - whole) > 0.05
    assert rows_of_pulls(numbers)[-1] == ("20 local steps", f"{part['drift'][20]:.3f}", f"{part['to_own'][20]:.3f}")
    axes = draw_pulls(numbers, name).axes[0]
    lines = {line.get_label(): np.array(line.get_data()).T for line in axes.get_lines()}
    assert lines["average"] == pytest.approx(paths.mean(1))
    assert lines["client B, 70 % class 1"] == pytest.approx(paths[:, 1])
    assert len(paths) == SHOWN_STEPS[-1] + 1


def test_diagnose_names_each_planted_skew() -> None:
    """Exercise 14.4.1: (a) label, (b) feature, (c) quantity, (d) concept."""
    numbers = skews_to_name()
    faces = ["label", "feature", "quantity", "concept"]
    assert [of["dominant"] for of in numbers.values()] == faces
    rows = rows_of_skews(numbers)
    assert [row[0] for row in rows] == [scenario for scenario, *_ in SCENARIOS]
    for number, row in enumerate(rows):
        assert row[1] == faces[number]
        assert float(row[2 + number]) == max(map(float, row[2:6]))


def test_the_configuration_of_failure_modes_is_what_runs() -> None:
    """Table I: the column of each scale has the settings of its runs."""
    document = load("failure-modes")
    (table,) = (table for table in document.tables if table.name == "table-1")
    rows = {row[0]: dict(zip(table.words[0], row[1:], strict=True)) for row in table.words[1:]}
    for scale in document.scales:
        experiment = experiment_of(document, scale, "FedProx, non-IID", 0)
        written = {
            "clients": experiment.clients.number,
            "rounds": experiment.training.rounds,
            "local epochs": experiment.local.epochs,
            "batch size": experiment.local.batch_size,
            "rate": f"{experiment.solver.lr:.10f}".rstrip("0"),
            "Dirichlet alpha": experiment.skew[0].alpha,
            "FedProx mu": experiment.algorithm.mu,
            "seeds": document.scale(scale).seeds,
        }
        assert {name: rows[name][scale] for name in written} == {name: str(value) for name, value in written.items()}


def test_the_keyboard_story_changes_one_thing_a_stage() -> None:
    document = load("drift-demo")
    (table,) = (table for table in document.tables if table.name == "keyboard-story")
    stages = [experiment_of(document, "quick", arm, 1) for arm in table.arms]
    assert [stage.local.epochs for stage in stages] == [20, 10, 10, 10, 15]
    assert [getattr(stage.algorithm, "mu", 0.0) for stage in stages] == [0.0, 0.0, 0.1, 0.1, 0.1]
    assert [getattr(stage.server, "beta", 0.0) for stage in stages] == [0.0, 0.0, 0.0, 0.9, 0.9]
