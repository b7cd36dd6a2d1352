"""New rows of known and unknown sites: predict, evaluate and the exported folder apply a run's harmonisation."""

from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest
import torch

import fedskew as fs
from fedskew.cli.main import main
from fedskew.core.errors import BadInput
from fedskew.execution import facts
from fedskew.execution.build import Assembly
from fedskew.execution.learned import kept
from fedskew.execution.rounds import state_of
from fedskew.loop.personal import personal_models
from fedskew.models.intercept import positions
from fedskew.serving.predict import load, number_of
from tests.serving.test_folder import answers

NAMES = ("east", "north", "west")
CLASSES = ("probability_ill", "probability_well")


def table(path: Path, rows: int = 120) -> Path:
    """A table of three clinics in other units and with other shares of the ill."""
    rng = np.random.default_rng(0)
    at = rng.integers(0, 3, rows)
    age, dose = rng.normal(50, 9, rows), rng.normal(0, 1, rows)
    ill = dose + np.array([-1.0, 0, 1.5])[at] + rng.normal(0, 0.5, rows) > 0
    frame = pd.DataFrame({
        "clinic": np.array(NAMES)[at], "age": age.round(1), "dose": (dose * np.array([1.0, 100, 7])[at]).round(3),
        "sex": np.where(rng.random(rows) < 0.5, "m", "f"), "ill": np.where(ill, "ill", "well"),
    })  # fmt: skip
    frame.to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return table(tmp_path_factory.mktemp("sites") / "visits.csv")


def run(rows: Path, harmonisation: str, folder: Path, **settings: object) -> fs.Runs:
    options = {"rounds": 2, "epochs": 1, "engine": "sequential", "training__threads": 1, "progress": False, **settings}
    return fs.run(
        dataset=f"table:{rows},label=ill,client=clinic",
        model="softmax",
        harmonisation=harmonisation,
        runs=folder,
        **options,
    )


def about_no_site(line: str) -> None:
    assert "site" not in line


def inputs(assembly: Assembly, frame: pd.DataFrame, site: int) -> torch.Tensor:
    """The rows of a table as inputs of the network, all of one site."""
    data = assembly.data
    x = data.preprocessing({name: frame[name].to_numpy() for name in ("age", "dose", "sex")})
    return torch.as_tensor(x if data.maps is None else data.maps.changed(x, np.full(len(x), site)))


HARMONISATIONS = ["site-scale", "combat:protected=[sex]", "site-bias:rate=3", "prior"]


@pytest.mark.parametrize("harmonisation", HARMONISATIONS)
def test_rows_of_a_site_are_answered_as_in_training_and_others_by_the_rule(
    harmonisation: str, rows: Path, tmp_path: Path
) -> None:
    """Probabilities equal the outputs of the personal model, on rows changed as in training."""
    runs = run(rows, harmonisation, tmp_path)
    assembly, server, states = state_of(runs.store, 1)
    fed = assembly.federation
    frame = pd.read_csv(rows)
    new = frame[["age", "dose", "sex", "clinic"]]
    model = load(runs.store, 1)
    found = model.predict(new, warn=about_no_site)
    for k, name in enumerate(assembly.data.sites.names):
        w = personal_models(fed, assembly.engine, server, states, np.array([k]))[0]
        mine = np.flatnonzero(frame["clinic"] == name)
        expected = torch.softmax(fed.task.logits(w, inputs(assembly, frame.iloc[mine], k)), 1).detach()
        np.testing.assert_allclose(found[[*CLASSES]].to_numpy()[mine], expected, atol=1e-6)
        one = load(runs.store, 1, name).predict(new.iloc[mine].drop(columns="clinic"), warn=about_no_site)
        np.testing.assert_allclose(one[[*CLASSES]], expected, atol=1e-6)
    lines: list[str] = []
    unknown = model.predict(new.assign(clinic="south"), warn=lines.append)
    without = model.predict(new.drop(columns="clinic"), warn=lines.append)
    assert unknown[[*CLASSES]].equals(without[[*CLASSES]])
    rule = assembly.experiment.harmonisation.unknown
    lines = [line for line in lines if "site" in line]
    assert lines[0].startswith(f"120 rows of 120: of a site that took no part in training, {rule}, such as 'south'")
    assert f"of an unknown site (no column 'clinic'; --client NAME is for rows of one site), {rule}" in lines[1]
    expected = torch.softmax(fed.task.logits(server.x, inputs(assembly, frame, -1)), 1).detach()
    np.testing.assert_allclose(unknown[[*CLASSES]], expected, atol=1e-6)


