"""What Python's functions do, and that the command line does the same."""

import json
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import fedskew as fs
from fedskew.algorithms import FedProx
from fedskew.api.runs import Runs
from fedskew.cli.output import clean
from fedskew.core.errors import BadInput, Interrupted
from fedskew.report.experiments import name_of
from tests.commands import output_of

QUICK = {
    "dataset": "digits", "rounds": 2, "epochs": 1, "clients": 3, "engine": "sequential",
    "training__threads": 1, "evaluation__every": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> Runs:
    folder = tmp_path_factory.mktemp("store") / "runs"
    return fs.compare(["fedavg", "fedprox:mu=0.1"], seeds=2, runs=folder, **QUICK)


@pytest.mark.first
def test_table_prints_in_few_columns_and_holds_all_numbers(compared) -> None:
    table = compared.table()
    head, first, second = repr(table).splitlines()
    assert len(head) <= 130
    assert "accuracy" in head
    assert first.split()[0] == "FedAvg"
    assert "FedProx mu = 0.1" in second
    assert {"accuracy", "accuracy_half", "p", "effect", "megabytes"} <= set(table)
    assert 0 < table["accuracy"][0] <= 1
    assert type(table[["method", "accuracy"]]).__name__ == "DataFrame"
    assert type(compared.table(full=True)).__name__ == "DataFrame"
    full = compared.table(full=True)
    assert full.equals(table[list(full)])
    assert table.drop(columns=list(full)).isna().all().all()


def test_runs_are_chosen_by_number_and_by_method(compared) -> None:
    assert [one.ids for one in compared] == [(1,), (2,), (3,), (4,)]
    assert compared["fedavg"].ids == (1, 3)
    assert compared["FedProx mu = 0.1"].ids == compared["fedprox:mu=0.1"].ids == (2, 4)
    assert repr(compared).startswith(f"4 runs in {compared.store.folder}: 1 to 4\n")
    with pytest.raises(BadInput, match=r"there is no 'scaffold' among these runs; they are 1 to 4, methods 'fedavg'"):
        compared["scaffold"]


def test_a_store_is_opened(compared) -> None:
    store = fs.open(compared.store.folder)
    assert store.runs().ids == store.latest.ids == store["c1"].ids == store.comparisons()["c1"].ids == compared.ids
    assert store[3].ids == (3,)
    with pytest.raises(BadInput, match="there is no run 9"):
        store[9]


def test_curves_latex_and_csv(compared, tmp_path) -> None:
    curves = compared.curves()
    assert list(curves["round"]) == [0, 1, 2] * 2
    assert curves["low"].min() >= 0
    assert curves["high"].max() <= 1
    assert curves["mean"].tolist()[2] == pytest.approx(compared.table()["accuracy"][0])
    assert "FedProx" in compared.latex()
    assert compared.csv().startswith("method,")
    assert tmp_path / "methods.csv" in compared.csv(tmp_path)
    columns = ["accuracy", "difference"]
    assert compared.csv(columns=columns, interval="std").splitlines()[0] == (
        "method,accuracy,accuracy_std,difference,difference_std"
    )
    assert "standard deviation over 2 seeds" in compared.latex(columns=columns, interval="std")
    assert "drift" not in compared.latex(columns=columns)
    assert repr(compared.table(columns=columns)).split("\n")[0].split() == ["method", "accuracy", "%", "vs", "FedAvg"]
    assert compared.table(full=True).notna().any().all()
    with pytest.raises(BadInput, match="interval: unknown 'ci90'; known are ci95, std, sem"):
        compared.table(interval="ci90")
    with pytest.raises(BadInput, match="columns: write them as a list"):
        compared.latex("accuracy")
    with pytest.raises(BadInput, match="none of these runs has measured forgetting; they have accuracy, loss"):
        compared.plot("forgetting")
    with pytest.raises(BadInput, match="there is no curve of 'acuracy'; did you mean 'accuracy'"):
        compared.curves("acuracy")


def test_the_trained_model_gives_the_stored_accuracy(compared) -> None:
    model = compared[1].model()
    data = fs.load("digits")
    with torch.no_grad():
        found = model(torch.tensor(data.x_test, dtype=torch.float32)).argmax(1)
    assert isinstance(model, nn.Module)
    assert np.mean(found.numpy() == data.y_test) == compared[1].table()["accuracy"][0]
    with pytest.raises(BadInput, match=r"model: these are 4 runs; name one of them: 1 \(FedAvg, seed 0\), 2 "):
        compared.model()
    with pytest.raises(
        BadInput, match=r"run 1: its clients have no personal models; leave out --client \(client=NAME in Python\)"
    ):
        compared[1].model(client=0)


@pytest.mark.parametrize(
    "settings", [{"algorithm": "ditto"}, {"sharing": "personal:head=1", "model": "mlp:hidden=[8]"}]
)
def test_a_personal_model_gives_the_clients_stored_accuracy(tmp_path, settings) -> None:
    runs = fs.run(runs=tmp_path, **{**QUICK, **settings})
    frame = runs.measurements()
    own = frame[(frame["split"] == "personal-model") & (frame["name"] == "accuracy") & (frame["round"] == 2)]
    data = fs.load("digits")
    part = fs.partition(data, "label-dirichlet:alpha=0.1", clients=3, held_out=0.2)
    assert len(own) == 3
    for client, value in zip(own["client"], own["value"], strict=True):
        rows = part.measured_rows(int(client))
        with torch.no_grad():
            found = runs.model(client=int(client))(torch.tensor(data.x[rows], dtype=torch.float32)).argmax(1)
        assert np.mean(found.numpy() == data.y[rows]) == pytest.approx(value)
    with pytest.raises(BadInput, match="there is no client 3; they are 0 to 2"):
        runs.model(client=3)


class Net(nn.Module):
    def __init__(self, shape, classes) -> None:
        super().__init__()
        self.layer = nn.Linear(shape[0], classes)

    def forward(self, x):
        return self.layer(x)


def test_a_module_of_the_users_own_comes_back(tmp_path) -> None:
    runs = fs.run(model=Net, runs=tmp_path, **QUICK)
    model = runs.model()
    assert type(model).__name__ == "Net"
    assert float(model.layer.weight.detach().abs().sum()) > 0


def test_own_data_stay_with_the_runs(tmp_path) -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(60, 4)).astype(np.float32), random.integers(0, 2, 60)
    data = fs.Dataset(x=x, y=y, x_test=x[:20], y_test=y[:20], classes=("a", "b"))
    runs = fs.run(runs=tmp_path, **{**QUICK, "dataset": data, "skew": "iid"})
    assert runs.model()(torch.tensor(x[:3])).shape == (3, 2)
    assert fs.export(runs, tmp_path / "m.pt").is_file(), "the ending decides the format"


