"""The documentation is under test: generated pages are current, commands parse, examples run, every stored name is described."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from fedskew.algorithms import ALGORITHMS
from fedskew.cli.main import parser
from fedskew.experiment.config import Experiment
from fedskew.experiment.results import run
from fedskew.store.runs import MEASUREMENTS

ROOT = Path(__file__).parents[1]
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


def test_the_generated_reference_is_current() -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text() == module.page(), "run python docs/generate.py"


def test_the_pages_hold_commands() -> None:
    assert len(commands()) >= 8


@pytest.mark.parametrize(("page", "line"), commands())
def test_every_command_of_the_pages_is_one_that_fedskew_takes(page: str, line: str) -> None:
    parsed = parser().parse_args(shlex.split(line)[1:])
    assert parsed.function
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


def test_every_stored_name_is_described(tmp_path) -> None:
    experiment = Experiment(
        training={"rounds": 1}, local={"epochs": 1}, evaluation={"adapt_steps": 1}, engine="stacked"
    )
    frames = [run(e, folder=tmp_path).measurements() for e in (experiment, experiment.replace(algorithm="ifca"))]
    stored = {pair for frame in frames for pair in zip(frame["split"], frame["name"], strict=True)}
    assert stored == {(split, name) for split, names in MEASUREMENTS.items() for name in names}
