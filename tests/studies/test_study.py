"""`fedskew study`: the plan, the arms, the decision, and whole studies of small data."""

import json
import re
from contextlib import redirect_stderr
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import fedskew as fs
from fedskew.api import execute
from fedskew.api.caller import Caller
from fedskew.api.runs import model_of
from fedskew.api.study import Decided, Execution, described, words_of
from fedskew.cli.main import main
from fedskew.core.errors import BadInput, Interrupted
from fedskew.data.datasets.own import OwnData
from fedskew.diagnosis.diagnose import diagnose
from fedskew.diagnosis.subject import DiagnosisOptions
from fedskew.experiment.combinations import suited
from fedskew.experiment.config import Experiment, from_toml
from fedskew.models.mlp import Mlp
from fedskew.report.study import Findings, printed, shortened
from fedskew.report.tables import same_rows, values_of_rows
from fedskew.store import test_rows
from fedskew.store.runs import RunStore
from fedskew.store.test_rows import Stored
from fedskew.studies import study as steps
from fedskew.studies.study import (
    ALONE,
    COSTS,
    FIRST,
    POOLED,
    SHUFFLED,
    Arm,
    Schedule,
    Timing,
    arms_of,
    group_names,
    groups_of,
    schedule,
)
from tests.commands import error_of, output_of

ARMS_OF_COSTS = [Arm(name) for name in COSTS]
REMEDIES = [Arm(name) for name in "abcdef"]


def clinics(seed: int = 0, rows: int = 80) -> pd.DataFrame:
    """Three clinics with two columns of numbers and one of words; the outcome depends on all."""
    rng, n = np.random.default_rng(seed), 3 * rows
    frame = pd.DataFrame(
        {"age": rng.normal(50, 10, n).round(), "dose": rng.normal(size=n), "sex": rng.choice(["f", "m"], n)}
    )
    score = (frame["age"] - 50) / 10 + frame["dose"] + (frame["sex"] == "m") + rng.logistic(size=n) / 2
    return frame.assign(
        outcome=np.where(score > 0.5, "ill", "well"), clinic=np.repeat(["north", "south", "west"], rows)
    )


