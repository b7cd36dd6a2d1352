"""`fedskew diagnose`: terminal, JSON, page, files, refusals, and the command that it advises."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from threadpoolctl import threadpool_info, threadpool_limits

from fedskew.cli.main import main
from fedskew.core.component import build, compact, parse
from fedskew.data.datasets.heart import CSV
from fedskew.data.datasets.table import TableData
from fedskew.diagnosis.diagnose import diagnosis
from fedskew.diagnosis.subject import ClientRows, DiagnosisOptions, Source, arguments_of, events_and_times, log_rank
from fedskew.diagnosis.targets import holdings
from fedskew.experiment.config import Experiment
from fedskew.measure.heterogeneity.faces import FACES
from fedskew.report.diagnosis import answer, page
from tests.commands import error_of, line_of, output_of

QUICK = settings(max_examples=50, deadline=None, derandomize=True, database=None)


# what the user sees


@pytest.fixture
def quick(monkeypatch, few_tables):
    monkeypatch.setattr("fedskew.diagnosis.diagnose.details", lambda *a: {"label": {"L1": 0.5, "alpha": None}})


COMMAND = ["diagnose", "--dataset", "digits", "--skew", "label-dirichlet", "--clients", "8"]


def test_the_terminal_stays_within_eighty_columns(quick):
    out = output_of(*COMMAND)
    assert out.startswith("The clients differ mostly by label")
    assert all(len(line) <= 80 for line in out.splitlines() if not line.startswith("fedskew compare"))
    assert "0 alike, at most 0.88 where these 8 clients have nothing in common" in " ".join(out.split())
    for word in (*FACES, "chance", "interval", "8 clients", "What to try", "fedskew compare --dataset digits"):
        assert word in out


def test_names_in_brackets_are_printed_as_they_are(quick, tmp_path):
    rows = [f"{k % 3},{k % 2},[site {k % 4}]" for k in range(120)]
    (tmp_path / "rows.csv").write_text("\n".join(["[dose],ill,site", *rows]) + "\n", encoding="utf-8")
    out = output_of("diagnose", tmp_path / "rows.csv", "--label", "ill", "--client", "site")
    assert "[site 0]" in out
    assert "\\[" not in out


def test_neither_pytorch_nor_scikit_learn_is_loaded_by_a_diagnosis_with_its_page(tmp_path: Path):
    """Importing them takes longer than the diagnosis, of a file or of a named data set."""
    script = (
        "import sys; from fedskew.cli.main import main; from fedskew.measure.heterogeneity import faces; faces.TABLES = 9\n"
        "main(['diagnose', *sys.argv[2:], '--html', sys.argv[1]]); main(['diagnose', '--dataset=heart', '--skew=natural'])\n"
        "print(sorted({'torch', 'sklearn', 'matplotlib.pyplot'} & {*sys.modules}))"
    )
    words = [str(tmp_path / "page.html"), str(CSV), "--label", "num", "--client", "hospital"]
    command = [sys.executable, "-c", script, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout.splitlines()[-1] == "[]"
    assert (tmp_path / "page.html").is_file()


def test_the_terminal_shows_faces_clients_and_columns(quick, snapshot):
    """Columns that differ are named with their client; routine notes are one line."""
    out = output_of("diagnose", CSV, "--label", "num", "--client", "hospital")
    assert out.partition("What to try")[0] == snapshot


def test_json_and_page_hold_the_same(quick, tmp_path):
    result = json.loads(output_of(*COMMAND, "--json", "--html", tmp_path / "d.html"))
    assert result["dominant"] == "label"
    assert [face["face"] for face in result["faces"]] == list(FACES)
    assert result["clients"] == 8 == len(result["label_counts"])
    page = (tmp_path / "d.html").read_text()
    assert page.count("<svg") == 3
    assert "The clients differ mostly by label" in page
    assert "0 alike, at most 1 − 1/clients" in page
    assert f"{result['faces'][0]['value']:.2f}" in page


def test_files_on_the_command_line(quick, tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        "a,b,site,out",
        *(f"{rng.normal():.3f},{rng.normal():.3f},s{i % 6},{'n' if i % 5 else 'y'}" for i in range(600)),
    ]
    rows += ["1,2,,y"]
    (tmp_path / "d.csv").write_text("\n".join(rows) + "\n")
    out = output_of("diagnose", tmp_path / "d.csv", "--label", "out", "--client", "site")
    assert "Nothing differs beyond chance" in out
    assert "1 of 601 rows dropped: no value in 'site'" in out


def test_a_column_that_differs_is_not_denied_by_the_faces():
    faces = [{"face": name, "p": 1.0} for name in ("label", "feature", "quantity", "concept")]
    alike = {"faces": faces, "dominant": None, "columns": []}
    assert answer(alike) == "Nothing differs beyond chance: the clients look like fair samples of one population."
    differ = {**alike, "columns": [{"text": "x is higher in oslo"}]}
    assert answer(differ) == "No measured face differs beyond chance as a whole, but single columns do."


def test_columns_that_follow_the_labels_are_one_line_on_terminal_and_page(quick, tmp_path):
    command = ["diagnose", "--dataset", "digits", "--skew", "label-dirichlet:alpha=0.3"]
    out = line_of(*command, "--html", tmp_path / "d.html")
    line = r"What differs most, and for whom (- label is .*? )*\d+ columns differ no more than the labels explain, such as 'input"
    assert re.search(line, out)
    assert "columns differ no more than the labels explain, such as" in (tmp_path / "d.html").read_text()


def test_a_named_data_set_is_compared_in_its_own_units(quick):
    found = json.loads(output_of("diagnose", "--dataset", "heart", "--skew", "natural", "--json"))
    assert found["columns"][0]["text"] == "chol is missing in 100 % of Switzerland's rows, elsewhere in 10 %"
    said = [one["text"] for own in found["by_client"] for one in own]
    assert not [text for text in said if "mean -" in text or "e-" in text]


def test_numbers_as_labels_are_called_classes(quick):
    out = line_of("diagnose", CSV, "--label", "age", "--client", "hospital")
    assert "note: 'age' has 50 different numbers, and each one is a class of its own" in out
    assert "did you mean target=age (--target age), which predicts numbers?" in out


def test_numbers_as_targets_are_compared_by_tenths_and_residuals(quick):
    found = json.loads(output_of("diagnose", CSV, "--target", "age", "--client", "hospital", "--json"))
    assert found["target"] == "number"
    assert found["sizes"] == [294, 303, 200, 123]
    assert found["holdings"]["columns"] == ["mean", "10 %", "median", "90 %"]
    assert found["holdings"]["rows"][1] == pytest.approx([54.44, 42, 56, 66], abs=0.5)
    assert "by tenths" in found["faces"][0]["meaning"]
    assert "target=age,client=hospital" in found["advice"]["command"]
    assert "(beijing-air and parkinsons;" in found["advice"]["caution"]
    assert "targets are numbers" in line_of("diagnose", CSV, "--target", "age", "--client", "hospital")


def test_a_data_set_of_any_target_is_diagnosed(quick, tmp_path):
    rng = np.random.default_rng(0)
    x, groups = rng.normal(size=(120, 3)).astype(np.float32), np.arange(120) % 4
    survival = np.column_stack([rng.exponential(size=120) + 0.1, groups % 2]).astype(float)
    found = diagnosis(subject(x, survival, groups))
    assert found["holdings"]["rows"] == [[g % 2, pytest.approx(np.median(survival[groups == g, 0]))] for g in range(4)]
    assert found["dominant"] == "label"
    assert found["classes"][0].startswith("no event, time up to ")
    page(found)


def subject(x: np.ndarray, y: np.ndarray, groups: np.ndarray) -> ClientRows:
    stratum, names = events_and_times(y)
    counts = np.stack([np.bincount(stratum[groups == g], minlength=len(names)) for g in range(4)])
    source = Source("s", clients=("a", "b", "c", "d"))
    return ClientRows(source, x, stratum, groups, counts, names, kind="survival", targets=y, response=log_rank(y))


def test_symbols_are_diagnosed_and_shown(quick):
    y, client = np.array([[0, 1, 2, -1], [3, 1, -1, -1]] * 40), np.arange(80) % 2
    source, shares = Source("s", clients=("a", "b")), []
    rows = ClientRows(source, y, y[:, 0], client, np.diag([40, 40]), (), kind="symbols", targets=y)
    found = diagnosis(rows, on_progress=lambda stage, share: shares.append(share))
    assert shares == sorted(set(shares))
    assert shares[-1] == 1
    assert [face["face"] for face in found["faces"]] == ["label", "quantity", "concept"]
    assert found["label_counts"] == [[40, 40, 40, 0], [0, 40, 0, 40]]
    assert found["holdings"]["columns"] == ["symbol 0", "symbol 1", "symbol 2", "symbol 3"]
    assert found["holdings"]["rows"][1] == [0, 0.5, 0, 0.5]
    assert found["target_in_words"] == "4 symbols"
    page(found)


def test_scores_of_survival_times_by_hand():
    assert log_rank(np.array([[1.0, 1], [2, 1], [3, 1]])) == pytest.approx([2 / 3, 1 / 6, -5 / 6])
    # the second row leaves before the third has its event
    assert log_rank(np.array([[1.0, 1], [2, 0], [3, 1]])) == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    rng = np.random.default_rng(0)
    assert abs(log_rank(np.column_stack([rng.integers(1, 9, 50), rng.integers(0, 2, 50)]).astype(float)).sum()) < 1e-12


def test_shares_of_sets_of_labels_are_the_rates_of_each_label():
    y, client = np.array([[1, 0], [1, 1], [0, 0], [0, 1]]), np.array([0, 0, 1, 1])
    found = holdings("labels", y, client, np.ones((2, 3), dtype=np.int64), ("fever", "cough"))
    assert found == {"columns": ["fever", "cough"], "shares": [True, True], "rows": [[1.0, 0.5], [0.0, 0.5]]}


def test_diagnosis_uses_one_thread(monkeypatch):
    """Threads that wait for each other took seven times as long on a busy machine."""
    seen = []
    monkeypatch.setattr("fedskew.diagnosis.diagnose.diagnose_rows", lambda *a: seen.extend(threadpool_info()) or {})
    with threadpool_limits(2):
        diagnosis(ClientRows(Source("x"), *[np.zeros((2, 1))] * 4, ("a", "b")))
    assert seen
    assert {pool["num_threads"] for pool in seen} == {1}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["same.csv"], "name the column of classes by label, or the column of numbers by target"),
        (["same.csv", "--label", "y", "--target", "z"], "not both"),
        (["same.csv", "--target", "y", "--client", "k"], "all targets in 'y' are 2; name a column whose values differ"),
        (
            ["far.csv", "--target", "y", "--client", "k"],
            "column 'y' is the target and holds 1 infinite number; leave out",
        ),
        (["none.csv", "--target", "y", "--client", "k"], "no row has both a target ('y') and a client"),
        (["a.csv", "--label", "y", "--skew", "iid"], "the column of the clients with client"),
        (["--dataset", "digits", "--label", "y"], "has its own"),
        (["--dataset", "digits", "--skew", "natural"], "has no natural clients"),
    ],
)
def test_bad_requests_give_one_line_errors(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "iid" in arguments:
        (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    for name, values in {"same": "22", "far": ("1", "inf"), "none": ("", "")}.items():
        (tmp_path / f"{name}.csv").write_text("x,y,k\n" + "".join(f"{i},{v},{i % 2}\n" for i, v in enumerate(values)))
    message = error_of("diagnose", *arguments)
    assert words in message
    assert message.count("\n") == 1


def test_the_advised_command_runs(quick, tmp_path):
    out = output_of("diagnose", "--dataset", "digits", "--skew", "iid", "--clients", "5", "--json")
    command = json.loads(out)["advice"]["command"]
    assert command == "fedskew compare --dataset digits --skew iid --clients 5 --tuned --algorithms fedavg"
    short = "--tuning-seeds 9 --rounds 1 --seeds 1 --epochs 1 --jobs 1 --engine stacked --runs"
    assert main([*command.split()[1:], *short.split(), str(tmp_path)]) == 0


@QUICK
@given(st.lists(st.text("ab01 ,[]\"'\\=:.#\né", min_size=1, max_size=8), max_size=3))
def test_any_text_can_be_written_as_an_option(values):
    options = {f"o{i}": value for i, value in enumerate(values)} | {"all": values}
    spec = "table:" + ",".join(f"{name}={compact(value)}" for name, value in options.items())
    assert parse(spec, "here") == ("table", options)


def arguments_of_files(paths: list[Path], label: str, client: str) -> str:
    return DiagnosisOptions(paths=paths, label=label, client=client).compare_arguments()


def test_the_advised_command_names_files_and_skews():
    assert arguments_of_files([Path("my data.csv")], "y", "k") == (
        "--dataset 'table:path=my data.csv,label=y,client=k' --skew natural"
    )
    assert arguments_of_files([Path("a.csv"), Path("b.csv")], "y", "k") == ""
    odd = shlex.split(arguments_of_files([Path("it's [1].csv")], "2020", "site,no"))
    result = build("dataset", {"table": TableData}, odd[1])
    assert (result.path, result.label, result.client) == ("it's [1].csv", "2020", "site,no")
    skews = ["label-classes:k=3", "feature-noise:level=0.5"]
    result = arguments_of(Experiment(dataset="uci-har:form=features", skew=skews))
    assert result == "--dataset uci-har:form=features --skew label-classes:k=3 --skew feature-noise:level=0.5"


def test_the_advised_command_of_several_files_names_their_folder_or_says_what_to_fill_in(tmp_path):
    rng, folder = np.random.default_rng(0), tmp_path / "sites"
    folder.mkdir()
    for name in "ab":
        rows = [f"{x:.3f},{'ny'[y]}" for x, y in zip(rng.normal(size=60), rng.integers(0, 2, 60), strict=True)]
        (folder / f"{name}.csv").write_text("\n".join(["x,out", *rows]) + "\n")
    files = [str(folder / f"{name}.csv") for name in "ab"]
    out = output_of("diagnose", *files, "--label", "out")
    assert f"--dataset table:path={folder},label=out --skew natural" in out
    assert build("dataset", {"table": TableData}, f"table:path={folder},label=out").load().group_names == ("a", "b")
    (folder / "c.csv").write_text((folder / "a.csv").read_text())
    said = line_of("diagnose", *files, "--label", "out", "--federated")
    assert "write yours for DATASET, such as table:path=FOLDER,label=COLUMN" in said
    assert "fedskew compare --dataset DATASET " in said


def test_a_column_in_another_unit_is_the_first_thing_to_correct(quick, tmp_path):
    rng = np.random.default_rng(0)
    site, out = np.arange(400) % 4, rng.integers(0, 2, 400)
    height = rng.normal(67, 4, 400) * np.where(site == 2, 2.54, 1)
    lines = [f"{h:.2f},s{s},{'ny'[o]}" for h, s, o in zip(height, site, out, strict=True)]
    (tmp_path / "d.csv").write_text("\n".join(["height,site,out", *lines]) + "\n")
    text = line_of("diagnose", tmp_path / "d.csv", "--label", "out", "--client", "site")
    first = "First mend the data - s2's column height may be in another unit (inches and cm): divide it by 2.54."
    lines = "[units.site.s2] height = 0.393701 d.csv: 4 clients"
    assert f"{first} If so, write in d.columns.toml, beside the table: {lines}" in text
    assert "as in another unit (inches and cm): mean 17" in text
