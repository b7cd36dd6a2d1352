"""Models at the sites: which rows they answer, by hand for each way of giving a site its model."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import fedskew as fs
from fedskew.core.records import channels_last
from fedskew.execution.build import assemble
from fedskew.execution.sites import rarest_class
from fedskew.experiment.config import from_toml
from fedskew.serving.export import of_clients
from fedskew.store import test_rows
from tests.real import loaded


def run(tmp_path: Path, algorithm: str = "fedavg", **settings) -> fs.Runs:
    settings = {"dataset": "heart", "skew": "natural", "rounds": 2, "seed": 3} | settings
    return fs.run(algorithm=algorithm, runs=tmp_path / "runs", progress=False, **settings)


def values(runs: fs.Runs, split: str = "sites") -> pd.Series:
    """The last values of a split without a client, by name."""
    frame = runs.measurements()
    frame = frame[(frame["split"] == split) & frame["client"].isna()]
    return frame[frame["round"] == frame["round"].max()].set_index("name")["value"]


def by_site(runs: fs.Runs) -> pd.DataFrame:
    """The values at each site: sites by names of measures."""
    frame = runs.measurements().query("split == 'sites' and client == client")
    return frame.pivot(index="client", columns="name", values="value")


def rows_of(runs: fs.Runs) -> test_rows.Stored:
    [run] = runs.ids
    return test_rows.read(runs.store, [run], "sites")[run]


def test_fedavg_at_the_sites_is_its_test_metric(tmp_path: Path) -> None:
    runs = run(tmp_path)
    here, test = values(runs), values(runs, "test")
    for name in ("accuracy", "balanced_accuracy", "f1_macro", "auc", "ece", "loss"):
        # on some processors float32 products of other batch sizes have another last digit
        assert here[name] == pytest.approx(test[name], abs=1e-7), name
    data = loaded("heart")
    assert here["rows"] == len(data.y_test)
    assert by_site(runs)["rows"].tolist() == np.bincount(data.groups_test).tolist()
    assert rows_of(runs).values.mean() == pytest.approx(test["accuracy"], abs=1e-7)


def answers_by_hand(runs: fs.Runs, site: int) -> np.ndarray:
    """The answers of a site's own model on the site's test rows."""
    record = runs.records[0]
    assembly = assemble(from_toml(record.experiment), loaded("heart"))
    w = of_clients(runs.store, record.id, assembly.dataset)(site)
    at = np.flatnonzero(assembly.dataset.groups_test == site)
    with torch.no_grad():
        return assembly.federation.task.logits(w, channels_last(assembly.x_test[at])).argmax(-1).numpy()


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("local-only", {}),
        ("ditto", {}),
        ("per-fedavg", {"evaluation": {"adapt_steps": 1}}),
        ("fedavg", {"evaluation": {"adapt_steps": 3}}),
        ("fedavg", {"sharing": "personal", "model": "mlp"}),
    ],
)
def test_a_site_answers_with_its_own_model(tmp_path: Path, algorithm: str, settings: dict) -> None:
    runs, data = run(tmp_path, algorithm, **settings), loaded("heart")
    found, rarest = by_site(runs), rarest_class(data)
    right = []
    for site in range(4):
        y = data.y_test[data.groups_test == site]
        here = answers_by_hand(runs, site) == y
        right.append(here)
        assert found.loc[site, "accuracy"] == pytest.approx(here.mean(), abs=1e-7)
        assert found.loc[site, "recall_of_rarest"] == pytest.approx(here[y == rarest].mean(), abs=1e-7)
    assert values(runs)["accuracy"] == pytest.approx(np.concatenate(right).mean(), abs=1e-7)
    stored = rows_of(runs)
    assert stored.units is not None
    for site, name in enumerate(data.group_names):
        of_site = stored.units >> 32 == test_rows.number_of(name)
        assert sorted(stored.values[of_site].tolist()) == sorted(right[site].astype(float).tolist())


def test_one_answer_at_each_site_is_the_most_frequent_class_of_its_own_rows(tmp_path: Path) -> None:
    data, right = loaded("heart"), []
    for site in range(4):
        usual = np.bincount(data.y[data.groups == site]).argmax()
        right.append(data.y_test[data.groups_test == site] == usual)
    found = values(run(tmp_path, clients={"held_out": 0}))
    assert found["constant_of_sites"] == pytest.approx(np.concatenate(right).mean(), abs=1e-7)
    assert found["constant_of_sites"] > found["constant"] + 0.1, "Switzerland is nearly all ill"
    assert "constant_of_sites" not in values(run(tmp_path / "pooled", skew=["natural", "pooled"]))


def test_local_only_at_a_site_is_the_model_of_its_rows_alone(tmp_path: Path) -> None:
    data = loaded("heart")
    here, tested = data.groups == 0, data.groups_test == 0
    rows = {"x": data.x[here], "y": data.y[here], "x_test": data.x_test[tested], "y_test": data.y_test[tested]}
    alone = fs.Dataset(**rows, classes=data.classes, groups=np.zeros(here.sum(), dtype=int))
    found = values(run(tmp_path / "alone", dataset=alone, model="softmax"), "test")
    for name in ("accuracy", "loss"):
        assert by_site(run(tmp_path, "local-only"))[name][0] == pytest.approx(found[name], abs=1e-6)


def test_held_out_rows_take_the_place_of_test_rows_of_unknown_sites(tmp_path: Path) -> None:
    runs = run(tmp_path, dataset="digits", skew="label-dirichlet:alpha=1", clients=5)
    frame = runs.measurements()
    last = frame[(frame["split"] == "global-model") & (frame["round"] == 2) & (frame["name"] == "accuracy")]
    assert by_site(runs)["accuracy"].tolist() == pytest.approx(last.sort_values("client")["value"].tolist(), abs=1e-12)
    facts = runs.records[0].facts
    assert facts["sites"]["rows"] == "held-out"
    assert values(runs)["rows"] == facts["partition"]["held_out"] == len(rows_of(runs).values)
    assert len(loaded("digits").y) > rows_of(runs).units.max()


def test_folds_of_clients_are_measured_on_held_out_rows(tmp_path: Path) -> None:
    runs = run(tmp_path, dataset="heart:fold=1/4:clients")
    assert runs.records[0].facts["sites"]["rows"] == "held-out"
    assert rows_of(runs).units is None, "each fold numbers its training rows in another way"


def test_nothing_is_measured_where_no_row_is_kept_aside(tmp_path: Path) -> None:
    runs = run(tmp_path, dataset="digits", skew="iid", clients={"number": 5, "held_out": 0})
    assert "sites" not in set(runs.measurements()["split"])
    assert runs.records[0].facts["sites"]["rows"] == ""


def test_the_rarest_class_is_the_one_with_the_fewest_rows_of_all() -> None:
    x = np.zeros((6, 1))
    rows = {"x": x, "y": np.array([0, 0, 0, 2, 2, 1]), "x_test": x, "y_test": np.array([1, 1, 1, 0, 0, 2])}
    data = fs.Dataset(**rows, classes=("a", "b", "c", "never"))
    assert rarest_class(data) == 2, "three rows of c, four of b; a class without rows does not count"


def test_pooled_rows_that_a_skew_dealt_are_measured_on_what_every_client_holds_out(tmp_path: Path) -> None:
    options = {"dataset": "digits", "clients": 4}
    pooled, alone = (run(tmp_path, skew=["label-dirichlet:alpha=1", *more], **options) for more in (["pooled"], []))
    assert len(rows_of(alone).units) > 200
    assert rows_of(pooled).units.tolist() == rows_of(alone).units.tolist()


def test_pooled_rows_are_measured_at_their_sites(tmp_path: Path) -> None:
    pooled, alone = run(tmp_path, skew=["natural", "pooled"]), run(tmp_path)
    assert values(pooled)["accuracy"] == pytest.approx(values(pooled, "test")["accuracy"], abs=1e-12)
    assert by_site(pooled)["rows"].tolist() == by_site(alone)["rows"].tolist()
    assert rows_of(pooled).units.tolist() == rows_of(alone).units.tolist()
    assert pooled.records[0].facts["sites"]["names"] == list(loaded("heart").group_names)


@pytest.mark.parametrize("name", ["parkinsons", "tcga-brca"])
def test_other_targets_have_values_at_the_sites_too(tmp_path: Path, name: str) -> None:
    runs = run(tmp_path, dataset=name)
    metric = {"parkinsons": "rmse", "tcga-brca": "c_index"}[name]
    assert values(runs)[metric] == pytest.approx(values(runs, "test")[metric], rel=1e-6)
    assert "recall_of_rarest" not in by_site(runs)


def kinds(runs: fs.Runs) -> dict[str, str]:
    """The measured values of the run's warnings, by kind."""
    return {entry["kind"]: entry["measured"] for entry in runs.records[0].facts.get("warnings", [])}


