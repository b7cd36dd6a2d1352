"""The frozen layers of an encoder are computed once for each text, in memory or in a file, and change no number."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fedskew.api.functions import run
from fedskew.claims.reproduce import a_round
from fedskew.core.errors import BadInput
from fedskew.execution import prepare
from fedskew.execution.build import assemble
from fedskew.execution.prepare import tasks_at
from fedskew.execution.run import execute
from fedskew.loop.evaluate import evaluate
from fedskew.models.encoder import HuggingFaceEncoder, layers_of
from fedskew.report import progress
from tests.models.encoders import DATA, HIDDEN, INNER, needs_text, rounds, small
from tests.texts import WORDS, tiny_encoder, weather

pytestmark = [needs_text, pytest.mark.usefixtures("cache")]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {"frozen": 2}) for kind in ("bert", "distilbert", "roberta")),
        *(
            ("bert", {"frozen": 3}),
            ("distilbert", {"lora": 2}),
            ("roberta", {"lora": 1, "frozen": 1, "pooling": "mean"}),
        ),
    ],
)
def test_training_on_cached_activations_gives_the_same_numbers(folders, kind, options):
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


def test_cached_activations_in_single_precision_agree_to_1e_5(bert):
    kept, plain = (assemble(small(bert, cache=c, frozen=2, dtype="float32"), DATA) for c in ("memory", "none"))
    torch.testing.assert_close(rounds(kept)[1].server.x, rounds(plain)[1].server.x, rtol=0, atol=1e-5)


def test_a_round_on_cached_activations_computes_no_frozen_layer(bert):
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


def test_without_frozen_layers_rows_stay_token_ids(bert):
    assert assemble(small(bert), DATA).federation.x.dim() == 2


@pytest.fixture
def computed(monkeypatch):
    """Return a list that gets the number of texts each time that they pass through frozen layers."""
    numbers = []

    def counting(net, ids, out):
        numbers.append(len(ids))
        compute(net, ids, out)

    compute = prepare.compute
    monkeypatch.setattr(prepare, "compute", counting)
    return numbers


def test_the_frozen_layers_see_each_text_once(bert, computed):
    first = assemble(small(bert, frozen=2), DATA)
    second = assemble(small(bert, "fedprox", frozen=2), DATA)
    assert computed == [60]
    assert second.federation.x.data_ptr() == first.federation.x.data_ptr()


def test_an_estimate_computes_no_frozen_layer_and_times_the_same_steps(bert, computed):
    assert a_round(small(bert, frozen=2), DATA) > 0
    timed = assemble(small(bert, frozen=2), DATA, timing=True)
    assert not computed
    kept = assemble(small(bert, frozen=2), DATA)
    for one, other in ((timed.federation.x, kept.federation.x), (timed.x_test, kept.x_test)):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert torch.equal(one.any(-1), other.any(-1)), "a text ends at the same place"


def test_progress_shows_the_remaining_time(bert, capsys, monkeypatch):
    times = iter([0.0, 0.0, 6.0, 6.0, 6.0, *[9.0] * 9])
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(times))
    monkeypatch.setattr(prepare, "activations", lambda net, ids, out, on_progress: on_progress(45, 60))
    assemble(small(bert, frozen=2), DATA)
    assert capsys.readouterr().err == "frozen layers: 75 %; 2 s left\n"


def test_activations_on_disk_are_those_in_memory_and_are_read_again(bert, cache, computed):
    memory = assemble(small(bert, frozen=2), DATA)
    disk = assemble(small(bert, frozen=2, cache="disk"), DATA)
    assert torch.equal(memory.federation.x, disk.federation.x)
    again = assemble(small(bert, frozen=2, cache="disk"), DATA)
    assert computed == [60, 60]
    assert torch.equal(again.x_test, disk.x_test)
    assert [path.name.partition("-")[0] for path in sorted(cache.iterdir())] == ["activations", "tokens"]


def test_the_cache_key_depends_on_texts_and_frozen_layers(bert, cache):
    for changes in ({}, {"frozen": 1}, {"lora": 1, "frozen": 1}):
        assemble(small(bert, **{"frozen": 2, "cache": "disk", **changes}), DATA)
    assert len(list(cache.glob("activations-*"))) == 2, "adapters after the frozen part do not change it"
    assemble(small(bert, frozen=2, cache="disk"), weather(seed=1))
    assert len(list(cache.glob("activations-*"))) == 3
    assert len(list(cache.glob("tokens-*"))) == 2


def test_an_interrupted_computation_leaves_nothing_behind(bert, cache, monkeypatch):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(prepare, "activations", stop)
    with pytest.raises(KeyboardInterrupt):
        assemble(small(bert, frozen=2, cache="disk"), DATA)
    assert [path.name.partition("-")[0] for path in cache.iterdir()] == ["tokens"]


def test_texts_are_tokenised_once(bert, monkeypatch):
    assemble(small(bert, frozen=2), DATA)
    monkeypatch.setattr(HuggingFaceEncoder, "tokens", lambda *_: pytest.fail("tokenised again"))
    assemble(small(bert, frozen=1), DATA)


def test_token_ids_of_another_length_are_others(bert):
    whole = assemble(small(bert), DATA).federation.x
    part = assemble(small(bert).replace(model=HuggingFaceEncoder(source=bert, length=4)), DATA).federation.x
    assert part.shape[1] == 4 < whole.shape[1]


def test_another_tokenizer_in_the_same_folder_reads_the_texts_anew(tmp_path):
    """For example a retrained vocabulary, or two projects with folders of the same name."""

    def first_ids() -> list[int]:
        return assemble(small(str(tmp_path)), DATA).federation.x[0].tolist()

    tiny_encoder(tmp_path)
    before = first_ids()
    tiny_encoder(tmp_path, words=WORDS[::-1])
    after = first_ids()
    # the numbers below 4 are not words
    assert after == [n if n < 4 else 2 * 4 + len(WORDS) - 1 - n for n in before]
    assert after != before


def test_other_frozen_weights_are_refused_on_resume(tmp_path):
    """They are in no checkpoint; what is trained is, and may begin as it likes."""
    encoder = tmp_path / "encoder"
    tiny_encoder(encoder)
    runs = run(small(str(encoder), frozen=2), data=DATA, runs=tmp_path / "runs")

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
        BadInput, match=r"run 1: the model's frozen layers have changed since it began .* start a new run"
    ):
        execute(runs.store, runs.ids[0], DATA)
