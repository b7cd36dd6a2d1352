"""Every code block of README and docs is run, compared or parsed."""

import contextlib
import io
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from fedskew.cli.main import main, parser
from fedskew.experiment.combinations import with_method
from fedskew.experiment.config import COMPONENTS, SETTINGS, Experiment, from_toml
from tests.pages import PAGES, ROOT, Block, blocks, scratch

OF_PAGE = {page.relative_to(ROOT).as_posix(): blocks(page) for page in PAGES}
LANGUAGES = {"sh", "python", "toml", "text", "bibtex", "html", "json", "ini"}
SHELL = [(name, line) for name, page in OF_PAGE.items() for b in page if b.language == "sh" for line in b.lines]
MACHINES = "several machines take part; tests/flower has such runs on one"
OTHERS = {
    "git": "the repository has no address before the first release",
    "cd": "the tests are in the folder already",
    "python3": "tests/project/test_archives.py makes an environment and installs the package into it",
    "pip": "tests/project/test_archives.py installs the package; the test of lines compares the names of extras",
    "make": "CI runs every target; the test of lines compares the names of targets",
    "python": "benchmarks and tests take minutes; the test of lines looks for their files",
    "source": "the tests' environment is active already",
    "export": MACHINES,
    "openssl": MACHINES,
    "echo": MACHINES,
    "ssh-keygen": MACHINES,
    "flwr": MACHINES,
    "flower-superlink": MACHINES,
    "pre-commit": "it changes the developer's own clone",
    "curl": MACHINES,
    "podman": "it needs a container engine",
}
"""Programs that are not ours, with the reason why no test runs their lines."""


def test_blocks_are_of_known_languages() -> None:
    assert {b.language for page in OF_PAGE.values() for b in page} <= LANGUAGES


def test_a_block_is_found_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.pages.ROOT", tmp_path)
    text = "# A\n\n<!-- parsed only: slow -->\n```sh\na \\\n  b   # c\n```\n\n1. x\n\n   ```python\n   if x:\n       y\n   ```\n"
    (tmp_path / "a.md").write_text(text)
    shell, python = blocks(tmp_path / "a.md")
    assert (shell.lines, shell.reason) == (["a    b"], "slow")
    assert (python.text, python.reason) == ("if x:\n    y\n", "")


@pytest.mark.parametrize(("page", "line"), SHELL)
def test_shell_lines_can_be_carried_out(page: str, line: str, scratch_folder: Path) -> None:
    """Every fedskew line is one that the parser takes; make targets, extras, scripts and tests exist."""
    for part in re.split(r"\s&&\s", line):
        program, *words = shlex.split(part)
        if program == "fedskew":
            parsed = parser().parse_args(words)
            assert parsed.verb
            for spec in getattr(parsed, "algorithms", None) or []:
                with_method(Experiment(), spec)
        elif program == "make":
            assert set(words) <= set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
        elif program == "pip":
            assert words[0] == "install"
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            assert set(re.findall(r"\[(\w+)\]", " ".join(words))) <= set(extras)
        elif program == "python":
            assert words[0] == "-m" or (ROOT / words[0]).is_file()
            assert all((ROOT / word).exists() for word in words if word.startswith(("tests/", "docs/", "experiments/")))
        else:
            assert program in OTHERS, f"{page}: write why no test runs {program}"


@pytest.mark.parametrize("page", sorted(OF_PAGE))
def test_toml_blocks_can_be_read(page: str) -> None:
    for block in OF_PAGE[page]:
        if block.language == "toml":
            table = tomllib.loads(block.text)
            if set(table) <= {*SETTINGS, *COMPONENTS} and "file_hash" not in block.text:
                assert from_toml(block.text)


PYTHON = [page for page, found in OF_PAGE.items() if any(b.language == "python" for b in found)]
QUICK = ("README.md", "docs/explanations/client-drift.md", "docs/data/skews.md", "docs/how-to/compare.md")
"""Pages whose Python runs in a few seconds."""


@pytest.mark.parametrize("page", [p if p in QUICK else pytest.param(p, marks=pytest.mark.slow) for p in PYTHON])
def test_python_blocks_run_and_print_what_stands_below_them(page: str, scratch_folder: Path) -> None:
    run_python(page, OF_PAGE[page])


def run_python(page: str, found: list[Block]) -> None:
    names: dict[str, object] = {}
    for block, after in zip(found, [*found[1:], None], strict=True):
        if block.language != "python" or block.reason or block.text[0] == " ":  # a hook alone
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block.text, page, "exec"), names)
        if after and after.language == "text" and "print" in block.text:
            assert plain(printed.getvalue()) == plain(after.text), page


def plain(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", [page for page, found in OF_PAGE.items() if any(b.language == "sh" for b in found)])
def test_shell_blocks_run_in_page_order(page: str, scratch_folder: Path) -> None:
    """In one scratch store. A block that is not run says why beside it."""
    for block in OF_PAGE[page]:
        for line in block.lines if block.language == "sh" and not block.reason else ():
            program, *words = shlex.split(line)
            if program == "fedskew":
                assert main(words) == 0, line
            else:
                assert OTHERS[program]


def test_files_that_pages_name_exist() -> None:
    """Scripts and tests in code marks."""
    named = {
        path
        for page in PAGES
        for path in re.findall(r"`(?:python )?((?:experiments|benchmarks|tests|src)/[\w/.-]+)", page.read_text())
    }
    assert {path for path in named if not (ROOT / path).exists() and not re.search(r"[A-Z]{4}|test_$", path)} == set()


@pytest.fixture
def scratch_folder(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    scratch(tmp_path, page)
    monkeypatch.chdir(tmp_path)
    return tmp_path
