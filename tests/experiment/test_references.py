"""Citations: every key has an entry, every component that names a paper cites, and a run cites exactly what it used."""

import json
import re
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

from fedskew.cli.main import main
from fedskew.execution.run import register
from fedskew.experiment.combinations import COMBINATIONS, with_method
from fedskew.experiment.config import COMPONENTS, Experiment
from fedskew.experiment.references import ITSELF, citations, paper_of, parsed, references
from fedskew.store.runs import RunStore
from tests.commands import output_of

TEXT = (files("fedskew") / "references.bib").read_text(encoding="utf-8")
EVERY = [(section, name, cls) for section, catalogue in COMPONENTS.items() for name, cls in catalogue.items()]


def test_entries_parse_completely() -> None:
    """The file has as many entries as lines that start with @, and every line of a field is read."""
    entries = {id(e): e for e in references().values()}.values()
    assert len(entries) == len(re.findall(r"^@", TEXT, re.M)) > 40
    assert sum(len(e.fields) for e in entries) == len(re.findall(r"^  ", TEXT, re.M))
    for entry in entries:
        assert entry.fields["title"], entry.key
        assert entry.bibtex.count("{") == entry.bibtex.count("}")
        assert not re.search(r"\},$\n\}", entry.bibtex, re.M), f"{entry.key}: a comma before the end"
        assert "{" not in entry.line()
        if "eprint" in entry.fields:
            assert re.fullmatch(r"\d{4}\.\d{4,5}", entry.fields["eprint"])
            assert entry.fields["archiveprefix"] == "arXiv"


def test_a_reference_name_that_is_used_twice_is_refused() -> None:
    twice = "@misc{a,\n  title = {A}\n}\n@misc{b,\n  ids = {a},\n  title = {B}\n}\n"
    with pytest.raises(ValueError, match="'a'"):
        parsed(twice)


def test_a_reference_in_one_line() -> None:
    assert references()["fedprox"].line() == (
        "T. Li, Sahu, Zaheer, Sanjabi, Talwalkar, V. Smith, Federated Optimization in Heterogeneous Networks, MLSys 2020, "
        "arXiv:1812.06127"
    )
    assert references()["fedavg"].line().startswith("McMahan, Moore, Ramage, Hampson, Agüera y Arcas, Communication")
    assert "Konečný" in references()["fedadam"].line()
    assert references()["fedga"].line().startswith("Cong et al., FedGA: A greedy")


@pytest.mark.parametrize(
    ("cites", "paper"),
    [
        (("fedprox",), "Li et al. 2020, arXiv:1812.06127"),
        (("moon",), "Li, He, Song 2021, arXiv:2103.16257"),
        (("fedga",), "Cong et al. 2024, doi:10.1016/j.knosys.2024.112201"),
        (("parallel-sgd",), "Dean et al. 2012, Large Scale Distributed Deep Networks"),
        (("ditto", "a key of the user"), "Li, Hu, Beirami, Smith 2021, arXiv:2012.04221"),
    ],
)
def test_a_paper_in_short_form(cites: tuple[str, ...], paper: str) -> None:
    assert paper_of(cites) == paper


def test_every_key_of_a_component_exists_and_every_method_cites_its_paper() -> None:
    for section, name, cls in [*EVERY, *(("algorithm", name, method) for name, method in COMBINATIONS.items())]:
        cites = getattr(cls, "cites", ())
        assert set(cites) <= set(references()), (section, name)
        assert cites or section != "algorithm", f"{name} cites no paper"


def test_the_version_is_the_packages() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert references()[ITSELF].fields["version"] == project["version"]


def cited(*experiments: Experiment) -> set[str]:
    works, unknown = citations(experiments)
    assert unknown == []
    assert len({w.reference.key for w in works}) == len(works)
    return {w.reference.key for w in works}


BARE = {"skew": "iid", "dataset": "synthetic-softmax"}


def test_a_run_cites_exactly_its_parts() -> None:
    assert cited(Experiment()) == {"fedskew", "fedavg", "digits", "failure-modes"}
    assert cited(Experiment(algorithm="scaffold", **BARE)) == {"fedskew", "scaffold", "fedavg", "drift-demo"}
    assert cited(Experiment(algorithm="moon", server="yogi", solver="adamw", **BARE)) == {
        "fedskew", "moon", "fedopt", "adamw", "drift-demo",
    }  # fmt: skip
    per_class = Experiment(algorithm="fednova", server="momentum", skew="label-dirichlet-per-class", dataset="uci-har")
    assert cited(per_class) == {
        "fedskew", "fednova", "fedavgm", "probabilistic-federated-matching", "niid-bench", "uci-har",
    }  # fmt: skip
    assert "fedavg" in cited(per_class.replace(model="cnn")), "its network"


def test_named_combinations_cite_their_papers() -> None:
    base = Experiment(**BARE)
    assert cited(with_method(base, "fedadam:lr=0.1")) == {"fedskew", "fedavg", "fedopt", "drift-demo"}
    assert cited(with_method(base, "local-sgd:steps=4")) == {"fedskew", "fedavg", "local-sgd", "drift-demo"}
    # a name that is no longer true is not believed
    assert cited(with_method(base, "local-sgd:steps=4").replace(local__steps=5)) == {"fedskew", "fedavg", "drift-demo"}
    assert cited(base.replace(name="local-sgd")) == {"fedskew", "fedavg", "drift-demo"}


def test_cite_prints_bibtex_of_stored_runs(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    register(store, with_method(Experiment(**BARE), "fedyogi"))
    register(store, Experiment(algorithm="feddyn", **BARE))
    store.close()

    def keys(*words: str) -> list[str]:
        out = output_of("cite", *words, "--runs", tmp_path)
        if "--json" in words:
            return [row["key"] for row in json.loads(out)["references"]]
        assert {entry.bibtex for entry in parsed(out).values()} <= {e.bibtex for e in references().values()}
        return [match[1] for match in re.finditer(r"^@\w+\{(.*),", out, re.M)]

    assert sorted(keys("1")) == ["drift-demo", "fedavg", "fedopt", "fedskew"]
    assert sorted(keys()) == ["drift-demo", "fedavg", "feddyn", "fedskew"]
    assert sorted(keys("1-2")) == ["drift-demo", "fedavg", "feddyn", "fedopt", "fedskew"]
    assert keys("1-2", "--json") == keys("1-2")
    assert main(["cite", "9", "--runs", str(tmp_path)]) == 2
