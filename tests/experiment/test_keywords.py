"""The short names of settings: one table for the command line and for Python."""

import dataclasses
from typing import get_type_hints

import pytest

import fedskew as fs
from fedskew.cli.main import parser
from fedskew.cli.request import experiment_from as from_words
from fedskew.cli.verbs import VERBS, Verb, of_keyword
from fedskew.core.errors import BadInput
from fedskew.experiment.combinations import experiment_from
from fedskew.experiment.config import COMPONENTS, SETTINGS, Experiment
from fedskew.experiment.keywords import KEYWORDS, CompareKeywords, DiagnoseKeywords, Settings, declared
from fedskew.experiment.settings import Clients, Evaluation
from fedskew.loop.plan import System

VALUES: dict[str, object] = {
    "dataset": "digits:test_fraction=0.3", "skew": ["label-shards:shards=2", "feature-affine"], "clients": 7,
    "partition_seed": 3, "held_out": 0.3, "unseen": 0.2, "server_data": 0.1, "model": "mlp:hidden=[8]", "solver": "adamw",
    "lr": 0.02, "momentum": 0.5, "server": "sgd:lr=0.9", "selection": "uniform:fraction=0.5", "refine": "distillation:steps=3",
    "sharing": "personal:head=1", "cohort": 3, "codec": "int8", "augment": "none", "epochs": 2, "steps": 4,
    "batch_size": "all", "system": "stragglers=0.5,dropout=0.1", "availability": "random:p=0.8", "rounds": 9,
    "engine": "stacked:width=4", "dtype": "float64", "device": "cpu", "precision": "full", "algorithm": "fedadam:lr=0.02",
    "seed": 5, "name": "mine", "task": "regression:absolute", "margin": 2.5,
    "harmonisation": "combat:protected=[age],shrinkage=false",
    "lr_decay": "warm-up:5+cosine", "patience": 3, "init": "7:20",
}  # fmt: skip


def words(name: str, value: object) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [word for v in values for word in (f"--{name.replace('_', '-')}", str(v))]


def test_the_values_below_cover_every_keyword() -> None:
    assert {*VALUES, "metric"} == set(KEYWORDS)  # a metric is always of a file


@pytest.mark.parametrize("name", VALUES)
def test_a_keyword_means_what_the_option_of_its_name_means(name: str) -> None:
    solver = {"solver": "sgd"} if name == "momentum" else {}
    given = solver | {name: VALUES[name]}
    line = [word for key, value in given.items() for word in words(key, value)]
    typed = from_words(parser().parse_args(["run", *line]))
    assert experiment_from(None, given) == typed
    assert typed != experiment_from(None, solver) or name in ("augment", "device", "precision")


@pytest.mark.parametrize(
    "verb", [verb for verb in VERBS if verb.name in ("run", "compare", "tune", "skew", "diagnose")]
)
def test_an_option_is_declared_once(verb: Verb) -> None:
    """What is a keyword of Python, too, comes from the keyword's declaration."""
    keywords = declared(DiagnoseKeywords if verb.name == "diagnose" else CompareKeywords)
    options = [*verb.options, *(option for group in verb.groups.values() for option in group)]
    same = {option.name: option for option in options if option.name[2:].replace("-", "_") in keywords}
    assert same == {name: of_keyword(keywords[name[2:].replace("-", "_")]) for name in same}
    assert len(same) >= 7


def test_keywords_set_one_option_and_keep_the_others() -> None:
    made = Experiment(clients=20, rounds=5, lr=0.1, batch_size="all", partition_seed=4)
    assert made.clients == Clients(number=20, partition_seed=4)
    assert (made.training.rounds, made.solver.lr, made.local.batch_size) == (5, 0.1, "all")
    again = made.replace(lr=0.3, clients=5, evaluation__every=2, system="dropout=0.1")
    assert again.clients == Clients(number=5, partition_seed=4)
    assert (again.solver.lr, again.training.rounds) == (0.3, 5)
    assert (again.evaluation, again.system) == (Evaluation(every=2), System(dropout=0.1))


