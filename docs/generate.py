"""The pages of the documentation that are made from the code.

The site makes them when it is built (`make docs`). python docs/generate.py FOLDER writes them to FOLDER; without a folder it
only updates docs/performance.md, the one such page in the repository.
"""

import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(place) for place in (HERE, HERE.parent) if str(place) not in sys.path]

from builder import choice, documents, evidence, methods, pictures, reference  # noqa: E402

from fedskew.claims.export import Export  # noqa: E402

EXPORTS = sorted((HERE / "results").glob("*.json"))
"""What the pages of results are made from: `fedskew reproduce NAME --export FILE` writes one."""


def exports() -> list[Export]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in EXPORTS]


def drawings() -> dict[str, bytes]:
    """The figures of the documents' pages, by path below ``docs``."""
    drawn = {name: picture for each in exports() for name, picture in documents.drawings(each).items()}
    return {f"pictures/{name}": pictures.saved(picture.draw(picture.label)) for name, picture in drawn.items()}


def pages() -> dict[str, str]:
    """The text of each page by its path below ``docs``."""
    results = {f"results/{name}.md": text for name, text in documents.pages(exports()).items()}
    return {**methods.pages(), **choice.pages(), **evidence.pages(), **reference.pages(), **pictures.pages(), **results}


def performance() -> str:
    """The page of what `make bench` measured."""
    from benchmarks.rounds.page import markdown

    return markdown(json.loads((HERE / "performance.json").read_text(encoding="utf-8")))


def main(folder: Path | None = None) -> None:
    (HERE / "performance.md").write_text(performance(), encoding="utf-8")
    for path, text in pages().items() if folder else ():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
