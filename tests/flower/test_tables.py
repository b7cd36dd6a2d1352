"""Nodes with their site's own file: the numbers of a simulation on the pooled rows, and one line for a file that does not fit."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

from fedskew.api.functions import run
from fedskew.core.errors import BadInput, TooFew
from fedskew.data.datasets.table import TableData
from fedskew.data.find import CACHE
from fedskew.execution.build import assemble
from fedskew.experiment.config import Experiment
from fedskew.flower.limits import Limits
from fedskew.flower.node import Node
from fedskew.flower.server import serve
from fedskew.flower.tables import check_table
from fedskew.flower.wire import Reply, pack, unpack
from fedskew.report.answer import remarks
from fedskew.serving.predict import load
from fedskew.store.runs import RunStore
from tests.flower_nodes import VERSIONS, Direct, configuration, final, request
from tests.models.encoders import needs_text
from tests.texts import tiny_encoder

TARGETS = {
    "classes": "label=outcome",
    "number": "target=cost",
    "labels": "labels=cough|fever",
    "survival": "time=days,event=died",
    "text": "label=outcome,text=note",
}


def patients(rows: int, seed: int) -> pd.DataFrame:
    """People of three hospitals, with a missing age here and there. One of the second has a city and words that no one else has."""
    rng = np.random.default_rng(seed)
    age = rng.integers(20, 90, rows).astype(float)
    frame = pd.DataFrame(
        {
            "age": np.where(rng.random(rows) < 0.1, np.nan, age),
            "city": rng.choice(["Bern", "Genf", "Chur"], rows),
            "note": rng.choice(["no pain at all", "pain", "strong pain in the chest today"], rows),
            "outcome": np.where(age + rng.normal(0, 9, rows) > 55, "ill", "well"),
            "cost": age * 3 + rng.normal(0, 5, rows),
            "cough": rng.integers(0, 2, rows),
            "fever": (age > 50).astype(int),
            "days": rng.exponential(age).round(1) + 1,
            "died": rng.integers(0, 2, rows),
            "hospital": np.arange(rows) % 3,
        }
    )
    frame.loc[1, ["city", "note"]] = "Zug", "pain since Wilhelm"
    return frame


def columns(option: str) -> list[str]:
    """Return the columns of inputs, of targets and of the client."""
    named = [name for part in option.split(",") for name in part.partition("=")[2].split("|")]
    return [*dict.fromkeys(["age", "city", *named]), "hospital"]


def deployment(folder: Path, option: str, model: str = "mlp:hidden=[4]") -> tuple[Experiment, list[Node]]:
    """The experiment on the pooled rows, and nodes that have their own rows only, in the order in which a simulation takes them."""
    pooled = patients(90, 1)[columns(option)]
    pooled.to_csv(folder / "pooled.csv", index=False)
    patients(30, 2)[columns(option)].to_csv(folder / "test.csv", index=False)
    data = f"table:{folder}/pooled.csv,client=hospital,test={folder}/test.csv,{option}"
    experiment = Experiment(
        algorithm="scaffold", dataset=data, model=model, engine="sequential", skew="natural"
    ).replace(training__rounds=3, training__threads=1, local__epochs=1, clients__held_out=0.0)
    dataset = experiment.dataset.load()
    partition = assemble(experiment, dataset).partition
    nodes = []
    for k in range(3):
        path = folder / f"site-{k}.csv"
        # columns in another order, and one that the run does not know
        own = pooled.iloc[partition.rows(k)].drop(columns="hospital")
        own[[*reversed(own.columns)]].assign(ward=np.arange(len(own)) % 4).to_csv(path, index=False)
        task = dict(part.split("=") for part in option.split(","))
        nodes.append(Node(k, path, folder / f"states-{k}", table=TableData(path=str(path), **task)))
    return experiment, nodes


def deployed(experiment: Experiment, nodes: list[Node], folder: Path) -> RunStore:
    serve(Direct(nodes), configuration(experiment.replace(clients__number=len(nodes)), folder), VERSIONS)
    return RunStore(folder / "runs")


MODELS = {"text": "text-cnn"}


@pytest.mark.parametrize("kind", ["classes", *(pytest.param(kind, marks=pytest.mark.slow) for kind in [*TARGETS][1:])])
def test_a_sites_file_gives_the_numbers_of_the_simulation(kind: str, tmp_path: Path) -> None:
    experiment, nodes = deployment(tmp_path, TARGETS[kind], MODELS.get(kind, "mlp:hidden=[4]"))
    store = deployed(experiment, nodes, tmp_path)
    simulated = run(experiment, runs=tmp_path / "simulated")
    assert torch.equal(final(store)["x"], final(simulated.store)["x"])
    frames = [s.measurements([1], per_client=False) for s in (store, simulated.store)]
    test = [frame[frame["split"] == "test"][["round", "name", "value"]].values.tolist() for frame in frames]
    assert test[0] == test[1]


def test_only_its_owner_reads_what_a_node_keeps_and_the_model_needs_none_of_it(tmp_path: Path) -> None:
    experiment, nodes = deployment(tmp_path, TARGETS["classes"])
    store = deployed(experiment, nodes, tmp_path)
    for node in nodes:
        [own] = node.folder.iterdir()
        modes = [path.stat().st_mode & 0o777 for path in (own, own / "rows.npz")]
        assert modes == [0o700, 0o600]
        shutil.rmtree(node.folder)
    found = load(store, 1).evaluate(tmp_path / "test.csv")
    stored = {m.name: m.value for m in store.last([1], ["test/accuracy", "test/loss"])}
    assert {name: found[name] for name in ("accuracy", "loss")} == stored


@pytest.mark.slow
@needs_text
def test_a_pretrained_model_must_be_allowed_and_the_same_at_the_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    (tmp_path / "bert").mkdir()
    bert = tiny_encoder(tmp_path / "bert", "bert")
    model = f"hf:source={bert},frozen=1,length=8,cache=none"
    experiment, nodes = deployment(tmp_path, TARGETS["text"], model)
    nodes = [replace(node, limits=replace(node.limits, allow=(bert,))) for node in nodes]
    channel = Direct(nodes)
    serve(channel, configuration(experiment.replace(clients__number=3), tmp_path), VERSIONS)
    simulated = run(experiment, runs=tmp_path / "simulated")
    assert torch.equal(final(RunStore(tmp_path / "runs"))["x"], final(simulated.store)["x"])
    sent = next(data for client, kind, data, _ in channel.seen if (client, kind) == (0, "train"))
    reply, _ = unpack(replace(nodes[0], limits=Limits()).answer(sent), Reply)
    says = f"model hf:{bert} is not part of fedskew; the node's owner can start the node with --allow {bert}"
    assert says in reply.reason
    weights = load_file(f"{bert}/model.safetensors")
    save_file({name: value + 1 for name, value in weights.items()}, f"{bert}/model.safetensors", {"format": "pt"})
    reply, _ = unpack(nodes[0].answer(sent), Reply)
    assert re.search(
        "the pretrained model here has the hash [0-9a-f]{16}, but the run's has [0-9a-f]{16}; install", reply.reason
    )


def refused(change: Callable[[pd.DataFrame], pd.DataFrame], folder: Path, option: str = "label=outcome") -> str:
    """Return the reason why the first site's file is refused."""
    experiment, nodes = deployment(folder, "label=outcome")
    change(pd.read_csv(nodes[0].rows)).to_csv(nodes[0].rows, index=False)
    table = TableData(path=str(nodes[0].rows), **dict([option.split("=")]))
    seen: list[str] = []

    def spoil(client: int, kind: str, round_: int, data: bytes) -> bytes:
        seen.extend([unpack(data, Reply)[0].reason] * (client == 0))
        return data

    channel = Direct([replace(nodes[0], table=table), *nodes[1:]], spoil)
    with pytest.raises(Exception, match="client"):
        serve(channel, configuration(experiment.replace(clients__number=3), folder, wait=0.1), VERSIONS)
    return seen[0]


