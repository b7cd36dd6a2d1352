"""Names of components in any spelling, and what a class of any kind must offer."""

import pytest

from fedskew.core.component import canonical, fitted, parse, plainly
from fedskew.core.errors import BadInput
from fedskew.experiment.combinations import COMBINATIONS, with_method
from fedskew.experiment.config import COMPONENTS, Experiment

KINDS = {section: catalogue for section, catalogue in COMPONENTS.items() if catalogue.contracts}


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("FedAvg", "fedavg"), ("FedProx:mu=0.2", "fedprox:mu=0.2"), ("SCAFFOLD", "scaffold"), ("q-FedAvg:q=2", "qfedavg:q=2"),
        ("Per-FedAvg", "per-fedavg"), ("FedAdam:lr=0.1", "fedadam:lr=0.1"), ("DP-FedAvg", "dp-fedavg"), ("Local SGD", "local-sgd"),
        ("fedavg", "fedavg"),
    ],
)  # fmt: skip
def test_methods_are_known_as_papers_write_them(written: str, name: str) -> None:
    assert with_method(Experiment(), written) == with_method(Experiment(), name)
    assert with_method(Experiment(), written).name == name


def test_names_of_every_kind_are_known_in_any_spelling() -> None:
    one = Experiment(
        dataset="Synthetic Softmax", skew=["LabelDirichlet:alpha=1", {"name": "Feature-Noise"}], model="MLP", solver="AdamW",
        server="Yogi", augment="None", selection="Everyone", codec="TopK", engine="Sequential",
    )  # fmt: skip
    two = Experiment(
        dataset="synthetic-softmax", skew=["label-dirichlet:alpha=1", "feature-noise"], model="mlp", solver="adamw",
        server="yogi", augment="none", selection="everyone", codec="top-k", engine="sequential",
    )  # fmt: skip
    assert one == two


def test_no_two_names_are_one_in_plain_spelling() -> None:
    for names in (*COMPONENTS.values(), [*COMPONENTS["algorithm"], *COMBINATIONS]):
        assert len({plainly(name) for name in names}) == len([*names])
    assert canonical("other", COMPONENTS["algorithm"]) == "other"


@pytest.mark.parametrize("section", KINDS)
def test_the_built_in_classes_fit_their_kind(section: str) -> None:
    catalogue = KINDS[section]
    for name, cls in catalogue.ours.items():
        if (section, name) == ("harmonisation", "none"):  # it neither changes rows nor adds to outputs
            continue
        assert fitted(cls, catalogue.contracts, catalogue.optional, name) is cls


@pytest.mark.parametrize("section", KINDS)
def test_an_empty_class_of_any_kind_is_refused_in_one_line(section: str, tmp_path: pytest.TempPathFactory) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\n@dataclass(frozen=True, kw_only=True)\nclass Mine:\n    a: int = 1\n"
    )
    with pytest.raises(BadInput, match=rf"^{section}: mine.py::Mine (lacks|is not a subclass of)"):
        Experiment(**{section: f"{file}::Mine"})


@pytest.mark.parametrize(
    ("text", "value"),
    [(".5", 0.5), ("5.", 5.0), ("-.5e1", -5.0), ("+1", 1), ("1_000", 1000), (".", "."), ("[.5,1]", [0.5, 1])],
)
def test_numbers_are_read_as_python_reads_them(text: str, value: object) -> None:
    assert parse(f"mine:x={text}", "method") == ("mine", {"x": value})