@pytest.fixture(scope="module")
def short() -> pytest.MonkeyPatch:
    """Make a study as short as possible: two remedies, two partitions, two training seeds on each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "PLANS", ((1.0, 2),))
        patch.setattr(steps, "PARTITIONS", (2,))
        yield patch


@pytest.fixture(scope="module")
def studied(short: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Decided]:
    """A study of a file, with a final model."""
    folder = tmp_path_factory.mktemp("study")
    clinics().to_csv(folder / "visits.csv", index=False)
    options = {"label": "outcome", "client": "clinic", "by": "sex,age", "rounds": 2, "minutes": 60, "jobs": 1}
    return folder, fs.study(folder / "visits.csv", runs=folder / "runs", final=True, progress=False, **options)


def test_the_plan_is_the_longest_that_fits() -> None:
    arms, each = [*ARMS_OF_COSTS, *REMEDIES], lambda partitions: 3 * partitions
    quick = Timing(a_round=0.01, a_run=0.1)
    plan = schedule(arms, each, quick, 30, 5, 2)
    assert (plan.rounds, plan.partitions, len(plan.arms), plan.left_out) == (30, 6, 10, ())
    assert schedule(arms, each, quick, 30, 60, 2).partitions == 20, "more minutes, more partitions"
    slow = schedule(arms, each, Timing(a_round=0.1, a_run=1.0), 30, 5, 2)
    assert tuple(arm.name for arm in slow.arms[:4]) == COSTS, "costs stay"
    assert (slow.rounds, slow.left_out) == (12, ("e", "f"))
    needed = 15 + Timing(0.1, 1.0).of(len(slow.arms) * (18 + 6), slow.rounds, 2)
    assert needed <= 300


def test_without_minutes_the_shortest_plan_may_take_longer_than_usual() -> None:
    each, timing = lambda partitions: 3 * partitions, Timing(a_round=0.2, a_run=2.0)
    quick = schedule(ARMS_OF_COSTS, each, Timing(a_round=0.01, a_run=0.1), 30, None, 2)
    assert (quick.rounds, quick.minutes) == (30, 2)
    plan = schedule([*ARMS_OF_COSTS, *REMEDIES], each, timing, 30, None, 2)
    assert (plan.rounds, plan.minutes, len(plan.arms)) == (6, 5, 6)
    says = (
        r"the shortest plan takes about \d+\.\d minutes .*; write --minutes 5, a smaller --model, fewer rows or fewer"
    )
    with pytest.raises(BadInput, match=says):
        schedule([*ARMS_OF_COSTS, *REMEDIES], each, timing, 30, 2, 2)
    with pytest.raises(BadInput, match="write --minutes 15"):
        schedule(ARMS_OF_COSTS, each, Timing(a_round=2.0, a_run=1.0), 30, None, 2)


def found_by(name: str, skew: str = "natural") -> dict:
    return diagnose(DiagnosisOptions(dataset=name, skew=skew))


def test_arms_of_a_table() -> None:
    arms, reasons = arms_of(Experiment(dataset="heart"), fs.load("heart"), found_by("heart"))
    names = [arm.name for arm in arms]
    assert names[:4] == [FIRST, POOLED, SHUFFLED, ALONE]
    assert names[4:9] == [
        *("FedAvg + site-scale", "FedAvg + site-bias", "fedavg-ft"),
        *("FedAvg + combat", "FedAvg + prior"),
    ]
    assert len(names) == 11, "and two methods that were best in the nearest measured cases"
    of_labels = {**found_by("heart"), "dominant": "label"}
    arms, _ = arms_of(Experiment(dataset="heart"), fs.load("heart"), of_labels)
    assert [arm.name for arm in arms[4:6]] == ["FedAvg + site-bias", "FedAvg + prior"], "the fitting ones are first"
    arms, _ = arms_of(Experiment(dataset="heart"), fs.load("heart"), {**of_labels, "dominant": "concept"})
    assert [arm.name for arm in arms[4:6]] == ["fedavg-ft", "FedAvg + site-bias"]
    assert reasons == []
    arms, reasons = arms_of(
        Experiment(dataset="heart", harmonisation="site-scale"), fs.load("heart"), found_by("heart")
    )
    assert [arm.name for arm in arms[4:8]] == names[5:9], "FedAvg is not compared with itself"
    assert reasons == ["FedAvg + site-scale does not apply: FedAvg has it already"]


def test_remedies_that_data_do_not_allow_are_left_out_with_the_reason() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 5)), rng.normal(size=80)
    data = fs.Dataset(x=x, y=y, x_test=x, y_test=y, groups=np.arange(80) % 4)
    found = diagnose(DiagnosisOptions(dataset=data))
    base = Experiment(skew="natural", task="regression", model="mlp")
    arms, reasons = arms_of(base, data, found)
    assert "FedAvg + prior" not in [arm.name for arm in arms]
    assert any("FedAvg + prior does not apply" in reason and "no classes" in reason for reason in reasons)


def test_a_method_that_cannot_run_leaves_its_place_to_the_next() -> None:
    nearest = [{"method": name} for name in ("fedmd:steps=5", "scaffold", "feddyn:alpha=0.1", "fedprox:mu=0.1")]
    diagnosis = {**found_by("heart"), "advice": {"nearest": nearest}}
    arms, reasons = arms_of(Experiment(dataset="heart"), fs.load("heart"), diagnosis)
    assert [arm.name for arm in arms[9:]] == ["scaffold", "feddyn:alpha=0.1"]
    assert [reason.partition(":")[0] for reason in reasons] == ["FedMD does not apply"]


def test_groups_are_values_or_thirds_of_the_rows_of_all_splits() -> None:
    splits = [fs.load(f"heart:split_seed={seed}") for seed in (0, 1)]
    groups = groups_of(splits, ["sex", "age", "cp"])
    rows = len(set(splits[0].test_units) | set(splits[1].test_units))
    assert [name for name in groups if not name.startswith("age")] == ["sex 0", "sex 1", "cp 1", "cp 2", "cp 3", "cp 4"]
    for column, number in (("sex", 2), ("age", 3), ("cp", 4)):
        ids = [part for name, part in groups.items() if name.startswith(column)]
        assert len(ids) == number
        assert len(np.unique(np.concatenate(ids))) == sum(map(len, ids)) == rows


def test_groups_of_very_small_and_very_large_numbers_stay_apart() -> None:
    few = pd.Series([1e-6, 2e-6, 5e-6, np.nan])
    assert group_names(few, None).dropna().tolist() == ["1e-06", "2e-06", "5e-06"]
    assert group_names(few * 1e6 + 1_010_000, None).dropna().tolist() == ["1010001", "1010002", "1010005"]
    for values in (np.linspace(1e-6, 4e-6, 31), 1e6 + np.arange(31)):
        assert group_names(pd.Series(values), None).nunique() == 3
    [low, *_] = group_names(pd.Series(np.linspace(1e-6, 4e-6, 31)), None)
    assert low == "1e-06 to 2e-06"


@pytest.mark.parametrize(
    ("values", "groups"),
    [
        ([0.0] * 12 + [1, 2, 3, 4, 5, 6, 7], {"0": 12, "1": 1, "2 to 7": 6}),
        ([*range(9), np.nan], {"0 to 2": 3, "3 to 5": 3, "6 to 8": 3}),
        (1000 + np.arange(9) / 10, {"1000 to 1000.2": 3, "1000.3 to 1000.5": 3, "1000.6 to 1000.8": 3}),
    ],
    ids=["many are equal", "one is missing", "close to each other"],
)
def test_thirds_of_numbers_are_named_by_their_ends(values: list[float], groups: dict[str, int]) -> None:
    assert group_names(pd.Series(values), None).value_counts().to_dict() == groups


def test_groups_are_of_columns_of_the_table_from_the_lowest_to_the_highest() -> None:
    data = fs.load("heart")
    assert [*groups_of([data], ["oldpeak"])] == ["oldpeak -1.1 to 0", "oldpeak 0.1 to 1.2", "oldpeak 1.3 to 6.2"]
    with pytest.raises(BadInput, match="no column 'cp = 1'; did you mean 'cp'"):
        groups_of([data], ["cp = 1"])


def test_groups_by_dates_have_dates_and_rows_of_a_person_that_differ_have_none(tmp_path: Path) -> None:
    days = pd.Timestamp("2021-01-05") + pd.to_timedelta(np.arange(240) % 120, unit="D")
    frame = clinics().assign(
        day=days.strftime("%Y-%m-%d"), person=np.arange(240) // 2, visit=np.tile(["1st", "2nd"], 120)
    )
    frame.to_csv(tmp_path / "v.csv", index=False)
    options = {"label": "outcome", "client": "clinic"}
    groups = groups_of([fs.table(tmp_path / "v.csv", **options)], ["day"])
    ends = re.findall(r"2021-\d\d-\d\d", " ".join(groups))
    assert [*groups] == [f"day {low} to {high}" for low, high in zip(ends[::2], ends[1::2], strict=True)]
    assert ends == sorted({*ends})
    assert (len(ends), ends[0], ends[-1]) == (6, "2021-01-06", "2021-05-01")
    frame = frame.assign(sex=np.repeat(["f", "m"], 120))
    frame.to_csv(tmp_path / "v.csv", index=False)
    groups = groups_of([fs.table(tmp_path / "v.csv", person="person", **options)], ["visit", "sex"])
    assert set(groups) == {"sex f", "sex m"}, "a person's first visit does not stand for the second"


def test_the_plan_says_what_had_no_time_and_what_diverged() -> None:
    plan = Schedule(5, 6, (Arm(FIRST),), ("scaffold",), 2.0, diverged=("FedAvg + combat", "fedprox:mu=0.1"))
    text = described(plan, 5, nested=True)
    assert "; no time for SCAFFOLD; diverged in tuning: FedAvg + combat, FedProx mu = 0.1; more --minutes" in text
    assert described(replace(plan, left_out=(), diverged=()), 5, nested=True).endswith("; nothing left out")


def test_at_most_thirty_lines_of_eighty_characters(studied: tuple[Path, Decided]) -> None:
    lines = printed(studied[1].findings)
    assert len(lines) < 30
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("Decision: Use ")
    text = "\n".join(lines)
    for part in ("How different", "What it costs", "What helps", "For whom", "How sure"):
        assert part in text
    for clinic in ("north", "south", "west"):
        assert re.search(rf"^  {clinic} ", text, re.M)


def test_the_page_has_six_parts_and_the_sites_by_name(studied: tuple[Path, Decided]) -> None:
    page = studied[1].report(studied[0] / "page.html").read_text(encoding="utf-8")
    heads = re.findall(r"<h2>(.*?)</h2>", page)
    assert heads == ["How different", "What it costs", "What helps", "For whom", "How sure", "Decision"]
    for word in ("north", "south", "west", "sex f", "Centralised", "Local only", "fedskew predict"):
        assert word in page
    assert re.search(r"age \d+ to \d+", page)


@pytest.fixture(scope="module")
def dealt(short: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> tuple[Decided, str]:
    """A study of rows that a skew deals, so that no test row has a site, with options that have no effect."""
    options = {"dataset": "heart", "skew": "label-dirichlet:alpha=0.5", "clients": 4, "rounds": 1, "minutes": 60}
    ignored = {"by": "sex", "partition_seed": 7, "seed": 5, "algorithm": "scaffold", "faults__attempts": 3}
    with redirect_stderr(StringIO()) as said:
        decided = fs.study(runs=tmp_path_factory.mktemp("dealt"), jobs=1, **options, **ignored)
    return decided, " ".join(said.getvalue().split())


def test_rows_that_a_skew_deals_are_studied_without_sites(dealt: tuple[Decided, str], tmp_path: Path) -> None:
    decided, _ = dealt
    text = "\n".join(printed(decided.findings))
    assert "Decision: Use " in text
    assert any("NEW_ROWS.csv" in command for command in decided.findings.commands)
    assert "For whom: no table: the clients are dealt" in text
    page = decided.report(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "No table: the clients are dealt" in page
    assert "4 clients · 920 rows" in page, "training and test rows"
    assert "Site-bias: an intercept of the site" in page


def test_a_study_notes_options_without_effect(dealt: tuple[Decided, str]) -> None:
    decided, said = dealt
    assert "algorithm, training.seed and clients.partition_seed without effect: a study has" in said
    assert "faults.attempts has no effect without faults.share" in said
    assert decided.findings.of_groups() == {}, "no table of dashes"
    assert any(note.startswith("No groups by sex: the clients are dealt") for note in decided.findings.sure())


def test_a_final_model_with_test_rows_of_its_own_is_not_trained_on_them(short, tmp_path: Path) -> None:
    clinics(rows=40).to_csv(tmp_path / "v.csv", index=False)
    clinics(1, rows=20).to_csv(tmp_path / "t.csv", index=False)
    data = f"table:path={tmp_path}/v.csv,label=outcome,client=clinic,test={tmp_path}/t.csv"
    command = ["study", "--dataset", data, "--rounds", "1", "--minutes", "60", "--jobs", "1", "--final"]
    out = output_of(*command, "--runs", tmp_path / "runs")
    assert "is trained on all training rows: " in out
    output_of("export", "--runs", tmp_path / "runs", "--output", tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert "trained on all training rows, and on no test row" in card
    assert "| accuracy |" in card


def test_all_arms_of_dealt_rows_are_measured_on_the_same_rows(dealt: tuple[Decided, str]) -> None:
    by_row = dealt[0].findings.by_row
    for seeds, reference in by_row[FIRST].items():
        assert len(reference.values) > 100
        assert all(same_rows(of_arm[seeds], reference) for of_arm in by_row.values())


def pictures() -> fs.Dataset:
    """200 digits, as pictures with one channel."""
    digits = fs.load("digits")
    x, x_test = digits.x[:200].reshape(-1, 1, 8, 8), digits.x_test[:100].reshape(-1, 1, 8, 8)
    return replace(digits, x=x, x_test=x_test, y=digits.y[:200], y_test=digits.y_test[:100], preprocessing=None)


def test_a_network_for_pictures_is_timed_on_a_part_of_the_rows(tmp_path: Path, monkeypatch) -> None:
    """On all rows of CIFAR-10 the timed run takes a quarter of an hour, and a study has two minutes."""
    monkeypatch.setattr("fedskew.studies.study.PASSES", 400)
    data, store = pictures(), RunStore(tmp_path)
    base = Experiment(dataset=OwnData(fingerprint=data.fingerprint()), model="cnn", clients__number=2)
    timing, whole = Execution(base, data, {}, store, 1, Caller(False), None).timed()
    [record] = store.runs()
    assert (from_toml(record.experiment).local.epochs, whole.local.epochs) == (2, 5)
    first, second, last = (measured.value for measured in store.curves([record.id], ["round/seconds"]))
    assert timing.a_round == pytest.approx(min(first, second) * 5 / 2), "the last round also measures the model"
    assert timing.a_run >= last - min(first, second)


def test_where_fedavg_diverges_a_study_tries_smaller_learning_rates(tmp_path: Path) -> None:
    """Of the data set parkinsons, all 40 runs of local-only diverged at the usual three rates."""
    clinics().to_csv(tmp_path / "visits.csv", index=False)
    source = f"table:path={tmp_path}/visits.csv,target=dose,client=clinic"
    base = Experiment(dataset=source, skew="natural", solver__lr=10.0)
    data = base.dataset.load()
    for _ in range(2):  # a repetition reads both stored runs
        store = RunStore(tmp_path / "runs")
        timing, lower = Execution(suited(base, data), data, {}, store, 1, Caller(False), None).timed()
        assert [record.status for record in store.runs()] == ["diverged", "finished"]
        assert lower.solver.lr == 1.0
        assert timing.a_round > 0


def test_pictures_get_a_quicker_model_where_the_usual_one_takes_too_long(tmp_path: Path, short, monkeypatch) -> None:
    data, timed = pictures(), Execution.timed

    def slow(self: Execution) -> tuple[Timing, Experiment]:
        timing, base = timed(self)
        return (timing if isinstance(base.model, Mlp) else Timing(100, 100)), base

    monkeypatch.setattr(Execution, "timed", slow)
    default = Experiment(skew="label-dirichlet:alpha=0.5", clients__number=3, rounds=1, model="cnn")
    monkeypatch.setattr("fedskew.api.study.asked", lambda *_: (default, data))
    options = {"data": data, "runs": tmp_path, "jobs": 1, "minutes": 60, "progress": False}
    decided = fs.study(**options)
    said = "the model is mlp, since cnn takes too long: the shortest plan takes about"
    assert any(said in note for note in decided.findings.notes)
    with pytest.raises(BadInput, match="the shortest plan takes about"):
        fs.study(**options, model="cnn")


def test_other_rows_are_not_paired_row_by_row() -> None:
    one, other = (Stored(1, np.ones(3), np.array(ids)) for ids in ([1, 2, 3], [1, 2, 4]))
    assert values_of_rows({(0, 0): one}, {(0, 0): other}, [(0, 0)]) == []
    assert values_of_rows({(0, 0): one}, {(0, 0): one}, [(0, 0)])[0].values.tolist() == [0, 0, 0]


@pytest.mark.parametrize("remedies", [2, 12])
def test_no_more_lines_than_thirty_with_the_page(studied: tuple[Path, Decided], remedies: int) -> None:
    names = [f"remedy {number}" for number in range(remedies)]
    rows = {**ROWS, SHUFFLED: ROWS[POOLED], **dict.fromkeys(names, ROWS["y"])}
    found = decided_by(studied[1], rows, {FIRST: ("undecided", 0.1), "x": ("higher", 0.14)})
    lines = printed(found)
    assert len(lines) <= 29
    assert ("more: see the page" in "\n".join(lines)) == (remedies == 12)
    assert lines[-1].endswith("."), "whole sentences"


def test_the_command_to_use_the_decision_has_the_options_of_the_study(studied: tuple[Path, Decided]) -> None:
    words = words_of("v.csv", {"label": "ill", "rounds": 2, "skew": ["natural", "shuffled"], "final": True}, None)
    assert words == ["study", "v.csv", "--label", "ill", "--rounds", "2", "--skew", "natural", "--skew", "shuffled"]
    assert words_of(None, {"evaluation__every": 3, "minutes": 1.5}, None) == [
        *("study", "--set", "evaluation.every=3", "--minutes", "1.5")
    ]
    given = {"evaluation__layers": True, "model__hidden": (8, 8), "lr": 0.12345678}
    assert words_of(None, given, None) == [
        *("study", "--set", "evaluation.layers=true", "--set", "model.hidden=[8,8]", "--lr", "0.12345678")
    ]
    assert words_of("v.csv", {"model": object()}, None) == []


def test_partitions_draw_their_own_test_rows_and_tuning_sees_none_of_them(studied: tuple[Path, Decided]) -> None:
    store = studied[1].runs.store
    compared = {r.partition_seed: r for r in studied[1].runs.records}
    assert [from_toml(compared[p].experiment).dataset.split_seed for p in (0, 1)] == [0, 1]
    trials = [record for record in store.runs() if "tuning" in record.facts]
    assert {record.partition_seed for record in trials} == {1000, 1001}
    assert not {record.partition_seed for record in trials} & set(compared)
    for trial in trials:
        source = from_toml(trial.experiment).dataset
        assert source.split_seed == trial.partition_seed - 1000, "it trains on the other rows of the partition"


def test_all_arms_are_measured_on_the_same_rows(studied: tuple[Path, Decided]) -> None:
    decided = studied[1]
    stored = test_rows.read(decided.runs.store, decided.runs.ids, "sites")
    for p in (0, 1):
        ids = {tuple(stored[r.id].units) for r in decided.runs.records if r.partition_seed == p}
        assert len(ids) == 1
    threads = {from_toml(record.experiment).training.threads for record in decided.runs.records}
    assert threads == {torch.get_num_threads()}, "one process takes the threads that OMP_NUM_THREADS gives it"
    table = decided.table()
    assert set(table["observed"]) == {"partition"}
    assert table["comparisons"].iloc[0] == len(table) - 1


def test_the_centralised_arm_has_one_client_and_the_shuffled_one_no_sites(studied: tuple[Path, Decided]) -> None:
    records = {record.name: record for record in studied[1].runs.records}
    assert records[POOLED].facts["partition"]["clients"] == 1
    assert records[SHUFFLED].facts["partition"]["clients"] == 3
    sizes = {records[name].facts["partition"]["rows"] for name in (POOLED, SHUFFLED, FIRST)}
    assert len(sizes) == 1


def test_an_interrupted_study_continues(short, monkeypatch, tmp_path: Path) -> None:
    clinics().to_csv(tmp_path / "visits.csv", index=False)
    options = {"label": "outcome", "client": "clinic", "rounds": 1, "minutes": 60, "jobs": 1, "runs": tmp_path / "runs"}
    play, calls = execute.play, []

    def stopped(store, runs, *rest, **more):
        calls.append(len(runs))
        if len(calls) == 3:
            play(store, dict(list(runs.items())[:3]), *rest, **more)
            raise Interrupted("stopped")
        return play(store, runs, *rest, **more)

    monkeypatch.setattr(execute, "play", stopped)
    with pytest.raises(Interrupted):
        fs.study(tmp_path / "visits.csv", progress=False, **options)
    done = [r.id for r in RunStore(tmp_path / "runs").runs() if r.status == "finished"]
    decided = fs.study(tmp_path / "visits.csv", progress=False, **options)
    assert calls[3] == calls[2] - 3, "only the rest"
    assert all(record.status == "finished" for record in decided.runs.records)
    assert len(done) == calls[0] + calls[1] + 3
    # a process killed between its last tuning run and the note of their seconds
    RunStore(tmp_path / "runs").db.execute("UPDATE runs SET facts = json_remove(facts, '$.pace')")
    assert fs.study(tmp_path / "visits.csv", progress=False, **options).findings.decision


def test_the_final_model_trains_on_all_rows_and_predict_takes_it(studied: tuple[Path, Decided], capsys) -> None:
    folder, decided = studied
    final = decided.final.records[0]
    assert final.facts["partition"]["rows"] == 240
    assert final.facts["final"]["expected"].endswith("accuracy at the sites")
    assert final.facts["final"]["arm"] == decided.findings.decision
    expected = f"the final model of a study, trained on all rows: expected {final.facts['final']['expected']}"
    assert " ".join(expected.split()) in " ".join(output_of("show", final.id, "--runs", folder / "runs").split())
    stored = decided.runs.store.measurements([final.id])
    assert set(stored["split"]) <= {"round", "client"}, "numbers on rows that it trained on are removed"
    assert model_of("latest", folder / "runs").ids == (final.id,)
    with pytest.raises(BadInput, match="or repeat the study with --final"):
        decided.runs.one("predict")
    rows = folder / "new.csv"
    clinics(1).drop(columns="outcome").to_csv(rows, index=False)
    assert main(["predict", str(rows), "--runs", str(folder / "runs"), "--output", str(folder / "a.csv")]) == 0
    assert f"run {final.id} is the final model of a study: FedAvg, expected" in capsys.readouterr().err
    assert len(pd.read_csv(folder / "a.csv")) == 240
    output_of("export", "--runs", folder / "runs", "--output", folder / "model")
    card = (folder / "model" / "README.md").read_text()
    assert f"expects {final.facts['final']['expected']}" in card
    assert "| metric on the test rows |" not in card, "no row is left to test it"
    site, *columns = decided.findings.sites().items()
    assert f"| {site[1][0]} | {' | '.join(str(cells[0]) for _, cells in columns)} |" in card
    decided.runs.store.add_facts(final.id, {"final": {**final.facts["final"], "arm": "FedAvg + site-bias"}})
    assert main(["predict", str(rows), "--runs", str(folder / "runs"), "--output", str(folder / "a.csv")]) == 0
    decided.runs.store.add_facts(final.id, {"final": final.facts["final"]})
    assert "accuracy at the sites, for rows whose site is named" in " ".join(capsys.readouterr().err.split())


ROWS = {
    FIRST: (0.80, "", 0.0),
    POOLED: (0.82, "higher", 0.02),
    ALONE: (0.70, "lower", -0.1),
    "x": (0.84, "higher", 0.04),
    "y": (0.90, "undecided", 0.1),
    "z": (0.83, "higher", 0.03),
}


def decided_by(
    studied: Decided, rows: dict[str, tuple[float, str, float]], joint: dict[str, tuple[str, float]]
) -> Findings:
    """Findings with these means, verdicts and differences, and the verdicts of arms against sites that train alone."""
    found = replace(studied.findings, settings=dict.fromkeys(rows, "learning rate 0.1"))
    every = {"difference_half": 0.01, "p": 0.01, "pairs": 6, "observed": "partition", "seeds": 6}
    every |= {"seeds_to_decide": 0, "repeats_to_decide": 0, "rows_to_decide": 7.94, "difference_std": 0.01}
    every |= {"covers": "seeds", "comparisons": 5, "runs": 6, "finished": 6}
    half = {f"{found.results.measure.key}_half": 0.02}
    found.__dict__["rows"] = {
        name: {"method": name, found.results.measure.key: mean, "verdict": verdict, "difference": gap, **every, **half}
        for name, (mean, verdict, gap) in rows.items()
    }
    found.__dict__["over_baseline"] = 0.1, 0.01
    found.__dict__["over_alone"] = {
        name: {"method": name, "verdict": verdict, "difference": gap, **every} for name, (verdict, gap) in joint.items()
    }
    return found


def test_the_decision_is_the_best_remedy_with_verdict_higher(studied: tuple[Path, Decided]) -> None:
    joint = {FIRST: ("undecided", 0.1), "x": ("higher", 0.14)}
    found = decided_by(studied[1], ROWS, joint)
    assert found.decision == "x", "not the highest mean, which is undecided, and not pooled rows, which are no choice"
    use, joining = found.sentences()
    assert use == (
        "Use x, tuned (learning rate 0.1): 84.0 ± 2.0\u00a0% accuracy at the sites, +4.00 ± 1.00 points over 6 paired partitions "
        "(p\u00a0=\u00a00.01) against FedAvg."
    )
    assert joining.startswith(
        "Joining helps: +14.00 ± 1.00 points over 6 paired partitions (p\u00a0=\u00a00.01) over sites"
    )


def test_joining_says_if_less_is_better(studied: tuple[Path, Decided]) -> None:
    """+1.66 RMSE over sites that train alone was read as a gain."""
    found = decided_by(studied[1], ROWS, {FIRST: ("undecided", 0.1), "x": ("undecided", 0.14)})
    found = replace(found, results=replace(found.results))
    found.results.__dict__["measure"] = replace(studied[1].findings.results.measure, better="lower")
    assert "(less is better) over sites that train alone" in found.joining


SITE_BIAS, PRIOR = "FedAvg + site-bias", "FedAvg + prior"


@pytest.mark.parametrize(
    ("verdicts", "decision"),
    [(("undecided", "higher"), SITE_BIAS), (("lower", "undecided"), PRIOR), (("lower", "lower"), "y")],
)
def test_a_harmonisation_goes_before_a_method_that_is_not_reliably_better(
    studied: tuple[Path, Decided], monkeypatch, verdicts: tuple[str, str], decision: str
) -> None:
    rows = {**ROWS, "y": (0.90, "higher", 0.1), SITE_BIAS: (0.88, "higher", 0.08), PRIOR: (0.86, "higher", 0.06)}
    found = decided_by(studied[1], rows, dict.fromkeys(rows, ("higher", 0.1)))
    over_best = dict(zip((SITE_BIAS, PRIOR), ({"verdict": verdict} for verdict in verdicts), strict=True))
    monkeypatch.setattr(Findings, "over", lambda findings, name: over_best if name == "y" else {})
    assert found.decision == decision
    assert found.remedies[0] == decision, "the table begins with it"
    assert found.sentences()[0].endswith("; y is ahead of it, but not reliably.") == (decision != "y")


def test_differences_from_any_arm_are_paired(studied: tuple[Path, Decided]) -> None:
    findings = studied[1].findings
    over = findings.over("FedAvg + site-bias")
    assert over[FIRST]["difference"] == pytest.approx(-findings.rows["FedAvg + site-bias"]["difference"])
    assert "FedAvg + site-bias" not in over
    assert ALONE not in over


def test_an_arm_that_diverged_is_not_decided_and_its_runs_are_counted(studied: tuple[Path, Decided]) -> None:
    found = decided_by(studied[1], ROWS, {FIRST: ("undecided", 0.1), "z": ("higher", 0.14)})
    found.rows["x"]["finished"] = 5
    assert found.decision == "z"
    assert found.by_mean == ["y", "z", "x"]
    assert found.sure()[0].startswith("1 of 6 runs of x did not finish")
    assert "About 7.9 times the rows would decide y's difference, if it is as large as here" in found.sure()


@pytest.mark.parametrize(("p", "verdicts"), [(1.0, {"undecided"}), (0.0, {"higher", "lower"})])
def test_verdicts_at_the_sites_are_corrected(studied: tuple[Path, Decided], monkeypatch, p: float, verdicts) -> None:
    monkeypatch.setattr("fedskew.report.study.holm", lambda values: [p] * len(values))
    rows = studied[1].findings.at_sites("FedAvg + site-bias", ALONE)
    assert len(rows) == 3
    assert {row["verdict"] for row in rows.values()} <= verdicts


def test_partitions_pair_where_both_arms_have_the_same_training_seeds(studied: tuple[Path, Decided]) -> None:
    found, runs = studied[1].findings, studied[1].findings.results.runs
    [stopped, *_] = [run.id for run in runs if run.name == ALONE and run.partition_seed == 1]
    fewer = replace(found, results=replace(found.results, runs=[run for run in runs if run.id != stopped]))
    assert found.at_sites(FIRST, ALONE)
    assert not fewer.at_sites(FIRST, ALONE), "one pair of partitions is left"
    assert fewer.over_alone[FIRST]["pairs"] == 1


def test_without_a_better_remedy_the_decision_is_fedavg(studied: tuple[Path, Decided]) -> None:
    rows = {**ROWS, "x": (0.84, "undecided", 0.04), "z": (0.83, "equivalent", 0.03)}
    found = decided_by(studied[1], rows, {FIRST: ("undecided", 0.1), "x": ("higher", 0.14)})
    assert found.decision == FIRST
    use, joining = found.sentences()
    assert use.endswith("no remedy is reliably better.")
    assert joining.startswith("Whether joining helps is undecided")


def test_joining_does_not_help_only_if_every_joint_arm_is_behind(studied: tuple[Path, Decided]) -> None:
    behind = dict.fromkeys((FIRST, "x", "y", "z"), ("lower", -0.05))
    found = decided_by(studied[1], {**ROWS, "x": (0.84, "undecided", 0)}, behind)
    first, use = found.sentences()
    assert first.startswith(
        "Do not join: sites that train alone reach 70.0 ± 2.0\u00a0% accuracy at the sites; the best that joins"
    )
    assert use.startswith("If they join all the same, use z, tuned")
    assert (found.decision, found.used) == ("z", ALONE), "each site uses its own model"
    one = {**behind, "y": ("undecided", 0.0)}
    found = decided_by(studied[1], ROWS, one)
    assert found.sentences()[1].startswith("Whether joining helps is undecided")
    assert found.used == found.decision


@pytest.mark.slow
def test_sites_that_should_not_join_get_models_of_their_own(tmp_path: Path, capsys, monkeypatch) -> None:
    """Two of three sites have the opposite rule. The final model is each site's own, and answers each row by its site."""
    monkeypatch.setattr("fedskew.studies.study.PARTITIONS", (6,))
    monkeypatch.setattr("fedskew.studies.study.PLANS", ((1.0, 0),))
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(360, 2)), columns=["a", "b"]).assign(site=np.arange(360) % 3)
    frame["ill"] = np.where((frame["a"] > 0) == (frame["site"] == 0), "yes", "no")
    frame.assign(site=frame["site"].map("site {}".format)).to_csv(tmp_path / "rows.csv", index=False)
    options = {"label": "ill", "client": "site", "model": "softmax", "rounds": 3, "minutes": 60, "jobs": 1}
    decided = fs.study(tmp_path / "rows.csv", runs=tmp_path / "runs", final=True, progress=False, **options)
    assert decided.decision.startswith("Do not join")
    assert decided.findings.commands[-1].startswith("fedskew export --client NAME")
    words = [str(tmp_path / "rows.csv"), "--runs", str(tmp_path / "runs"), "--output", str(tmp_path / "a.csv")]
    assert main(["predict", *words]) == 0
    assert "final model of a study: Local only, expected" in capsys.readouterr().err
    answers = pd.read_csv(tmp_path / "a.csv")
    assert (answers["prediction"] == answers["ill"]).mean() > 0.9


