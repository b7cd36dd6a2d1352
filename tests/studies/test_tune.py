"""Tuning: the right choice on a planted problem, judged by clients' held-out rows alone, stored, and resumable."""

import importlib.util
import json
import sys

import pandas as pd
import pytest
import torch

import fedskew as fs
from fedskew.cli.main import main
from fedskew.cli.train import print_choice, print_tuned
from fedskew.core.errors import BadInput, FedskewError, Interrupted
from fedskew.data.dataset import Dataset
from fedskew.data.datasets.table import TableData
from fedskew.experiment.config import Experiment
from fedskew.report.progress import ProgressFace
from fedskew.store.runs import RunStore
from fedskew.studies.progress import play
from fedskew.studies.runner import Executor, to_execute
from fedskew.studies.tune import Search, Tried, Tuned, Tuner, at, grid, space_from, tune, tuned_methods
from tests.blobs import blobs
from tests.commands import error_of, output_of

torch.set_num_threads(1)
DATA = blobs(rows=160)
SPACE = {"solver.lr": (1e-7, 0.1, 1e38)}
"""Too small to learn anything, right, and so large that the loss overflows."""


def base(**changes) -> Experiment:
    made = Experiment(
        model="mlp:hidden=[6]",
        skew="iid",
        clients={"number": 4, "held_out": 0.0},
        local={"epochs": 2, "batch_size": 8},
        training={"rounds": 3, "threads": 1},
        engine="sequential",
    )
    return made.replace(**changes)


def test_a_planted_problem_is_solved(tmp_path) -> None:
    tuned = tune(Executor(RunStore(tmp_path), DATA), base(), "fedavg", Search(space=SPACE))
    assert [t.ended for t in tuned.tried] == ["finished", "finished", "diverged"]
    assert tuned.best.setting == {"solver.lr": 0.1}
    assert tuned.best.score > tuned.tried[0].score + 0.2
    assert tuned.edges == []
    assert tuned.facts()["tried"] == 3


def test_a_setting_that_is_as_good_as_the_best_is_named_and_counts_for_edges(capsys) -> None:
    """Few held-out rows often tie. The best was said to be at the edge while a setting inside the grid was as good."""
    scores = {0.01: 0.8, 0.1: 0.8, 1: 0.7}
    tried = [Tried({"solver.lr": lr}, score, 1.0, (n,), "finished") for n, (lr, score) in enumerate(scores.items())]
    found = Tuned("fedavg", tuple(tried))
    assert (found.best, found.edges) == (tried[0], [])
    assert Tuned("fedavg", tuple(tried[:2])).edges == ["solver.lr"]
    print_tuned(found)
    print_choice(found)
    said = capsys.readouterr()
    assert [line.strip().split("  ")[-1] for line in said.out.splitlines()[3:5]] == ["best", "as good"]
    assert "best of 3, as good as 1 other (" in " ".join(said.err.split())


def test_held_out_rows_without_a_score_are_named(tmp_path) -> None:
    """All events are on the last day: of no two rows is it known which comes first."""
    columns = {
        "site": [*"ABC"] * 10,
        "x": [2, 0, 1] * 10,
        "days": [*range(1, 25), *[25] * 6],
        "died": [0] * 24 + [1] * 6,
    }
    pd.DataFrame(columns).to_csv(tmp_path / "v.csv", index=False)
    data = f"table:path={tmp_path / 'v.csv'},time=days,event=died,client=site"
    with pytest.raises(BadInput, match="not defined on the held-out rows of any client in 2 of 2 runs; increase"):
        fs.tune(dataset=data, skew="natural", rounds=1, jobs=1, runs=tmp_path / "runs", progress=False)


def test_an_option_without_effect_and_a_replaced_component_have_a_line(tmp_path, capsys) -> None:
    options = {"rounds": 1, "faults__attempts": 3, "server": "momentum", "jobs": 1, "runs": tmp_path}
    fs.tune(["fedadam"], dataset="heart", grid={"lr": [0.1]}, **options)
    said = " ".join(capsys.readouterr().err.split())
    assert "fedadam has server adam, not momentum" in said
    assert "faults.attempts has no effect without faults.share" in said


