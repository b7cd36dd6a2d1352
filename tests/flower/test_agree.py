"""Sites that agree on columns, categories and vocabulary without pooling rows, and what leaves a site for it."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest
import torch

from fedskew.api.functions import run
from fedskew.core.errors import BadInput, TooFew
from fedskew.data.tables.summaries import Summary
from fedskew.data.texts import SiteWords
from fedskew.experiment.config import Experiment
from fedskew.flower.limits import Limits
from fedskew.flower.node import Node
from fedskew.flower.server import serve
from fedskew.flower.tables import opened
from fedskew.flower.wire import Reply, unpack
from fedskew.serving.predict import inputs_of, load
from fedskew.store.runs import RunStore
from tests.data.tables.test_schema import same
from tests.flower.test_tables import MODELS, TARGETS, columns, deployment
from tests.flower_nodes import VERSIONS, Direct, configuration, final, restarted


def agreeing(
    folder: Path, option: str = "label=outcome", model: str = "mlp:hidden=[4]", **limits: bool | int
) -> tuple[Experiment, list[Node]]:
    """An experiment whose server has the rows of the first site only, and nodes that send their columns."""
    experiment, nodes = deployment(folder, option, model)
    for node in nodes:
        rows = pd.read_csv(node.rows)
        rows[[name for name in columns(option) if name in rows]].to_csv(node.rows, index=False)
    data = f"table:{nodes[0].rows},test={folder}/test.csv,{option}"
    nodes = [replace(node, limits=Limits(**{"summary": True, **limits})) for node in nodes]
    return experiment.replace(dataset=data, clients__number=3), nodes


@pytest.mark.parametrize(
    ("kind", "fewest"),
    [("classes", 1), ("classes", 5), ("text", 1), ("text", 5)],
)
def test_a_run_on_agreed_columns_equals_its_simulation_on_the_pooled_rows(
    kind: str, fewest: int, tmp_path: Path
) -> None:
    """The server's table has other means, scales, gaps and words. A restarted server keeps what was agreed.

    The simulation hides words of few rows as the nodes do, if their owners say so: then it pools the same sites, and each bit
    is equal. Else it has one sum over all rows, and means and scales are equal to 1e-12.
    """
    option, model = TARGETS[kind], MODELS.get(kind, "mlp:hidden=[4]")
    pooled, _ = deployment(tmp_path, option, model)
    pooled = pooled.replace(dataset=replace(pooled.dataset, fewest=fewest))
    simulated = run(pooled, runs=tmp_path / "simulated")
    experiment, nodes = agreeing(tmp_path, option, model, fewest=fewest)
    experiment = experiment.replace(checkpoint__every=1)
    restarted(Direct(nodes), configuration(experiment, tmp_path, agree=True, most_rows=90), 2)
    store = RunStore(tmp_path / "runs")
    weights = [final(store)["x"], final(simulated.store)["x"]]
    known = [load(s, 1).trained.learned.preprocessing for s in (store, simulated.store)]
    assert torch.allclose(*weights, rtol=0, atol=1e-6)
    assert (torch.equal(*weights) and known[0] == known[1]) or (fewest == 1 and kind == "classes")
    pooled_rows = deployment(tmp_path, option, model)[0].dataset.load().preprocessing
    assert same(known[0], pooled_rows) == (fewest == 1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda rows: rows.drop(columns="age"), "site 1: no column 'age', which other sites have"),
        (
            lambda rows: rows.assign(age="old"),
            "site 1: column 'age' holds words, such as 'old', but at other sites numbers",
        ),
    ],
)
def test_a_site_whose_columns_differ_is_named_before_training(change, reason: str, tmp_path: Path) -> None:
    experiment, nodes = agreeing(tmp_path)
    change(pd.read_csv(nodes[1].rows)).to_csv(nodes[1].rows, index=False)
    with pytest.raises(BadInput, match=reason):
        serve(Direct(nodes), configuration(experiment, tmp_path, agree=True, most_rows=90), VERSIONS)


def test_a_node_sends_its_columns_only_if_its_owner_agreed(tmp_path: Path) -> None:
    experiment, nodes = agreeing(tmp_path, summary=False)
    with pytest.raises(TooFew, match="its owner can start it with --share-summary"):
        serve(Direct(nodes), configuration(experiment, tmp_path, agree=True, wait=0.1), VERSIONS)


@pytest.mark.parametrize(
    "change",
    [
        {"numbers": {"rows": 1 << 60}},
        {"numbers": {"rows": -1}},
        {"numbers": {"rows": 3, "low": 1.0, "high": 0.0}},
        {"numbers": {"rows": 3, "low": 0.0, "high": float("inf")}},
        {"numbers": {"rows": 3, "low": float("nan"), "high": 1.0}},
        {"numbers": {"rows": 3, "mean": float("nan"), "low": 0.0, "high": 1.0}},
        {"numbers": {"rows": 3, "mean": float("inf"), "low": 0.0, "high": 1.0}},
        {"numbers": {"rows": 3, "deviation": -1.0, "low": 0.0, "high": 1.0}},
        {"numbers": {"rows": 3, "deviation": float("inf"), "low": 0.0, "high": 1.0}},
        {"numbers": {"rows": 0, "mean": float("nan")}},
        {"words": {str(i): 1 for i in range(41)}},
        {"words": {"a": 10**15}},
        {"buckets": {1 << 40: 1}},
        {"valid": 9},
    ],
)
def test_a_summary_that_no_table_gives_is_refused(change: dict[str, object]) -> None:
    column = {"type": "number", "rows": 5, "valid": 5, **change}
    made = msgspec.msgpack.encode({"columns": {"age": column}})
    with pytest.raises(
        BadInput, match=r"site 2: its summary cannot be read: (moments of no numbers|counts of no column)"
    ):
        opened(Reply(kind="meet", run="0", round=0, client=2, summary=made), Summary)
    words = msgspec.msgpack.encode({"counts": {"two words": 1}})
    with pytest.raises(BadInput, match="site 2: its summary cannot be read: counts of no texts"):
        opened(Reply(kind="meet", run="0", round=0, client=2, summary=words), SiteWords)


def left(channel: Direct) -> list[bytes]:
    """Return the summaries that left the nodes."""
    replies = [unpack(reply, Reply)[0] for _, kind, _, reply in channel.seen if kind == "meet"]
    return [reply.summary for reply in replies if reply.summary]


@pytest.mark.parametrize(("kind", "word"), [("classes", b"Zug"), ("text", b"wilhelm")])
@pytest.mark.parametrize("limits", [{}, {"fewest": 3}, {"fewest": 1}])
def test_no_word_of_few_rows_leaves_a_node_and_training_reads_it_as_unknown(
    kind: str, word: bytes, limits: dict[str, int], tmp_path: Path
) -> None:
    """By default few are fewer than five."""
    experiment, nodes = agreeing(tmp_path, TARGETS[kind], MODELS.get(kind, "softmax"), **limits)
    channel, hidden = Direct(nodes), limits.get("fewest") != 1
    serve(channel, configuration(experiment.replace(training__rounds=1), tmp_path, agree=True, most_rows=90), VERSIONS)
    assert len(left(channel)) == 3
    assert any(word in data for data in left(channel)) != hidden
    known = load(RunStore(tmp_path / "runs"), 1).trained.learned.preprocessing
    for node in nodes:
        rows = pd.read_csv(node.rows)
        [kept] = [np.load(path) for path in node.folder.glob("*/rows.npz")]
        assert np.array_equal(kept["x"], inputs_of(known, experiment.model, rows)), "as in a prediction"
        if kind == "classes" and (rows["city"] == "Zug").any():
            cities = kept["x"][(rows["city"] == "Zug").to_numpy()][:, -len(known.columns[-1].known) :]
            assert cities.sum() == (0 if hidden else 1)


def test_words_of_a_text_leave_for_the_owners_number_of_words_only(tmp_path: Path) -> None:
    """The difference between two answers, to five and to six words a text, would be the words of single rows."""
    experiment, nodes = agreeing(tmp_path, TARGETS["text"], "text-cnn")
    asked, options = replace(experiment.dataset, length=5), {"agree": True, "most_rows": 90, "wait": 0.1}
    with pytest.raises(TooFew, match="the run's table has text=note,length=5; start the node with the same"):
        serve(Direct(nodes), configuration(experiment.replace(dataset=asked), tmp_path, **options), VERSIONS)
    plain = [replace(node, table=replace(node.table, text="")) for node in nodes]
    with pytest.raises(TooFew, match="the run's table has text=note,length=64"):
        serve(Direct(plain), configuration(experiment, tmp_path, **options), VERSIONS)


def test_a_pretrained_model_has_its_own_tokens_and_sites_send_no_words(tmp_path: Path) -> None:
    experiment, nodes = agreeing(tmp_path, TARGETS["text"], "text-cnn")
    experiment, channel = experiment.replace(model="hf:source=somewhere/bert"), Direct(nodes)
    with pytest.raises(BadInput, match="a pretrained model has its own tokens, so there is nothing to agree on"):
        serve(channel, configuration(experiment, tmp_path, agree=True, most_rows=90), VERSIONS)
    assert channel.seen == []


def test_a_text_column_of_a_table_is_hashed_and_needs_no_vocabulary(tmp_path: Path) -> None:
    """A node sends counts of hash buckets, not words, of a column of many different texts."""
    experiment, nodes = agreeing(tmp_path)
    for node in nodes:
        rows = pd.concat([pd.read_csv(node.rows)] * 2)
        rows.assign(remark=[f"word{at}{node.client} pain today" for at in range(len(rows))]).to_csv(
            node.rows, index=False
        )
    rows = pd.read_csv(tmp_path / "test.csv")
    rows.assign(remark="pain").to_csv(tmp_path / "test.csv", index=False)
    channel = Direct(nodes)
    serve(channel, configuration(experiment.replace(training__rounds=1), tmp_path, agree=True, most_rows=90), VERSIONS)
    for data in left(channel):
        held = msgspec.msgpack.decode(data)["columns"]["remark"]
        assert not held.get("words")
        assert min(held["buckets"].values()) >= 5
