"""Links of pages. In the repository they lead to files that are there, on the site to the pages made from these files."""

import posixpath
import re

PAGES = {
    "docs/gallery": "gallery/index.md",
    "docs/tutorials": "tutorials/index.md",
    "src/fedskew/__init__.py": "python/index.md",
    "src/fedskew/advice/evidence.json": "evidence.md",
    "src/fedskew/advice/evidence.py": "methods/choose.md",
    "src/fedskew/algorithms": "methods/index.md",
    "src/fedskew/claims/documents": "results/documents.md",
    "src/fedskew/cli/verbs.py": "reference/command-line.md",
    "src/fedskew/data/__init__.py": "reference/components.md#datasets",
    "src/fedskew/experiment/config.py": "reference/components.md",
    "src/fedskew/experiment/settings.py": "reference/settings.md",
    "src/fedskew/measure/registry.py": "reference/measurements.md",
    "src/fedskew/slots/participation.py": "reference/components.md#availabilities",
}
"""The page that the site makes from a file or folder of the repository, by its path below ``docs``."""

LINK = re.compile(r"\]\(([^)\s:#]+)")


def of_site(text: str, page: str) -> str:
    """The text of a page, whose path below ``docs`` is given, with the links of the site."""
    folder = posixpath.dirname(f"docs/{page}")

    def link(found: re.Match[str]) -> str:
        made = page_of(posixpath.normpath(posixpath.join(folder, found[1])))
        return f"]({posixpath.relpath(f'docs/{made}', folder)}" if made else found[0]

    return LINK.sub(link, text)


def page_of(path: str) -> str | None:
    """The page that the site makes from a file of the repository, if it makes one."""
    if method := re.fullmatch(r"src/fedskew/algorithms/(\w+)\.py", path):
        return f"methods/{method[1].replace('_', '-')}.md"
    if example := re.fullmatch(r"docs/((?:tutorials|gallery)/[\w-]+)\.py", path):
        return f"{example[1]}.md"
    return PAGES.get(path)
