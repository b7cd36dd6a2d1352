"""Named combinations are slots and settings on the same code, and names go with the method."""

import torch

from fedskew.api.functions import run
from tests.blobs import DATA, numbers, small

torch.set_num_threads(1)


def test_centralised_is_one_client_with_all_rows(tmp_path) -> None:
    runs = run(small("centralised"), data=DATA, runs=tmp_path)
    assert runs.records[0].facts["partition"]["clients"] == 1
    assert runs.records[0].facts["partition"]["rows"] == len(DATA.y)


def test_local_sgd_takes_exactly_its_steps(tmp_path) -> None:
    frame = run(small("local-sgd:steps=3"), data=DATA, runs=tmp_path).measurements()
    assert set(frame.query("name == 'steps'")["value"]) == {3}
    frame = run(small("parallel-sgd"), data=DATA, runs=tmp_path / "p").measurements()
    assert set(frame.query("name == 'steps'")["value"]) == {1}


def test_fedavgm_is_fedavg_under_the_momentum_slot(tmp_path) -> None:
    a = run(small("fedavgm:beta=0.5"), data=DATA, runs=tmp_path / "a")
    b = run(small("fedavg", server="momentum:beta=0.5"), data=DATA, runs=tmp_path / "b")
    assert numbers(a) == numbers(b)


def test_another_algorithm_brings_its_own_name_and_a_given_one_stays() -> None:
    base = small("fedprox:mu=0.1")
    assert base.replace(algorithm="scaffold").name == "scaffold"
    assert base.replace(algorithm__mu=1.0).name == "fedprox:mu=1.0"
    assert base.replace(solver="adamw").name == "fedprox:mu=0.1"
    assert base.replace(name="mine").replace(algorithm="scaffold").name == "mine"
    assert base.replace(algorithm="scaffold", name="mine").name == "mine"