def test_a_file_is_not_read_again_for_each_setting(tmp_path, monkeypatch) -> None:
    def load(self: TableData) -> Dataset:
        loads.append(self.path)
        return real(self)

    real, loads = TableData.load, []
    monkeypatch.setattr(TableData, "load", load)
    rows = pd.DataFrame({"x": [0.5, 1.5, 1.0, 3.5] * 10, "site": ["a", "b"] * 20, "ill": [0, 0, 1, 1] * 10})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    changes = {
        "dataset": f"table:path={tmp_path}/rows.csv,label=ill,client=site",
        "skew": "natural",
        "model": "softmax",
    }
    counts = []
    for grid_ in ([0.1, 0.2], [0.1, 0.2, 0.3, 0.4]):
        loads.clear()
        options = {**changes, "grid": {"lr": grid_}, "rounds": 1, "jobs": 1, "progress": False}
        fs.tune(["fedavg"], runs=tmp_path / str(len(grid_)), **options)
        counts.append(len(loads))
    assert counts[0] == counts[1]


@pytest.mark.parametrize(("label", "printed"), [("tuning", ["run 1"]), ("arms", ["run 1", "run 2"])])
def test_settings_that_diverge_while_tuning_have_one_line(tmp_path, label: str, printed: list[str]) -> None:
    class Face(ProgressFace):
        def print(self, line: str, style: str) -> None:
            lines.append(line)

    lines, store = [], RunStore(tmp_path)
    runs = to_execute(store, [base(solver__lr=1e38, training__seed=seed) for seed in (0, 1)], "")
    play(store, runs, DATA, 1, Face(), "", label=label)
    assert [line.partition(":")[0] for line in lines] == printed
    assert ["tuning tries other settings" in line for line in lines] == [label == "tuning"] * len(lines)


def test_the_choice_is_by_the_held_out_rows_of_the_last_round(tmp_path) -> None:
    store = RunStore(tmp_path)
    tuned = tune(Executor(store, DATA), base(), "fedavg", Search(space={"solver.lr": (0.001, 0.1)}, held_out=0.3))
    for tried in tuned.tried:
        frame = store.measurements(tried.runs, per_client=False)
        own = frame[(frame["split"] == "clients") & (frame["name"] == "accuracy_mean") & (frame["round"] == 3)]
        assert tried.score == pytest.approx(own["value"].mean(), abs=1e-15)
        for run in tried.runs:
            # each of four clients of 40 rows keeps 12 of them from training
            assert store.run(run).facts["partition"]["held_out"] == 4 * 12
            assert store.run(run).facts["partition"]["rows"] == 4 * 28


def test_tuning_uses_the_last_round_even_if_an_earlier_one_was_better(tmp_path) -> None:
    store = RunStore(tmp_path)
    run = store.add_run(name="", experiment="", experiment_hash="", seed=7, partition_seed=7, rounds=2)
    for round_, accuracy in ((1, 0.9), (2, 0.5)):
        store.write_round(run, round_, [(None, "clients", "accuracy_mean", accuracy)])
    store.update(run, status="finished")
    search = Search(space={}, seeds=(7,))
    tuner = Tuner(Executor(store), base(), "fedavg", search)
    assert tuner.judged({}, [store.run(run)]).score == 0.5


@pytest.mark.parametrize(("best", "edges"), [(0.1, ["solver.lr"]), (1.0, []), (10.0, ["solver.lr"])])
def test_the_least_and_the_largest_number_tried_are_edges(best: float, edges: list[str]) -> None:
    tried = [
        Tried({"solver.lr": lr, "algorithm.kind": kind, "local.epochs": 2}, float(lr == best), 0.0, (), "finished")
        for lr in (1.0, 10.0, 0.1)
        for kind in ("a", "b")
    ]
    assert Tuned("fedavg", tuple(tried)).edges == edges


