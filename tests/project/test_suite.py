"""The suite itself: no test waits without a limit, and every test checks something."""

import ast
import re
from collections import Counter
from pathlib import Path

from tests.durations import dear_functions

TESTS = Path(__file__).parents[1]
SOURCE = TESTS.parent / "src" / "fedskew"
FILES = sorted(TESTS.rglob("*.py"))
RUNS = {"run", "call", "check_call", "check_output"}
WAITS = {"wait", "join", "get", "communicate", "result", "exception"}


def endless_waits(module: ast.Module) -> list[str]:
    """Calls that may wait for ever: of a program, and of a process, thread, queue, event or future without any argument."""
    found = []
    for node in ast.walk(module):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        name, limited = node.func.attr, any(keyword.arg == "timeout" for keyword in node.keywords)
        program = isinstance(node.func.value, ast.Name) and node.func.value.id == "subprocess" and name in RUNS
        if (program and not limited) or (name in WAITS and not node.args and not node.keywords):
            found.append(f"line {node.lineno}: {ast.unparse(node.func)}")
    return found


CHECKS = ("assert", "raises", "warns", "fail", "check_on_ranks")
HELPERS = {"compare", "fuzz", "refused", "run_python", "same", "same_as_simulated", "walk"}
"""Functions of the tests that check: calls whose names begin with one of `CHECKS`, and these."""


def unchecked(module: ast.Module) -> list[str]:
    """Tests that assert nothing in their own text."""
    found = []
    for test in module.body:
        if isinstance(test, ast.FunctionDef) and test.name.startswith("test_"):
            nodes = list(ast.walk(test))
            names = [ast.unparse(node.func).rpartition(".")[2] for node in nodes if isinstance(node, ast.Call)]
            checked = any(name.startswith(CHECKS) or name in HELPERS for name in names)
            if not checked and not any(isinstance(node, ast.Assert) for node in nodes):
                found.append(f"line {test.lineno}: {test.name}")
    return found


def test_every_wait_has_a_limit_and_every_test_checks_something() -> None:
    modules = {str(path): ast.parse(path.read_text(encoding="utf-8")) for path in FILES}
    assert {path: found for path, module in modules.items() if (found := endless_waits(module))} == {}
    assert {path: found for path, module in modules.items() if (found := unchecked(module))} == {}


def test_the_folders_of_the_tests_are_the_rooms_of_the_package() -> None:
    rooms = {path.parent.relative_to(SOURCE) for path in SOURCE.rglob("*.py")} - {Path()}
    tested = {path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")} - {Path("project")}
    assert tested == rooms


def test_make_test_tests_every_room() -> None:
    dear = dear_functions()
    rooms: Counter[Path] = Counter()
    for path in TESTS.rglob("test_*.py"):
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.M):
            rooms[path.parent] += f"{path.relative_to(TESTS.parent).as_posix()}::{name}" not in dear
    assert {room: number for room, number in rooms.items() if number < 5} == {}
