"""Wrong input that is refused before PyTorch is imported."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedskew.cli.early import refuse
from fedskew.cli.main import main, parser
from fedskew.core.errors import BadInput
from fedskew.data.datasets.heart import CSV

REFUSED = {
    "run --rounds 0": "training: rounds must be at least 1, got 0",
    "compare --clients 0": "clients: number must be at least 1, got 0",
    "run --held-out 2": "clients: held_out is a share, at least 0 and below 1, got 2.0",
    "run --set training.round=3": "training: unknown option 'round'; did you mean 'rounds'?",
    "run --dataset digit": "dataset: unknown dataset 'digit'; did you mean 'digits'?",
    "run --dataset digits:x=1": "dataset digits: unknown option 'x'; known are: test_fraction",
    "tune --skew label-dirichlet:alpha=0": "skew label-dirichlet: alpha must be a finite number above 0, got 0",
    "run --skew natural --skew quantity-lognormal": "skew: natural clients have their own sizes",
    "run nosuch.toml": "experiment file nosuch.toml: cannot be read: No such file or directory",
    "run wrong.toml": "wrong.toml: training: unknown option 'round'; did you mean 'rounds'?",
    "run broken.toml": "broken.toml: not valid TOML",
    f"run --dataset table:path={CSV},label=nm": f"{CSV}: no column 'nm'; did you mean 'num'?",
    "run --dataset table:path=nosuch.csv,label=y": "nosuch.csv: no such file or folder",
    f"diagnose {CSV} --label num --client hospitl": f"{CSV}: no column 'hospitl'; did you mean 'hospital'?",
    "diagnose nosuch.csv --label y": "nosuch.csv: no such file or folder",
    "compare --algorithms Fed-Avg scafold": "algorithm: unknown algorithm 'scafold'; did you mean 'scaffold'?",
    "run --algorithm mine.py": "algorithm: write mine.py::CLASS",
}

OPTIONS = {
    "compare --algorithms fedavg FedProx:mux=1": "algorithm fedprox: unknown option 'mux'; did you mean 'mu'?",
    "run --algorithm fedbs:weighting=x": "algorithm fedbs: weighting must be samples or uniform, got 'x'",
    "run --model mlp:hiden=[3]": "model mlp: unknown option 'hiden'; did you mean 'hidden'?",
    "run --solver adamw:lr=x": "solver adamw: lr must be a finite number above 0, got 'x'",
}
"""Options of components, which are refused when their classes are loaded."""


@pytest.mark.parametrize("line", OPTIONS)
def test_a_wrong_option_of_a_component_is_refused_before_any_work(
    line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*line.split(), "--runs", str(tmp_path / "runs")]) == BadInput.exit_code
    assert capsys.readouterr().err.startswith(f"fedskew: {OPTIONS[line]}")
    assert not (tmp_path / "runs").exists()


def test_wrong_input_is_refused_without_pytorch(tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text("[training]\nround = 3\n")
    (tmp_path / "broken.toml").write_text("training =\n")
    script = (
        "import sys, io, contextlib; from fedskew.cli.main import main\n"
        "for line in sys.argv[1:]:\n"
        "    code = main(line.split())\n"
        "    print(code, 'torch' in sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *REFUSED], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    lines = done.stderr.splitlines()
    assert lines[1::2] == ["2 False"] * len(REFUSED)
    for message, expected in zip(lines[::2], REFUSED.values(), strict=True):
        assert message.startswith(f"fedskew: {expected}")


@pytest.mark.parametrize(
    "line",
    [
        "run --dataset ./mine.py::Rows:x=1 --skew ./mine.py::Own",
        "run old.toml --rounds 3",
        "compare --algorithms ./mine.py::Mine fedprox:mu=1 --model nosuch --set solver.lr=0",
        "diagnose --dataset digits --skew iid",
    ],
)
def test_options_that_only_the_experiment_can_check_pass(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("old.toml").write_text("[training]\nworkers = 1\nrounds = 2\n")
    assert refuse(parser().parse_args(line.split())) is None


def test_options_are_judged_together_with_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[server_data]\nshare = 0.1\nwarm_up = 3\n")
    with pytest.raises(BadInput, match="server_data: warm_up 3 needs rows"):
        refuse(parser().parse_args(["run", str(file), "--server-data", "0"]))


def test_diagnosis_of_files_does_not_load_pytorch() -> None:
    code = "import sys, fedskew.cli.diagnose; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
