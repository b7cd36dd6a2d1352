"""Checkpoints: exact, never half a file, and a damaged one is noticed."""

import math
from pathlib import Path

import pytest
import torch

from fedskew.core.errors import BadInput, FedskewError
from fedskew.core.files import UNFINISHED
from fedskew.core.trees import leaves
from fedskew.store import checkpoints
from tests.store import refused

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


def tree() -> dict:
    g = torch.Generator().manual_seed(0)
    return {
        "x": torch.randn(7, generator=g, dtype=torch.float64),
        "opt": {"m": torch.randn(7, generator=g), "t": torch.tensor(3.0), "deep": {"er": torch.tensor([1, 2])}},
        "clients": {"ids": torch.tensor([4, 0, 2]), "states": {"c": torch.randn(3, 7, generator=g)}},
    }


def assert_same(one: dict, two: dict) -> None:
    flat, other = dict(leaves(one)), dict(leaves(two))
    assert list(flat) == list(other)
    for path, leaf in flat.items():
        assert leaf.dtype == other[path].dtype
        assert leaf.shape == other[path].shape
        assert torch.equal(leaf, other[path]) or leaf.isnan().any(), path
        assert leaf.isnan().equal(other[path].isnan()) if leaf.is_floating_point() else True


FACTS = {"round": 12, "num_clients": 5, "note": "ümlaut", "nested": {"a": [1, 2.5, None]}}


def test_a_checkpoint_is_read_back_exactly(tmp_path):
    path = checkpoints.save(tmp_path / "new" / "folder", 12, tree(), FACTS)
    assert path.name == "round-000012.safetensors"
    got, facts = checkpoints.load(path)
    assert_same(tree(), got)
    assert facts == FACTS
    assert_same(tree(), checkpoints.to_device(got, torch.device("cpu")))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_type_of_number_survives(tmp_path, dtype):
    values = torch.tensor([0, 1, 3, 200]).to(dtype)
    made = {
        "row": values,
        "scalar": values[3],
        "none": values[:0],
        "cube": values.view(2, 2, 1),
        "wide": values.new_zeros(0, 5),
    }
    assert_same(made, checkpoints.load(checkpoints.save(tmp_path, 1, made, {}))[0])


def test_special_numbers_survive(tmp_path):
    made = {"x": torch.tensor([math.inf, -math.inf, math.nan, -0.0, 5e-324, 1 / 3], dtype=torch.float64)}
    got = checkpoints.load(checkpoints.save(tmp_path, 1, made, {}))[0]
    assert made["x"].view(torch.int64).equal(got["x"].view(torch.int64))


def test_views_and_shared_memory_are_stored_as_their_values(tmp_path):
    base = torch.arange(12.0).view(3, 4)
    made = {"whole": base, "same": base, "column": base[:, 1], "turned": base.T, "rows": base[1:]}
    made["grad"] = base.clone().requires_grad_()
    got = checkpoints.load(checkpoints.save(tmp_path, 1, made, {}))[0]
    assert_same({**made, "grad": base}, got)
    assert not got["grad"].requires_grad
    got["whole"][0, 0] = 99
    assert got["same"][0, 0] == 0


def test_only_the_newest_checkpoint_is_kept(tmp_path):
    (tmp_path / "experiment.toml").write_text("kept")
    for round_ in (1, 2, 10):
        path = checkpoints.save(tmp_path, round_, tree(), {"round": round_})
        assert checkpoints.latest(tmp_path) == path
    assert sorted(p.name for p in tmp_path.iterdir()) == ["experiment.toml", "round-000010.safetensors"]
    assert checkpoints.load(path)[1] == {"round": 10}


def test_latest_takes_the_highest_round_and_nothing_else(tmp_path):
    assert checkpoints.latest(tmp_path) is None
    assert checkpoints.latest(tmp_path / "absent") is None
    for name in ("round-000009.safetensors", "round-000010.safetensors", "round-000011.partial", "round-x.safetensors"):
        (tmp_path / name).touch()
    assert checkpoints.latest(tmp_path) == tmp_path / "round-000010.safetensors"


