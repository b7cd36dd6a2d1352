"""The promises of components of every kind: good ones keep them, and each way of being wrong is found."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor, nn

import fedskew as fs
from fedskew.conformance.hooks import Broken
from fedskew.conformance.kinds import KINDS, check, data_are_whole
from fedskew.core.errors import BadInput
from fedskew.core.sites import SiteMaps, SiteSums
from fedskew.core.trees import Tree
from fedskew.data.dataset import Dataset
from fedskew.experiment.components import KINDS as OWN, classes_of, section_of
from fedskew.experiment.config import COMPONENTS
from fedskew.slots import Momentum, Uncompressed
from tests.commands import error_of, output_of

QUICK = {
    "dataset": "digits", "task": "classification",
    "skew": "label-dirichlet", "model": "text-cnn", "solver": "sgd", "server": "adam", "augment": "crop-flip",
    "availability": "day-night", "refine": "none", "selection": "everyone", "sharing": "personal", "codec": "top-k",
    "harmonisation": "combat",
}  # fmt: skip


@pytest.mark.parametrize("section", sorted(OWN.keys() - {"algorithm", "metric"}))
def test_a_built_in_component_of_every_kind_keeps_its_promises(section: str) -> None:
    verdicts = [*check(section, COMPONENTS[section][QUICK[section]]())]
    assert len(verdicts) >= len(KINDS[section])
    assert [v for v in verdicts if not v.kept] == []


@pytest.mark.slow
@pytest.mark.parametrize("section", sorted(OWN.keys() - {"algorithm", "dataset", "metric"}))
def test_all_built_in_components_keep_their_promises(section: str) -> None:
    for name, cls in COMPONENTS[section].ours.items():
        if name not in ("hf", "minilm", "mixed", "from-folder"):
            options = {"uniform": {"clients": 3}, "quantity-sizes": {"rows": (40, 30, 20, 10, 5, 4, 1)}}.get(name, {})
            assert [v for v in check(section, cls(**options)) if not v.kept] == [], name


# one fault each


@dataclass(frozen=True, kw_only=True)
class Repeats:
    def deal(self, labels, groups, num_clients, rng):
        return [np.arange(3)] * num_clients


@dataclass(frozen=True, kw_only=True)
class Unseeded:
    def deal(self, labels, groups, num_clients, rng):
        return np.array_split(np.random.default_rng().permutation(len(labels)), num_clients)


@dataclass(frozen=True, kw_only=True)
class Changing:
    def load(self) -> Dataset:
        x = np.random.default_rng().standard_normal((9, 2))
        return Dataset(x=x, y=np.arange(9) % 2, x_test=x, y_test=np.arange(9) % 2, classes=("a", "b"))


@dataclass(frozen=True, kw_only=True)
class Mixes:
    """Each row sees the others."""

    has_features = True

    def build(self, shape, classes, generator):
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.out = nn.Linear(64, classes)

            def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
                z = x.flatten(1) - x.flatten(1).mean(0)
                return z, self.out(z)

        return Net()


@dataclass(frozen=True, kw_only=True)
class Walks:
    lr: float = 0.1
    lr_decay: float = 1.0
    weight_decay: float = 0.0
    linear: bool = True
    plain: bool = True

    def init(self, w: Tensor) -> Tree:
        return {}

    def update(self, g: Tensor, opt: Tree, w: Tensor, lr: Tensor) -> tuple[Tensor, Tree]:
        return w - lr * (g.sign() + 1), opt

    def unit_response(self, steps: Tensor) -> Tensor:
        return steps


@dataclass(frozen=True, kw_only=True)
class Drops(Uncompressed):
    """Sends half of the numbers, and states a quarter."""

    def compress(self, rows: Tensor, draws: Tensor | None, model) -> Tree:
        return {"values": rows[:, ::2]}

    def bits(self, rows: Tensor, model) -> int:
        return 8


@dataclass(frozen=True, kw_only=True)
class Twice:
    def largest(self, num_clients: int) -> int:
        return 1

    def select(self, clients, rng):
        return np.repeat(clients[:1], 2)


@dataclass(frozen=True, kw_only=True)
class FirstStays:
    """Shifts each site to the mean of the first one."""

    protected = ()
    unknown = "left as they are"

    def fit(self, sites: SiteSums) -> SiteMaps:
        shift = np.vstack([sites.mean[0] - sites.mean, np.zeros_like(sites.mean[:1])])
        return SiteMaps(np.ones_like(shift), shift, np.zeros((len(shift), 0, shift.shape[1])), sites.protected)


@dataclass(frozen=True, kw_only=True)
class Logarithms:
    """Has no finite intercept for a class without rows."""

    rate = 0.0
    unknown = "answered by the shared model"

    def intercept(self, counts, total):
        with np.errstate(divide="ignore"):
            return np.log(counts * (counts > 2))


@pytest.mark.parametrize(
    ("section", "component", "promises"),
    [
        ("skew", Repeats(), ["none twice"]),
        ("skew", Unseeded(), ["the same partition for the same seed"]),
        ("dataset", Changing(), ["loads the same rows again"]),
        ("model", Mixes(), ["independent of the other rows", "from the given generator"]),
        ("solver", Walks(), ["stays where it is", "linear in the gradients"]),
        ("codec", Drops(), ["of the same shape", "no longer than the bits"]),
        ("selection", Twice(), ["each at most once"]),
        ("harmonisation", FirstStays(), ["the same in another order of the sites"]),
        ("harmonisation", Logarithms(), ["gives each site finite numbers"]),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str | list) else "",
)
def test_a_fault_is_found(section: str, component: object, promises: list[str]) -> None:
    broken = " ".join(v.promise for v in check(section, component) if not v.kept)
    assert all(promise in broken for promise in promises), broken


# by name and by file

FILE = """
from dataclasses import dataclass
import fedskew as fs
from torch import nn