def test_a_model_that_always_gives_the_same_answer_is_named(tmp_path: Path) -> None:
    x = np.zeros((60, 2), dtype=np.float32)
    y = np.arange(60) % 3 // 2
    data = fs.Dataset(x=x, y=y, x_test=x, y_test=1 - y, classes=("no", "yes"), groups=np.arange(60) % 4)
    runs = run(tmp_path, dataset=data)
    assert kinds(runs)["one answer"] == "all 12 rows at the sites get the same answer"
    assert "worse than a constant" not in kinds(runs), "it is as good"
    assert "one answer" not in kinds(run(tmp_path, rounds=5))


@pytest.mark.parametrize(
    ("target", "says"), [("classes", r"accuracy is \S+ % on the 12 rows at the sites, and \S+ %"), ("number", "RMSE")]
)
def test_a_model_below_the_constant_answer_is_named(tmp_path: Path, target: str, says: str) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 2)).astype(np.float32), np.arange(60) % 3 // 2
    classes = ("no", "yes") if target == "classes" else ()
    y = y if classes else rng.normal(size=60)
    data = fs.Dataset(x=x, y=y, x_test=x, y_test=y, classes=classes, groups=np.arange(60) % 4)
    runs = run(tmp_path, dataset=data, rounds=1, lr=3.0, model="softmax")
    here = values(runs)
    metric, sign = ("accuracy", 1) if classes else ("rmse", -1)
    assert sign * here[metric] < sign * here["constant"]
    assert pd.Series([kinds(runs)["worse than a constant"]]).str.match(says)[0]