@pytest.mark.parametrize("share", [0.0, 0.01, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_checkpoint_gives_a_one_line_error(tmp_path, share):
    path = checkpoints.save(tmp_path, 1, tree(), FACTS)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with refused(BadInput, str(path)):
        checkpoints.load(path)


def test_file_that_is_no_checkpoint_gives_one_line(tmp_path):
    from safetensors.torch import save_file

    (tmp_path / "text").write_text("hello " * 100)
    (tmp_path / "zeros").write_bytes(bytes(1000))
    save_file({"a": torch.ones(2)}, tmp_path / "foreign")
    save_file({"a": torch.ones(2)}, tmp_path / "other", metadata={"format": "pt"})
    save_file({"a": torch.ones(2)}, tmp_path / "broken", metadata={"facts": "{not json"})
    for name in ("text", "zeros", "absent", ".", "foreign", "other", "broken"):
        with refused(BadInput, str(tmp_path / name)):
            checkpoints.load(tmp_path / name)


def full_disk(tensors, path, metadata=None):
    Path(path).write_bytes(b"half of it")
    raise OSError(28, "No space left on device")


def failing(*_, **__):
    raise OSError(5, "Input/output error")


@pytest.mark.parametrize(
    ("target", "replacement"),
    [
        ("fedskew.store.checkpoints.save_file", full_disk),
        ("fedskew.store.checkpoints.os.fsync", failing),
        ("pathlib.Path.rename", failing),
    ],
    ids=["writing", "syncing", "renaming"],
)
def test_a_failed_write_keeps_the_checkpoint_before(tmp_path, monkeypatch, target, replacement):
    before = checkpoints.save(tmp_path, 3, tree(), {"round": 3})
    with monkeypatch.context() as patched:
        patched.setattr(target, replacement)
        refused(
            FedskewError,
            lambda: checkpoints.save(tmp_path, 4, {"x": torch.ones(3)}, {"round": 4}),
            "round-000004",
            "kept",
        )
    assert [p.name for p in tmp_path.iterdir()] == [before.name]
    got, facts = checkpoints.load(before)
    assert_same(tree(), got)
    assert facts == {"round": 3}
    checkpoints.save(tmp_path, 4, tree(), {"round": 4})
    assert [p.name for p in tmp_path.iterdir()] == ["round-000004.safetensors"]


def test_a_checkpoint_written_again_is_whole_at_every_moment(tmp_path, monkeypatch):
    path = checkpoints.save(tmp_path, 3, tree(), {"round": 3})
    monkeypatch.setattr("fedskew.store.checkpoints.save_file", full_disk)
    with pytest.raises(FedskewError):
        checkpoints.save(tmp_path, 3, {"x": torch.ones(3)}, {})
    assert_same(tree(), checkpoints.load(path)[0])


@pytest.mark.parametrize("below", [False, True], ids=["file", "below-a-file"])
def test_a_file_in_the_place_of_the_checkpoint_folder_gives_a_one_line_error(tmp_path, below):
    (tmp_path / "7").write_text("not a folder")
    folder = tmp_path / "7" / "deeper" if below else tmp_path / "7"
    with refused(FedskewError, str(folder)):
        checkpoints.save(folder, 1, tree(), {})


def test_an_interrupted_write_leaves_nothing_behind(tmp_path, monkeypatch):
    def interrupted(tensors, path, metadata=None):
        Path(path).write_bytes(b"half of it")
        raise KeyboardInterrupt

    before = checkpoints.save(tmp_path, 3, tree(), {})
    monkeypatch.setattr("fedskew.store.checkpoints.save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(tmp_path, 4, tree(), {})
    assert checkpoints.latest(tmp_path) == before
    assert_same(tree(), checkpoints.load(before)[0])
    assert [p.name for p in tmp_path.iterdir()] == [before.name]


def test_next_write_removes_files_of_a_killed_write(tmp_path):
    (tmp_path / f"{UNFINISHED}abc").mkdir()
    (tmp_path / f"{UNFINISHED}abc" / "round-000003.safetensors").write_bytes(b"half of it")
    checkpoints.save(tmp_path, 4, tree(), {})
    assert [p.name for p in tmp_path.iterdir()] == ["round-000004.safetensors"]


def test_a_damaged_checkpoint_is_noticed_and_the_one_before_is_used(tmp_path):
    """The damage is a flipped bit in a tensor, which safetensors does not notice, or a truncated file."""
    kept = checkpoints.save(tmp_path, 5, tree(), {"round": 5}, keep=2)
    path = checkpoints.save(tmp_path, 10, tree(), {"round": 10}, keep=2)
    assert checkpoints.newest(tmp_path)[1] == {"round": 10}
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(BadInput, match="checksum does not match"):
        checkpoints.load(path)
    assert checkpoints.newest(tmp_path)[1] == {"round": 5}
    path.write_bytes(data[: len(data) // 2])
    assert checkpoints.newest(tmp_path)[1] == {"round": 5}
    assert_same(tree(), checkpoints.newest(tmp_path)[0])
    kept.unlink()
    with pytest.raises(BadInput, match="round-000010"):
        checkpoints.newest(tmp_path)
    path.unlink()
    assert checkpoints.newest(tmp_path) is None


def test_the_given_number_of_checkpoints_is_kept(tmp_path):
    for round_ in (1, 2, 3, 10):
        checkpoints.save(tmp_path, round_, tree(), {}, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["round-000003.safetensors", "round-000010.safetensors"]


def test_a_checkpoint_may_hold_empty_arrays(tmp_path):
    """Before the first round no client has a state."""
    checkpoints.save(tmp_path, 1, {"x": torch.ones(3), "ids": torch.zeros(0, dtype=torch.int64)}, {"round": 1})
    tree, facts = checkpoints.load(checkpoints.latest(tmp_path))
    assert facts["round"] == 1
    assert tree["ids"].shape == (0,)