@dataclass(frozen=True, kw_only=True)
class First:
    def largest(self, num_clients):
        return min(2, num_clients)

    def select(self, clients, rng):
        return clients[:2]

class Net(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.Flatten(), nn.Linear(64, classes))

@dataclass(frozen=True, kw_only=True)
class Slip:
    def larges(self, num_clients):
        return 1

class Other:
    pass
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(FILE)
    return tmp_path / "mine.py"


def test_only_classes_can_be_missing_from_the_training_rows() -> None:
    @dataclass(frozen=True)
    class Rows:
        y: np.ndarray
        y_test: np.ndarray
        classes: tuple[str, ...] = ()

        def load(self) -> Dataset:
            x = np.ones((4, 2), np.float32)
            return Dataset(x=x, y=self.y, x_test=x[:1], y_test=self.y_test, classes=self.classes)

    with pytest.raises(Broken, match=r"^no training row has class \[4\], which the test rows have$"):
        data_are_whole(Rows(np.arange(4), np.array([4]), tuple("abcde")))
    data_are_whole(Rows(np.arange(4.0), np.array([9.5])))


def test_the_kind_is_found_by_what_a_class_has(file: Path) -> None:
    kinds = classes_of("mine.py")
    assert (kinds["First"], kinds["Net"]) == ("selection", "model")
    assert kinds["Slip"].startswith("Slip: 'larges' is no member that fedskew uses; did you mean 'largest'?")
    assert kinds["Other"].startswith("Other is no component")
    assert section_of("mine.py::First") == "selection"
    assert section_of("FedAdam") == "algorithm"
    assert section_of("Top-K:share=0.1") == "codec"
    with pytest.raises(BadInput, match="did you mean 'fedprox'"):
        section_of("fedprx")


def test_the_verb_checks_every_kind(file: Path) -> None:
    assert "First: selection, fedskew check ./mine.py::First" in output_of("check", "./mine.py")
    assert "./mine.py::First: keeps its promises (selection)" in output_of("check", "./mine.py::First")
    printed = json.loads(output_of("check", "./mine.py::Net", "--json"))
    assert (printed["kind"], len(printed["promises"])) == ("model", len(KINDS["model"]))
    file.write_text(FILE.replace("clients[:2]", "clients[:3]"))
    assert "`largest` says 2" in output_of("check", "./mine.py::First", code=1)
    says = {"Slip": "did you mean 'largest'", "Other": "is no component", "Firs": "did you mean 'First'"}
    for wrong, words in says.items():
        error = error_of("check", f"./mine.py::{wrong}")
        assert words in error
        assert error.count("\n") == 1
    file.write_text("LARGEST = 2\n")
    assert "check ./mine.py: the file defines no class; write one" in error_of("check", "./mine.py")
    assert error_of("check", "./none.py::First").endswith("none.py: No such file or directory; check the path\n")


def test_a_model_s_check_says_on_which_rows() -> None:
    promise = next(check("model", COMPONENTS["model"]["cnn"]())).promise
    rows = "(checked on rows of shape (1, 8, 8); it also takes (3, 32, 32), (1, 28, 28); it refuses (64,), (9, 128))"
    assert promise.endswith(rows)


def test_classes_and_objects_are_checked_from_python(file: Path) -> None:
    assert fs.check(Uncompressed())
    assert fs.check("./mine.py::First").kept
    assert [v.kept for v in fs.check(Momentum(beta=0.5)).promises] == [True] * 3
