"""Files are replaced in one step: an error leaves the earlier file, and nothing else."""

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedskew
from fedskew.core.errors import FedskewError
from fedskew.core.files import UNFINISHED, replacing, write_whole
from tests.disk import largest_file


def test_an_error_leaves_the_earlier_file(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("earlier")
    with pytest.raises(OSError, match="too large"), largest_file(4), replacing(path) as partial:
        partial.write_text("a long text")
    assert path.read_text() == "earlier"
    assert [*tmp_path.iterdir()] == [path]


def test_links_permissions_and_devices_stay(tmp_path: Path) -> None:
    path, link = tmp_path / "page.html", tmp_path / "link"
    path.write_text("earlier")
    path.chmod(0o640)
    link.symlink_to(path)
    with replacing(link) as partial:
        partial.write_text("new")
    assert link.is_symlink()
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o640)
    with replacing(Path(os.devnull)) as partial:
        assert partial == Path(os.devnull)
    link.unlink()
    link.symlink_to(link)
    with pytest.raises(OSError, match="circle"), replacing(link):
        pass


def test_nobody_can_place_a_link_where_a_file_is_written(tmp_path: Path) -> None:
    """The name of the unfinished file was NAME.PID.partial: a link of that name was followed."""
    secret, path = tmp_path / "secret", tmp_path / "page.html"
    secret.write_text("mine")
    (tmp_path / f"page.html.{os.getpid()}.partial").symlink_to(secret)
    folders = set()
    for _ in range(2):
        with replacing(path) as partial:
            partial.write_text("new")
            folders.add(partial.parent)
            assert (partial.parent.parent, partial.parent.stat().st_mode & 0o777) == (tmp_path, 0o700)
            assert partial.parent.name.startswith(UNFINISHED)
            assert len(partial.parent.name) >= len(UNFINISHED) + 8
    assert len(folders) == 2
    assert (secret.read_text(), path.read_text()) == ("mine", "new")
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask()


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_new_file_has_the_permissions_it_is_given(tmp_path: Path) -> None:
    path = write_whole(tmp_path / "new" / "secret", b"1", "node", mode=0o600)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    assert write_whole(path, "2", "node", mode=0o600).stat().st_mode & 0o777 == 0o600
    with pytest.raises(FedskewError, match=r"node /proc/nosuch/x: cannot be written: "):
        write_whole("/proc/nosuch/x", "", "node")


def test_a_long_name_can_be_written(tmp_path: Path) -> None:
    assert write_whole(tmp_path / ("x" * 255), "text", "page").read_text() == "text"


WRITERS = {
    "write_text",
    "write_bytes",
    "savez",
    "savez_compressed",
    "savefig",
    "save_file",
    "to_parquet",
    "SerializeToFile",
}
"""Methods and functions that write a file which has a name."""
MOVERS = {"renames", "move", "symlink_to", "hardlink_to", "mkstemp", "NamedTemporaryFile"}
OTHER = {
    "core/files.py": "the way to write a file whole",
    "core/user_code.py": "adds a line to the list of trusted code",
    "data/datasets/uci_har.py": "writes to the path that `replacing` yields",
    "data/find.py": "an unfinished download stays, so that it can be resumed; it follows no link",
    "engine/states.py": "a file of states, which is changed in place",
    "execution/prepare.py": "writes to the path that `replacing` yields",
    "api/diagnose.py": "writes the rows of a caller to a private temporary folder",
    "flower/superlink.py": "adds to the log of a process",
    "report/style.py": "writes to memory",
    "report/console.py": "writes to memory",
    "serving/export.py": "fills the folder that `replacing` puts in place as a whole",
}


def writes(tree: ast.AST, safe: bool = False) -> Iterator[str]:
    """Yield calls that write or rename a file, except inside ``with replacing(...)``."""
    for node in ast.iter_child_nodes(tree):
        inside = safe or (isinstance(node, ast.With) and any("replacing(" in ast.unparse(one) for one in node.items))
        yield from writes(node, inside)
        if not isinstance(node, ast.Call) or inside:
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = ast.unparse(node.func).rpartition(".")[0]
        texts = [part.value for one in node.args for part in ast.walk(one) if isinstance(part, ast.Constant)]
        whole = name == "open" and any(isinstance(m, str) and m and set(m) <= set("rwaxbt+") - {"r"} for m in texts)
        single = len(node.args) == 1 and not node.keywords and owner != "dataclasses"
        moved = name in ("replace", "rename") and (owner == "os" or single)
        if name in WRITERS | MOVERS or whole or moved or (owner, name) in {("np", "save"), ("torch", "save")}:
            yield ast.unparse(node)


def test_only_one_function_writes_files() -> None:
    folder = Path(fedskew.__file__).parent
    found = {
        path.relative_to(folder).as_posix(): calls
        for path in sorted(folder.rglob("*.py"))
        if (calls := list(writes(ast.parse(path.read_text("utf-8")))))
    }
    assert found.keys() == OTHER.keys(), found
