"""The shape of the house: imports point downwards, methods are short, nothing global is random, nothing is unpickled."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import fedskew
from fedskew.core.algorithm import Algorithm

SOURCE = Path(fedskew.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))


def offenders(paths: Iterable[Path], rule: Callable[[Path, str], object]) -> dict[str, object]:
    """The files where ``rule(path, source)`` finds something, with what it finds."""
    found = {path.relative_to(SOURCE).as_posix(): rule(path, path.read_text(encoding="utf-8")) for path in paths}
    return {path: value for path, value in found.items() if value}


# What each room may import besides itself. Top to bottom.
LOWER = {
    "advice",
    "core",
    "data",
    "tasks",
    "measure",
    "models",
    "slots",
    "algorithms",
    "skew",
    "store",
    "loop",
    "engine",
}
EXPERIMENTS = {"experiment", "execution", "studies", "diagnosis", "serving"}
MAY_IMPORT: dict[str, set[str]] = {
    "cli": {*LOWER, *EXPERIMENTS, "api", "claims", "flower", "report", "conformance"},
    "claims": {*LOWER, *EXPERIMENTS, "report"},
    "api": {*LOWER, *EXPERIMENTS, "report", "conformance"},
    # a server and its nodes assemble and play experiments by the same functions as the simulator
    "flower": {*LOWER, "experiment", "execution", "diagnosis", "serving"},
    "serving": {*LOWER, "experiment", "execution", "report"},
    "studies": {*LOWER, "experiment", "execution", "diagnosis", "report"},
    "diagnosis": {*LOWER, "experiment", "execution"},
    "execution": {*LOWER, "experiment", "report"},  # of the report: progress
    "experiment": {*LOWER, "conformance"},
    "conformance": {"core", "data", "tasks", "skew", "slots", "algorithms", "loop", "engine", "store"},
    "report": {"core", "measure", "store"},
    "engine": {"core", "loop", "skew"},
    "loop": {"core", "measure", "skew", "slots"},
    "store": {"core", "measure"},
    "skew": {"core"},
    "algorithms": {"core"},
    "slots": {"core"},
    "models": {"core"},
    "advice": {"core", "measure"},
    "measure": {"core"},
    "tasks": {"core"},
    "data": {"core"},
    "core": set(),
}
METHOD_LINES = 120
FLOORS = 6


def room_of(path: Path) -> str | None:
    """The room of a file, or None for the files on top (``__init__.py``, ``__main__.py``)."""
    first, *rest = path.relative_to(SOURCE).parts
    return first if rest else None


def package_of(path: Path) -> list[str]:
    return ["fedskew", *path.relative_to(SOURCE).parts[:-1]]


@cache
def nodes_of(source: str) -> list[ast.AST]:
    """All nodes of a file, the module first."""
    return [*ast.walk(ast.parse(source))]


@pytest.fixture(scope="module", autouse=True)
def _parsed_once() -> Iterator[None]:
    """Forget the nodes at the end: to look for garbage among them would slow down later tests."""
    yield
    nodes_of.cache_clear()


def imported(source: str, package: list[str]) -> Iterator[str]:
    """The full names of all modules and names imported anywhere in a file, in functions and under TYPE_CHECKING too."""
    for node in nodes_of(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and name_of(node.func).rpartition(".")[2] in ("import_module", "__import__"):
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value


def name_of(node: ast.AST) -> str:
    """``a.b.c`` of an attribute chain, or nothing."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = name_of(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


@cache
def imports_of(path: Path) -> set[str]:
    """The full names of all modules and names that a file imports."""
    return {*imported(path.read_text(encoding="utf-8"), package_of(path))}


def wrong_imports(source: str, room: str, package: list[str]) -> list[str]:
    """Imports of a file of ``room`` that do not point downwards."""
    wrong = []
    for name in imported(source, package):
        first, _, rest = name.partition(".")
        if first == "flwr" and room != "flower":
            wrong.append(f"{name}: only the room flower knows flwr")
        if first == "tests":
            wrong.append(f"{name}: the package does not import its tests")
        if first != "fedskew":
            continue
        target = rest.partition(".")[0]
        if target not in MAY_IMPORT:
            wrong.append(f"{name}: the top package is for users; import from a room")
        elif target != room and target not in MAY_IMPORT[room]:
            wrong.append(f"{name}: {room} may import only {sorted(MAY_IMPORT[room])}")
    return wrong