def test_stored_settings_are_not_run_again(tmp_path) -> None:
    store, seen = RunStore(tmp_path), []
    search = Search(space={"solver.lr": (0.01, 0.1)})

    def tuned(stop=lambda: False):
        return tune(Executor(store, DATA, listener=lambda p: seen.append(p.run), stop=stop), base(), "fedavg", search)

    with pytest.raises(Interrupted):
        tuned(stop=lambda: len(seen) > 5)
    before = set(seen)
    assert len(store.runs()) == 4
    assert 0 < len([r for r in store.runs() if r.status == "finished"]) < 4
    seen.clear()
    whole = tuned()
    assert set(seen) - before
    assert len(set(seen)) < 4
    seen.clear()
    assert tuned() == whole
    assert seen == []
    assert len(store.runs()) == 4
    uninterrupted = tune(Executor(RunStore(tmp_path / "other"), DATA), base(), "fedavg", search)
    assert [t.score for t in whole.tried] == [t.score for t in uninterrupted.tried]
    assert {r.facts["tuning"]["setting"]["solver.lr"] for r in store.runs()} == {0.01, 0.1}
    assert whole.best.seconds > 0


def test_a_setting_reaches_the_method_the_section_and_the_name() -> None:
    made = at(base(), "fedprox:mu=0.1,step=implicit", {"fedprox.mu": 1.0, "solver.lr": 0.5, "local.epochs": 7})
    assert (made.algorithm.mu, made.algorithm.step, made.solver.lr, made.local.epochs) == (1.0, "implicit", 0.5, 7)
    assert made.name == "fedprox:mu=0.1,step=implicit"
    assert at(base(), "fedadam:lr=0.02", {"fedadam.lr": 0.3}).server.lr == 0.3
    assert at(base(), "fedavg", {}) == base().replace(name="fedavg")


def test_the_grid_is_every_point() -> None:
    space = space_from(["solver.lr=0.1,1", "model.hidden=[8],[8,8]"])
    points = [(p["solver.lr"], p["model.hidden"]) for p in grid(space)]
    assert points == [(0.1, [8]), (0.1, [8, 8]), (1, [8]), (1, [8, 8])]


def test_a_setting_of_one_method_does_not_concern_the_others(tmp_path) -> None:
    search = Search(space={"solver.lr": (0.1,), "fedprox.mu": (0.01, 1.0)}, seeds=(7,))
    store = RunStore(tmp_path)
    made = tuned_methods(Executor(store, DATA), base(), ["fedavg", "fedprox"], search, [0, 1])
    assert [len(made[m].tried) for m in ("fedavg", "fedprox")] == [1, 2]
    assert made["fedprox"].edges == ["fedprox.mu"]


def test_wrong_searches_are_refused(tmp_path) -> None:
    def tuned(space, method="fedavg", **more):
        return tune(Executor(RunStore(tmp_path), DATA), base(), method, Search(space=space, seeds=(7,), **more))

    unused = Executor(RunStore(tmp_path), stop=lambda: pytest.fail("was tuned"))
    with pytest.raises(BadInput, match="is not an option of a section or of these methods"):
        tuned_methods(unused, base(), ["fedavg"], Search(space={"fedprox.mu": (1.0,)}), [0])
    with pytest.raises(BadInput, match="lr"):
        tuned({"solver.rate": (1.0,)})
    for key in ("training.seed", "clients.partition_seed"):
        with pytest.raises(BadInput, match="seeds are not tuned"):
            tuned_methods(unused, base(), ["fedavg"], Search(space={key: (1, 2)}), [0])
    with pytest.raises(BadInput, match="fedavg trains no personal models; leave out --by personal"):
        tuned({"solver.lr": (0.1,)}, by="personal")
    assert RunStore(tmp_path).runs() == []  # before anything is run
    with pytest.raises(FedskewError, match="smaller learning rates"):
        _ = tuned({"solver.lr": (1e38,)}).best
    with pytest.raises(BadInput, match="also a seed of the comparison"):
        tuned_methods(unused, base(), ["fedavg"], Search(space={}, seeds=(7,)), [0, 7])


