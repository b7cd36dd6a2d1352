"""Files are replaced in one step: an error leaves the earlier file, and nothing else."""

import os
from pathlib import Path

import pytest

from fedskew.core.places import replacing
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