def test_imports_point_downwards():
    rooms = {path: room_of(path) for path in FILES if room_of(path)}
    assert set(rooms.values()) == set(MAY_IMPORT), "give the new room a place in MAY_IMPORT"
    assert offenders(rooms, lambda path, source: wrong_imports(source, rooms[path], package_of(path))) == {}


def imports_between_files() -> dict[str, set[str]]:
    """By the name of each file's module, what it imports, also within functions or for type checkers."""
    files = {".".join(["fedskew", *path.relative_to(SOURCE).with_suffix("").parts]): path for path in FILES}
    files = {name.removesuffix(".__init__"): path for name, path in files.items()}
    targets = {}
    for name, path in files.items():
        names = imports_of(path)
        targets[name] = {target if target in files else target.rpartition(".")[0] for target in names} - {name}
    return targets


def test_files_import_each_other_in_no_circle():
    targets = imports_between_files()
    assert targets.keys() <= {*TopologicalSorter(targets).static_order()}  # which raises an error at a circle


def test_a_folder_has_at_most_six_floors_of_imports():
    """A file on floor 1 imports no other of its folder."""
    targets, floors = imports_between_files(), dict[str, int]()
    for name in TopologicalSorter(targets).static_order():
        folder = name.rpartition(".")[0]
        below = [floors[target] for target in targets.get(name, ()) if target.rpartition(".")[0] == folder]
        floors[name] = 1 + max(below, default=0)
    assert {name: floor for name, floor in floors.items() if floor > FLOORS} == {}


def test_the_order_of_rooms_has_no_circle():
    assert {*TopologicalSorter(MAY_IMPORT).static_order()} == MAY_IMPORT.keys()


def test_every_room_is_a_package():
    """A file without ``__init__.py`` beside it would not be installed."""
    assert {path.parent for path in FILES} == {path.parent for path in FILES if path.name == "__init__.py"}


def test_a_method_has_at_most_120_lines():
    def too_long(path, source):
        lines = len(source.splitlines())
        return lines if room_of(path) == "algorithms" and lines > METHOD_LINES else 0

    assert offenders(FILES, too_long) == {}


# methods and slots are flat

ALGORITHM_FILES = [path for path in FILES if room_of(path) == "algorithms"]

FLAT = [path for path in FILES if room_of(path) in ("algorithms", "slots")]
MOST_HOOKS = 17


def deep_classes(source: str) -> list[str]:
    """Uses of ``super()``, and classes whose base has a base of its own in the same file or is another method."""
    classes = [node for node in nodes_of(source) if isinstance(node, ast.ClassDef)]
    bases = {node.name: [name for base in node.bases if (name := name_of(base)) != "ABC"] for node in classes}
    other_methods = {
        alias.asname or alias.name
        for node in nodes_of(source)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("fedskew.algorithms", "fedskew.slots"))
        for alias in node.names
    }
    found = [name for name, own in bases.items() if any(bases.get(base) or base in other_methods for base in own)]
    calls = [node for node in nodes_of(source) if isinstance(node, ast.Call) and name_of(node.func) == "super"]
    return found + ["super()"] * len(calls)


def test_methods_and_slots_inherit_one_level_without_super():
    assert offenders(FLAT, lambda _, source: deep_classes(source)) == {}


def test_slots_are_typed():
    files = [*(path for path in FLAT if room_of(path) == "slots"), SOURCE / "core" / "contract.py"]
    assert [path.name for path in files if re.search(r"\bAny\b", path.read_text(encoding="utf-8"))] == []


def test_a_method_has_few_hooks():
    hooks = [name for name, value in vars(Algorithm).items() if callable(value) and not name.startswith("_")]
    overridable = [name for name in hooks if not getattr(getattr(Algorithm, name), "__final__", False)]
    assert len(overridable) <= MOST_HOOKS, overridable


