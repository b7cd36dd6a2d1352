"""What the site adds to the files of ``docs`` when it is built: pages made from the code, the navigation, formulas as MathML."""

import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

DOCS = Path(__file__).parents[1]
sys.path[:0] = [str(DOCS)]
import generate  # noqa: E402
from builder import links  # noqa: E402
from builder.examples import SECTIONS  # noqa: E402


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, text in generate.pages().items():
        files.append(File.generated(config, path, content=text))
    for path, drawing in {**generate.pictures.pictures(), **generate.evidence.tables(), **generate.drawings()}.items():
        files.append(File.generated(config, path, content=drawing))
    contributing = (DOCS.parent / "CONTRIBUTING.md").read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "contributing.md", content=contributing))
    gallery = [f"gallery/{name}.md" for names in SECTIONS.values() for name in names]
    known = sorted(
        (file.src_uri for file in files.documentation_pages()),
        key=lambda path: (not path.endswith("index.md"), path in gallery and gallery.index(path), path),
    )
    config.nav = filled(config.nav, known)
    return files


def on_post_build(config: MkDocsConfig) -> None:
    """`llms.txt` names pages by their addresses on the site, in the repository by their files."""
    file = Path(config.site_dir, "llms.txt")
    file.write_text(re.sub(r"\]\(([\w/-]+)\.md\)", r"](\1/)", file.read_text(encoding="utf-8")), encoding="utf-8")


def filled(nav: Any, known: list[str]) -> Any:
    """The navigation with all pages of a folder in place of ``folder/``; what has no page is left out."""
    if isinstance(nav, dict):
        ((title, value),) = nav.items()
        value = of_folder(value, known) if isinstance(value, str) and value.endswith("/") else filled(value, known)
        return {title: value} if value else None
    if isinstance(nav, list):
        entries = []
        for one in nav:
            entries += of_folder(one, known) if isinstance(one, str) and one.endswith("/") else [filled(one, known)]
        return [entry for entry in entries if entry]
    return nav if nav in known else None


def of_folder(folder: str, known: list[str]) -> list[str]:
    return [path for path in known if path.startswith(folder)]


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    path = page.file.src_uri
    markdown = links.of_site(markdown, path)
    return formulas(markdown) if path.startswith("explanations/") else markdown


def formulas(text: str) -> str:
    """``$$ ... $$`` and ``$...$`` outside code as marks, which Markdown leaves alone. `on_page_content` fills them in."""
    parts = re.split(r"(```.*?```|`[^`]*`)", text, flags=re.S)
    for at in range(0, len(parts), 2):
        part = re.sub(r"\$\$(.+?)\$\$", lambda m: mark("block", m[1].strip()), parts[at], flags=re.S)
        parts[at] = re.sub(r"\$([^$\n]+?)\$", lambda m: mark("inline", m[1]), part)
    return "".join(parts)


def mark(display: str, formula: str) -> str:
    return f"MATH{display}{formula.encode().hex()}END"


def on_page_content(content: str, **_: object) -> str:
    """Formulas as MathML, which browsers show without a script. What scrolls can be reached with the keyboard."""
    content = content.replace("<table>", '<table tabindex="0">')
    content = content.replace('<div class="output">', '<div class="output" tabindex="0">')
    content = content.replace("<pre><span></span><code>", '<pre><span></span><code tabindex="0">')
    return re.sub(r"MATH(block|inline)([0-9a-f]+)END", lambda m: drawn(m[1], bytes.fromhex(m[2]).decode()), content)


def drawn(display: str, formula: str) -> str:
    math = convert(formula, display=display)
    return f'<span class="formula" tabindex="0">{math}</span>' if display == "block" else math


def on_post_page(output: str, **_: object) -> str:
    """The theme's search gets a name for screen readers."""
    return output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )


on_post_template = on_post_page  # the page for missing addresses
