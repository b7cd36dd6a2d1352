"""The pages on components of one's own: their example is short, keeps its promises, and runs with the page's command."""

import re
import shlex
from pathlib import Path

import pytest

from fedskew.cli.main import main
from fedskew.experiment.components import KINDS
from fedskew.store.runs import RunStore

FOLDER = Path(__file__).parents[2] / "docs" / "how-to"
PAGES = sorted(path.stem for path in FOLDER.glob("own-*.md") if "# mine.py" in path.read_text(encoding="utf-8"))
QUICK = ["--rounds", "1", "--epochs", "1", "--engine", "sequential", "--set", "training.threads=1", "--clients", "5"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedskew.report.html.write_report", lambda results, path, **_: path)


def test_there_is_a_page_for_most_kinds() -> None:
    kinds = {"dataset", "skew", "loss", "model", "method", "solver", "codec", "selection", "metric"}
    assert {page.removeprefix("own-") for page in PAGES} == kinds
    table = (FOLDER / "own-component.md").read_text(encoding="utf-8")
    assert [kind for kind in KINDS if f"`fedskew.{KINDS[kind].kinds}`" not in table] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page != "own-method"])
def test_the_example_of_a_page_is_checked_and_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (FOLDER / f"{page}.md").read_text(encoding="utf-8")
    [example] = re.findall(r"```python\n(# mine.py\n.*?)```", text, re.S)
    code = [line for line in example.splitlines() if line.strip() and not line.startswith(("#", "from", "import"))]
    assert len(code) <= 30
    Path("mine.py").write_text(example)
    [shell] = re.findall(r"```sh\n(.*?)```", text, re.S)
    check, command = (
        shlex.split(line)[1:] for line in shell.splitlines() if re.match(r"fedskew (check|run|compare) ", line)
    )
    assert main(check) == 0
    command = ["run", *command[command.index("--metric") :]] if command[0] == "compare" else command
    clients = QUICK[:-2] if "natural" in command else QUICK
    assert main([*command, *clients]) == 0
    assert RunStore("runs").run(1).status == "finished"
