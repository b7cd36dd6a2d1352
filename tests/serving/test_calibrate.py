"""Recalibrated probabilities, and the importance of columns."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import fedskew as fs
from fedskew.cli.main import main
from fedskew.core.errors import BadInput
from fedskew.execution.rounds import state_of
from fedskew.serving.calibrate import temperature_of
from tests.commands import output_of

QUICK = {"rounds": 2, "progress": False, "engine": "sequential"}


def outputs(rows: int = 4000, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs of three classes, and classes that are drawn from their probabilities."""
    rng = np.random.default_rng(seed)
    z = rng.normal(0, 1.5, (rows, 3))
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    y = (rng.random(rows)[:, None] > p.cumsum(1)).sum(1)
    return torch.as_tensor(z), torch.as_tensor(y)


def test_the_temperature_of_scaled_outputs_is_their_scale():
    z, y = outputs()
    one = temperature_of(z, y)
    assert one == pytest.approx(1, abs=0.05)
    for scale in (0.2, 3, 10):
        assert temperature_of(scale * z, y) == pytest.approx(scale * one, rel=1e-3)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> fs.Runs:
    """A model that is trained for too long, so that its probabilities are too large."""
    folder = tmp_path_factory.mktemp("calibrate")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 3))
    frame = pd.DataFrame(x, columns=["strong", "weak", "noise"]).round(4)
    frame["site"] = rng.choice(["a", "b"], 600)
    frame["ill"] = np.where(2 * x[:, 0] + 0.7 * x[:, 1] + rng.logistic(size=600) > 0, "yes", "no")
    frame.to_csv(folder / "visits.csv", index=False)
    data = f"table:path={folder}/visits.csv,label=ill,client=site"
    return fs.run(dataset=data, lr=0.5, epochs=40, runs=folder / "runs", **QUICK)


def table_of(trained: fs.Runs) -> Path:
    return trained.store.folder.parent / "visits.csv"


def test_a_calibrated_model_divides_its_outputs_by_the_temperature(trained):
    plain, model = fs.load_model(trained), fs.load_model(trained, calibrated=True)
    before, after = model.calibration.errors
    assert model.calibration.temperature > 1.1
    assert after < before
    first, second = (each.predict(table_of(trained)) for each in (plain, model))
    assert first.prediction.equals(second.prediction)
    odds = [np.log(frame.probability_yes / frame.probability_no) for frame in (first, second)]
    assert odds[1].to_numpy() == pytest.approx(odds[0] / model.calibration.temperature, abs=1e-4)
    assert model.evaluate(table_of(trained))["accuracy"] == plain.evaluate(table_of(trained))["accuracy"]


def test_the_rows_are_the_held_out_ones_and_the_errors_are_of_the_test_rows(trained):
    model = fs.load_model(trained, calibrated=True)
    assembly, server, _ = state_of(trained.store, 1)
    fed, (held, _) = assembly.federation, assembly.partition.held_out
    z = fed.task.logits(server.x, fed.x[torch.as_tensor(held)]).detach()
    assert 0 < len(held) < len(fed.y) / 4
    assert model.calibration.temperature == pytest.approx(temperature_of(z, fed.y[torch.as_tensor(held)]), rel=1e-5)
    y, [loss] = model.calibration.y, [m.value for m in trained.store.last([1], ["test/loss"])]
    assert -np.log(model.calibration.before[np.arange(len(y)), y]).mean() == pytest.approx(loss, rel=1e-5)
    [error] = [m.value for m in trained.store.last([1], ["test/ece"])]
    assert model.calibration.errors[0] == pytest.approx(error, rel=1e-5)


def test_predict_prints_both_errors_and_draws_the_picture(trained, capsys):
    runs = trained.store.folder
    command = ["predict", "1", str(table_of(trained)), "--runs", str(runs), "--calibrated"]
    assert main(command) == 0
    printed = capsys.readouterr()
    model = fs.load_model(trained, calibrated=True)
    errors = "{:.3f} before, {:.3f} after".format(*model.calibration.errors)
    assert f"temperature {model.calibration.temperature:.4g}; calibration error on test rows {errors}" in printed.err
    picture = trained.store.run_folder(1) / "reliability.svg"
    assert "share of right predictions" in picture.read_text()
    assert printed.out.startswith("strong,weak,noise,site,ill,prediction,probability_no")


def test_models_without_probabilities_or_held_out_rows_are_refused(tmp_path):
    none = fs.run(dataset="heart", held_out=0, runs=tmp_path / "none", **QUICK)
    with pytest.raises(BadInput, match="calibrated: in run 1 no client held out rows; leave it out"):
        fs.load_model(none, calibrated=True)
    (tmp_path / "t.csv").write_text("x,site,y\n" + "".join(f"{i % 7},{'ab'[i % 2]},{i % 5}\n" for i in range(60)))
    numbers = fs.run(dataset=f"table:path={tmp_path}/t.csv,target=y,client=site", runs=tmp_path / "numbers", **QUICK)
    with pytest.raises(BadInput, match="only probabilities of classes"):
        fs.load_model(numbers, calibrated=True)


def test_a_personal_model_is_calibrated_on_its_own_rows(tmp_path):
    runs = fs.run(dataset="heart", skew="natural", algorithm="ditto", runs=tmp_path / "runs", **QUICK)
    temperatures = {fs.load_model(runs, client=k, calibrated=True).calibration.temperature for k in range(4)}
    assert len(temperatures) == 4


