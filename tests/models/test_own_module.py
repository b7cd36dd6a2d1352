"""A user's own module: found by file or import path, drawn from our streams, checked against the data."""

import numpy as np
import pytest
import torch
from torch import nn

from fedskew.api.functions import run
from fedskew.core.component import build
from fedskew.core.errors import BadInput
from fedskew.data.dataset import Dataset
from fedskew.execution.build import assemble
from fedskew.experiment.config import COMPONENTS, Experiment, from_toml

NET = """
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.Flatten(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, classes))

class Frozen(Net):
    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self[1].requires_grad_(False)

class Both(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.hidden, self.out = nn.Linear(4, 5), nn.Linear(5, classes)
    def forward(self, x):
        z = self.hidden(x).tanh()
        return z, self.out(z)

class Reads(Both):
    def forward(self, x):
        return super().forward(x * (1 if float(x.sum()) > 0 else 2))

class Unused(Both):
    def forward(self, x):
        return x


class Normed(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, classes))

class BatchOnly(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, classes))

class Recurrent(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.inner, self.out = getattr(nn, type(self).__name__)(1, 3, batch_first=True), nn.Linear(3, classes)
    def forward(self, x):
        return self.out(self.inner(x[..., None])[0][:, -1])

class GRU(Recurrent): pass
class LSTM(Recurrent): pass
class RNN(Recurrent): pass

class Words(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.words, self.out = nn.Embedding(9, 5), nn.Linear(5, classes)
    def forward(self, x):
        return self.out(self.words(x).mean(1))

class Like(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.w, self.out = nn.Parameter(torch.randn_like(torch.empty(4, 4))), nn.Linear(4, classes)
        nn.Parameter(torch.empty(3)).data.log_normal_()
    def forward(self, x):
        return self.out(x @ self.w)

class Wide(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.Linear(4, classes), nn.ReLU(), nn.Linear(classes, classes + 1))

class Misfit(nn.Linear):
    def __init__(self, shape, classes):
        super().__init__(7, classes)

class Broken(nn.Module):
    def __init__(self):
        super().__init__()

Number = 3
"""

ROWS = np.random.default_rng(0).standard_normal((60, 4)).astype(np.float32)
LABELS = (ROWS[:, 0] > 0).astype(np.int64)
DATA = Dataset(x=ROWS, y=LABELS, x_test=ROWS[:20], y_test=LABELS[:20], classes=("a", "b"))


