"""What no file of the source may do: draw from a global generator, unpickle, or read tensors' values in hooks."""

import ast

import pytest

from tests.project.test_structure import ALGORITHM_FILES, FILES, imported, name_of, offenders

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
    """Only code that is not ours draws from it, after `initial.py` has seeded it."""
    seeded = ["torch.default_generator", "torch.default_generator.manual_seed"]
    found = offenders(FILES, lambda _, source: sorted(global_randomness(source)))
    assert found == {"models/initial.py": seeded}


@pytest.mark.parametrize(
    "source",
    [
        "np.random.seed(0)",
        "x = np.random.rand(3)",
        "numpy.random.permutation(5)",
        "from numpy.random import shuffle",
        "import random",
        "from random import choice",
        "torch.manual_seed(3)",
        "torch.cuda.manual_seed(3)",
        "torch.random.get_rng_state()",
        "torch.randn(3)",
        "torch.randn_like(x)",
        "w.uniform_(-1, 1)",
        "nn.init.kaiming_uniform_(w)",
        "np.random.default_rng()",
        "draw = np.random.standard_normal",
    ],
)
def test_global_randomness_is_found(source):
    assert global_randomness(source)


@pytest.mark.parametrize(
    "source",
    [
        "rng = np.random.default_rng(np.random.SeedSequence((1, 2)))",
        "def f(rng: np.random.Generator): return rng.normal()",
        "torch.Generator().manual_seed(3)",
        "torch.randn(3, generator=g)",
        "w.uniform_(-1, 1, generator=g)",
        "nn.init.zeros_(w)",
    ],
)
def test_streams_are_not_found(source):
    assert global_randomness(source) == []


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


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "torch.load(path)",
        "torch.save(x, path)",
        "from torch import load",
        "np.load(path, allow_pickle=True)",
        "import joblib",
    ],
)
def test_pickling_is_found(source):
    assert unpickling(source)
    assert unpickling("np.load(path, allow_pickle=False)") == []


# hooks stack

TO_PYTHON = {"item", "tolist", "numpy"}


def leaves_torch(source: str) -> list[str]:
    return [
        node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute) and node.attr in TO_PYTHON
    ]


def test_hooks_do_not_read_values():
    assert offenders(ALGORITHM_FILES, lambda _, source: leaves_torch(source)) == {}


@pytest.mark.parametrize("source", ["x.item()", "x.sum().item()", "x.tolist()", "f = x.item"])
def test_reading_a_value_is_found(source):
    assert leaves_torch(source)
