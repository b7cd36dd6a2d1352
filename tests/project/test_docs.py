"""The documentation is under test: generated pages are current, commands parse, examples run, every stored name is described."""

import dataclasses
import importlib.util
import inspect
import re
import shlex
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fedskew.algorithms import ALGORITHMS
from fedskew.cli.main import parser
from fedskew.core.algorithm import Algorithm
from fedskew.core.component import build
from fedskew.data.dataset import Dataset
from fedskew.experiment.config import Experiment, from_toml
from fedskew.experiment.results import run
from fedskew.measure.registry import stored as registered
from fedskew.skew import SKEWS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands() -> list[tuple[str, str]]:
    """Every line of the pages' shell blocks that calls fedskew, with continued lines joined."""
    found = []
    for page in PAGES:
        for block in re.findall(r"```(?:sh|bash|console)\n(.*?)```", page.read_text(), re.S):
            lines = block.replace("\\\n", " ").splitlines()
            found += [
                (page.name, line.split("  #")[0].strip()) for line in lines if line.strip().startswith("fedskew ")
            ]
    return found


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATED = ["reference.md", "algorithms.md", *(["results.md"] if (ROOT / "docs" / "results").is_dir() else [])]


@pytest.mark.parametrize("name", GENERATED)
def test_the_generated_pages_are_current(generate: ModuleType, name: str) -> None:
    made = {path.name: make for path, make in generate.PAGES.items()}[name]
    assert (ROOT / "docs" / name).read_text() == made(), "run python docs/generate.py"


def test_the_page_of_methods_holds_formulas_code_and_departures(generate: ModuleType) -> None:
    """Of FedProx, whose texts are known; and every method has every part that its file gives."""
    page = generate.algorithms()
    sections = dict(re.findall(r"^## \w.*? \(`(\S+)`\)$(.*?)(?=^## )", page, re.S | re.M))
    assert set(sections) == set(ALGORITHMS)
    prox = sections["fedprox"]
    assert "client   approximately minimise  F_k(w) + mu/2 ||w - x||^2" in prox
    assert "def direction(self, grad_fn, view, w, scratch):" in prox
    assert "g / (1 + view.lr * self.mu) if self.step" in prox
    assert "**Departures.** The implicit step is ours" in prox
    assert "| `mu` | `0.1` | 0.001, 0.01, 0.1, 1 |" in prox
    assert "| `step` | `explicit` | explicit, implicit |" in prox
    assert "`mu=0` is `fedavg`" in prox
    assert "Federated Optimization in Heterogeneous Networks, MLSys 2020, arXiv:1812.06127." in prox
    assert "| loss landscape | — | — | 1 | 1 | 1 |" in prox
    assert "| path |" not in sections["scaffold"]
    for name, text in sections.items():
        cls = ALGORITHMS[name]
        hooks = [h for h in (*generate.CLIENT_HOOKS, *generate.SERVER_HOOKS) if h in vars(cls)]
        assert all(f"def {hook}(" in text for hook in hooks), name
        assert all(f"| `{field.name}` |" in text for field in dataclasses.fields(cls)), name
        assert text.count("```") % 2 == 0
    assert {"client_init", "objective", "direction", "local_final"} <= set(generate.CLIENT_HOOKS)
    assert all(hasattr(Algorithm, name) for name in (*generate.SERVER_HOOKS, *generate.NO_HOOKS))


def test_links_within_the_page_of_methods_lead_somewhere(generate: ModuleType) -> None:
    page = generate.algorithms()
    headings = {generate.anchor(line[3:]) for line in page.splitlines() if line.startswith("## ")}
    links = re.findall(r"\]\(#(\S+)\) \|", page)
    assert len(links) == len(ALGORITHMS)
    assert set(links) <= headings


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_declares_true_options(name: str) -> None:
    """Its formulas stand in its file's head, and what it declares about options are options."""
    cls = ALGORITHMS[name]
    options = {field.name for field in dataclasses.fields(cls)}
    assert set(cls.ranges) <= options
    assert re.search(r"\n    \S", inspect.getmodule(cls).__doc__), "the algorithm's lines, indented by four"
    for own, other in cls.reduces_to.items():
        build("algorithm", ALGORITHMS, f"{name}:{own}" if own else name)
        build("algorithm", ALGORITHMS, other)


