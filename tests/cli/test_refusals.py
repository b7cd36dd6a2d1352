"""Wrong input is refused in one line, before anything is stored."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedskew.cli.main import main
from fedskew.core.errors import BadInput
from fedskew.data.datasets.heart import CSV

REFUSED = {
    "run --rounds 0": "training: rounds must be at least 1, got 0",
    "compare --clients 0": "clients: number must be at least 1, got 0",
    "run --held-out 2": "clients: held_out must be at least 0 and below 1, got 2.0",
    "run --set training.round=3": "training: unknown option 'round'; did you mean 'rounds'?",
    "run --dataset digit": "dataset: unknown dataset 'digit'; did you mean 'digits'?",
    "run --dataset digits:x=1": "dataset digits: unknown option 'x'; known are: test_fraction",
    "tune --skew label-dirichlet:alpha=0": "skew label-dirichlet: alpha must be a finite number above 0, got 0",
    "run --skew natural --skew quantity-lognormal": "skew: natural clients have their own sizes",
    "run nosuch.toml": "experiment file nosuch.toml: cannot be read: No such file or directory",
    "run wrong.toml": "wrong.toml: training: unknown option 'round'; did you mean 'rounds'?",
    "run broken.toml": "broken.toml: not valid TOML",
    "run share.toml --server-data 0": "server_data: warm_up 3 needs rows",
    f"run --dataset table:path={CSV},label=nm": f"{CSV}: no column 'nm'; did you mean 'num'? If it has another name, ",
    f"run --dataset table:path={CSV},label=zzzzzz": f"{CSV}: no column 'zzzzzz'; known are: age, ",
    "run --dataset table:path=nosuch.csv,label=y": "nosuch.csv: no such file or folder",
    f"diagnose {CSV} --label num --client hospitl": f"{CSV}: no column 'hospitl'; did you mean 'hospital'?",
    "diagnose nosuch.csv --label y": "nosuch.csv: no such file or folder",
    "compare --algorithms Fed-Avg scafold": "algorithm: unknown algorithm 'scafold'; did you mean 'scaffold'?",
    "compare --algorithms fedavg FedProx:mux=1": "algorithm fedprox: unknown option 'mux'; did you mean 'mu'?",
    "compare --budget rounds=1e9": "budget: these runs have only 30 of 1e+09 rounds; write rounds=30 or less",
    "compare --rounds 5 --budget round=3": "budget: unknown 'round'; did you mean 'rounds'?",
    "compare --jobs 0": "jobs must be at least 1, got 0",
    "tune --jobs -2": "jobs must be at least 1, got -2",
    "compare --jobs 99999": "99999 processes at a time are too many for this machine; use at most",
    "compare --grid lr=1,2": "--grid: cannot read 'lr=1,2'; write SECTION.OPTION=VALUE,VALUE",
    "compare --grid solver.lr=1,2": "compare: grid has no effect without tuned",
    "compare --tuned --folds 3": "compare: tuning would use rows that the folds test on",
    "run --algorithm mine.py": "algorithm: write mine.py::CLASS",
    "run --algorithm fedbs:weighting=x": "algorithm fedbs: weighting must be samples or uniform, got 'x'",
    "run --model mlp:hiden=[3]": "model mlp: unknown option 'hiden'; did you mean 'hidden'?",
    "run --solver adamw:lr=x": "solver adamw: lr must be a finite number above 0, got 'x'",
}


@pytest.mark.parametrize("line", REFUSED)
def test_wrong_input_is_refused_before_anything_is_stored(
    line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wrong.toml").write_text("[training]\nround = 3\n")
    Path("broken.toml").write_text("training =\n")
    Path("share.toml").write_text("[server_data]\nshare = 0.1\nwarm_up = 3\n")
    assert main(line.split()) == BadInput.exit_code
    assert capsys.readouterr().err.startswith(f"fedskew: {REFUSED[line]}")
    assert not Path("runs").exists()


def test_diagnosis_of_files_does_not_load_pytorch() -> None:
    code = "import sys, fedskew.cli.diagnose; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
