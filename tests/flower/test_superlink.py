"""Flower's command: what it says when it fails, and a run that is stopped."""

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedskew.core.errors import FedskewError, Interrupted
from fedskew.flower.superlink import SuperLink
from tests.commands import error_of


def saying(monkeypatch: pytest.MonkeyPatch, *texts: str) -> tuple[SuperLink, list[tuple[str, ...]]]:
    """Return a SuperLink and a list of its commands. The commands print these texts, one after the other."""
    left, asked = list(texts), []

    def flwr(self: SuperLink, *arguments: str, check: bool = True) -> str:
        asked.append(arguments)
        return left.pop(0) if left else ""

    monkeypatch.setattr(SuperLink, "flwr", flwr)
    return SuperLink(Path(), {}, "ours"), asked


def test_a_failure_that_flower_reports_with_code_0_gives_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    there, _ = saying(monkeypatch, '{"success": false, "error-message": "\\nno connection\\n\\n\'ours\'"}')
    with pytest.raises(FedskewError, match=r"^flower: flwr run failed: no connection 'ours'$"):
        there.submit(Path("app"))


def test_a_run_is_followed_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    texts = [f'{{"success": true, "runs": [{{"status": "{one}"}}]}}' for one in ("running", "finished:completed")]
    there, asked = saying(monkeypatch, *texts)
    assert there.await_end("7", lambda: False) == "finished:completed"
    assert asked == [("ls", "ours", "--run-id", "7", "--format", "json")] * 2


def test_a_run_that_is_interrupted_is_stopped_at_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    there, asked = saying(monkeypatch, '{"runs": [{"status": "running"}]}')
    with pytest.raises(Interrupted, match="run 7"):
        there.await_end("7", lambda: True)
    assert asked[-1] == ("stop", "7", "ours")


def test_the_last_line_is_not_flowers_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    there, _ = saying(monkeypatch, "a\nPermissionError: b\n\nFor more information, visit: <https://flower.ai>\n")
    assert there.last_line("7") == "PermissionError: b"


def test_a_folder_that_cannot_be_written_is_named_before_flower_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, asked = saying(monkeypatch)
    (tmp_path / "file").touch()
    err = error_of("flower", "diagnose", "--clients", "2", "--runs", tmp_path / "file" / "runs", code=1)
    assert "cannot be written" in err
    assert not asked


@pytest.mark.parametrize("name", ["fewest=50", "diagnosis=1", "summary=1"])
def test_a_limit_that_has_an_option_of_its_own_is_not_lost(name: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,label\n1,a\n2,b\n")
    table = f"{tmp_path / 'a.csv'},label=label"
    command = ["flower", "node", "--client", "0", "--table", table, "--superlink", "here:1", "--limit", name]
    assert f"--limit {name.partition('=')[0]}: use the separate option instead" in error_of(*command)
