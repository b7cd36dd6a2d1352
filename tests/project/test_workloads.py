"""Real data to the accuracies that the field reports; minutes each, `make test-slow`."""

import dataclasses
import os
from pathlib import Path

import pytest

from fedskew.api.functions import compare, run
from fedskew.core.errors import Diverged
from fedskew.data.dataset import Dataset
from fedskew.data.datasets.images import Cifar10
from fedskew.data.datasets.uci_har import UciHar
from fedskew.experiment.config import Experiment, from_toml, read
from fedskew.measure.statistics import mean_interval

RECIPES = Path(__file__).parents[2] / "experiments"

HAS_DATA = (Path(os.environ.get("FEDSKEW_DATA", "/nowhere")) / UciHar.files.others[-1][0]).is_file()
needs_data = pytest.mark.skipif(not HAS_DATA and not os.environ.get("CI"), reason="UCI-HAR is not here")


def sensors(skew: str, lr: float, rounds: int) -> Experiment:
    return Experiment(
        dataset="uci-har",
        skew=skew,
        solver=f"sgd:lr={lr},momentum=0.9",
        local={"epochs": 1, "batch_size": 32},
        training={"rounds": rounds, "threads": 1},
        engine="sequential",
    )


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize(
    ("skew", "lr", "rounds", "at_least"), [("natural", 0.05, 60, 0.90), ("label-dirichlet:alpha=0.2", 0.01, 30, 0.89)]
)
def test_fedavg_on_unseen_people(tmp_path, skew: str, lr: float, rounds: int, at_least: float) -> None:
    runs = compare(sensors(skew, lr, rounds), ["fedavg"], seeds=3, runs=tmp_path, jobs=2)
    assert runs.table()["accuracy"][0] >= at_least


@needs_data
@pytest.mark.slow
def test_an_mlp_on_features_of_unseen_people(tmp_path) -> None:
    """On the official 561 features, or on those computed from the signals."""
    experiment = Experiment(
        dataset="uci-har:form=features",
        skew="natural",
        solver="sgd:lr=0.05,momentum=0.9",
        local={"epochs": 1, "batch_size": 32},
        training={"rounds": 50, "threads": 1},
        evaluation={"every": 50, "local_models": False},
        engine="stacked",
    )
    runs = compare(experiment, ["fedavg"], seeds=3, runs=tmp_path)
    assert runs.table()["accuracy"][0] >= 0.94


def recipe(name: str) -> Experiment:
    """A file of experiments/, on one thread."""
    return read(RECIPES / f"{name}.toml").replace(training__threads=1)


def accuracies(experiment: Experiment, folder: Path, data: Dataset | None = None) -> dict[int, float]:
    """Test accuracy after each measured round."""
    frame = run(experiment, runs=folder, data=data).measurements()
    measured = frame[(frame["split"] == "test") & (frame["name"] == "accuracy")]
    return dict(zip(measured["round"].astype(int), measured["value"].astype(float), strict=True))


@pytest.mark.parametrize("file", sorted(RECIPES.glob("*.toml")), ids=lambda file: file.stem)
def test_recipes_are_whole_and_described(file: Path) -> None:
    experiment = read(file)
    assert from_toml(experiment.toml()) == experiment
    for page in ("docs/results/workloads.md", file):
        assert f"experiments/{file.name}" in (RECIPES.parent / page).read_text(encoding="utf-8")


@needs_data
@pytest.mark.slow
def test_intents_of_messages_that_share_no_set_of_words(tmp_path) -> None:
    """Unseen messages only; eleven clients."""
    assert max(accuracies(recipe("bitext-intents"), tmp_path).values()) >= 0.95


@needs_data
@pytest.mark.slow
def test_mcmahans_network_on_photographs(tmp_path) -> None:
    """The third document's base setting, its first sixteen rounds."""
    reached = accuracies(recipe("cifar-10-base").replace(training__rounds=16), tmp_path)
    assert reached[5] >= 0.33
    assert reached[16] >= 0.47


@needs_data
@pytest.mark.slow
def test_half_precision_costs_no_accuracy_beyond_the_seeds_noise(tmp_path) -> None:
    """2,000 photographs, four clients; differences over five seeds."""
    whole = Cifar10().load()
    part = dataclasses.replace(
        whole, x=whole.x[:2000], y=whole.y[:2000], x_test=whole.x_test[:1000], y_test=whole.y_test[:1000]
    )
    base = recipe("cifar-10-base").replace(
        clients__number=4, solver__lr=0.02, solver__momentum=0.9, training__rounds=4, evaluation__every=4
    )
    ends = {
        precision: [
            accuracies(base.replace(training__seed=seed, training__precision=precision), tmp_path, part)[4]
            for seed in range(5)
        ]
        for precision in ("full", "bf16")
    }
    differences = [half - full for full, half in zip(ends["full"], ends["bf16"], strict=True)]
    mean, interval = mean_interval(differences)
    assert min(ends["full"]) > 0.25, "they learn"
    assert abs(mean) <= max(interval, 0.01)


@needs_data
def test_a_step_that_is_too_large_for_sensor_data_is_diagnosed(tmp_path) -> None:
    with pytest.raises(
        Diverged, match=r"round \d+, client \d+.*most likely cause: the client learning rate 5 is too large.*try lr"
    ):
        run(sensors("label-dirichlet:alpha=0.2", 5.0, 6), runs=tmp_path)