def test_diagnose_gives_what_the_command_line_prints(tmp_path) -> None:
    lines = [f"{i % 5 < 3 * (i % 2)},{i % 7},{'north' if i % 2 else 'south'}" for i in range(60)]
    file = tmp_path / "visits.csv"
    file.write_text("\n".join(["ill,age,hospital", *lines]) + "\n")
    found = fs.diagnose(file, label="ill", client="hospital")
    out = output_of("diagnose", file, "--label", "ill", "--client", "hospital", "--json")
    assert json.loads(out)["faces"] == json.loads(json.dumps(clean(found["faces"])))
    assert repr(found).startswith("The clients differ mostly by label")
    assert "<table" in found._repr_html_()
    assert found.report(tmp_path / "page.html").is_file()
    with pytest.raises(BadInput, match="give files with label and client, or dataset"):
        fs.diagnose()


def test_tune_finds_and_compares_the_best(tmp_path) -> None:
    found = fs.tune(["fedavg"], grid={"lr": [1e-4, 0.1]}, tuning_seeds=[9], runs=tmp_path, **QUICK)
    assert found.best == {"fedavg": {"solver.lr": 0.1}}
    assert list(found.table()["setting"]) == ["solver.lr=0.1", "solver.lr=0.0001"]
    with pytest.raises(fs.FedskewError, match="also a seed of the comparison"):
        found.compare(seeds=[8, 9])
    [record] = found.compare(seeds=1).records
    assert "lr = 0.1" in record.experiment
    assert record.facts["tuned"]["setting"] == {"solver.lr": 0.1}
    search = {"grid": {"lr": [1e-4, 0.1]}, "tuning_seeds": [9], "tuned": True}
    [again] = fs.compare(["fedavg"], seeds=1, runs=tmp_path, **search, **QUICK).records
    assert (again.experiment, again.id) == (record.experiment, record.id + 1), "the trials are not run again"


WRONG = """
from dataclasses import dataclass
import fedskew

@dataclass(frozen=True, kw_only=True)
class Wrong(fedskew.Algorithm):
    mu: float = 0.1

    def objective(self, task, view, w, batch):
        raise ValueError("no loss")
"""


