"""Try deployed runs with versions of Flower: ``python -m tests.flower.versions 1.41.0 1.42.0 -- -k loopback``.

Each version lies in an environment of its own, without its dependencies, on top of this one. What follows ``--`` goes to pytest.
"""

import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

FILES = [f"tests/flower/test_{name}.py" for name in ("loopback", "secure", "recipe", "journey", "channel")]


def tried(version: str, folder: Path, options: list[str]) -> bool:
    """Return True if the tests of deployed runs pass with this version."""
    venv.create(folder)
    python = folder / "bin" / "python"
    own = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    (own / "tests.pth").write_text(sysconfig.get_path("purelib"))
    command = folder / "bin" / "fedskew"
    command.write_text(f'#!/bin/sh\nexec {python} -m fedskew "$@"\n')
    command.chmod(0o755)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", f"flwr=={version}"]
    subprocess.run(pip, check=True, timeout=600)
    tests = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "slow or not slow", *FILES, *options]
    environment = {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(tests, env=environment, timeout=7200).returncode == 0


def main(arguments: list[str]) -> int:
    at = arguments.index("--") if "--" in arguments else len(arguments)
    results = {}
    for version in arguments[:at]:
        with tempfile.TemporaryDirectory(prefix="flwr-") as name:
            results[version] = tried(version, Path(name), arguments[at + 1 :])
    for version, passed in results.items():
        print(f"flwr {version}: {'passed' if passed else 'failed'}")
    return 0 if results and all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
