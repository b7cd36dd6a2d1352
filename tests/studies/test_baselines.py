"""Methods with a model for each client are compared with fine-tuned FedAvg and with clients that train alone."""

import pytest

from fedskew.api.functions import compare
from fedskew.cli.main import main
from fedskew.experiment.combinations import with_method
from fedskew.experiment.config import Experiment
from fedskew.slots import All
from fedskew.store.runs import RunStore
from fedskew.studies.compare import with_baselines
from tests.blobs import DATA, small

BOTH = ["fedavg-ft", "local-only"]


@pytest.mark.parametrize(
    ("methods", "changes", "added"),
    [
        (["fedavg", "scaffold"], {}, []),
        (["fedavg", "local-only"], {}, []),
        (["fedavg", "ditto"], {}, BOTH),
        (["fedper:head=1"], {}, BOTH),
        (["ditto", "fedavg-ft:steps=3"], {}, ["local-only"]),
        (["ditto", *BOTH], {}, []),
        (["scaffold"], {"sharing": "personal:head=1"}, BOTH),
        (["fedavg", "ditto"], {"evaluation__adapt_steps": 5}, ["local-only"]),
        (["scaffold", "ditto"], {"evaluation__adapt_steps": 5}, ["fedavg", "local-only"]),
        (["fedmd"], {"model": "mixed:models=[softmax,mlp:hidden=[4]]", "server_data": 0.2}, []),
    ],
)
def test_baselines_stand_beside_personal_methods(methods, changes, added) -> None:
    found, line = with_baselines(Experiment(**changes), methods)
    assert found == [*methods, *added]
    assert all(name in line for name in added)
    assert bool(line) == bool(added)


def test_fine_tuned_fedavg_trains_as_fedavg_and_shares_all_layers() -> None:
    made = with_method(small(sharing="personal:head=1"), "fedavg-ft:steps=7")
    assert (made.evaluation.adapt_steps, made.algorithm, made.sharing) == (7, small().algorithm, All())


@pytest.mark.first
def test_python_adds_them_and_leaves_them_out(tmp_path, capsys) -> None:
    base = small(rounds=1, clients={"held_out": 0.2})
    runs = compare(base, ["ditto"], seeds=1, data=DATA, runs=tmp_path)
    assert [r.name for r in runs.records] == ["ditto", *BOTH]
    assert "beside ditto, a method with a model for each client: fedavg-ft and local-only" in capsys.readouterr().err
    personal = runs.table().set_index("method")["personal"]
    assert personal.notna().all()
    alone = compare(base, ["ditto"], seeds=1, data=DATA, runs=tmp_path, baselines=False, progress=False)
    assert [r.name for r in alone.records] == ["ditto"]


def test_the_command_line_lists_added_runs(tmp_path, capsys) -> None:
    words = ["compare", "--algorithms", "ditto", "--seeds", "1", "--rounds", "1", "--epochs", "1", "--model", "softmax"]
    words += ["--engine", "sequential", "--jobs", "1", "--runs", str(tmp_path)]
    assert main([*words, "--no-baselines"]) == 0
    assert "beside ditto" not in capsys.readouterr().err
    assert main(words) == 0
    assert "fedavg-ft and local-only (--no-baselines leaves them out)" in " ".join(capsys.readouterr().err.split())
    assert [r.name for r in RunStore(tmp_path).runs()] == ["ditto", "ditto", *BOTH]