@pytest.mark.parametrize("most", [4, 5, 8])
def test_sites_take_no_more_lines_than_there_are(most: int) -> None:
    for number in (1, 3, 5, 12):
        lines = shortened({"site": [f"s{k}" for k in range(number)], "joint": ["1"] * number}, most)
        assert len(lines) <= most
        assert (
            sum(line.startswith("  s") for line in lines)
            - 1
            + int((re.findall(r"(\d+) more site", lines[-1]) or [0])[0])
            == number
        )


def test_repairs_of_the_data_come_first(studied: tuple[Path, Decided]) -> None:
    findings = studied[1].findings
    repair = "north's column bmi may be in another unit (kg and lb): multiply it by 2.205."
    assert not findings.diagnosis["repairs"]
    assert findings.sentences()[0].startswith("Use ")
    wrong = replace(findings, diagnosis={**findings.diagnosis, "repairs": [repair]})
    assert wrong.sentences()[0].startswith("First mend the data")
    many = replace(wrong, diagnosis={**wrong.diagnosis, "repairs": [repair] * 5})
    assert len(printed(many)) <= 29
    lines = printed(wrong)
    assert repair.rstrip(".") in " ".join(line.strip() for line in lines)
    assert len(lines) <= 29


def test_a_site_has_its_own_metric_where_this_is_no_mean_over_rows(studied: tuple[Path, Decided]) -> None:
    """As RMSE: a value of each row that is right for all rows together says nothing of one site."""
    findings = replace(studied[1].findings)
    assert findings.is_mean_of_rows
    assert findings.of_groups()
    before = findings.at_sites(FIRST, ALONE)
    found, means = replace(findings), dict(findings.site_values)
    for site, row in before.items():
        pairs = [means[FIRST, seeds, site] - means[ALONE, seeds, site] for seeds in ((0, 0), (1, 0))]
        assert row["difference"] == pytest.approx(np.mean(pairs), abs=1e-12)
    found.__dict__["site_values"] = {key: 2 * value for key, value in means.items()}
    assert not found.is_mean_of_rows
    for site, row in found.at_sites(FIRST, ALONE).items():
        assert row["difference"] == pytest.approx(2 * before[site]["difference"])
        assert row["difference_half"] >= 0
    assert found.of_groups() == {}
    assert any(text.startswith("No table by group: the accuracy") for text in found.sure())


