"""Classes of the running program, such as a notebook's cells: a run stores their text, and repeats with it."""

import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from fedskew.api.functions import run
from fedskew.core import user_code as trust
from fedskew.core.errors import BadInput
from fedskew.core.user_code import text_of
from fedskew.experiment.config import Experiment, from_toml
from fedskew.store.runs import RunStore
from tests.stored import numbers

IMPORTS = """
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar
import torch
from torch import Tensor, nn
import fedskew as fs
from fedskew.core.task import Task
from fedskew.core.trees import Tree
SCALE = 0.5
"""
METHOD = """
def halved(g: Tensor) -> Tensor:
    return SCALE * g

@dataclass(frozen=True, kw_only=True)
class Mine(fs.Algorithm):
    beta: float = 0.5
    idea: ClassVar[str] = "half steps"

    def local_gradient(self, grad_fn, view, w: Tensor, scratch: Tree) -> Tensor:
        return self.beta * halved(grad_fn(w)[0])
"""
MODEL = """
class Net(nn.Sequential):
    def __init__(self, shape: tuple[int, ...], classes: int, hidden: int = 8):
        super().__init__(nn.Flatten(), nn.Linear(shape[0], hidden), nn.ReLU(), nn.Linear(hidden, classes))

def small(shape, classes):
    return nn.Sequential(nn.Linear(shape[0], classes))
"""
Cells = Callable[..., ModuleType]


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> Cells:
    """Return a function that runs texts as cells of a notebook, one after the other. The notebook's module is ``__main__``."""
    program = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", program)

    def run_cells(*texts: str) -> ModuleType:
        for text in texts:
            name = f"/tmp/cell_{len(linecache.cache)}.py"
            linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
            exec(compile(text, name, "exec"), vars(program))
        return program

    return run_cells


def experiment(**sections: object) -> Experiment:
    base = {"skew": "iid", "clients": {"number": 3}, "training": {"rounds": 1, "threads": 1}, "engine": "sequential"}
    return Experiment(**{**base, **sections})


def test_a_method_of_a_cell_is_stored_and_repeated(
    cells: Cells, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = cells(IMPORTS, METHOD)
    given = experiment(algorithm=program.Mine(beta=0.3))
    assert given.name == "Mine:beta=0.3"
    assert from_toml(given.toml()) == given
    assert experiment(algorithm=program.Mine) == experiment(algorithm=program.Mine())
    run(given, runs=tmp_path / "a")
    # another process has no such cell
    vars(program).clear()
    loaded = [name for name in sys.modules if name.startswith("fedskew_own_")]
    for name in loaded:
        monkeypatch.delitem(sys.modules, name)
    stored = RunStore(tmp_path / "a").run(1).experiment
    run(from_toml(stored), runs=tmp_path / "b")
    assert numbers(RunStore(tmp_path / "a")) == numbers(RunStore(tmp_path / "b"))
    # a person who has not confirmed the code cannot run it from a store
    monkeypatch.setenv(trust.FOLDER, str(tmp_path / "other"))
    with pytest.raises(BadInput, match="Mine> is code that you have not run or confirmed before"):
        from_toml(stored)
    with pytest.raises(BadInput, match="has changed"):
        from_toml(stored.replace("0.5", "0.6"))


def test_a_changed_cell_is_another_class(cells: Cells) -> None:
    one = experiment(algorithm=cells(IMPORTS, METHOD).Mine)
    two = experiment(algorithm=cells(METHOD.replace("half steps", "other steps")).Mine)
    assert type(one.algorithm) is not type(two.algorithm)
    assert two.algorithm.idea == "other steps"


def test_module_classes_and_functions_are_models(cells: Cells) -> None:
    program = cells(IMPORTS, MODEL)
    assert experiment(model=program.Net).model.hidden == 8
    wide = experiment(model={"name": "__main__::Net", "file_text": text_of(program.Net, ""), "hidden": 16})
    assert wide.labels("model") == ["Net:hidden=16"]
    assert experiment(model=program.small).labels("model") == ["small"]
    with pytest.raises(BadInput, match=r"give the class, or a function of \(shape, classes\) that makes the module"):
        experiment(model=program.Net((4,), 2))


def test_a_text_has_exactly_the_code_that_the_class_uses(cells: Cells) -> None:
    text = text_of(cells(IMPORTS, METHOD, MODEL).Mine, "")
    assert "Mapping" not in text
    assert "SCALE = 0.5" in text
    assert "from fedskew.core.trees import Tree\n" in text
    assert text.index("def halved") < text.index("class Mine")
    assert "Net" not in text


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (("data = object()", METHOD.replace("SCALE", "data")), "halved uses 'data' of this program, whose type object cannot"),
        (("from fedskew import Algorithm", "Mine = type('Mine', (Algorithm,), {})"), "the text of Mine cannot be found"),
        ((f"def make():\n    from dataclasses import dataclass\n{METHOD.replace(chr(10), chr(10) + '    ')}\n    return Mine",
          "Mine = make()"), "Mine must be at the top level of a file or a cell"),
        ((METHOD.replace("local_gradient", "local_gradien"),), "did you mean 'local_gradient'"),
    ],
)  # fmt: skip
def test_a_class_that_cannot_be_stored_is_refused_in_one_line(cells: Cells, texts: tuple[str, ...], words: str) -> None:
    program = cells(IMPORTS, *texts)
    with pytest.raises(BadInput, match=words):
        experiment(algorithm=program.Mine)