def test_the_pages_hold_commands() -> None:
    assert len(commands()) >= 8


@pytest.mark.parametrize(("page", "line"), commands())
def test_every_command_of_the_pages_is_one_that_fedskew_takes(page: str, line: str, tmp_path, monkeypatch) -> None:
    # the file that the page on one's own method starts with
    mine = re.search(r"```python\n(# mine.py.*?)```", (ROOT / "docs" / "own-method.md").read_text(), re.S)
    (tmp_path / "mine.py").write_text(mine[1])
    monkeypatch.chdir(tmp_path)
    parsed = parser().parse_args(shlex.split(line)[1:])
    assert parsed.verb
    for spec in getattr(parsed, "algorithms", None) or []:
        from fedskew.experiment.combinations import with_method

        with_method(Experiment(), spec)


def test_the_python_example_of_the_readme_runs(tmp_path, monkeypatch) -> None:
    text = (ROOT / "README.md").read_text()
    example = next(block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "compare(" in block)
    assert len([line for line in example.splitlines() if line.strip()]) < 10
    monkeypatch.chdir(tmp_path)
    quick = example.replace(
        "fs.Experiment(", 'fs.Experiment(training={"rounds": 2}, local={"epochs": 1}, engine="stacked", '
    )
    assert quick != example
    exec(compile(quick, "README.md", "exec"), {})
    assert list(tmp_path.glob("*.png"))


def test_every_algorithm_names_its_paper_and_its_idea() -> None:
    for name, cls in ALGORITHMS.items():
        assert cls.paper, name
        assert cls.idea, name
        assert cls.changes, name
        assert name in (ROOT / "README.md").read_text()


def test_every_skew_stands_on_its_page_with_an_example_that_runs() -> None:
    page = (ROOT / "docs" / "skews.md").read_text()
    assert [name for name in SKEWS if f"`{name}`" not in page] == []
    toml, python = (re.search(rf"```{kind}\n(.*?)```", page, re.S)[1] for kind in ("toml", "python"))
    assert from_toml(toml).labels("skew") == ["label-dirichlet", "quantity-lognormal"]
    names: dict[str, Any] = {}
    exec(compile(python, "skews.md", "exec"), names)
    assert names["part"].sizes.tolist() == [300, 200, 100]


def test_every_stored_name_is_described(tmp_path) -> None:
    stored = set()
    rows = np.random.default_rng(0).standard_normal((60, 4))
    rows[:, -1] = np.arange(60) % 2
    people = Dataset(
        x=rows,
        y=np.arange(60) // 2 % 2,
        x_test=rows,
        y_test=np.arange(60) // 2 % 2,
        classes=("no", "yes"),
        sensitive="sex",
    )
    for method in (
        {"evaluation": {"inexactness": True, "adapt_steps": 1, "layers": True, "classes": True}},
        {"algorithm": "ifca"},
        {"skew": "concept-swap:clusters=1,at_round=1,rho=1e-9"},
        {"algorithm": "dp-fedavg:q=1.0", "selection": "poisson:rate=1.0"},
    ):
        experiment = Experiment(
            training={"rounds": 1},
            local={"epochs": 1},
            engine="stacked",
            **{"skew": "iid", **method},
        )
        frame = run(experiment, data=people, folder=tmp_path).measurements()
        stored |= set(zip(frame["split"], frame["name"], strict=True))
    # what only deployed runs store is compared in tests/flower/test_broken_nodes.py
    deployed = {("round", "rejected"), *(key for key in registered() if key[0] == "fault")}
    assert stored | deployed == set(registered())