def test_a_group_that_some_partitions_do_not_test_has_the_mean_of_the_others(studied: tuple[Path, Decided]) -> None:
    findings = studied[1].findings
    first, *others = findings.by_row[FIRST].values()
    alone = np.setdiff1d(first.units, np.concatenate([stored.units for stored in others]))[:3]
    assert len(alone) == 3
    cells = replace(findings, groups={"rare": alone, "absent": alone[:0]}).of_groups()
    mean = first.values[np.isin(first.units, alone)].mean()
    assert cells["FedAvg %"] == [f"{100 * mean:.1f}", "–"]


@pytest.mark.parametrize(
    ("gap", "says"),
    [
        ((-0.1, 0.01), "no"),
        ((-0.1, np.nan), "no"),
        ((0.1, 0.2), "not reliably"),
        ((0.1, 0.05), ""),
        ((np.nan, np.nan), ""),
    ],
)
def test_a_model_that_is_not_reliably_better_than_one_answer_is_named(
    studied: tuple[Path, Decided], gap: tuple[float, float], says: str
) -> None:
    found = replace(studied[1].findings)
    assert 0.5 <= found.baseline < 1, "two classes"
    assert found.arms(found.references)["verdict"][-1] == "–", "only FedAvg is the reference"
    runs = [run.id for run in found.results.runs if run.name == found.decision]
    stored = {
        name: np.mean([m.value for m in found.results.store.last(runs, [f"sites/{name}"])])
        for name in ("accuracy", "constant_of_sites")
    }
    assert found.over_baseline[0] == pytest.approx(stored["accuracy"] - stored["constant_of_sites"])
    found.__dict__.update({"over_baseline": gap, "baseline": 0.9})
    sentence = f"Without a model, one answer at each site is {says} worse: 90.0\u00a0%."
    assert (sentence in " ".join(found.sentences())) == bool(says)
    assert ("Without a model" in " ".join(found.sentences())) == bool(says)
    found.__dict__["baseline"] = np.nan
    assert "One answer at each site" not in "\n".join(printed(found))


