"""What no file of the source may do: draw from a global generator, unpickle, execute texts, or read tensors' values in hooks.

Also one table of breaches of these rules, and of those in `test_structure.py` and `test_suite.py`, which must be found.
"""

import ast
from collections.abc import Callable

import pytest

from tests.project.test_structure import (
    ALGORITHM_FILES,
    FILES,
    deep_classes,
    filled,
    imported,
    limits_by_hand,
    name_of,
    offenders,
    sql,
    wrong_imports,
)
from tests.project.test_suite import endless_waits, unchecked

# randomness comes from streams

OWN_GENERATORS = {"default_rng", "SeedSequence", "Generator", "BitGenerator", "PCG64", "Philox"}
TORCH_DRAWS = {"rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "poisson"}
TORCH_LIKE = {"rand_like", "randn_like", "randint_like"}  # they take no generator
TORCH_GLOBAL = {"manual_seed", "seed", "initial_seed", "set_rng_state", "get_rng_state", "default_generator"}
IN_PLACE = {"uniform_", "normal_", "bernoulli_", "random_", "exponential_", "geometric_", "cauchy_", "log_normal_"}
INITIAL = {"xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_", "orthogonal_", "trunc_normal_"}


def global_randomness(source: str) -> list[str]:
    """Uses of the global random generators."""
    tree, found = ast.parse(source), []
    for name in imported(tree, ["fedskew"]):
        parts = name.split(".")
        if parts[0] == "random" or (parts[:2] == ["numpy", "random"] and not {*parts[2:3]} <= OWN_GENERATORS):
            found.append(f"import {name}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = name_of(node)
            parts = name.split(".")
            if parts[:2] in (["np", "random"], ["numpy", "random"]) and not {*parts[2:3]} <= OWN_GENERATORS:
                found.append(name)
            if parts[0] == "torch" and (parts[-1] in TORCH_GLOBAL or parts[-1] in TORCH_LIKE):
                found.append(name)
        if isinstance(node, ast.Call):
            name = name_of(node.func)
            last = node.func.attr if isinstance(node.func, ast.Attribute) else name
            with_generator = any(keyword.arg == "generator" for keyword in node.keywords)
            draws = (name.startswith("torch.") and last in TORCH_DRAWS) or last in IN_PLACE | INITIAL
            if draws and not with_generator:
                found.append(f"{name or last}() without generator=")
            if last == "default_rng" and not node.args and not node.keywords:
                found.append("default_rng() from the system's entropy")
    return found


def test_no_global_generator_is_used():
    """Only code of other libraries draws from it, after `initial.py` has seeded it."""
    seeded = ["torch.default_generator", "torch.default_generator.manual_seed"]
    found = offenders(FILES, lambda _, source: sorted(global_randomness(source)))
    assert found == {"models/initial.py": seeded}


# nothing that executes what it reads

PICKLES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


def unpickling(source: str) -> list[str]:
    tree = ast.parse(source)
    found = [name for name in imported(tree, ["fedskew"]) if name.split(".")[0] in PICKLES]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and name_of(node) in ("torch.load", "torch.save"):
            found.append(name_of(node))
        if isinstance(node, ast.ImportFrom) and node.module == "torch":
            found += [alias.name for alias in node.names if alias.name in ("load", "save")]
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            allowed = not (isinstance(node.value, ast.Constant) and node.value.value is False)
            found += ["allow_pickle"] if allowed else []
    return found


def test_nothing_is_pickled():
    """Only `fedskew check` pickles: it tests that methods can be, and reads what it wrote."""
    assert offenders(FILES, lambda _, source: unpickling(source)) == {"conformance/promises.py": ["pickle"]}


# hooks stack

TO_PYTHON = {"item", "tolist", "numpy"}


def leaves_torch(source: str) -> list[str]:
    return [
        node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute) and node.attr in TO_PYTHON
    ]


def test_hooks_do_not_read_values():
    assert offenders(ALGORITHM_FILES, lambda _, source: leaves_torch(source)) == {}


# one place executes what a text names

IMPORTERS = {
    "import_module",
    "exec",
    "eval",
    "__import__",
    "spec_from_file_location",
    "exec_module",
    "run_path",
    "compile",
}
EXECUTED = {
    "core/user_code.py": "opens what a user or a store names, inside the question of trust",
    "measure/registry.py": "functions that rows of the registry name; `DECLARED` lets no store set them",
}
PASSED_ON = {"extra", "check_installed"}
"""Functions that import their argument. All calls name the package in the code."""


def is_fixed(argument: ast.expr) -> bool:
    """Whether the code itself says what is imported: a text, or a text that begins with fedskew's own package."""
    if isinstance(argument, ast.JoinedStr):
        first = argument.values[0]
        return isinstance(first, ast.Constant) and str(first.value).startswith("fedskew.")
    return isinstance(argument, ast.Constant)


def executing(source: str) -> list[str]:
    """Calls that import or execute what a variable names, and entry points that are loaded."""
    tree, found = ast.parse(source), []
    passing = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in PASSED_ON]
    within = {id(call) for function in passing for call in ast.walk(function)}
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
        module = ast.unparse(call.func).rpartition(".")[0]
        named = name in IMPORTERS and (isinstance(call.func, ast.Name) or module in ("importlib", "runpy", "builtins"))
        named |= name in ("exec_module", "load_module") or (name == "load" and "entry" in module)
        named = named and id(call) not in within
        if (named or (name in PASSED_ON and call.args)) and not (call.args and is_fixed(call.args[0])):
            found.append(ast.unparse(call))
    return found