ONE_WAY = {
    # what a single run is executed with: the runner, and the server whose clients are on nodes
    "fedskew.execution.run.execute": {"studies/runner.py", "flower/server.py"},
    # the list of runs that is executed: tuning, the evidence, documents and comparisons
    "fedskew.studies.runner.Executor": {
        *("studies/progress.py", "studies/tune.py"),
        "api/functions.py",  # makes the executor of tuning
    },
    # progress of long work; `watch` draws a table of runs that another process executes
    "rich.progress_bar.ProgressBar": {"report/progress.py"},
    "rich.live.Live": {"report/progress.py", "cli/watch.py"},
    # one door: the command line, Python and documents plan, store and execute runs by the functions of `fedskew.api`
    "fedskew.execution.plan.prepare": {"api/execute.py", "studies/tune.py"},
    "fedskew.execution.run.register": {
        "api/execute.py",
        "studies/runner.py",
        "claims/reproduce.py",
        "flower/server.py",
    },
    "fedskew.studies.runner.register_all": {"api/execute.py"},
    "fedskew.studies.runner.to_execute": {"api/execute.py", "studies/tune.py"},
    "fedskew.studies.progress.play": {"api/execute.py"},
    # Ctrl-C: the runs of a call, a tuning, and the processes of Flower
    "fedskew.studies.progress.stop_on_signal": {"api/functions.py", "cli/deploy.py"},
    "fedskew.studies.evidence.run_protocol": {"cli/evidence.py"},
    "fedskew.studies.compare.cross": {"api/functions.py", "api/answers.py"},
    "fedskew.studies.tune.tuned_methods": {"api/functions.py"},
    "fedskew.studies.landscape.landscape": {"api/models.py"},
    "fedskew.diagnosis.diagnose.diagnose": {"api/diagnose.py"},
    "fedskew.serving.export.export": {"api/models.py"},
    "fedskew.serving.export.write_folder": {"api/models.py"},
    "fedskew.serving.predict.load": {"api/models.py", "api/runs.py"},
    # how skews deal rows to clients: of a run, of `fedskew skew`, and of `fedskew.partition`
    "fedskew.skew.partition.deal": {"execution/deal.py"},
    # a run's lock
    "filelock.FileLock": {"store/lock.py"},
    # what fits a column of a table: to the summaries of sites, or of all rows as one site
    "fedskew.data.tables.summaries.fit": {"data/tables/schema.py"},
    "fedskew.data.tables.summaries.pooled": {"data/tables/schema.py"},
}
"""By name, the files that may import it: a second way to do the same thing would need it, too."""


@pytest.mark.parametrize("name", ONE_WAY)
def test_one_thing_is_done_in_one_way(name):
    users = offenders(FILES, lambda path, _: name in imports_of(path))
    assert users.keys() == ONE_WAY[name]


def test_progress_is_shown_in_one_way():
    """Not by Rich's own bars and spinners, nor by lines that a carriage return writes again."""
    others = re.compile(r"rich\.progress import|import rich\.progress|\.status\(\"|end=\"\\r|LINE_EVERY = |s left\"")
    assert offenders(FILES, lambda _, source: others.findall(source)).keys() == {"report/progress.py"}


SQL = re.compile(r"\b(SELECT\b.*\bFROM|INSERT\b.*\bINTO|UPDATE \w+ SET|DELETE FROM|CREATE TABLE|PRAGMA) ", re.S)


def sql(source: str) -> list[str]:
    """The texts of a file that are SQL statements."""
    texts = (node.value for node in nodes_of(source) if isinstance(node, ast.Constant))
    return [text for text in texts if isinstance(text, str) and SQL.search(text)]


def test_the_store_alone_reads_and_writes_its_file():
    """Other rooms call `RunStore.last`, `RunStore.curves` and their like: one measure is read in one way."""
    assert offenders(FILES, lambda path, source: room_of(path) != "store" and sql(source)) == {}


# nothing that a function reads or runs stays in a module


def filled(source: str) -> list[str]:
    """The names of a module's lists, sets and dictionaries that a function changes."""
    module, *nodes = nodes_of(source)
    names = {
        name_of(target)
        for node in module.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    }
    changed = []
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.Lambda)]
    for node in (inner for function in functions for inner in ast.walk(function)):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            changed.append(name_of(node.value))
        elif isinstance(node, ast.AugAssign):
            changed.append(name_of(node.target))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            changed.append(name_of(node.func.value))
        elif isinstance(node, ast.Global):
            changed += node.names
    return sorted((names & set(changed)) - {""})