def test_sites_with_one_class_of_two_are_named_and_one_row_gives_no_interval(short, tmp_path: Path) -> None:
    """A site alone is tested on its own rows, where one answer is then always right: this is no reason not to join."""
    frame = clinics(rows=60)
    frame = frame[(frame["clinic"] != "west") | (frame["outcome"] == "ill")]
    few = clinics(3, rows=2).assign(clinic="tiny")
    pd.concat([frame, few]).to_csv(tmp_path / "visits.csv", index=False)
    options = {"label": "outcome", "client": "clinic", "rounds": 1, "minutes": 60, "jobs": 1, "model": "softmax"}
    found = fs.study(tmp_path / "visits.csv", runs=tmp_path / "runs", progress=False, **options).findings
    says = "west has only 1 of 2 classes: alone, a site is tested on these only, where one answer is right for 100 % of the rows."
    assert found.sentences()[-1] == says, "and tiny has too few rows to say so"
    counts = [[9, 1] if name == "tiny" else [40, 1] for name in found.diagnosis["client_names"]]
    tested = replace(found, diagnosis={**found.diagnosis, "label_counts": counts})
    assert not tested.few_classes, "the only row of a class may be tested or held out"
    rows = found.at_sites(FIRST, ALONE)
    assert rows["tiny"]["verdict"] == "undecided"
    assert np.isnan([rows["tiny"]["difference_half"], rows["tiny"]["p"]]).all(), "one test row in each split"
    assert all(row["difference_half"] != 0 for row in rows.values())
    wrong = replace(found)
    wrong.__dict__["over_alone"] = {name: {**row, "verdict": "lower"} for name, row in found.over_alone.items()}
    assert wrong.sentences()[0].startswith(
        "Do not join for rows of each site's own classes: sites that train alone reach"
    )
    assert says in " ".join(line.strip() for line in printed(wrong))
    assert len(printed(wrong)) <= 29