@pytest.fixture
def file(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    return tmp_path / "net.py"


def experiment(model, **changes) -> Experiment:
    return Experiment(
        model=model,
        skew="iid",
        clients={"number": 3},
        solver="sgd:lr=0.5",
        training={"rounds": 3, "threads": 1},
        **{"engine": "sequential", **changes},
    )


def made(file, name: str, seed: int = 0) -> nn.Module:
    return build("model", COMPONENTS["model"], f"{file}::{name}").build((4,), 2, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", ["Net", "Both", "Reads", "Frozen"])
def test_a_module_of_a_file_trains(file, tmp_path, name):
    given = experiment(f"{file}::{name}")
    assert from_toml(given.toml()) == given
    runs = run(given, data=DATA, runs=tmp_path)
    assert runs.table()["accuracy"][0] > (0.5 if name == "Frozen" else 0.8)
    assert runs.records[0].facts["parameters"] == (12 if name == "Frozen" else 25 + 12)


def test_features_are_the_input_of_the_output_layer(file):
    net, x = made(file, "Net"), torch.as_tensor(ROWS[:3])
    z, logits = net(x)
    torch.testing.assert_close(z, net.inner[1](x).relu())
    torch.testing.assert_close(logits, net.inner(x))


def test_an_importable_class_is_found_by_its_path(file, monkeypatch):
    monkeypatch.syspath_prepend(str(file.parent))
    assert assemble(experiment("net::Both"), DATA).x0.shape == (37,)


@pytest.mark.parametrize("name", ["Net", "Like"])
def test_parameters_and_a_modules_own_random_numbers_are_drawn_from_the_runs_stream(file, name):
    def drawn(seed: int) -> torch.Tensor:
        state = torch.random.get_rng_state()
        net = made(file, name, seed)
        assert torch.equal(torch.random.get_rng_state(), state)
        return nn.utils.parameters_to_vector(net.parameters())

    one = drawn(1)
    torch.rand(5)
    assert torch.equal(drawn(1), one)
    assert not torch.isclose(drawn(2), one).any()


@pytest.mark.parametrize("name", ["GRU", "LSTM", "RNN"])
def test_recurrent_modules_run_sequentially(file, tmp_path, name):
    assert not made(file, name).stacks
    runs = run(experiment(f"{file}::{name}", engine="auto"), data=DATA, runs=tmp_path)
    assert runs.records[0].status == "finished"


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_integer_rows_reach_only_embeddings_as_integers(file, tmp_path, engine):
    ids = np.random.default_rng(0).integers(0, 9, (60, 4))
    data = Dataset(x=ids, y=LABELS, x_test=ids[:20], y_test=LABELS[:20], classes=("a", "b"))
    for model, words in ((f"{file}::Words", True), (f"{file}::Net", False), ("softmax", False)):
        given = experiment(model, engine=engine)
        assert assemble(given, data).federation.x.is_floating_point() is not words
        assert run(given, data=data, runs=tmp_path).records[0].status == "finished"


def test_engines_agree_and_a_module_that_cannot_be_stacked_is_refused(file, tmp_path):
    ends = [
        run(experiment(f"{file}::Net", engine=engine), data=DATA, runs=tmp_path).table()["accuracy"][0]
        for engine in ("sequential", "stacked")
    ]
    assert ends[0] == ends[1]
    assert made(file, "Both").stacks
    with pytest.raises(BadInput, match=r"engine stacked.*use --engine sequential"):
        assemble(experiment(f"{file}::Reads", engine="stacked"), DATA)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Normed", "clients cannot share the statistics of batches; use torch.nn.GroupNorm"),
        ("BatchOnly", "clients cannot share the statistics of batches; use torch.nn.GroupNorm"),
        ("Wide", r"returns shape \(2, 3\) for two rows, but 2 classes need shape \(2, 2\)"),
        ("Misfit", r"Misfit: fails on rows of shape \(4,\): RuntimeError"),
        ("Unused", "Unused: its forward does not call the layer with one output for each class"),
        (
            "Broken",
            r"called with the shape of a row and the number of classes: too many .*write __init__\(self, shape, classes\)",
        ),
        ("Number", "net.py::Number is not a class, but int"),
        ("Nothing", "net.py has no class 'Nothing'"),
    ],
)
def test_a_module_that_does_not_fit_raises_a_one_line_error(file, name, words):
    with pytest.raises(BadInput, match=words):
        assemble(experiment(f"{file}::{name}"), DATA)


def test_a_module_without_an_output_layer_for_the_classes_is_refused(file):
    with pytest.raises(BadInput, match=r"its output layer must be a torch.nn.Linear with 9 outputs"):
        build("model", COMPONENTS["model"], "torch.nn::Flatten").build((4,), 9, torch.Generator())


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("nowhere.at::All", "model: cannot import nowhere.at: ModuleNotFoundError"),
        ("./nowhere.py::Net", "model: cannot read .*nowhere.py: No such file"),
        ("torch.nn::Linea", "model: module torch.nn has no class 'Linea'"),
    ],
)
def test_a_missing_source_is_named(source, words):
    with pytest.raises(BadInput, match=words):
        assemble(experiment(source), DATA)


def test_a_file_that_has_changed_is_refused(file):
    text = experiment(f"{file}::Net").toml()
    file.write_text(NET + "\n")
    with pytest.raises(BadInput, match="has changed"):
        from_toml(text)