def test_failed_runs_of_a_comparison_are_named(tmp_path) -> None:
    (tmp_path / "mine.py").write_text(WRONG)
    first, second = f"{tmp_path}/mine.py::Wrong", f"{tmp_path}/mine.py::Wrong:mu=0.5"
    with pytest.warns(RuntimeWarning, match="in objective: ValueError: no loss"):
        runs = fs.compare(["fedavg", first, second], seeds=1, runs=tmp_path, **QUICK)
    assert [r.status for r in runs.records] == ["finished", "failed", "failed"]
    assert "\nrun 2 (Wrong): failed after round 0. " in repr(runs)
    with pytest.raises(fs.FedskewError, match="no loss"):
        fs.compare([first, second], seeds=1, runs=tmp_path, **QUICK)
    assert not fs.check(first)


@dataclass(frozen=True, kw_only=True)
class Mine(FedProx):
    """FedProx under another name."""


def test_methods_are_classes_and_objects(tmp_path) -> None:
    runs = fs.compare([Mine, Mine(mu=0.5), "fedprox:mu=0.5"], seeds=1, runs=tmp_path, **QUICK)
    assert [str(name_of(r.name)) for r in runs.records] == ["Mine", "Mine mu = 0.5", "FedProx mu = 0.5"]
    accuracy = runs.table()["accuracy"]
    assert accuracy[1] == accuracy[2]


def test_check_and_cite(compared) -> None:
    kept = fs.check("fedavg")
    assert kept
    assert repr(kept).endswith("\nfedavg: keeps its promises (algorithm)")
    assert output_of("cite", "c1", "--runs", compared.store.folder) == fs.cite(compared) + "\n"


def test_table_and_clients(tmp_path) -> None:
    lines = [f"{i % 2},{i * 7 % 23},{'north' if i < 12 else 'south'}" for i in range(24)]
    (tmp_path / "visits.csv").write_text("\n".join(["ill,age,hospital", *lines]) + "\n")
    data = fs.table(tmp_path / "visits.csv", label="ill", client="hospital")
    dealt = fs.clients(data)
    assert dealt.table()["client"].tolist() == ["north", "south"]
    assert dealt.table()["rows"].sum() == len(data.y)
    assert dealt.plot().axes
    table = f"table:path={tmp_path / 'visits.csv'},label=ill,client=hospital"
    out = output_of("skew", "--dataset", table, "--held-out", "0", "--json")
    by_client = {client["client"]: client["rows"] for client in json.loads(out)["by_client"]}
    assert by_client == dict(zip(dealt.partition.names, dealt.partition.sizes, strict=True))
    assert fs.clients("digits", "label-shards:shards=2", number=5).table().shape == (5, 12)


def test_everything_shows_itself_in_a_notebook(compared) -> None:
    data = fs.load("digits")
    shown = [compared, compared.table(), data, fs.Experiment(lr=0.3, rounds=3), fs.clients(data, "iid")]
    for one in shown:
        assert "<table" in one._repr_html_()
    assert "rounds=3" in fs.Experiment(lr=0.3, rounds=3)._repr_html_()
    assert repr(data) == "digits: 1,438 training and 359 test rows of shape (64,), 10 classes"


def test_errors_are_one_line_in_ipython_and_end_at_the_users_line() -> None:
    with pytest.raises(BadInput) as error:
        fs.run(rounds=0)
    assert error.value._render_traceback_() == ["BadInput: training: rounds must be at least 1, got 0"]
    assert len(error.traceback) == 2


def test_an_interrupted_run_is_resumed(tmp_path) -> None:
    def stop(progress) -> None:
        if progress.round == 1:
            import signal

            signal.raise_signal(signal.SIGINT)

    long = {**QUICK, "rounds": 4}
    with pytest.raises(Interrupted) as error:
        fs.run(runs=tmp_path / "a", listener=stop, **long)
    assert str(error.value).endswith(f"stored; fedskew.resume('1', runs='{tmp_path / 'a'}') continues")
    assert fs.resume(1, runs=tmp_path / "a").records[0].status == "finished"
    assert fs.resume([1], runs=tmp_path / "a").ids == (1,)


SCRIPT = """
import fedskew as fs
print("once")
runs = fs.compare(["fedavg"], seeds=2, jobs=2, dataset="digits", rounds=1, epochs=1, clients=3, engine="sequential")
print([r.status for r in runs.records])
"""


@pytest.mark.slow
def test_jobs_side_by_side_need_no_guard_in_a_script(tmp_path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=110
    )
    assert (done.stdout.splitlines(), done.stderr) == (["once", "['finished', 'finished']"], "")


def test_help_lists_the_keywords() -> None:
    for function in (fs.run, fs.compare, fs.tune):
        assert "\n    partition_seed: random seed of the partition\n" in function.__doc__


def test_python_run_prints_nothing_without_terminal_or_notebook(tmp_path, capsys) -> None:
    fs.run(runs=tmp_path, **QUICK)
    assert capsys.readouterr() == ("", "")
