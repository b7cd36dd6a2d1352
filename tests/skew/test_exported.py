"""`fedskew skew`: its table, folders that it exports and reads back, and skews in TOML."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from fedskew.cli.main import main
from fedskew.core.errors import BadInput
from fedskew.execution.deal import client_data
from fedskew.experiment.config import Experiment, from_toml
from tests.commands import error_of, output_of

SWAP = ["label-dirichlet:alpha=0.5", "feature-noise", "concept-swap:clusters=2"]


def test_one_skew_is_a_table_several_are_a_list_and_both_read_back() -> None:
    one, more = Experiment(skew="label-sorted"), Experiment(skew=SWAP)
    assert "[skew]\n" in one.toml()
    assert "[[skew]]" in more.toml() or "skew = [" in more.toml()
    for e in (one, more, Experiment(skew=[*more.skew])):
        assert from_toml(e.toml()) == e
        assert from_toml(e.toml()).hash() == e.hash()
    assert from_toml("[[skew]]\nname = 'iid'\n[[skew]]\nname = 'feature-noise'").labels("skew") == [
        "iid",
        "feature-noise",
    ]
    assert more != one
    assert Experiment(skew=["label-sorted"]) == one


def test_from_folder_deals_the_exported_rows(tmp_path) -> None:
    folder = tmp_path / "clients"
    words = ["--skew", "label-dirichlet:alpha=0.3", "--skew", "quantity-lognormal", "--held-out", "0.2"]
    extra = ["--skew", "feature-affine", "--skew", "concept-swap:at_round=2"]
    printed = json.loads(output_of("skew", *words, *extra, "--export", folder, "--json", "--partition-seed", 4))
    skews = [*words[1::2][:2], *extra[1::2]]
    first = Experiment(skew=skews, clients={"held_out": 0.2, "partition_seed": 4})
    data = first.dataset.load()
    made = client_data(first, data)
    back = Experiment(
        skew=[f"from-folder:path={folder}", *extra[1::2]], clients={"held_out": 0.2, "partition_seed": 4, "number": 3}
    )
    again = client_data(back, data)
    assert np.array_equal(again.partition.indices, made.partition.indices)
    assert np.array_equal(again.partition.held_out[0], made.partition.held_out[0])
    assert again.partition.names == made.partition.names
    assert np.array_equal(again.x, made.x)
    assert np.array_equal(again.labels.at(5), made.labels.at(5))
    assert [one["rows"] for one in printed["by_client"]] == made.partition.sizes.tolist()
    with np.load(folder / "rows.npz", allow_pickle=False) as z:
        assert np.array_equal(z["x"], made.x)
        assert np.array_equal(z["y"], made.labels.at(0))
    with np.load(folder / "transforms.npz", allow_pickle=False) as z:
        assert z["0-feature-affine-gain"].shape == (10, 64)
        assert set(z["1-concept-swap-group"]) == {0, 1}
    readme = (folder / "README.md").read_text()
    assert "--partition-seed 4 --skew from-folder:path=" in readme
    assert "--skew feature-affine --skew concept-swap:at_round=2" in readme

    other = back.replace(dataset="digits:test_fraction=0.3")
    with pytest.raises(BadInput, match="made from other data"):
        client_data(other, other.dataset.load())
    with pytest.raises(BadInput, match="server_data"):
        client_data(back.replace(server_data__share=0.1), data)
    assert main(["skew", "--export", str(folder)]) == 2, "a folder is not written over"
    (folder / "partition.npz").write_bytes(b"something else")
    with pytest.raises(BadInput, match="cannot read"):
        client_data(back, data)


def test_the_command_in_an_exported_readme_runs(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my data").mkdir()
    rows = [f"{i * i % 17},{'ab'[i % 2]},{i % 3}" for i in range(60)]
    Path("my data/t.csv").write_text("\n".join(["size,the client,2020", *rows]) + "\n")
    words = ["--dataset", 'table:path=my data/t.csv,label="2020",client=the client', "--skew", "natural"]
    out = output_of("skew", *words, "--export", "out, 2", "--json")
    line = next(line for line in Path("out, 2/README.md").read_text().splitlines() if "fedskew run" in line)
    again = output_of("skew", *shlex.split(line)[2:], "--json")
    assert json.loads(again)["by_client"] == json.loads(out)["by_client"]


def test_a_damaged_partition_is_refused(tmp_path) -> None:
    folder = tmp_path / "clients"
    assert main(["skew", "--skew", "iid", "--export", str(folder)]) == 0
    experiment = Experiment(skew=f"from-folder:path={folder}")
    data = experiment.dataset.load()
    with np.load(folder / "partition.npz") as z:
        arrays = dict(z)
    for name, change in (
        ("indices", lambda a: np.where(np.arange(len(a)) == 0, a[1], a)),
        ("indices", lambda a: a + 10_000),
        ("indices", lambda a: np.where(a == a.max(), len(data.y), a)),
        ("offsets", lambda a: np.where(np.arange(len(a)) == 1, 0, a)),
        ("offsets", lambda a: a[:-1]),
        ("offsets", lambda a: a[::-1]),
    ):
        np.savez(folder / "partition.npz", **{**arrays, name: change(arrays[name])})
        with pytest.raises(BadInput) as caught:
            client_data(experiment, data)
        assert "export it again" in str(caught.value)
    (folder / "partition.json").unlink()
    with pytest.raises(BadInput, match="holds no partition"):
        client_data(experiment, data)


def test_skew_prints_a_table_of_at_most_80_columns(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = output_of("skew", "--clients", 30, "--skew", "label-shards", "--skew", "feature-rotation:side=8")
    assert capsys.readouterr().err == ""
    assert "and 6 more" in out
    assert "label distance by chance alone" in out
    assert "test set: features as the data set has them" in out
    assert max(len(line) for line in out.splitlines()) <= 80


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--skew", "from-folder:path=nowhere"], "holds no partition"),
        (["--skew", "iid", "--skew", "pooled", "--export", "x"], "leave out shared_data, pooled, shuffled and unseen"),
        (
            ["--skew", "iid", "--skew", "shuffled", "--export", "x"],
            "leave out shared_data, pooled, shuffled and unseen",
        ),
    ],
)
def test_bad_requests_are_one_line_and_exit_code_two(words, message: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    err = error_of("skew", *words)
    assert message in err
    assert len(err.strip().splitlines()) == 1
