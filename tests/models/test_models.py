"""Models and what they are trained to do: sizes, initial parameters, vectors, the loss."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.func import functional_call, grad

from fedskew.core.errors import BadInput
from fedskew.core.trees import ParameterSpace
from fedskew.models import (
    MODELS,
    Cnn,
    Cnn1d,
    HuggingFaceEncoder,
    LeNet,
    Lstm,
    MiniLm,
    Mixed,
    Mlp,
    ResNet,
    Softmax,
    TextCnn,
    TextMean,
)
from tests.small import TinyNet, classifier

torch.set_num_threads(1)


def resnet_size(channels: int, width: int, classes: int) -> int:
    """Convolutions without bias, two numbers a channel of each normalisation, the output layer."""
    size, inputs = 9 * channels * width + 2 * width, width
    for i in range(4):
        outputs = width << i
        size += 9 * inputs * outputs + 27 * outputs**2 + 8 * outputs + (inputs * outputs + 2 * outputs) * (i > 0)
        inputs = outputs
    return size + inputs * classes + classes


TABLE = [  # model, shape of a row, classes, parameters, features
    (Cnn(), (1, 28, 28), 10, 1_663_370, 512),  # McMahan et al. 2017
    (Cnn(hidden=7), (3, 9, 6), 4, 3 * 32 * 25 + 32 + 32 * 64 * 25 + 64 + 64 * 2 * 1 * 7 + 7 + 7 * 4 + 4, 7),
    (Cnn1d(), (9, 128), 6, 9 * 32 * 5 + 32 + 32 * 64 * 5 + 64 + 64 * 4 * 64 + 64 + 64 * 6 + 6, 64),
    (Cnn1d(filters=2, hidden=3), (1, 35), 2, 1 * 2 * 5 + 2 + 2 * 4 * 5 + 4 + 4 * 1 * 3 + 3 + 3 * 2 + 2, 3),
    (Cnn1d(filters=1, hidden=3), (2, 32), 2, 2 * 1 * 5 + 1 + 1 * 2 * 5 + 2 + 2 * 1 * 3 + 3 + 3 * 2 + 2, 3),
    (Mlp(hidden=(200, 200)), (784,), 10, 199_210, 200),  # McMahan et al. 2017, 2NN
    (Cnn(hidden=7, norm="group"), (3, 9, 6), 4, 3 * 32 * 25 + 96 + 32 * 64 * 25 + 192 + 64 * 2 * 7 + 7 + 7 * 4 + 4, 7),
    (
        Cnn1d(filters=1, hidden=3, norm="group"),
        (2, 32),
        2,
        2 * 1 * 5 + 3 + 2 * 1 * 5 + 6 + 2 * 1 * 3 + 3 + 3 * 2 + 2,
        3,
    ),
    (Mlp(hidden=(5, 4), norm="group"), (2, 3), 4, 6 * 5 + 15 + 5 * 4 + 12 + 4 * 4 + 4, 4),
    (LeNet(), (3, 32, 32), 10, 62_006, 84),  # NIID-Bench
    (LeNet(norm="group"), (1, 28, 28), 10, 44_426 + 2 * 22, 84),
    (ResNet(), (3, 32, 32), 10, 11_173_962, 512),  # the figure of ResNet-18 for CIFAR-10, by whatever normalisation
    (ResNet(width=4, groups=3), (1, 8, 9), 3, resnet_size(1, 4, 3), 32),
    (Lstm(), (9, 128), 6, 4 * (64 * 9 + 64 * 64 + 2 * 64) + 64 * 6 + 6, 64),
    (Lstm(hidden=3, layers=2), (2, 5), 2, 4 * (3 * 2 + 3 * 3 + 2 * 3) + 4 * (2 * 3 * 3 + 2 * 3) + 3 * 2 + 2, 3),
    (TextCnn(vocabulary=20, embedding=5, filters=4), (9,), 3, 20 * 5 + 5 * 4 * 12 + 12 + 12 * 3 + 3, 12),
    (TextMean(vocabulary=20, embedding=5, hidden=4), (9,), 3, 20 * 5 + 5 * 4 + 4 + 4 * 3 + 3, 4),
    (Mlp(), (64,), 10, 64 * 64 + 64 + 64 * 10 + 10, 64),
    (Mlp(hidden=(5,)), (2, 3), 4, 6 * 5 + 5 + 5 * 4 + 4, 5),
    (Softmax(), (30,), 6, 30 * 6 + 6, 30),
    (Softmax(bias=False), (30,), 6, 180, 30),
    (Softmax(zero_init=False), (2, 5), 3, 33, 10),
]
OTHER_FILES = {
    MiniLm,
    HuggingFaceEncoder,
    Mixed,
    *map(MODELS.get, ("symbol-lstm", "transformer")),
}  # tests of their own
IDS = [f"{type(row[0]).__name__}{row[1]}{i}" for i, row in enumerate(TABLE)]


def made(model, shape, classes, seed: int = 0) -> nn.Module:
    return model.build(shape, classes, torch.Generator().manual_seed(seed))


def rows(shape: tuple[int, ...], count: int = 3) -> torch.Tensor:
    """Numbers around 0; token ids of 0 to 19 where a row is nine of them."""
    g = torch.Generator().manual_seed(1)
    if shape == (9,):
        return torch.randint(0, 20, (count, 9), generator=g).float()
    return torch.randn(count, *shape, generator=g)


every_model = pytest.mark.parametrize(("model", "shape", "classes", "parameters", "features"), TABLE, ids=IDS)
SMALL = [row[:3] for row in TABLE if row[3] < 100_000]
every_small_model = pytest.mark.parametrize(("model", "shape", "classes"), SMALL)


@every_model
def test_a_model_has_the_stated_parameters_and_features(model, shape, classes, parameters, features):
    net, x = made(model, shape, classes), rows(shape)
    assert sum(p.numel() for p in net.parameters()) == ParameterSpace(net).size == parameters
    assert not list(net.buffers()), "what is not in the vector would not be trained"
    z, logits = net(x)
    assert z.shape == (3, features)
    assert logits.shape == (3, classes)
    # the output layer is the last one, and works on the features
    last = [m for m in net.modules() if isinstance(m, nn.Linear)][-1]
    torch.testing.assert_close(last(z), logits)
    assert classifier(net, classes).num_features == features


@every_small_model
def test_rows_do_not_see_each_other(model, shape, classes):
    net, x = made(model, shape, classes), rows(shape)
    for i in range(3):
        torch.testing.assert_close(net(x[i : i + 1])[1], net(x)[1][i : i + 1], rtol=1e-4, atol=1e-6)


@every_small_model
def test_parameters_are_drawn_from_the_given_generator_alone(model, shape, classes):
    space = ParameterSpace(made(model, shape, classes))
    one, other = (space.flatten(made(model, shape, classes, seed)) for seed in (3, 4))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        state = torch.random.get_rng_state()
        assert torch.equal(one, space.flatten(made(model, shape, classes, 3)))
        assert torch.equal(torch.random.get_rng_state(), state)
    zero = isinstance(model, Softmax) and model.zero_init
    assert torch.equal(one, other) == zero
    assert bool((one == 0).all()) == zero


@every_small_model
def test_a_vector_holds_every_layer_once(model, shape, classes):
    net, x = made(model, shape, classes), rows(shape)
    space = ParameterSpace(net)
    w = space.flatten(net)
    named = space.unflatten(w)
    assert list(named) == [name for name, _ in net.named_parameters()]
    assert all(torch.equal(named[name], p) for name, p in net.named_parameters())
    assert torch.equal(torch.cat([v.reshape(-1) for v in named.values()]), w)
    torch.testing.assert_close(functional_call(net, named, (x,))[1], net(x)[1], rtol=0, atol=0)
    assert set(space.layers()) == {name for name, m in net.named_modules() if list(m.parameters(recurse=False))}
    assert sorted(i for places in space.layers().values() for p in places for i in range(p.start, p.stop)) == list(
        range(space.size)
    )
    for name, places in space.layers().items():
        own = [p.detach().reshape(-1) for p in net.get_submodule(name).parameters(recurse=False)]
        assert torch.equal(torch.cat([w[place] for place in places]), torch.cat(own))


def test_every_model_is_in_the_tables():
    assert {type(row[0]) for row in TABLE} == {type(row[0]) for row in SMALL} == set(MODELS.values()) - OTHER_FILES


@pytest.mark.parametrize(("model", "stacks"), [(Lstm(), False), (Cnn1d(), True)])
def test_a_model_says_whether_it_stacks(model, stacks):
    net = made(model, (2, 32), 2)
    assert classifier(net, 2).stacks == stacks


def test_the_lstm_at_a_vector_is_pytorchs_with_these_weights():
    net = made(Lstm(hidden=4), (2, 7), 3)
    task, x = classifier(net, 3), rows((2, 7))
    w = torch.randn(task.space.size, generator=torch.Generator().manual_seed(2))
    layer = nn.LSTM(2, 4, batch_first=True)
    layer.load_state_dict({k.partition(".")[2]: v for k, v in task.space.unflatten(w).items() if k.startswith("lstm")})
    last = layer(x.transpose(1, 2))[0][:, -1]
    torch.testing.assert_close(task.outputs(w, x)[0], last)
    gradient = grad(lambda w: task.outputs(w, x)[0].square().sum())(w)
    last.square().sum().backward()
    expected = torch.cat([p.grad.reshape(-1) for p in layer.parameters()])
    torch.testing.assert_close(gradient[: len(expected)], expected)


def test_kims_network_by_hand():
    """One filter of width 2 on embeddings of one number: the largest sum of neighbours, weighted."""
    net = made(TextCnn(vocabulary=4, embedding=1, filters=1, widths=(2,)), (3,), 2)
    with torch.no_grad():
        net.embedding.weight.copy_(torch.tensor([[0.0], [1.0], [2.0], [-5.0]]))
        net.convs[0].weight.copy_(torch.tensor([[[10.0, 1.0]]]))
        net.convs[0].bias.fill_(0.5)
    z, _ = net(torch.tensor([[1.0, 2.0, 0.0], [3.0, 3.0, 3.0]]))
    assert z.tolist() == [[20.5], [0.0]]  # max(10 + 2, 20 + 0) + 0.5; nothing above 0


def test_the_mean_of_embeddings_by_hand():
    """Embeddings of one number: the mean of the words without padding, times 10, plus 0.5. A text without words gives the bias."""
    net = made(TextMean(vocabulary=4, embedding=1, hidden=1), (3,), 2)
    with torch.no_grad():
        net.embedding.weight.copy_(torch.tensor([[0.0], [1.0], [2.0], [-5.0]]))
        net.hidden.weight.fill_(10)
        net.hidden.bias.fill_(0.5)
    z, _ = net(torch.tensor([[1.0, 2.0, 0.0], [1.0, 1.0, 2.0], [3.0, 1.0, 0.0], [0.0, 0.0, 0.0]]))
    torch.testing.assert_close(z, torch.tensor([[15.5], [40 / 3 + 0.5], [0.0], [0.5]]))


@pytest.mark.parametrize("model", [TextCnn(vocabulary=4, embedding=2, filters=1, widths=(1,)), TextMean(vocabulary=4)])
def test_the_embedding_of_padding_stays_zero(model):
    net = made(model, (3,), 2)
    first = net.convs[0] if isinstance(model, TextCnn) else net.hidden
    first.bias.detach().fill_(1)  # so that the layer answers to padding, too
    task = classifier(net, 2)
    w = task.space.flatten(net)
    gradient = grad(lambda w: task.logits(w, torch.zeros(1, 3)).square().sum())(w)
    assert (w[: model.embedding] == 0).all()
    assert (gradient[: model.embedding] == 0).all()


def test_the_text_networks_vocabulary_fits_the_ids():
    ids = np.asarray([[1, 5, 0, 0, 0]])
    assert TextCnn().fitted(ids).vocabulary == 6
    assert TextCnn(vocabulary=9).fitted(ids).vocabulary == 9
    assert TextMean().fitted(ids).vocabulary == 6
    wrong = [(TextCnn(vocabulary=5), ids), (TextMean(vocabulary=5), ids), (TextCnn(), ids - 1), (TextCnn(), ids / 2)]
    for model, bad in wrong:
        with pytest.raises(BadInput, match=model.key):
            model.fitted(bad)


def test_half_precision_changes_the_numbers_by_its_rounding_alone():
    """bfloat16 keeps eight digits of two: logits move by about a percent, and gradients come back whole."""
    net = made(LeNet(), (3, 32, 32), 10)
    full, half = (classifier(net, 10, bf16=flag) for flag in (False, True))
    w, x = full.space.flatten(net), rows((3, 32, 32), 8)
    one, two = full.logits(w, x), half.logits(w, x)
    assert two.dtype == torch.float32
    assert 1e-5 < float((one - two).abs().max() / one.abs().max()) < 0.02
    gradients = [grad(lambda w, t=t: t.loss(t.logits(w, x), torch.arange(8)).mean())(w) for t in (full, half)]
    assert gradients[1].dtype == torch.float32
    assert 1e-4 < float((gradients[0] - gradients[1]).norm() / gradients[0].norm()) < 0.15


# what is frozen is no part of the vector


def test_frozen_parameters_are_not_in_the_vector_and_are_read_from_the_module():
    net = TinyNet().double()
    net.a.requires_grad_(False)
    task = classifier(net, 3)
    w, x = task.space.flatten(net), torch.ones(2, 6, dtype=torch.float64)
    assert task.space.names == ["b.weight", "b.bias"]
    assert task.space.size == w.numel() == 8 * 3 + 3
    assert torch.equal(task.logits(w, x), net(x)[1])
    with torch.no_grad():
        net.a.weight.mul_(2)
    assert torch.equal(task.logits(w, x), net(x)[1])


def test_the_number_of_features_is_read_from_the_output_layer():
    net = nn.Sequential(nn.Linear(9, 3), nn.Linear(3, 3), nn.Linear(3, 4))
    assert classifier(net, 4).num_features == 3
    with pytest.raises(BadInput, match="Linear with 5 outputs"):
        _ = classifier(net, 5).num_features


# initial parameters


@pytest.mark.parametrize(
    ("model", "shape", "classes"),
    [(Cnn(hidden=64), (3, 16, 16), 10), (Cnn1d(), (9, 128), 6), (Mlp(hidden=(300, 100)), (64,), 10)],
    ids=["cnn", "cnn1d", "mlp"],
)
def test_initial_parameters_are_distributed_as_pytorchs(model, shape, classes):
    layers = [m for m in made(model, shape, classes).modules() if isinstance(m, nn.Linear | nn.Conv1d | nn.Conv2d)]
    assert len(layers) >= 3
    for layer in layers:
        bound = 1 / math.sqrt(layer.weight[0].numel())
        for parameter in (layer.weight, layer.bias):
            ours = parameter.detach().reshape(-1).numpy()
            assert stats.kstest(ours, stats.uniform(-bound, 2 * bound).cdf).pvalue > 1e-3
            assert np.abs(ours).max() <= bound


# bad input


@pytest.mark.parametrize(
    ("model", "shape", "words"),
    [
        (Cnn(), (784,), ("cnn", "(784,)")),
        (Cnn(), (28, 28), ("cnn", "(28, 28)")),
        (Cnn(), (1, 3, 28), ("cnn", "3 x 28")),
        (Cnn(), (1, 28, 3), ("cnn", "28 x 3")),
        (LeNet(), (3, 32), ("lenet", "(3, 32)")),
        (LeNet(), (3, 15, 32), ("lenet", "15 x 32")),
        (ResNet(), (64,), ("resnet18", "(64,)")),
        (ResNet(), (3, 32, 7), ("resnet18", "32 x 7")),
        (Lstm(), (64,), ("lstm", "(64,)")),
        (TextCnn(vocabulary=3), (3, 3), ("text-cnn", "(3, 3)")),
        (TextCnn(vocabulary=3), (4,), ("text-cnn", "4 tokens")),
        (TextMean(vocabulary=3), (3, 3), ("text-mean", "(3, 3)")),
        (Cnn1d(), (64,), ("cnn1d", "(64,)")),
        (Cnn1d(), (1, 28, 28), ("cnn1d", "(1, 28, 28)")),
        (Cnn1d(), (9, 15), ("cnn1d", "15")),
        (Cnn1d(), (9, 0), ("cnn1d", "0")),
    ],
)
def test_rows_of_the_wrong_shape_are_refused(model, shape, words):
    with pytest.raises(BadInput) as error:
        made(model, shape, 3)
    assert all(word in str(error.value) for word in words)