PERSONAL = [*((method, "none") for method in ("ditto", "fedavg-ft", "fedper", "local-only")), ("fedper", "site-scale")]


@pytest.mark.parametrize(("method", "harmonisation"), PERSONAL)
def test_each_row_gets_the_personal_model_of_its_site(
    method: str, harmonisation: str, rows: Path, tmp_path: Path, capsys
) -> None:
    runs = run(rows, harmonisation, tmp_path / "runs", algorithm=method)
    new, lines = pd.read_csv(rows).drop(columns="ill"), list[str]()
    model = load(runs.store, 1)
    answered = model.predict(new, warn=about_no_site)
    for name in NAMES:
        at = new["clinic"] == name
        of_site = runs.predict(new[at], client=name)
        np.testing.assert_allclose(answered.loc[at, [*CLASSES]], of_site[[*CLASSES]], atol=1e-6)
    assert model.evaluate(rows)["accuracy"] == (answered["prediction"] == pd.read_csv(rows)["ill"]).mean()
    strangers = new.assign(clinic="south")
    if method in ("fedper", "local-only"):
        with pytest.raises(
            BadInput,
            match=r"^run 1: its clients share no model, and column 'clinic' of a row names none of them; write",
        ):
            model.predict(strangers)
        return
    answered = model.predict(strangers, warn=lines.append)
    assembly, server, _ = state_of(runs.store, 1)
    x = inputs(assembly, pd.read_csv(rows), -1)
    expected = torch.softmax(assembly.federation.task.logits(server.x, x), 1).detach()
    np.testing.assert_allclose(answered[[*CLASSES]], expected, atol=1e-6)
    assert "a site that took no part in training, which the shared model answers, such as 'south'" in lines[-1]
    fs.export(runs, tmp_path / "model", warn=lines.append)
    assert lines[-1].startswith("run 1: the export is the model that all clients share, without their personal models")


def test_the_client_column_names_no_client_where_a_skew_deals_the_rows_anew(rows: Path, tmp_path: Path) -> None:
    """Clients dealt anew are called 0, 1, 2, as these clinics are. They hold rows of other clinics, too."""
    frame = pd.read_csv(rows)
    frame["clinic"] = frame["clinic"].map(NAMES.index)
    frame.to_csv(numbered := tmp_path / "numbered.csv", index=False)
    anew: list[dict[str, object]] = [
        {"skew": "label-dirichlet:alpha=0.3", "clients": 3, "algorithm": "ditto"},
        {"skew": ["natural", "shuffled"], "algorithm": "ditto"},
        {"skew": "label-dirichlet:alpha=0.3", "clients": 3, "harmonisation": "site-scale"},
        {"skew": ["natural", "shuffled"], "harmonisation": "prior"},
    ]
    for settings in anew:
        lines: list[str] = []
        runs = run(numbered, **{"harmonisation": "none", "folder": tmp_path / "runs", **settings})
        model = load(runs.store, runs.ids[0])
        found = model.predict(new := frame.drop(columns="ill"), warn=lines.append)
        assert found.equals(model.predict(new.drop(columns="clinic"), warn=lines.append)), settings
        assert any("120 rows of 120: of an unknown site (no column names it" in line for line in lines)
    runs = run(numbered, "site-scale", tmp_path / "runs", skew=["natural", "shuffled"])
    assert kept(runs.store, runs.ids[0]).sites.column == "clinic"  # the maps belong to the clinics before the shuffle


