"""The package as `import fedskew` shows it: its names, its types, and what it loads."""

import ast
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import fedskew as fs


@pytest.mark.parametrize(
    ("imports", "large"),
    [
        ("fedskew; dir(fedskew)", {"torch", "numpy", "rich", "msgspec"}),
        ("fedskew.cli.diagnose", {"torch"}),
        ("fedskew.report.html, fedskew.report.plots", {"pandas", "matplotlib", "jinja2", "scipy", "torch"}),
        ("fedskew.cli.deploy, fedskew.flower.node, fedskew.flower.resident", {"huggingface_hub"}),
    ],
)
def test_import_loads_no_large_library_before_its_use(imports: str, large: set[str]) -> None:
    """The libraries of Hugging Face read whether they may download when they are imported."""
    code = f"import sys, {imports}; assert not {large} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_completion_shows_the_public_names() -> None:
    assert set(fs.__all__) == {*fs.PLACES, "__version__"} == set(dir(fs))
    assert all(getattr(fs, name) is not None for name in fs.__all__)
    assert fs.__version__ == version("fedskew")


def test_type_checkers_find_every_name_where_it_is() -> None:
    tree = ast.parse(Path(fs.__file__).read_text())
    [typed] = [node for node in tree.body if isinstance(node, ast.If)]
    found = {
        alias.name: f"fedskew.{fs.PLACES[alias.name]}" == node.module
        for node in typed.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert found == dict.fromkeys(fs.PLACES, True)


def test_a_misspelt_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(AttributeError, match="no attribute 'compair'; did you mean 'compare'"):
        fs.compair  # noqa: B018


@pytest.mark.slow
def test_type_checkers_see_wrong_keywords(tmp_path) -> None:
    from mypy import api

    lines = [
        "import fedskew as fs",
        "fs.run(rounds='x')",
        "fs.run(ruonds=3)",
        "fs.Experiment(lr='x')",
        "fs.compare(['fedavg'], seeds=3, dataset='digits', evaluation__every=1)",
        "fs.compare(fs.Experiment(), ['fedavg'], clients=3)",
    ]
    file = tmp_path / "use.py"
    file.write_text("\n".join(lines))
    # PyTorch and pandas take mypy a minute
    config = tmp_path / "mypy.ini"
    seen = ",".join(
        f"fedskew.{name}" for name in ("api.functions", "api.runs", "experiment.config", "experiment.keywords")
    )
    config.write_text(f"[mypy]\nfollow_imports = skip\n[mypy-fedskew,{seen}]\nfollow_imports = silent\n")
    out, _, _ = api.run([str(file), "--config-file", str(config), "--cache-dir", str(tmp_path)])
    assert sorted({int(line.split(":")[1]) for line in out.splitlines() if ": error:" in line}) == [2, 3, 4], out
