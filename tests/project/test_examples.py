"""The tutorials and the gallery: their form, that they run, and that their pages are made."""

import ast
import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

from tests.pages import ROOT, loaded

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.py"))
SCRIPTS = sorted((ROOT / "docs" / "gallery").glob("*.py"))
LONGEST_SCRIPT = 50


@pytest.fixture(scope="module")
def examples() -> ModuleType:
    return loaded("docs/builder/examples.py")


def names(paths: list[Path]) -> list[str]:
    return [path.stem for path in paths]


@pytest.mark.parametrize("path", TUTORIALS, ids=names(TUTORIALS))
def test_tutorial_begins_with_aim_time_and_needs(path: Path) -> None:
    first = path.read_text().split("\n# %%")[0]
    assert first.startswith("# %% [markdown]\n# # ")
    text = re.sub(r"\n#(?: |$)", " ", first, flags=re.M)
    assert "**You will learn** " in text
    assert re.search(r"\*\*Time:\*\* \d+ minutes of reading", text)
    assert "**You need** " in text
    assert "**What to remember**" in path.read_text()


@pytest.mark.parametrize("path", TUTORIALS, ids=names(TUTORIALS))
def test_figures_of_tutorials_have_a_text_alternative(path: Path) -> None:
    """A code cell that draws has a title, which becomes the alternative text."""
    for cell in re.split(r"^# %%", path.read_text(), flags=re.M)[1:]:
        title, _, code = cell.partition("\n")
        if "[markdown]" not in title and re.search(r"plt\.subplots\(|\.plot\((?:\)|\")", code):
            assert title.strip(), code


@pytest.mark.parametrize("path", SCRIPTS, ids=names(SCRIPTS))
def test_script_has_title_paragraph_and_picture(path: Path, examples: ModuleType) -> None:
    title, text, code = examples.read_script(path)
    assert title
    assert "\n" not in title
    assert text
    assert len(text.split()) <= 120
    assert 10 <= len(path.read_text().splitlines()) <= LONGEST_SCRIPT
    assert code.splitlines()[-1].startswith(f'figure.savefig("{path.stem}.png"')


def test_every_script_is_in_the_gallery_once(examples: ModuleType) -> None:
    listed = [name for section in examples.SECTIONS.values() for name in section]
    assert sorted(listed) == names(SCRIPTS)
    assert len(listed) >= 20


@pytest.mark.parametrize("path", [*TUTORIALS, *SCRIPTS], ids=names([*TUTORIALS, *SCRIPTS]))
def test_imports_and_names_of_fedskew_exist(path: Path) -> None:
    """Every `fs.NAME` and every import from fedskew is there; an example runs in minutes, this test in milliseconds."""
    import fedskew

    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "fs":
            assert hasattr(fedskew, node.attr), f"line {node.lineno}: fs.{node.attr}"
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fedskew":
            module = importlib.import_module(node.module)
            assert all(hasattr(module, alias.name) for alias in node.names), f"line {node.lineno}"


@pytest.mark.slow
@pytest.mark.parametrize("path", [*TUTORIALS, *SCRIPTS], ids=names([*TUTORIALS, *SCRIPTS]))
def test_example_runs_and_makes_its_page(path: Path, examples: ModuleType, tmp_path: Path, monkeypatch) -> None:
    """As for the site: a tutorial in a kernel of its own, a script in this process."""
    monkeypatch.setattr(examples, "CACHE", tmp_path)
    folder = examples.make(path)
    page = (folder / f"{path.stem}.md").read_text()
    pictures = re.findall(r"!\[(.+)\]\((.+\.png)\)", page)
    assert pictures or "This script made no picture here: " in page  # it lacks its data
    assert all((folder / name).stat().st_size > 5000 for _, name in pictures)
    assert "Traceback" not in page
