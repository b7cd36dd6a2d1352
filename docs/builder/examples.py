"""Run the tutorials and the gallery, and make their pages: a hook of mkdocs. `python docs/builder/examples.py NAME ...` runs some.

A tutorial is a notebook in the percent format. It runs in a kernel, and its page shows every cell with its output. A script of the
gallery saves one picture. Pages stay in `.cache/examples` and are made again when the example, this file or the package changes.
`FEDSKEW_TUTORIALS=false` makes the pages without outputs.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import importlib
import os
import runpy
import shutil
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

DOCS = Path(__file__).parents[1]
STYLE = DOCS / "builder" / "matplotlibrc"
CACHE = DOCS.parent / ".cache" / "examples"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.py"))
SCRIPTS = sorted((DOCS / "gallery").glob("*.py"))
THUMBNAIL = 400
"""Width of a small picture in pixels."""

SECTIONS = {
    "How clients differ": (
        "skews_side_by_side", "label_skew_strength", "quantity_skews", "rotated_digits", "concept_drift", "unseen_hospital",
        "sensors_of_people", "survival_times", "next_character",
    ),
    "Comparing methods": (
        "learning_curves", "paired_differences", "tuned_learning_rates", "local_epochs", "partial_participation",
        "server_optimisers", "stragglers", "bytes_and_accuracy",
    ),
    "Drift and forgetting": ("loss_plane", "drift_by_layer", "forgetting_by_class", "flat_minima"),
    "Fair, private, robust, personal": ("fairness", "privacy", "attacks", "personal_or_global"),
    "Your own": ("own_method", "own_skew", "own_metric", "export_and_predict"),
}  # fmt: skip
"""The pages of the gallery by subject, in order."""


@cache
def package_hash() -> str:
    """The hash of this file and of the package's code."""
    files = [Path(__file__), *sorted((DOCS.parent / "src").rglob("*.py"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def folder_of(path: Path) -> Path:
    """The folder in the cache for the page and the pictures of an example."""
    digest = hashlib.sha256(package_hash().encode() + path.read_bytes()).hexdigest()[:16]
    return CACHE / path.parent.name / f"{path.stem}-{digest}"


def make(path: Path) -> Path:
    """Run one example unless its page is there. Return the folder of the page."""
    folder = folder_of(path)
    if not (folder / "done").exists():
        for old in folder.parent.glob(f"{path.stem}-{'?' * 16}"):
            shutil.rmtree(old)
        folder.mkdir(parents=True)
        page = tutorial(path, folder) if path in TUTORIALS else script(path, folder)
        (folder / f"{path.stem}.md").write_text(page)
        (folder / "done").touch()
    return folder


def tutorial(path: Path, folder: Path, run: bool = True) -> str:
    """The page of a notebook. Its figures, and the notebook with outputs, go into ``folder``."""
    import jupytext
    from nbclient import NotebookClient

    notebook = jupytext.read(path)
    if run:
        os.environ["MATPLOTLIBRC"] = str(STYLE)
        # a kernel warns on every start that its local port is not encrypted
        quiet = ["--IPKernelApp.log_level=40"]
        with tempfile.TemporaryDirectory() as empty:
            where = {"metadata": {"path": empty}}
            NotebookClient(
                notebook, timeout=300, kernel_name="python3", resources=where, extra_arguments=quiet
            ).execute()
        jupytext.write(notebook, folder / f"{path.stem}.ipynb", fmt="ipynb")
    downloads = [download("Python file", path.name)] + [download("notebook", f"{path.stem}.ipynb")] * run
    lines = [block for number, cell in enumerate(notebook.cells) for block in shown(cell, folder, path.stem, number)]
    return "\n\n".join([*lines, f"Download this tutorial: {', '.join(downloads)}."]) + "\n"


def shown(cell: Any, folder: Path, name: str, number: int) -> Iterable[str]:
    """The blocks of Markdown for a cell and its outputs. The title of a code cell is the alternative text of its figures."""
    if cell.cell_type == "markdown":
        yield cell.source
        return
    yield f"```python\n{cell.source}\n```"
    for index, output in enumerate(cell.get("outputs", [])):
        data = output.get("data", {})
        if "image/png" in data:
            picture = f"{name}-{number}-{index}.png"
            (folder / picture).write_bytes(base64.b64decode(data["image/png"]))
            yield f"![{cell.metadata.get('title', 'Figure of the code above')}]({picture})"
        elif html := data.get("text/html", "").strip():
            yield f'<div class="output">\n{html}\n</div>'
        elif "text/html" not in data and (text := output.get("text") or data.get("text/plain")):
            yield f"```text\n{text.rstrip()}\n```"


def script(path: Path, folder: Path, run: bool = True) -> str:
    """The page of a script. Its picture goes into ``folder``."""
    title, text, code = read_script(path)
    picture = save_picture(path, folder) if run else ""
    link = download(path.name, path.name)
    return f"# {title}\n\n{text}\n\n{picture}\n\n```python\n{code}\n```\n\nDownload this script: {link}.\n"


def download(text: str, name: str) -> str:
    """A link to a file beside the page. In Markdown the site would lead to the page instead."""
    return f'<a href="../{name}" download>{text}</a>'


def read_script(path: Path) -> tuple[str, str, str]:
    """The title, the paragraph and the code of a script."""
    source = path.read_text()
    doc = ast.get_docstring(ast.parse(source)) or ""
    title, _, text = doc.partition("\n\n")
    return title.rstrip("."), text, source.split('"""', 2)[2].strip()


def save_picture(path: Path, folder: Path) -> str:
    """Run a script in an empty folder, with the style of the site. Keep its picture and a small copy in ``folder``.

    Returns the line that shows the picture, or the reason why the script ended without one.
    """
    import matplotlib
    from PIL import Image

    matplotlib.use("agg")
    from matplotlib import pyplot

    with tempfile.TemporaryDirectory() as empty, chdir(empty), matplotlib.rc_context(fname=STYLE):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as reason:
            return f"This script made no picture here: {reason}"
        finally:
            pyplot.close("all")
        picture = Path(f"{path.stem}.png")
        if not picture.exists():
            raise FileNotFoundError(
                f"{path.name} has not saved {picture}; end it with figure.savefig({picture.name!r})"
            )
        shutil.copy(picture, folder)
        with Image.open(picture) as image:
            image.thumbnail((THUMBNAIL, THUMBNAIL))
            image.save(folder / f"{path.stem}-small.png")
    return f"![{read_script(path)[0]}]({picture})"


def index_of_tutorials() -> str:
    """The page that lists the tutorials: title, and what one learns."""
    import jupytext

    lines = [
        "# Tutorials",
        "Each tutorial is a notebook. The pages show the output of the code as it ran when the site was built.",
    ]
    for number, path in enumerate(TUTORIALS, 1):
        title, learn, *_ = jupytext.read(path).cells[0].source.split("\n\n")
        lines.append(
            f"{number}. [{title.removeprefix('# ')}]({path.stem}.md). {learn.replace('**You will learn**', 'You learn')}"
        )
    return "\n\n".join(lines) + "\n"


def index_of_gallery(pictures: set[str]) -> str:
    """The page that shows all pictures; ``pictures`` are the files that there are."""
    lines = ["# Gallery", "Each picture is made by the short script behind it."]
    for section, names in SECTIONS.items():
        lines += [f"## {section}", '<div class="gallery" markdown>']
        for name in names:
            title = read_script(DOCS / "gallery" / f"{name}.py")[0]
            small = f"![]({name}-small.png)<br>" if f"{name}-small.png" in pictures else ""
            lines.append(f"[{small}{title}]({name}.md)")
        lines.append("</div>")
    return "\n\n".join(lines) + "\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and pictures of all examples to the site (an event of mkdocs)."""
    from mkdocs.structure.files import File

    def add(where: str, content: str | bytes) -> None:
        files.append(File.generated(config, where, content=content))

    add("tutorials/index.md", index_of_tutorials())
    if os.environ.get("FEDSKEW_TUTORIALS") == "false":
        add("gallery/index.md", index_of_gallery(set()))
        for path in (*TUTORIALS, *SCRIPTS):
            page = tutorial(path, CACHE, run=False) if path in TUTORIALS else script(path, CACHE, run=False)
            add(f"{path.parent.name}/{path.stem}.md", page)
        return files
    # The threads' kernels need it, and pyplot fails in this thread while another one imports it.
    importlib.import_module("IPython")
    with ThreadPoolExecutor(2) as pool:
        tutorials = pool.map(make, TUTORIALS)
        folders = [*map(make, SCRIPTS), *tutorials]
    made = [file for folder in folders for file in sorted(folder.iterdir()) if file.name != "done"]
    add("gallery/index.md", index_of_gallery({file.name for file in made}))
    for file in made:
        content = file.read_text() if file.suffix == ".md" else file.read_bytes()
        add(f"{file.parent.parent.name}/{file.name}", content)
    return files


if __name__ == "__main__":
    for example in (*TUTORIALS, *SCRIPTS):
        if example.stem in sys.argv[1:]:
            print(make(example))
