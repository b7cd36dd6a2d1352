"""Messages: what is packed comes back, and all other bytes are rejected."""

import hashlib
from functools import partial

import msgspec
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, example, given, settings, strategies as st

from fedskew.flower.wire import (
    Rejected,
    Reply,
    Request,
    body,
    check_finite_leaves,
    check_signature,
    checksum,
    pack,
    signature,
    unpack,
)

RUN = "0" * 32
REPLY = Reply(kind="train", run=RUN, round=3, client=1)
TREE = {
    "delta": torch.tensor([1.5, -0.0, 3.0]),
    "extras": {"c": torch.zeros(2, 3, dtype=torch.float64), "own part": torch.tensor([True])},
    "report": {"steps": torch.tensor(7)},
}
MESSAGE = pack(REPLY, TREE)


def test_unpack_inverts_pack_to_the_last_bit() -> None:
    head, tree = unpack(MESSAGE, Reply)
    assert head == REPLY
    assert signature(tree) == signature(TREE)
    assert torch.equal(tree["delta"].view(torch.int32), TREE["delta"].view(torch.int32))
    request = Request(kind="meet", run=RUN, round=0, client=-1, clients=4, recipe="", classes=2, shape=(3, 4))
    assert unpack(pack(request), Request) == (request, {})


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.binary(max_size=400))
@example(b"")
def test_garbage_is_rejected(data: bytes) -> None:
    for message in (data, MESSAGE[:40] + data, msgspec.msgpack.encode((data, data, data))):
        with pytest.raises(Rejected):
            unpack(message, Reply)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(MESSAGE) - 1), st.integers(1, 255))
def test_a_changed_byte_is_detected(place: int, change: int) -> None:
    altered = bytearray(MESSAGE)
    altered[place] ^= change
    with pytest.raises(Rejected):
        unpack(bytes(altered), Reply)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(MESSAGE) - 1))
def test_a_truncated_message_is_rejected(length: int) -> None:
    with pytest.raises(Rejected):
        unpack(MESSAGE[:length], Reply)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_forged_checksum_makes_no_crash(data: st.DataObject) -> None:
    """A message with a right checksum is rejected, or has a typed head and tensors."""
    text, tail = bytearray(msgspec.json.encode(REPLY)), bytearray(body(TREE).data)
    part = data.draw(st.sampled_from([text, tail]))
    for _ in range(data.draw(st.integers(1, 4))):
        part[data.draw(st.integers(0, len(part) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del part[data.draw(st.integers(0, len(part))) :]
    try:
        head, tree = unpack(forged(bytes(text), bytes(tail)), Reply)
    except Rejected:
        return
    assert isinstance(head, Reply)
    assert all(isinstance(shape, tuple) for shape, _ in signature(tree).values())


def forged(text: bytes, tail: bytes) -> bytes:
    return msgspec.msgpack.encode((checksum(text, hashlib.sha256(tail).digest()), text, tail))


@pytest.mark.parametrize("change", [{"kind": "run"}, {"round": "3"}, {"extra": 1}, {"client": None}])
def test_a_head_with_wrong_types_or_fields_is_rejected(change: dict[str, object]) -> None:
    text = msgspec.json.encode({**msgspec.to_builtins(REPLY), **change})
    with pytest.raises(Rejected):
        unpack(forged(text, body(TREE).data), Reply)


@pytest.mark.parametrize(
    ("tree", "fault"),
    [
        ({**TREE, "delta": torch.zeros(4)}, "wrong_shape"),
        ({**TREE, "delta": TREE["delta"].double()}, "wrong_shape"),
        ({**TREE, "more": torch.zeros(1)}, "wrong_shape"),
        ({"delta": TREE["delta"]}, "wrong_shape"),
        ({**TREE, "delta": torch.tensor([0.0, float("nan"), 0.0])}, "not_finite"),
        ({**TREE, "delta": torch.tensor([0.0, float("inf"), 0.0])}, "not_finite"),
    ],
)
def test_tensors_of_other_names_shapes_or_values_are_rejected(tree: dict[str, object], fault: str) -> None:
    check_signature(TREE, signature(TREE))
    check_finite_leaves(TREE)
    check = check_finite_leaves if fault == "not_finite" else partial(check_signature, expected=signature(TREE))
    with pytest.raises(Rejected) as rejected:
        check(tree)
    assert rejected.value.fault == fault


@pytest.mark.parametrize("name", ["/delta", "delta/", "extras//c", "/", "", "a/" * 17 + "a", "a/" * 1_000_000 + "a"])
def test_a_leaf_name_with_empty_or_too_many_parts_is_rejected(name: str) -> None:
    """``/delta`` has the signature of ``delta`` but not its place in the tree. Very deep trees cannot be walked."""
    with pytest.raises(Rejected, match="is no leaf's name"):
        unpack(forged(msgspec.json.encode(REPLY), safetensors.torch.save({name: torch.zeros(3)})), Reply)