@pytest.mark.parametrize(
    ("change", "option", "reason"),
    [
        (
            lambda rows: rows.drop(columns="age"),
            "label=outcome",
            "site-0.csv: has no column age, which the run learns from",
        ),
        (
            lambda rows: rows.replace({"outcome": {"ill": "sick"}}),
            "label=outcome",
            "column 'outcome' holds 'sick', which is no class of the run: ill, well",
        ),
        (
            lambda rows: rows.assign(cost=1.5),
            "target=cost",
            "has targets for regression, but the run needs classes; start the node with",
        ),
    ],
)
def test_a_file_that_does_not_fit_the_run_is_refused(change, option, reason, tmp_path: Path) -> None:
    assert reason in refused(change, tmp_path, option)


def test_a_table_is_refused_by_a_run_on_arrays(tmp_path: Path) -> None:
    patients(20, 0).to_csv(tmp_path / "rows.csv", index=False)
    node = Node(
        0, tmp_path / "rows.csv", tmp_path / "states", table=TableData(path=str(tmp_path / "rows.csv"), label="outcome")
    )
    reply, _ = unpack(node.answer(pack(request(Experiment()))), Reply)
    assert reply.reason.endswith("the run learns from arrays, not from a table; start the node with --rows FILE.npz")


def test_a_table_without_the_shared_rows_of_a_run_is_refused(tmp_path: Path) -> None:
    """It trained as FedAvg under the name data-sharing."""
    experiment, nodes = deployment(tmp_path, "label=outcome")
    shared = experiment.replace(clients__number=3, shared_data={"beta": 0.1})
    with pytest.raises(TooFew, match="lacks the run's shared_data, rows that all clients have; start"):
        serve(Direct(nodes), configuration(shared, tmp_path, wait=0.1), VERSIONS)


