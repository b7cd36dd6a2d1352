"""Certificates and keys as the page on deployment makes them, with openssl and ssh-keygen."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "deploy.md").read_text()
CERTIFIED = "With certificates and keys"


def blocks(heading: str) -> list[tuple[str, str]]:
    """Language and text of the fenced blocks in a section of the page, without indentation."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = re.findall(r"^( *)```(\w+)\n(.*?)^\1```", section, re.S | re.M)
    return [(kind, re.sub(f"^{indent}", "", text, flags=re.M)) for indent, kind, text in found]


def execute(text: str, folder: Path) -> None:
    """Run lines in a shell."""
    done = subprocess.run(["sh", "-ec", text], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def make_certificate(folder: Path, names: str) -> Path:
    """``server.pem`` for these names, ``server.key``, and ``ca.pem`` of the authority that signed it."""
    if not shutil.which("openssl"):
        pytest.skip("needs openssl")
    folder.mkdir(parents=True, exist_ok=True)
    execute(blocks(CERTIFIED)[0][1].replace("DNS:server,IP:127.0.0.1", names), folder)
    return folder / "server.pem"


def make_key(path: Path) -> Path:
    """Make the private key of a node, and a file with the public key next to it."""
    if not shutil.which("ssh-keygen"):
        pytest.skip("needs ssh-keygen")
    execute(blocks(CERTIFIED)[1][1].splitlines()[0].replace("node-0", path.name), path.parent)
    return path