def test_clients_whose_names_the_store_lacks_have_their_own_models(rows: Path, tmp_path: Path, monkeypatch) -> None:
    """The store has the names of the first 1,000 clients. Rows of later ones got the model of another client, or the shared one."""
    frame = pd.read_csv(rows).drop(columns="ill")
    runs = run(rows, "none", tmp_path, algorithm="ditto")
    whole = load(runs.store, 1).predict(frame)
    monkeypatch.setattr(facts, "SHOWN_CLIENTS", 1)
    runs = run(rows, "none", tmp_path, algorithm="ditto")
    assert len(runs.store.partition(2)["client_name"].unique()) == 1
    assert load(runs.store, 2).predict(frame, warn=about_no_site).equals(whole)
    at = frame["clinic"] == "west"
    assert runs.predict(frame[at], client="west")["prediction"].equals(whole.loc[at, "prediction"])
    assert main(["export", "2", "--client", "all", "--output", str(tmp_path / "out"), "--runs", str(tmp_path)]) == 0
    assert len([*(tmp_path / "out").iterdir()]) == len(NAMES)


@pytest.mark.parametrize("change", ["clinic", "age", "fewer"])
def test_personal_models_are_refused_if_the_rows_of_training_have_changed(
    change: str, rows: Path, tmp_path: Path
) -> None:
    """They were made of the rows that the file holds now: with exchanged clinics, each clinic got the model of another one."""
    frame = pd.read_csv(rows)
    frame.to_csv(path := tmp_path / "visits.csv", index=False)
    runs = run(path, "none", tmp_path / "runs", algorithm="fedavg-ft")
    new = frame.drop(columns="ill")
    load(runs.store, 1).predict(new, warn=about_no_site)
    exchanged = {"east": "west", "west": "east", "north": "north"}
    changed = {
        "clinic": frame.assign(clinic=frame["clinic"].map(exchanged)),
        "age": frame.assign(age=frame["age"] ** 2),
        "fewer": frame[:-1],
    }
    changed[change].to_csv(path, index=False)
    model = load(runs.store, 1)
    says = r"^run 1: visits\.csv has changed since the training, and its rows are needed here"
    for asked in (
        lambda: model.predict(new),
        lambda: model.monitor(new),
        lambda: load(runs.store, 1, calibrated=True),
        lambda: load(runs.store, 1, "east"),
    ):
        with pytest.raises(BadInput, match=says):
            asked()
    plain = run(rows, "none", tmp_path / "runs")
    assert len(load(plain.store, 2).predict(new)) == len(new), "a shared model needs no rows"