def test_whole_sections_are_taken_as_before() -> None:
    made = Experiment(clients={"number": 4}, server={"name": "adam", "lr": 0.5}, system=System(dropout=0.2))
    assert made.clients == Clients(number=4)
    assert (made.server.lr, made.system.dropout) == (0.5, 0.2)
    assert made.replace(server__name="sgd", server__lr=0.7).server.lr == 0.7


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"ruonds": 3}, "unknown keyword 'ruonds'; did you mean 'rounds'?"),
        ({"store": "x"}, "unknown keyword 'store'; did you mean 'runs'?"),
        ({"learning_rate": 1}, "unknown keyword 'learning_rate'; did you mean 'lr'?"),
        ({"every": 3}, "unknown keyword 'every'; write evaluation__every="),
        ({"evry": 3}, "unknown keyword 'evry'; did you mean 'evaluation__every'?"),
        ({"evaluatoin__every": 3}, "evaluatoin__every: unknown section 'evaluatoin'; did you mean 'evaluation'?"),
        ({"evaluation__evry": 3}, "evaluation: unknown option 'evry'; did you mean 'every'?"),
        ({"rounds": "x"}, "training: rounds must be a whole number"),
        ({"rounds": 0}, "training: rounds must be at least 1, got 0"),
        ({"solver__lrr": 3}, "solver sgd: unknown option 'lrr'; did you mean 'lr'?"),
        ({"cohort": 2, "selection": "everyone"}, "cohort and selection both choose who takes part; leave one out"),
        ({"clients": [3]}, "clients: expected a table of options, got [3]"),
        ({"skew": ["iid", "feature-affine"], "skew__alpha": 1}, "skew.alpha: needs exactly one skew, got 2; "),
    ],
)
def test_wrong_keywords_give_one_line(keywords: dict[str, object], message: str) -> None:
    for make in (Experiment, Experiment().replace, fs.run, lambda **k: fs.compare(["fedavg"], **k)):
        with pytest.raises(BadInput) as error:
            make(**keywords)
        assert str(error.value).startswith(message)


def test_types_for_editors_name_every_keyword_and_setting() -> None:
    sections = [f.name for f in dataclasses.fields(Experiment)]
    options = {f"{section}__{f.name}" for section, cls in SETTINGS.items() for f in dataclasses.fields(cls)}
    known = {*KEYWORDS, *sections, *options}
    hints = set(get_type_hints(Settings))
    assert known <= hints
    assert {key.partition("__")[0] for key in hints - known} <= set(COMPONENTS)


def test_run_and_compare_take_keywords(tmp_path) -> None:
    quick = {"dataset": "digits", "rounds": 1, "epochs": 1, "clients": 3, "engine": "sequential", "runs": tmp_path}
    one = fs.run(algorithm="fedprox:mu=0.5", **quick)
    assert [r.name for r in one.records] == ["fedprox:mu=0.5"]
    several = fs.compare(["fedavg", "fedadam"], seeds=[3, 4], **quick)
    assert [(r.name, r.seed) for r in several.records] == [
        ("fedavg", 3), ("fedadam", 3), ("fedavg", 4), ("fedadam", 4)
    ]  # fmt: skip
    data = fs.load("digits")
    assert fs.run(**{**quick, "dataset": data}).records[0].facts["data"]["name"] == data.name
    again = fs.run(Experiment(**{k: v for k, v in quick.items() if k != "runs"}), lr=0.3, runs=tmp_path)
    assert "lr = 0.3" in again.records[0].experiment


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fs.run("digits"), "run: give an Experiment, or keywords such as dataset='digits', not 'digits'"),
        (lambda: fs.compare("fedavg"), "compare: write the methods as a list, ['fedavg']"),
        (lambda: fs.compare(["fedavg"], ["fedavg"]), "compare: the methods are named twice"),
        (lambda: fs.compare(["fedavg", "fedavg"]), "compare: an algorithm is named twice"),
    ],
)
def test_wrong_calls_give_one_line(call, message: str) -> None:
    with pytest.raises(BadInput) as error:
        call()
    assert str(error.value) == message