@pytest.mark.parametrize(
    ("method", "space"),
    [
        ("ditto", {}),
        ("local-only", {}),
        ("fedavg", {"evaluation.adapt_steps": (2,)}),
        ("fedavg", {"sharing.head": (1,)}),
    ],
)
def test_personal_models_are_judged_where_there_are_some(tmp_path, method: str, space) -> None:
    chosen = base(sharing="personal") if "sharing.head" in space else base()
    by = None if "evaluation.adapt_steps" not in space else "personal"  # fine-tuning is no part of the method
    search = Search(space={"solver.lr": (0.1,), **space}, seeds=(7,), by=by)
    found = tune(Executor(RunStore(tmp_path), DATA), chosen.replace(training__rounds=1), method, search).best
    frame = RunStore(tmp_path).measurements(found.runs, per_client=False)
    own = frame[(frame["split"] == "personal") & (frame["name"] == "accuracy_mean") & (frame["round"] == 1)]
    assert found.score == own["value"].item()


@pytest.mark.slow
def test_optuna_prunes_bad_trials_and_reuses_stored_ones(tmp_path) -> None:
    pytest.importorskip("optuna")
    store, seen = RunStore(tmp_path), []
    search = Search(space={"solver.lr": (1e-6, 1.0)}, seeds=(7, 8), trials=9)

    def tuned(stop=lambda: False):
        return tune(Executor(store, DATA, listener=lambda p: seen.append(p.run), stop=stop), base(), "fedavg", search)

    with pytest.raises(Interrupted):
        tuned(stop=lambda: len(seen) > 12)
    found = tuned()
    ends = [t.ended for t in found.tried]
    assert len(ends) == 9
    assert "pruned" in ends
    pruned = found.tried[ends.index("pruned")]
    assert store.run(pruned.runs[-1]).rounds_done < 3 or len(pruned.runs) < 2
    assert found.best.setting["solver.lr"] > 1e-3
    seen.clear()
    assert tuned() == found
    assert seen == []
    assert tune(Executor(RunStore(tmp_path / "other"), DATA), base(), "fedavg", search).best.score == found.best.score


def test_a_setting_that_optuna_proposes_twice_counts_once_and_only_the_grids_ends_are_edges(tmp_path) -> None:
    pytest.importorskip("optuna")
    executor, short = Executor(RunStore(tmp_path), DATA), base(rounds=1)
    twice = tune(executor, short, "fedavg", Search(space={"solver.lr_decay": (1.0, "cosine")}, seeds=(7,), trials=5))
    assert sorted(run for t in twice.tried for run in t.runs) == [1, 2]
    assert twice.facts()["tried"] == 2
    seconds = RunStore(tmp_path).measurements([1, 2]).query("name == 'seconds'")["value"].sum()
    assert twice.seconds == pytest.approx(seconds, abs=1e-3)
    within = tune(executor, short, "fedavg", Search(space={"solver.lr": (1e-3, 1e3)}, seeds=(7,), trials=2))
    assert within.edges == []


def test_the_command_line_tunes_and_compares_at_the_best(tmp_path) -> None:
    common = ["--rounds", "2", "--epochs", "1", "--engine", "sequential", "--model", "softmax", "--jobs", "1"]
    common += ["--set", "training.threads=1", "--set", "evaluation.local_models=false"]
    words = ["--algorithms", "fedavg", "fedprox", "--grid", "solver.lr=1e-7,0.1", "--tuning-seeds", "7", *common]
    results = json.loads(output_of("tune", *words, "--runs", tmp_path, "--json"))
    assert [m["setting"] for m in results] == [{"solver.lr": 0.1}] * 2
    assert len(results[0]["settings"]) == 2
    before = len(RunStore(tmp_path).runs())
    assert "solver.lr=0.1" in error_of("compare", "--tuned", *words, "--seeds", "1", "--runs", tmp_path, code=0)
    runs = RunStore(tmp_path).runs()[before:]
    assert [r.name for r in runs] == ["fedavg", "fedprox"]
    assert [r.facts["tuned"]["setting"] for r in runs] == [{"solver.lr": 0.1}] * 2
    page = (tmp_path / f"c{runs[0].comparison}.html").read_text()
    assert "Tuning of FedAvg: 2 settings tried" in page
    assert "solver.lr=0.1 (chosen)" in page
    assert all("lr = 0.1\n" in r.experiment and "held_out = 0.2" in r.experiment for r in runs)


