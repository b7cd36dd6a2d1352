"""Checkpoints: exact, never half a file, and a damaged one is noticed."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fedskew.core.errors import BadInput, FedskewError
from fedskew.core.files import UNFINISHED
from fedskew.core.trees import leaves
from fedskew.store import checkpoints
from tests.store import refused


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


def test_every_tensor_is_stored_as_its_values(tmp_path):
    """All types of numbers, special values, scalars, no values, views, shared memory, and tensors with a gradient."""
    base = torch.arange(12.0).view(3, 4)
    tensors = {"whole": base, "same": base, "column": base[:, 1], "turned": base.T, "rows": base[1:]}
    tensors["special"] = torch.tensor([math.inf, -math.inf, math.nan, -0.0, 5e-324, 1 / 3], dtype=torch.float64)
    for dtype in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "uint8", "bool"):
        row = torch.tensor([0, 1, 3, 200]).to(getattr(torch, dtype))
        tensors[dtype] = {"row": row, "scalar": row[3], "none": row[:0], "cube": row.view(2, 2, 1)}
        tensors[dtype]["wide"] = row.new_zeros(0, 5)
    stored = {**tensors, "grad": base.clone().requires_grad_()}
    got = checkpoints.load(checkpoints.save(tmp_path, 1, stored, {}))[0]
    assert_same({**tensors, "grad": base}, got)
    assert tensors["special"].view(torch.int64).equal(got["special"].view(torch.int64))
    assert not got["grad"].requires_grad
    got["whole"][0, 0] = 99
    assert got["same"][0, 0] == 0


@pytest.mark.parametrize(("keep", "rounds"), [(1, [10]), (2, [2, 10])])
def test_only_the_newest_checkpoints_are_kept(tmp_path, keep, rounds):
    (tmp_path / "experiment.toml").write_text("kept")
    for round_ in (1, 2, 10):
        path = checkpoints.save(tmp_path, round_, tree(), {"round": round_}, keep=keep)
        assert checkpoints.latest(tmp_path) == path
    names = [f"round-{round_:06d}.safetensors" for round_ in rounds]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["experiment.toml", *names]
    assert checkpoints.load(path)[1] == {"round": 10}


def test_latest_takes_the_highest_round_and_nothing_else(tmp_path):
    assert checkpoints.latest(tmp_path) is None
    assert checkpoints.latest(tmp_path / "absent") is None
    for name in ("round-000009.safetensors", "round-000010.safetensors", "round-000011.partial", "round-x.safetensors"):
        (tmp_path / name).touch()
    assert checkpoints.latest(tmp_path) == tmp_path / "round-000010.safetensors"


def test_a_file_that_is_no_checkpoint_gives_one_line(tmp_path):
    whole = checkpoints.save(tmp_path, 1, tree(), FACTS).read_bytes()
    cut = [f"cut-{share}" for share in (0.0, 0.01, 0.1, 0.5, 0.9, 0.999)]
    for name in cut:
        (tmp_path / name).write_bytes(whole[: int(float(name.removeprefix("cut-")) * len(whole))])
    (tmp_path / "text").write_text("hello " * 100)
    (tmp_path / "zeros").write_bytes(bytes(1000))
    save_file({"a": torch.ones(2)}, tmp_path / "foreign")
    save_file({"a": torch.ones(2)}, tmp_path / "other", metadata={"format": "pt"})
    save_file({"a": torch.ones(2)}, tmp_path / "broken", metadata={"facts": "{not json"})
    for name in (*cut, "text", "zeros", "absent", ".", "foreign", "other", "broken"):
        with refused(BadInput, str(tmp_path / name)):
            checkpoints.load(tmp_path / name)


def half_a_file(error: BaseException):
    def write(tensors, path, metadata=None):
        Path(path).write_bytes(b"half of it")
        raise error

    return write


def failing(*_, **__):
    raise OSError(5, "Input/output error")


@pytest.mark.parametrize("round_", [3, 4])
@pytest.mark.parametrize(
    ("target", "replacement", "error"),
    [
        ("fedskew.store.checkpoints.save_file", half_a_file(OSError(28, "No space left on device")), FedskewError),
        ("fedskew.store.checkpoints.save_file", half_a_file(KeyboardInterrupt()), KeyboardInterrupt),
        ("fedskew.store.checkpoints.os.fsync", failing, FedskewError),
        ("pathlib.Path.replace", failing, FedskewError),
    ],
    ids=["writing", "interrupted", "syncing", "renaming"],
)
def test_a_failed_write_keeps_the_checkpoint_before(tmp_path, monkeypatch, target, replacement, error, round_):
    """Of an earlier round, or of the same one."""
    before = checkpoints.save(tmp_path, 3, tree(), {"round": 3})
    with monkeypatch.context() as patched:
        patched.setattr(target, replacement)
        with pytest.raises(error) as raised:
            checkpoints.save(tmp_path, round_, {"x": torch.ones(3)}, {"round": round_})
    assert error is KeyboardInterrupt or (f"round-00000{round_}" in str(raised.value) and "kept" in str(raised.value))
    assert [p.name for p in tmp_path.iterdir()] == [before.name]
    got, facts = checkpoints.load(before)
    assert_same(tree(), got)
    assert facts == {"round": 3}
    checkpoints.save(tmp_path, 4, tree(), {"round": 4})
    assert [p.name for p in tmp_path.iterdir()] == ["round-000004.safetensors"]


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