def test_only_one_place_executes_what_a_text_names():
    assert offenders(FILES, lambda _, source: executing(source)).keys() == EXECUTED.keys()


# breaches of these rules are found


def imports_of(room: str) -> Callable[[str], object]:
    return lambda source: wrong_imports(source, room, ["fedskew", room])


def option(test: str) -> list[str]:
    return limits_by_hand(f"class A:\n    def __post_init__(self):\n        require({test}, 'no')")


def waits(text: str) -> list[str]:
    return endless_waits(ast.parse(text))


def body(text: str) -> list[str]:
    return unchecked(ast.parse(f"def test_it():\n    {text}"))


def change(statement: str) -> list[str]:
    return filled(f"A = {{}}\ndef f(x):\n    {statement}")


core = imports_of("core")
BREACHES = {
    core: (
        *(
            "from fedskew.measure.updates import drift_measures",
            "import fedskew.loop.round",
            "import fedskew",
            "import flwr",
        ),
        *(
            "from fedskew import __version__",
            "importlib.import_module('fedskew.loop')",
            "from flwr.client import Client",
        ),
        *("from .. import loop", "from ..loop import round", "from ..loop.round import Server"),
        *("def f():\n    import fedskew.loop", "if TYPE_CHECKING:\n    from fedskew.loop.round import Server"),
        "from tests.small import ragged",
    ),
    deep_classes: (
        "class A(Base):\n    pass\nclass B(A):\n    pass",
        "from fedskew.algorithms.fedsam import FedSam\nclass B(FedSam):\n    pass",
        "class A(Base):\n    def f(self):\n        super().f()",
    ),
    change: ("A[1] = 2", "A.update(x)", "A |= x", "A.append(x)"),
    sql: ('db.execute(f"SELECT value FROM measurements WHERE run={run}")',),
    option: (
        *("0 <= self.mu", "0 < self.mu < math.inf", "self.k >= 1 and self.q < 1", "min(self.width, self.layers) >= 1"),
        *("bool(self.widths)", "self.weighting == 'uniform'", "self.pieces > BYTES"),
    ),
    waits: (*("subprocess.run(words)", "process.wait()", "thread.join()", "queue.get()", "process.communicate()"),),
    body: ("f()", "test_other()"),
    global_randomness: (
        *("np.random.seed(0)", "np.random.rand(3)", "numpy.random.permutation(5)", "from numpy.random import shuffle"),
        *("import random", "from random import choice", "torch.manual_seed(3)", "torch.cuda.manual_seed(3)"),
        *("torch.random.get_rng_state()", "torch.randn(3)", "torch.randn_like(x)", "w.uniform_(-1, 1)"),
        *("nn.init.kaiming_uniform_(w)", "np.random.default_rng()", "draw = np.random.standard_normal"),
    ),
    unpickling: (
        *("import pickle", "from pickle import loads", "import joblib", "torch.load(path)", "torch.save(x, path)"),
        *("from torch import load", "np.load(path, allow_pickle=True)"),
    ),
    executing: (
        *("import_module(name)", "importlib.import_module(name)", "import_module(f'{name}.x')", "__import__(name)"),
        *("exec(text)", "eval(text)", "spec_from_file_location(name, path)", "spec.loader.exec_module(module)"),
        *("runpy.run_path(path)", "entry.load()", "extra(name)"),
    ),
    leaves_torch: ("x.item()", "x.sum().item()", "x.tolist()", "f = x.item"),
}
ALLOWED = {
    core: ("from fedskew.core.trees import Tree", "from .trees import Tree", "import torch"),
    imports_of("flower"): ("import flwr", "import fedskew.store.runs as runs"),
    sql: ('"select clients, then update the model from them"',),
    option: ("self.leave + self.join <= 1", "self.low <= self.high", "self.noise == 0 or self.clip < 9"),
    waits: ("subprocess.run(words, timeout=9)", "process.wait(9)", "','.join(words)", "table.get(key)"),
    body: ("assert f()", "torch.testing.assert_close(a, b)"),
    global_randomness: (
        *("rng = np.random.default_rng(np.random.SeedSequence((1, 2)))", "torch.Generator().manual_seed(3)"),
        *("def f(rng: np.random.Generator): return rng.normal()", "torch.randn(3, generator=g)"),
        *("w.uniform_(-1, 1, generator=g)", "nn.init.zeros_(w)"),
    ),
    unpickling: ("np.load(path, allow_pickle=False)",),
    executing: ("import_module('wandb')", "import_module(f'fedskew.cli.{name}')", "re.compile(text)"),
}


@pytest.mark.parametrize(
    ("rule", "source"), [(rule, source) for rule, sources in BREACHES.items() for source in sources]
)
def test_a_breach_is_found(rule, source):
    assert rule(source)


@pytest.mark.parametrize(
    ("rule", "source"), [(rule, source) for rule, sources in ALLOWED.items() for source in sources]
)
def test_allowed_code_is_not_reported(rule, source):
    assert rule(source) == []