@pytest.mark.parametrize(
    ("dataset", "arm", "predict", "export"),
    [
        ("heart", Arm(FIRST), "NEW_ROWS.csv", ""),
        ("heart", Arm(ALONE, "local-only"), "NEW_ROWS.csv", " --client NAME"),
        ("digits", Arm("FedAvg + prior", "fedavg-prior"), "NEW_ROWS.npy --client NAME", ""),
        ("digits", Arm("fedavg-ft", "fedavg-ft"), "NEW_ROWS.npy --client NAME", " --client NAME"),
        ("digits", Arm("scaffold", "scaffold"), "NEW_ROWS.npy", ""),
    ],
)
def test_the_next_commands_name_a_client_where_rows_do_not(
    dataset: str, arm: Arm, predict: str, export: str, tmp_path: Path
) -> None:
    """The decided arm's quality is of rows whose client is known: by a column of the rows, or by --client."""
    base, store = Experiment(dataset=dataset), RunStore(tmp_path / "runs")
    execution = Execution(base, fs.load(dataset), {"paste": []}, store, 1, Caller(False), None)
    lines = [line.removesuffix(f" --runs {tmp_path}/runs") for line in execution.commands(arm, [], final=True)]
    assert lines == [f"fedskew predict {predict}", f"fedskew export{export}"]