CHANGES = ("append", "add", "update", "setdefault", "extend", "insert", "pop", "clear", "remove")


def test_a_function_fills_no_registry_of_the_process():
    """What a store's runs declare goes with the runs. Reading two stores would mix it otherwise."""
    assert offenders(FILES, lambda path, source: filled(source)) == FILLED


FILLED = {
    "execution/prepare.py": ["MEMORY"],  # outputs of frozen layers, by what they depend on
    "flower/diagnosis.py": [
        "IN_PROGRESS"
    ],  # a site's answers until the server's next question, by the process of the node
}


# limits of options are types

OPTIONS = [
    *(path for path in FILES if room_of(path) in ("algorithms", "slots", "skew", "models", "tasks", "loop", "engine")),
    *SOURCE.glob("data/datasets/*.py"),
    SOURCE / "experiment" / "settings.py",
    *(SOURCE / "flower" / name for name in ("nodes.py", "limits.py")),
    SOURCE / "diagnosis" / "site.py",
    *(SOURCE / "studies" / name for name in ("tune.py", "landscape.py")),
]


def limits_by_hand(source: str) -> list[str]:
    """Checks in ``__post_init__`` of one option against constants, which a type of `fedskew.core.limits` could make."""
    found = []
    for function in nodes_of(source):
        if not isinstance(function, ast.FunctionDef) or function.name != "__post_init__":
            continue
        for call in ast.walk(function):
            if not isinstance(call, ast.Call) or name_of(call.func) != "require":
                continue
            test = call.args[0]
            for part in test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]:
                options = {name_of(node) for node in ast.walk(part) if name_of(node).startswith("self.")}
                others = {node.id for node in ast.walk(part) if isinstance(node, ast.Name) and node.id.islower()}
                one = len(options) == 1 or ast.unparse(part).startswith("min(")
                if (
                    one
                    and not isinstance(part, ast.BoolOp)
                    and others <= {"self", "math", "np", "min", "max", "abs", "bool", "len"}
                ):
                    found.append(ast.unparse(part))
    return found


def test_limits_of_options_are_types():
    assert offenders(OPTIONS, lambda _, source: limits_by_hand(source)) == ALLOWED_BY_HAND


ALLOWED_BY_HAND = {
    # infinite is a threshold like any other, undefined is not: no type says this
    "algorithms/fedpbs.py": ["self.variance_threshold == self.variance_threshold"],
}


FITTERS = {
    "data/tables/summaries.py",  # columns of tables
    "data/preprocessing.py",  # arrays and pixels
}
"""The files that set the mean and the scale of a preprocessing."""


def fits(source: str) -> bool:
    """Whether a call sets both a mean and a scale."""
    calls = (node for node in nodes_of(source) if isinstance(node, ast.Call))
    return any({"mean", "scale"} <= {keyword.arg for keyword in call.keywords} for call in calls)


def test_a_preprocessing_is_fitted_in_one_place():
    assert offenders(FILES, lambda path, source: fits(source)).keys() == FITTERS


DRAWERS = {
    "data/splits.py",
    "data/texts.py",  # whole groups of texts with the same words
}
"""The files that draw test rows. No file of a data set does."""


def test_test_rows_are_drawn_in_one_place():
    """By shares of strata, by shares of clients, or by folds: by a data set's option, not in its file."""
    drawn = re.compile(r"stream\([^)]*\"split\"")
    assert offenders(FILES, lambda path, source: drawn.findall(source)).keys() == DRAWERS


def test_an_export_computes_no_column_by_itself():
    """Its graph has the formulas of the preprocessing, so no file beside that reads a scale."""

    def scales(source: str) -> list[str]:
        found = (node for node in nodes_of(source) if isinstance(node, ast.Attribute) and node.attr == "scale")
        return [ast.unparse(node) for node in found]

    assert offenders((SOURCE / "serving").glob("*.py"), lambda path, source: scales(source)) == {}