def test_a_sites_table_names_no_clients(tmp_path: Path) -> None:
    patients(20, 0).to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(BadInput, match="leave out client"):
        check_table(TableData(path=str(tmp_path / "rows.csv"), label="outcome", client="hospital"))
    with pytest.raises(BadInput, match="leave out fewest; use --fewest 3"):
        check_table(TableData(path=str(tmp_path / "rows.csv"), label="outcome", fewest=3))


@pytest.mark.parametrize("person", [None, "patient"])
def test_a_node_holds_out_whole_persons(person: str | None, tmp_path: Path) -> None:
    experiment, nodes = deployment(tmp_path, TARGETS["classes"])
    for node in nodes:
        rows = pd.read_csv(node.rows).head(15)
        rows = rows.assign(age=np.arange(len(rows)) + 20.5, patient=[f"p{at}" for at in range(len(rows))])
        rows.loc[np.repeat(rows.index, 5)].sample(frac=1, random_state=0).to_csv(node.rows, index=False)
    nodes = [replace(node, table=replace(node.table, person=person)) for node in nodes]
    deployed(experiment.replace(clients__held_out=0.2), nodes, tmp_path)
    for node in nodes:
        [own] = node.folder.iterdir()
        with np.load(own / "rows.npz") as arrays:
            trained, measured = ({*arrays[name][:, 0].tolist()} for name in ("x", "x_measured"))
            assert len(arrays["x_measured"]) == 0.2 * (len(arrays["x"]) + len(arrays["x_measured"]))
        assert bool(trained & measured) == (person is None)


def test_a_table_that_changes_during_a_run_is_refused(tmp_path: Path) -> None:
    """Rows in another order would mix held-out rows with rows for training, and their number would not show it."""
    experiment, nodes = deployment(tmp_path, "label=outcome")
    options = configuration(experiment.replace(clients__number=3, checkpoint__every=1), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        serve(Direct(nodes, dying), options, VERSIONS)
    rows = pd.read_csv(nodes[0].rows)
    rows[::-1].to_csv(nodes[0].rows, index=False)
    with pytest.raises(TooFew, match="its rows have changed since this run began; bring them back as they were"):
        serve(Direct(nodes), {**options, "resume": 1, "deployment.fewest": 1.0}, VERSIONS)
    rows.to_csv(nodes[0].rows, index=False)
    serve(Direct(nodes), {**options, "resume": 1}, VERSIONS)


def dying(client: int, kind: str, round_: int, data: bytes) -> bytes:
    if round_ == 2:
        raise KeyboardInterrupt
    return data


def test_a_node_says_which_cells_the_run_never_saw(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    experiment, nodes = deployment(tmp_path, "label=outcome")
    rows = pd.read_csv(nodes[1].rows)
    rows.assign(city=rows["city"].str.upper(), age=rows["age"] * 10).to_csv(nodes[1].rows, index=False)
    deployed(experiment, nodes, tmp_path)
    said = [line.partition("csv: ")[2] for line in caplog.messages if line.startswith("table ")]
    city, age = (next(line for line in said if line.startswith(f"column '{name}'")) for name in ("city", "age"))
    assert city.startswith("column 'city': 30 of 30 rows unknown, such as ")
    assert " rows outside 21 to 88" in age
    assert all(line.endswith("; no row from which the run took its columns was like that") for line in (city, age))


def test_views_say_that_a_node_may_train_on_the_servers_test_rows(tmp_path: Path) -> None:
    experiment, nodes = deployment(tmp_path, "label=outcome")
    own = experiment.replace(dataset=f"table:{nodes[0].rows},label=outcome", clients__held_out=0.2)
    line = "the server drew the test rows from its own table: a node with the same file trains on them"
    for each, says in ((own, True), (experiment.replace(training__rounds=1), False)):
        store = deployed(each.replace(training__rounds=1), nodes, tmp_path / str(says))
        assert any(text.startswith(line) for text in remarks(store.runs())) == says