def test_the_next_step_is_to_mend_the_data(tmp_path: Path) -> None:
    base, diagnosis = Experiment(dataset="heart"), {"paste": [{"file": "rows.columns.toml"}]}
    execution = Execution(base, fs.load("heart"), diagnosis, RunStore(tmp_path / "runs"), 1, Caller(False), None)
    assert execution.commands(Arm(FIRST), [], final=True)[0] == (
        "# first write the lines of the page into rows.columns.toml beside the data, and repeat the study"
    )


def test_notes_on_cells_and_the_plan_come_before_the_wait(tmp_path: Path, capsys, monkeypatch) -> None:
    days = [f"{1 + at % 28:02d}.03.2024" for at in range(120)]
    clinics(rows=40).assign(visit=days).to_csv(tmp_path / "visits.csv", index=False)
    options = {"label": "outcome", "client": "clinic", "runs": tmp_path / "runs", "jobs": 1}
    with pytest.raises(BadInput, match="the shortest plan takes about"):
        fs.study(tmp_path / "visits.csv", minutes=0.01, **options)
    err = capsys.readouterr().err
    assert "column 'visit': '01.03.2024' is read as 2024-03-01" in " ".join(err.split())
    monkeypatch.setattr(steps.Study, "tuned", lambda *_: steps.require(False, "stopped"))
    with pytest.raises(BadInput, match="stopped"):
        fs.study(tmp_path / "visits.csv", minutes=60, **options)
    assert "planned for 60 min" in " ".join(capsys.readouterr().err.split())


