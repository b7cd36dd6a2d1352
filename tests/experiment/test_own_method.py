"""A user's own method: the page's example as it stands there, every way to name it, and every way in which it can go wrong."""

import re
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from fedskew.api.functions import compare, run
from fedskew.cli.main import main
from fedskew.core import user_code as own
from fedskew.core.component import Catalogue, build, label, parse, to_table
from fedskew.core.errors import BadInput, Interrupted
from fedskew.execution.run import execute, register
from fedskew.experiment.combinations import with_method
from fedskew.experiment.config import COMPONENTS, Experiment, from_toml
from fedskew.experiment.references import citations
from fedskew.store import checkpoints
from fedskew.store.runs import RunStore
from tests.commands import error_of, output_of

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "own-method.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)
MINE = next(block for block in BLOCKS if block.startswith("# mine.py"))
METHODS = COMPONENTS["algorithm"]
SMALL = {
    "training": {"rounds": 4, "threads": 1},
    "local": {"epochs": 1},
    "engine": "stacked",
    "checkpoint": {"every": 2},
}
QUICK = ["--rounds", "1", "--epochs", "1", "--engine", "stacked", "--set", "training.threads=1"]


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make no reports: they take longer than these runs, and other tests cover them."""
    monkeypatch.setattr("fedskew.report.html.write_report", lambda results, path, **_: path)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the file of the page to the working directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def accuracies(runs: object) -> list[float]:
    frame = runs.measurements()
    return frame[(frame["split"] == "test")]["value"].tolist()


# the page


def test_method_of_the_page_keeps_its_promises(mine: Path) -> None:
    out = output_of("check", "./mine.py::Carried")
    assert "ok     takes the steps of fedavg with beta=0" in out
    assert "broken" not in out


def test_decision_of_the_page_is_stored(mine: Path) -> None:
    at = next(i for i, block in enumerate(BLOCKS) if "decides:" in block)
    mine.write_text("\n".join([MINE, *BLOCKS[at : at + 2]]))
    assert main(["check", "./mine.py::Carried"]) == 0
    runs = run(Experiment(algorithm="./mine.py::Carried", dataset="digits", **SMALL), runs="runs")
    speeds = runs.curves("speed")
    steps = runs.measurements().query("name == 'steps' and split == 'client'")
    assert list(zip(speeds["round"], speeds["client"], strict=True)) == list(
        zip(steps["round"], steps["client"], strict=True)
    )
    assert (speeds["value"] > 0).all()


def test_commands_and_program_of_the_page_run(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shell = "".join(re.findall(r"```sh\n(.*?)```", PAGE, re.S)).splitlines()
    words = [line.split()[1:] for line in shell if line.startswith("fedskew ") and "check" not in line]
    assert len(words) == 2
    for line in words:
        # side by side would start processes, which import PyTorch anew
        jobs = ["--jobs", "1"] if line[0] == "compare" else []
        assert main([*line, *QUICK, *jobs]) == 0, line
    store = RunStore("runs")
    assert {r.name for r in store.runs()} >= {"./mine.py::Carried", "./mine.py::Carried:beta=0.9", "carried"}
    program = next(block for block in BLOCKS if "fs.compare" in block)
    quick = program.replace("fs.Experiment(", 'fs.Experiment(training={"rounds": 2}, engine="stacked", ')
    quick = quick.replace("seeds=2", "seeds=2, jobs=1")
    assert "rounds" in quick
    assert "jobs" in quick
    exec(compile(quick, "own-method.md", "exec"), {})
    assert "Carried beta = 0.3" in capsys.readouterr().out


def test_toml_of_the_page_is_what_is_stored(mine: Path) -> None:
    shown = tomllib.loads(next(b for b in re.findall(r"```toml\n(.*?)```", PAGE, re.S) if "[algorithm]" in b))
    stored = tomllib.loads(Experiment(algorithm="./mine.py::Carried:beta=0.3").toml())
    assert list(shown["algorithm"]) == list(stored["algorithm"])
    assert stored["algorithm"] == {
        "name": f"{mine}::Carried",
        "file_hash": own.digest(mine.read_bytes()),
        "weighting": "samples",
        "beta": 0.3,
    }
    entry = tomllib.loads(next(b for b in re.findall(r"```toml\n(.*?)```", PAGE, re.S) if "entry-points" in b))
    assert f"fedskew.{METHODS.kinds}" in entry["project"]["entry-points"]


# naming it


def test_a_name_with_a_file_is_taken_apart() -> None:
    assert parse("./mine.py::Mine:mu=0.1,kind=a", "") == ("./mine.py::Mine", {"mu": 0.1, "kind": "a"})
    assert parse("/a b/mine.py::Mine", "") == ("/a b/mine.py::Mine", {})
    assert parse("C:\\mine.py::Mine:mu=1", "") == ("C:\\mine.py::Mine", {"mu": 1})
    assert parse("fedprox:mu=0.1", "") == ("fedprox", {"mu": 0.1})
    assert parse("fedprox:text=a::b", "") == ("fedprox", {"text": "a::b"})


def test_every_way_to_name_a_class_gives_the_same_experiment(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = Experiment(algorithm="./mine.py::Carried:beta=0.3")
    assert named.name == "mine.py::Carried:beta=0.3"
    assert Experiment(algorithm={"name": str(mine) + "::Carried", "beta": 0.3}) == named
    assert Experiment(algorithm=named.algorithm) == named
    assert from_toml(named.toml()) == named
    assert with_method(Experiment(), "./mine.py::Carried:beta=0.3").algorithm == named.algorithm
    assert named.replace(training__seed=3).algorithm == named.algorithm
    monkeypatch.syspath_prepend(mine.parent)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    import mine as imported

    assert Experiment(algorithm=imported.Carried(beta=0.3)) == named
    del sys.modules["mine"]


@pytest.mark.slow
def test_worker_processes_and_one_process_give_the_same(mine: Path, tmp_path: Path) -> None:
    specs = ["fedavg", "./mine.py::Carried"]
    one, two = (compare(Experiment(**SMALL), specs, seeds=1, runs=tmp_path / str(jobs), jobs=jobs) for jobs in (1, 2))
    assert {r.status for r in two.records} == {"finished"}
    assert accuracies(one) == accuracies(two)


def test_own_method_resumes_bit_for_bit_from_another_directory(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = Experiment(algorithm="./mine.py::Carried", **SMALL)
    run(experiment, runs=tmp_path / "whole")
    halved = RunStore(tmp_path / "halved")
    with pytest.raises(Interrupted):
        execute(halved, register(halved, experiment), stop=lambda: halved.run(1).rounds_done == 2)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert main(["resume", "1", "--runs", str(tmp_path / "halved")]) == 0
    trees = [checkpoints.load(checkpoints.latest(tmp_path / f / "1"))[0] for f in ("whole", "halved")]
    assert torch.equal(trees[0]["x"], trees[1]["x"])
    assert torch.equal(trees[0]["clients"]["states"]["v"], trees[1]["clients"]["states"]["v"])


# a file that is not what it was


def test_a_changed_file_is_refused_before_anything_happens(mine: Path, tmp_path: Path) -> None:
    assert main(["run", "--algorithm", "./mine.py::Carried", *QUICK, "--runs", "runs"]) == 0
    toml = "runs/1/experiment.toml"
    marker = tmp_path / "executed"
    mine.write_text(MINE + f"\nopen({str(marker)!r}, 'w').close()\n")
    err = error_of("run", toml)
    assert err.count("\n") == 1
    assert f"{mine} has changed (hash {own.digest(MINE.encode())} before, now" in err
    assert "put the old file back, or start a new run" in err
    assert not marker.exists(), "a file that is not the right one is not run"
    store = RunStore("runs")
    store.update(1, status="interrupted")
    assert main(["resume", "1"]) == 2
    assert store.run(1).status == "interrupted", "it can still be resumed once the file is back"
    mine.write_text(MINE)
    assert main(["resume", "1"]) == 0


def test_without_a_hash_the_file_is_taken_as_it_is(mine: Path) -> None:
    e = Experiment(algorithm="./mine.py::Carried")
    toml = re.sub(r"file_hash = .*\n", "", e.toml())
    mine.write_text(MINE.replace("beta: float = 0.5", "beta: float = 0.7"))
    again = from_toml(re.sub(r"beta = .*\n", "", toml), trusted=True)
    assert (e.algorithm.beta, again.algorithm.beta) == (0.5, 0.7)
    assert type(again.algorithm) is not type(e.algorithm)


def test_a_missing_file_is_named(mine: Path) -> None:
    toml = Experiment(algorithm="./mine.py::Carried").toml()
    mine.unlink()
    with pytest.raises(BadInput, match=re.escape(f"run 7: algorithm: cannot read {mine}: No such file")):
        from_toml(toml, "run 7")
    assert error_of("run", "--algorithm", "./mine.py::Carried").count("\n") == 1


HEAD = MINE.partition("@dataclass")[0]
UNDECORATED = HEAD + "class Carried(Algorithm):\n    beta: float = 0.5\n"


@pytest.mark.parametrize(
    ("text", "spec", "message"),
    [
        (MINE, "mine.py::Caried", "has no class 'Caried'; did you mean 'Carried'?"),
        (MINE, "mine.py::Carried:bta=1", "unknown option 'bta'; did you mean 'beta'?"),
        (MINE, "mine.py::Carried:beta=high", "beta must be a number, got 'high'"),
        (MINE, "mine.py:Carried", "mine.py::CLASS"),
        (MINE, "mine.py::Tensor", "is not a frozen dataclass"),
        (MINE, "mine.py::torch", "is not a class, but module"),
        (UNDECORATED, "mine.py::Carried", "is not a frozen dataclass; write @dataclass(frozen=True, kw_only=True)"),
        (MINE.replace("def direction", "def directio"), "mine.py::Carried", "did you mean 'direction'?"),
        (MINE.replace("def client_init(self, x: Tensor)", "def client_init(self)"), "mine.py::Carried",
         "client_init(self) takes other arguments than client_init(self, x)"),
        (MINE.replace("def client_init", "def weights"), "mine.py::Carried", "'weights' cannot be changed"),
        (MINE.replace("beta: float = 0.5", "beta: float"), "mine.py::Carried", "option 'beta' has no default"),
        ("import fedskew.nothing\n", "mine.py::Carried", "line 1: ModuleNotFoundError: No module named"),
        ("x = 1\ny = = 2\n", "mine.py::Carried", "line 2: SyntaxError: invalid syntax"),
        ("x = 1\n\nprint(1 / 0)\n", "mine.py::Carried", "line 3: ZeroDivisionError"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_in_one_line(mine: Path, text: str, spec: str, message: str) -> None:
    mine.write_text(text)
    err = error_of("check", spec)
    assert message in err
    assert err.count("\n") == 1
    assert not list(mine.parent.glob("runs"))


def test_a_file_that_fails_leaves_nothing_behind(mine: Path) -> None:
    mine.write_text("raise ValueError('first')\n")
    for _ in range(2):
        with pytest.raises(BadInput, match="ValueError: first"):
            build("algorithm", METHODS, "mine.py::Carried")


def test_a_method_is_no_skew(mine: Path) -> None:
    with pytest.raises(BadInput, match=r"skew: mine.py::Carried lacks deal\(self, labels, groups, num_clients, rng\)"):
        Experiment(skew="./mine.py::Carried")
    with pytest.raises(BadInput, match=r"is not a subclass of fedskew.Algorithm; write @dataclass"):
        Experiment(algorithm="mine.py::Tensor")
    with pytest.raises(BadInput, match="engines cannot be loaded from files"):
        Experiment(engine="./mine.py::Carried")


# what else is said of it


def test_labels_are_short_and_citations_name_unknown_keys(mine: Path) -> None:
    mine.write_text(
        MINE.replace('"update path"\n', '"update path"\n    cites: ClassVar[tuple[str, ...]] = ("mine", "moon")\n')
    )
    e = Experiment(algorithm="./mine.py::Carried:beta=0.3")
    assert label(e.algorithm, METHODS) == "mine.py::Carried:beta=0.3"
    works, unknown = citations([e])
    assert unknown == ["mine (algorithm mine.py::Carried:beta=0.3)"]
    assert "moon" in {w.reference.key for w in works}


def test_check_reports_a_broken_promise(mine: Path) -> None:
    mine.write_text(MINE.replace("self.beta * scratch", "0.5 * scratch"))
    out = output_of("check", "mine.py::Carried", code=1)
    assert re.findall(r"^broken +(.*?)(?:: .*)?$", out, re.M) == ["takes the steps of fedavg with beta=0"]
    assert "1 of 12 promises broken" in out


# packages


@pytest.fixture
def package(mine: Path) -> Path:
    """Return a folder that looks like an installed package with two methods. One method is broken."""
    folder = mine.parent / "site"
    info = folder / "theirs-1.2.dist-info"
    info.mkdir(parents=True)
    (folder / "theirs.py").write_text(MINE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.2\n")
    lines = ["[fedskew.algorithms]", "carried = theirs:Carried", "gone = theirs:Gone", "fedavg = theirs:Carried", ""]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return folder


def test_package_methods_load_on_first_use_and_built_in_ones_keep_their_names(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(package)
    methods = Catalogue("algorithms", METHODS.ours, *METHODS.contracts)
    assert [*methods][-2:] == ["carried", "gone"]
    assert len(methods) == len(METHODS.ours) + 2
    assert methods["fedavg"] is METHODS.ours["fedavg"]
    assert "theirs" not in sys.modules
    assert "gone" in methods
    with pytest.raises(BadInput, match=r"^gone of package theirs: module theirs has no class 'Gone'"):
        methods["gone"]
    made = build("algorithm", methods, "carried:beta=0.1")
    assert to_table(made, methods) == {"name": "carried", "weighting": "samples", "beta": 0.1}
    assert build("algorithm", methods, made) == made, "an object of theirs is theirs, not a file"
    assert own.offered_by(type(made)) == {"theirs": "1.2"}
    monkeypatch.delattr(own, "entry_points")  # reading all packages takes 10 ms
    assert own.offered_by(methods["fedavg"]) == {}
    del sys.modules["theirs"]