def test_a_client_called_by_a_number_is_not_another_client_by_number(rows: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(rows)
    frame["clinic"] = frame["clinic"].map({"east": 10, "north": 20, "west": 2})
    frame.to_csv(numbered := tmp_path / "numbered.csv", index=False)
    runs = run(numbered, "none", tmp_path / "runs", algorithm="ditto")
    assert [number_of(runs.store, 1, name) for name in ("2", "10", "20")] == [0, 1, 2]
    with pytest.raises(BadInput, match="no client '1'; they are 2, 10, 20"):
        load(runs.store, 1, "1")


def test_a_run_between_sites_has_only_the_shared_model(rows: Path, tmp_path: Path) -> None:
    runs, lines = run(rows, "none", tmp_path, algorithm="ditto"), list[str]()
    runs.store.add_facts(1, {"flower": {}})
    new = pd.read_csv(rows).drop(columns="ill")
    model = load(runs.store, 1, warn=lines.append)
    assert lines == [
        "run 1: the sites keep their personal models; all rows get the model that they share",
        "run 1: the sites keep their NAME.columns.toml; rows of a site need its lines in such a file of their own",
    ]
    assert model.predict(new).equals(model.predict(new.assign(clinic="south")))
    for asked in (lambda: model.monitor(new), lambda: load(runs.store, 1, calibrated=True, warn=lines.append)):
        with pytest.raises(BadInput, match=r"^run 1: the rows of training are at the sites, and are needed here"):
            asked()
    with pytest.raises(BadInput, match=r"^run 1: the sites keep their own models; leave out --client"):
        load(runs.store, 1, "east", warn=lines.append)


@pytest.mark.parametrize("harmonisation", HARMONISATIONS[1:3])
def test_the_folder_answers_as_predict(harmonisation: str, rows: Path, tmp_path: Path, capsys) -> None:
    runs = run(rows, harmonisation, tmp_path / "runs")
    frame = pd.read_csv(rows).drop(columns="ill")
    frame.loc[::7, "clinic"] = "south"
    frame.to_csv(tmp_path / "new.csv", index=False)
    frame.drop(columns="clinic").to_csv(tmp_path / "bare.csv", index=False)
    folder = fs.export(runs, tmp_path / "model")
    for name, line in (
        ("new", "18 of 120 rows are of unknown sites, "),
        ("bare", "no column 'clinic': 120 of 120 rows are "),
    ):
        found, _ = answers(folder, tmp_path / f"{name}.csv")
        own = load(runs.store, 1).predict(tmp_path / f"{name}.csv", warn=lambda _: None)
        np.testing.assert_allclose(found, own[[*CLASSES]], atol=2e-6)
        assert capsys.readouterr().err.startswith(line)
    folder = fs.export(runs, tmp_path / "north", client="north")
    found, _ = answers(folder, tmp_path / "bare.csv")
    own = load(runs.store, 1, "north").predict(tmp_path / "bare.csv", warn=about_no_site)
    np.testing.assert_allclose(found, own[[*CLASSES]], atol=2e-6)
    with pytest.raises(
        BadInput, match=r"^export: onnx cannot hold what the run's harmonisation does .* --format folder$"
    ):
        fs.export(runs, tmp_path / "model.onnx")
    with pytest.raises(BadInput, match="model: a module cannot hold"):
        runs.model()
    assert "west" not in (folder / "preprocessing.json").read_text()  # numbers of other sites are not for this one


def test_an_intercept_counts_once_after_a_warm_up(rows: Path, tmp_path: Path) -> None:
    """The server's warm-up moves its own intercept, and sites start from there."""
    runs = run(rows, "site-bias", tmp_path, server_data={"share": 0.2, "warm_up": 5})
    assembly, server, states = state_of(runs.store, 1)
    assert server.x[positions(assembly.federation.task.space)].abs().min() > 0
    frame = pd.read_csv(rows)
    for k, name in enumerate(assembly.data.sites.names):
        new = frame[frame["clinic"] == name]
        w = personal_models(assembly.federation, assembly.engine, server, states, np.array([k]))[0]
        expected = torch.softmax(assembly.federation.task.logits(w, inputs(assembly, new, k)), 1).detach()
        found = load(runs.store, 1).predict(new, warn=about_no_site)
        np.testing.assert_allclose(found[[*CLASSES]], expected, atol=1e-6)


def test_sites_are_stored_with_the_preprocessing(rows: Path, tmp_path: Path) -> None:
    runs = run(rows, "site-scale", tmp_path)
    learned = kept(runs.store, 1)
    assert learned is not None
    assert learned.sites.names == NAMES
    assert learned.sites.column == "clinic"
    shorter = msgspec.structs.replace(learned.sites, names=("one",))
    with pytest.raises(BadInput, match="4 entries and needs 2 of one length: by site, and for unknown sites"):
        msgspec.structs.replace(learned, sites=shorter).check()
    plain = run(rows, "none", tmp_path)
    assert b"sites" not in (plain.store.run_folder(2) / "preprocessing.json").read_bytes()


def test_the_folder_of_sites_that_were_files_says_that_it_knows_no_site(rows: Path, tmp_path: Path, capsys) -> None:
    frame = pd.read_csv(rows)
    (tmp_path / "sites").mkdir()
    for name, part in frame.groupby("clinic"):
        part.drop(columns="clinic").to_csv(tmp_path / "sites" / f"{name}.csv", index=False)
    options = {"model": "softmax", "rounds": 1, "progress": False, "runs": tmp_path / "runs"}
    data = f"table:{tmp_path / 'sites'},label=ill"
    runs = fs.run(dataset=data, skew="natural", harmonisation="site-scale", **options)
    folder = fs.export(runs, tmp_path / "model")
    frame.drop(columns=["ill", "clinic"]).to_csv(tmp_path / "new.csv", index=False)
    answers(folder, tmp_path / "new.csv")
    line = "no column names the site: 120 of 120 rows are of unknown sites, standardised with the means and deviations of all sites"
    assert line in capsys.readouterr().err
