"""Lists the code blocks of README and docs in page order. A block that is not run has a reason."""

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PARSED = re.compile(r"<!-- (page )?parsed only: (.*?) -->")
BLOCK = re.compile(
    r"(?:<!-- parsed only: (?P<reason>.*?) -->\s*)?^(?P<indent> *)```(?P<language>\w+)\n(?P<text>.*?)^ *```",
    re.S | re.M,
)


def loaded(path: str) -> ModuleType:
    """The module of a script of the repository, which no package has."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Block:
    page: str
    language: str
    text: str
    reason: str  # why it is not run; empty if it is

    @property
    def lines(self) -> list[str]:
        """Return the commands of a shell block. Continued lines are joined, and comments are removed."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line for raw in lines if (line := re.split(r"\s+#\s", f" {raw}")[0].strip()) and line[0] != "#"]


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    whole = next((found[2] for found in PARSED.finditer(text) if found[1]), "")
    name = page.relative_to(ROOT).as_posix()
    blocks = []
    for found in BLOCK.finditer(text):
        code = re.sub(rf"^{found['indent']}", "", found["text"], flags=re.M)
        blocks.append(Block(name, found["language"], code, found["reason"] or whole))
    return blocks


def scratch(folder: Path, page: str) -> None:
    """Write the files that a page speaks of: a reader's tables, texts, and the files whose text stands on the page."""
    rows = [f"{k % 5},{'ABCDE'[k % 7 % 5]},{k % 11},{(k * 7) % 13},{int((k * 7) % 13 + k % 5 > 7)}" for k in range(300)]
    (folder / "visits.csv").write_text("\n".join(["age,hospital,dose,pulse,outcome", *rows]) + "\n")
    words = ["good book", "bad cover", "fine story", "dull plot", "great end"]
    rows = [f"{'xyz'[k % 3]},{words[k % 5]} {words[k % 3]},{k % 2}" for k in range(120)]
    (folder / "reviews.csv").write_text("\n".join(["shop,review,stars", *rows]) + "\n")
    (folder / "folder-with-one-file-a-client").mkdir()
    for name in "ab":
        rows = [f"{k % 7},{k % 3},{k % 2}" for k in range(60)]
        (folder / "folder-with-one-file-a-client" / f"{name}.csv").write_text("\n".join(["p,q,outcome", *rows]) + "\n")
    (folder / "experiments").symlink_to(ROOT / "experiments")
    for block in blocks(ROOT / page):
        if block.language == "python" and (named := re.match(r"# (\w+\.py)\n", block.text)):
            (folder / named[1]).write_text(block.text)
