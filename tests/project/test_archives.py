"""The wheel and the source archive: complete, with equal requirements everywhere, and usable in an empty environment."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TUTORIAL = ROOT / "docs" / "tutorials" / "1-client-drift.py"


def test_every_file_of_the_package_is_in_the_wheel() -> None:
    package = ROOT / "src" / "fedskew"
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["fedskew"]
    shipped = {path for pattern in patterns for path in package.glob(pattern)}
    files = {path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert files == shipped
    assert all(list(package.glob(pattern)) for pattern in patterns)


def requirement(text: str) -> tuple[str, str]:
    name, bounds = re.fullmatch(r"([\w-]+)(.*)", text.replace(" ", "")).groups()
    return {"pytorch": "torch", "matplotlib-base": "matplotlib"}.get(name, name), bounds


def test_conda_recipe_has_the_version_and_requirements_of_the_project() -> None:
    text = (ROOT / "recipe" / "meta.yaml").read_text()
    run = text.partition("  run:\n")[2].partition("\n\n")[0]
    found = {requirement(line.strip("- ")) for line in run.splitlines()}
    project = PROJECT["project"]
    assert found - {("python", project["requires-python"])} == {requirement(text) for text in project["dependencies"]}
    assert f'version = "{project["version"]}"' in text


def test_pinned_requirements_cover_the_project() -> None:
    needed = set(PROJECT["project"]["dependencies"])
    pinned = set[str]()
    for name, extra in (("run", ()), ("dev", ("dev", "privacy", "text"))):  # a test skips where its library is missing
        needed |= {text for key in extra for text in PROJECT["project"]["optional-dependencies"][key]}
        lines = (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()
        pinned |= {line.partition("==")[0].lower().replace("_", "-") for line in lines}
        assert {requirement(text)[0].lower().replace("_", "-") for text in needed} - {"fedskew"} <= pinned


def test_citation_has_the_version_and_licence_of_the_project() -> None:
    text = (ROOT / "CITATION.cff").read_text()
    project = PROJECT["project"]
    assert f"\nversion: {project['version']}\n" in text
    assert f"\nlicense: {project['license']}\n" in text
    assert f"version = {{{project['version']}}}" in (ROOT / "src" / "fedskew" / "references.bib").read_text()
    assert f"## {project['version']}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source archive, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("archives")
    copied = folder / "source"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    for name in filter(None, listed.stdout.split("\0")):
        (copied / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copied / name)
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(folder), str(copied)], check=True, timeout=600)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_archives_hold_the_package_and_its_licences(archives: Path) -> None:
    [wheel], [source] = archives.glob("*.whl"), archives.glob("*.tar.gz")
    assert wheel.stat().st_size < 2_000_000
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    package = ROOT / "src"
    files = {p for p in (package / "fedskew").rglob("*") if p.is_file() and p.suffix != ".pyc"}
    assert {path.relative_to(package).as_posix() for path in files} <= names
    assert {name.rpartition("/")[2] for name in names if "/licenses/" in name} == {"LICENSE", "NOTICE"}
    with tarfile.open(source) as file:
        assert any(name.endswith("src/fedskew/data/datasets/heart.csv") for name in file.getnames())


def command(python: Path, *words: str, folder: Path) -> str:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "FEDSKEW_DATA")}
    done = subprocess.run(
        [python, *words], cwd=folder, env=clean | {"MPLBACKEND": "agg"}, capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def install_requirements(python: Path, folder: Path) -> None:
    command(python, "-m", "pip", "install", "--quiet", "-r", str(ROOT / "requirements" / "run.txt"), folder=folder)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_wheel_and_source_work_in_an_empty_environment(archives: Path, tmp_path: Path) -> None:
    """The demo, the data, Python and the first tutorial, without the repository."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    install_requirements(python, tmp_path)
    for archive in (*archives.glob("*.whl"), *archives.glob("*.tar.gz")):
        command(python, "-m", "pip", "install", "--no-deps", "--force-reinstall", str(archive), folder=tmp_path)
        assert str(tmp_path) in command(python, "-c", "import fedskew; print(fedskew.__file__)", folder=tmp_path)
        demo = command(python, "-m", "fedskew", "compare", "--dataset", "heart", "--rounds", "3", folder=tmp_path)
        assert "SCAFFOLD" in demo
        assert list((tmp_path / "runs").glob("c*.html"))
    command(python, "-m", "pip", "check", folder=tmp_path)
    code = "import fedskew as fs; print(fs.run(dataset='heart', rounds=2).table())"
    assert "accuracy" in command(python, "-c", code, folder=tmp_path)
    command(python, str(TUTORIAL), folder=tmp_path)