def test_the_same_command_finds_everything_in_the_store(studied: tuple[Path, Decided], short, capsys) -> None:
    folder, decided = studied
    runs = len(RunStore(folder / "runs").runs())
    command = f"study {folder}/visits.csv --label outcome --client clinic --runs {folder}/runs --rounds 2 --jobs 1"
    values = json.loads(output_of(*command.split(), "--minutes", "60", "--json"))
    last = output_of(*command.split(), "--minutes", "60", "--final").splitlines()[-3:]
    assert last[0] == f"Run {decided.final.ids[0]} is trained on all rows: FedAvg"
    assert last[2].startswith("Next: fedskew predict NEW_ROWS.csv")
    assert len(RunStore(folder / "runs").runs()) == runs
    assert values["decision"] == decided.findings.decision
    assert Path(values["report"]).is_file()
    for more, message in (
        (["--by", "height"], "there is no column 'height'"),
        (["--minutes", "0.1", "--rounds", "3"], "the shortest plan takes about"),
        (["--dataset", "heart"], "give a file or a data set, not both"),
    ):
        assert message in error_of(*command.split(), *more)
    with pytest.raises(SystemExit):
        main(["study", str(folder / "visits.csv"), str(folder / "visits.csv"), "--label", "outcome"])
    assert "for several files give their folder" in " ".join(capsys.readouterr().err.split())
    assert "label is for a file" in error_of("study", "--dataset", "heart", "--label", "outcome")
