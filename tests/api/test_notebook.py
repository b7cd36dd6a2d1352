"""A notebook: results, figures and live curves show themselves, errors are one line, classes of a cell work."""

import sys
from types import ModuleType

import pytest

from fedskew.report import console as notebook

CELLS = [
    "import fedskew as fs\n"
    "Q = dict(dataset='digits', rounds=2, epochs=1, clients=3, engine='sequential', evaluation__every=1)\n"
    "runs = fs.run(**Q)\nruns",
    "runs.plot()",
    "again = fs.run(progress='curves', **Q)",
    "fs.run(rounds=0)",
    "from dataclasses import dataclass\n"
    "@dataclass(frozen=True, kw_only=True)\n"
    "class Mine(fs.Algorithm):\n"
    "    mu: float = 0.1\n"
    "    def local_gradient(self, grad_fn, view, w, scratch):\n"
    "        return grad_fn(w)[0] + self.mu * (w - view.x)\n",
    "print([r.status for r in fs.compare([Mine, Mine(mu=0.5)], seeds=1, **Q).records])",
]


def test_a_program_in_which_another_thread_imports_ipython_runs_in_no_notebook(monkeypatch) -> None:
    """Its module is there, but it has no functions yet."""
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    assert not notebook.running()


@pytest.mark.slow
def test_notebook_shows_results_figures_and_errors(tmp_path, monkeypatch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat.v4")
    monkeypatch.chdir(tmp_path)
    book = nbformat.new_notebook(cells=[nbformat.new_code_cell(text) for text in CELLS])
    nbclient.NotebookClient(book, timeout=100, kernel_name="python3", allow_errors=True).execute()
    shown = [[dict(one.get("data", one)) for one in cell.outputs] for cell in book.cells]
    assert "<table" in shown[0][-1]["text/html"]
    assert set(shown[1][-1]) >= {"image/png"}
    assert '<img alt="curves so far"' in shown[2][-1]["text/html"]
    assert shown[3][-1]["traceback"] == ["BadInput: training: rounds must be at least 1, got 0"]
    assert "['finished', 'finished']" in shown[5][-1]["text"]
