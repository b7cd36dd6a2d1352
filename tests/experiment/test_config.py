"""Experiments as TOML: every component is written and read back, and wrong files are refused in one line."""

import dataclasses
import tomllib

import pytest

from fedskew.core.errors import BadInput
from fedskew.experiment.combinations import COMBINATIONS, with_method
from fedskew.experiment.config import COMPONENTS, Experiment, from_toml, read


@pytest.mark.parametrize(
    ("section", "name"),
    [
        (section, name)
        for section, catalogue in COMPONENTS.items()
        for name in catalogue
        if name not in ("own", "table")
    ],
)
def test_every_component_is_written_to_toml_and_read_back(section: str, name: str) -> None:
    needed = {
        "dataset hf": ":somewhere",
        "dataset leaf": ":path=there",
        "dataset text": ":path=there",
        "selection uniform": ":clients=3",
        "skew quantity-sizes": ":rows=[5,3]",
        "skew column-dirichlet": ":column=x",
        "skew from-folder": ":path=there",
        "model module": ":torch.nn.Flatten",
    }
    spec = name + needed.get(f"{section} {name}", "")
    experiment = Experiment(**{section: spec})
    assert from_toml(experiment.toml()) == experiment
    component = experiment.skew[0] if section == "skew" else getattr(experiment, section)
    if name == "none" and section == "harmonisation":
        assert section not in tomllib.loads(experiment.toml())
        return
    options = {f.name for f in dataclasses.fields(component) if getattr(component, f.name) is not None}
    assert set(tomllib.loads(experiment.toml())[section]) == {"name", *options}


@pytest.mark.parametrize("method", ["fedprox:mu=0.3,step=implicit", "scaffold:option=I", *COMBINATIONS])
def test_every_method_is_written_to_toml_and_read_back(method: str) -> None:
    experiment = with_method(Experiment(), method)
    assert experiment.name == method
    assert from_toml(experiment.toml()) == experiment


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[system]\nepochs = 3", ["system", "epochs"]),
        ("[system]\nepochs = 'few'", ["system", "epochs", "2-6"]),
        ("[availability]\nname = 'day-night'\nphase = 'hour'", ["availability", "phase"]),
        ("[trainig]\nrounds = 3", ["unknown section 'trainig'", "'training'"]),
        ("[training]\nround = 3", ["training", "'round'", "'rounds'"]),
        ('[training]\nrounds = "ten"', ["training", "rounds", "a whole number"]),
        ("[solver]\nname = 'sgd'\nlr = nan", ["solver", "lr", "finite"]),
        ("[solver]\nname = 'sgd'\nlr = inf", ["solver", "lr", "finite"]),
        ("[solver]\nname = 'sgd'\nlr = 'fast'", ["solver", "lr", "number"]),
        ("[solver]\nlr = 0.1", ["solver", "name"]),
        ("[skew]\nname = 'label-dirichlet'\nalpha = 0", ["skew", "alpha", "above 0"]),
        ("[skew]\nname = 'label-dirichlt'", ["unknown skew", "did you mean 'label-dirichlet'"]),
        ("[algorithm]\nname = 'fedprx'", ["unknown algorithm", "did you mean 'fedprox'"]),
        ("[algorithm]\nname = 'fedprox'\nmv = 1.0", ["fedprox", "'mv'", "'mu'"]),
        ("[local]\nbatch_size = 0", ["local", "batch_size", "at least 1"]),
        ("training = 3", ["training", "table"]),
        ("rounds = ", ["not valid TOML"]),
    ],
)
def test_a_wrong_file_is_refused_in_one_line_that_names_file_key_and_remedy(
    tmp_path, text: str, words: list[str]
) -> None:
    path = tmp_path / "my.toml"
    path.write_text(text)
    with pytest.raises(BadInput) as caught:
        read(path)
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in [str(path), *words]), message


@pytest.mark.parametrize(
    ("dataset", "skew"),
    [
        ("digits", "label-dirichlet"),
        ("heart", "natural"),
        ("uci-har", "natural"),
        ("table:path=x.csv,label=y", "label-dirichlet"),
        ("table:path=x.csv,label=y,client=z", "natural"),
    ],
)
def test_data_set_with_clients_of_its_own_is_dealt_to_them(dataset: str, skew: str) -> None:
    assert Experiment(dataset=dataset).labels("skew") == [skew]
    assert Experiment(dataset=dataset, skew="iid").labels("skew") == ["iid"]