def test_dealt_clients_calibrate_the_model_that_answers(trained, tmp_path):
    """No column names a dealt client, so its shared model answers all rows, also the held-out ones."""
    skew = {"skew": "label-dirichlet:alpha=0.5", "clients": 3, "algorithm": "ditto"}
    runs = fs.run(dataset=f"table:path={table_of(trained)},label=ill", runs=tmp_path, **skew, **QUICK)
    assembly, server, _ = state_of(runs.store, 1)
    fed, held = assembly.federation, torch.as_tensor(assembly.partition.held_out[0])
    z = fed.task.logits(server.x, fed.x[held]).detach()
    found = fs.load_model(runs, calibrated=True).calibration.temperature
    assert found == pytest.approx(temperature_of(z, fed.y[held]), rel=1e-5)


def test_a_personal_model_is_tested_on_its_own_rows_and_needs_held_out_ones(trained, tmp_path):
    frame = pd.read_csv(table_of(trained))
    frame.loc[0, "site"] = "single"
    frame.to_csv(tmp_path / "t.csv", index=False)
    data = f"table:path={tmp_path}/t.csv,label=ill,client=site"
    runs = fs.run(dataset=data, skew="natural", algorithm="ditto", runs=tmp_path / "runs", **QUICK)
    sites = fs.load(data).groups_test
    assert len(fs.load_model(runs, client="b", calibrated=True).calibration.y) == (sites == 1).sum() < len(sites)
    with pytest.raises(BadInput, match="in run 1 client single held out no rows; leave it out"):
        fs.load_model(runs, client="single", calibrated=True)


# confusion


def test_answers_by_class_by_hand(trained):
    """Columns that decide have these answers: three rows of yes, one of them missed, and one row of no."""
    rows = pd.DataFrame({"strong": [3.0, 3.0, -3.0, -3.0], "weak": 0.0, "noise": 0.0, "site": "a"})
    rows["ill"] = ["yes", "yes", "yes", "no"]
    model = fs.load_model(trained)
    assert model.confusion(rows).to_dict("records") == [
        {"class": "no", "as no": 1, "as yes": 0, "rows": 1, "recall": 1.0, "precision": 0.5},
        {"class": "yes", "as no": 1, "as yes": 2, "rows": 3, "recall": 2 / 3, "precision": 1.0},
    ]
    one = model.confusion(rows[rows.ill == "yes"][:2]).set_index("class")
    assert np.isnan([one.recall["no"], one.precision["no"]]).all(), "no row has this class, and none this answer"
    table = model.confusion(table_of(trained))
    right = model.evaluate(table_of(trained))["accuracy"]
    assert (table.recall * table.rows).sum() / table.rows.sum() == pytest.approx(right)
    out = output_of("confusion", "1", table_of(trained), "--runs", trained.store.folder, "--json")
    assert json.loads(out) == table.to_dict("records")


# importance


def test_the_column_that_decides_is_the_most_important_and_noise_is_not(trained):
    table = fs.load_model(trained).importance(table_of(trained))
    assert table.column.tolist() == ["strong", "weak", "noise"]
    assert table.fall[0] > 0.15 > table.fall[1] > 0.02
    assert abs(table.fall[2]) < 0.03
    assert (table.deviation > 0).all()


def test_a_permutation_of_two_rows_by_hand(trained):
    """Two rows with different answers: exchanged cells of the column that decides make both wrong, or stay in place."""
    model = fs.load_model(trained)
    rows = pd.DataFrame(
        {"strong": [-3.0, 3.0], "weak": [0.0, 0.0], "noise": [0.0, 0.0], "site": "a", "ill": ["no", "yes"]}
    )
    table = model.importance(rows, repeats=20).set_index("column")
    moved = [np.random.default_rng(0)]
    exchanged = np.mean([moved[0].permutation(2)[0] == 1 for _ in range(20)])
    assert table.loc["strong", "fall"] == exchanged
    assert table.loc[["weak", "noise"], "fall"].tolist() == [0, 0]


def test_rows_without_a_target_give_no_cells(trained):
    rows, model = pd.read_csv(table_of(trained)), fs.load_model(trained)
    strange = rows.assign(strong=99.0, ill=None)
    assert model.importance(pd.concat([strange, rows]), 2).equals(model.importance(rows, 2))


def test_a_loss_that_grows_is_a_fall_too(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"x": rng.normal(size=200), "noise": rng.normal(size=200), "site": rng.choice(["a", "b"], 200)}
    )
    frame.assign(y=3e-6 * frame.x).to_csv(tmp_path / "t.csv", index=False)
    data = f"table:path={tmp_path}/t.csv,target=y,client=site"
    runs = fs.run(dataset=data, epochs=20, runs=tmp_path / "runs", **QUICK)
    table = fs.load_model(runs).importance(tmp_path / "t.csv").set_index("column")
    assert table.loc["x", "fall"] > 10 * abs(table.loc["noise", "fall"])
    printed = output_of("importance", "1", tmp_path / "t.csv", "--runs", tmp_path / "runs").split()
    assert float(printed[4]) == pytest.approx(table.loc["x", "fall"], rel=1e-3)
    with pytest.raises(BadInput, match="confusion: the model predicts no classes"):
        fs.load_model(runs).confusion(tmp_path / "t.csv")


def test_arrays_and_rows_without_targets_are_one_line(tmp_path, trained):
    digits = fs.run(dataset="digits", runs=tmp_path / "runs", **QUICK)
    with pytest.raises(BadInput, match="importance: the model reads arrays, which have no columns"):
        fs.load_model(digits).importance(np.zeros((2, 64)))
    with pytest.raises(BadInput, match="monitor: the model reads no table; only columns of tables are compared"):
        fs.load_model(digits).monitor(np.zeros((2, 64)))
    frame = fs.load_model(trained).read(table_of(trained)).drop(columns="ill")
    with pytest.raises(BadInput, match="the rows have no column 'ill'"):
        fs.load_model(trained).importance(frame)