MINE = """
from dataclasses import dataclass
from fedskew import Algorithm

@dataclass(frozen=True)
class LayerProx(Algorithm):
    mu: float = 0.1

    def objective(self, task, view, w, batch):
        return super().objective(task, view, w, batch) + 0.5 * self.mu * ((w - view.x) ** 2).sum()
"""


@pytest.mark.parametrize("key", ["LayerProx.mu", "{file}::LayerProx.mu"])
def test_an_option_of_an_own_method_is_tuned_beside_fedavg(tmp_path, key, monkeypatch):
    """A class, its name with the file, and the command line all take either key. Options of sections count for both methods."""
    (tmp_path / "mine.py").write_text(MINE)
    spec = importlib.util.spec_from_file_location("own_method_to_tune", tmp_path / "mine.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "own_method_to_tune", module)
    spec.loader.exec_module(module)
    name = f"{tmp_path}/mine.py::LayerProx"
    options = {"grid": {key.format(file=f"{tmp_path}/mine.py"): [0.0, 9.0], "lr": [0.1]}, "tuning_seeds": [1000]}
    quick = {"dataset": "heart", "model": "softmax", "rounds": 1, "runs": tmp_path / "runs", "progress": False}
    for own in (name, module.LayerProx):
        methods = fs.tune(["fedavg", own], **options, **quick).methods
        assert [*methods] == ["fedavg", name]
        assert [len(tuned.tried) for tuned in methods.values()] == [1, 2]
        assert [{*tried.setting.values()} for tried in methods[name].tried] == [{0.0, 0.1}, {9.0, 0.1}]
    records = [record for record in RunStore(tmp_path / "runs").runs() if "LayerProx" in record.name]
    assert sorted(fs.from_toml(record.experiment).algorithm.mu for record in records) == [0.0, 9.0]
    command = ["tune", "--algorithms", "fedavg", name, "--grid", f"{key.format(file=f'{tmp_path}/mine.py')}=0,9"]
    rest = f"--dataset heart --model softmax --rounds 1 --tuning-seeds 1000 --runs {tmp_path / 'cli'}"
    assert main([*command, *rest.split()]) == 0


def test_a_personal_method_is_tuned_by_its_shared_model_on_request(tmp_path) -> None:
    """With ``by="clients"``, Ditto has FedAvg's scores."""
    options = {"data": DATA, "rounds": 1, "runs": tmp_path, "progress": False, "tuning_seeds": [7], "skew": "iid"}
    found = fs.tune(["ditto"], grid={"solver.lr": [1e-6, 0.3]}, by="clients", **options)
    shared = fs.tune(["fedavg"], grid={"solver.lr": [1e-6, 0.3]}, **options)
    assert [t.score for t in found.methods["ditto"].tried] == [t.score for t in shared.methods["fedavg"].tried]


def test_a_table_of_settings_names_the_measure(tmp_path) -> None:
    """Settings for numbers were shown with RMSE below zero, and called accuracy."""
    y, y_test = (part[:, 0].astype("float64") for part in (DATA.x, DATA.x_test))
    data = fs.Dataset(x=DATA.x, y=y, x_test=DATA.x_test, y_test=y_test)
    options = {
        "data": data,
        "rounds": 1,
        "runs": tmp_path,
        "progress": False,
        "tuning_seeds": [7],
        "skew": "iid",
        "clients": 2,
    }
    found = fs.tune(["fedavg"], grid={"solver.lr": [1e-6, 0.03]}, **options)
    table = found.table()
    assert [*table] == ["method", "setting", "rmse", "seconds", "ended"]
    assert 0 < table["rmse"][0] < table["rmse"][1]
    assert table["setting"][0] == "solver.lr=0.03"
    assert repr(found).startswith("held-out RMSE of each setting, the best first")
