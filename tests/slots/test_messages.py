"""A codec's message between machines: it holds what is decoded, in as many bytes as a simulation counts."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from fedskew.core.trees import Tree, map_leaves, num_bytes, pick
from fedskew.slots.codecs import encode, pack_bits, unpack_bits
from tests.slots.test_codecs import ALL, DRAWS, LOSSY, ROWS, codec
from tests.small import TASK

SPECS = [*ALL, "top-k:share=0.01", "top-k:share=0.3", "top-k:share=1", "top-k:share=0.2,scope=layer", "qsgd:bucket=7"]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_message_decodes_to_the_same_update_and_has_the_counted_length(spec: str, dtype: torch.dtype) -> None:
    made, rows, draws = codec(spec), ROWS.to(dtype, copy=True), DRAWS.to(dtype)
    rows[2] = 0.0
    rows[3, :5] = rows[3, 0]
    memory = {name: 0.1 * rows.flip(0) for name in made.init(rows[0])}
    coded, received, _, size = encode(made, rows, memory, draws if made.random else None, TASK)
    for i in range(len(rows)):
        message = made.pack(pick(coded, i), TASK)
        assert torch.equal(read(made, message), received[i])
        assert size == num_bytes(message)


def read(made, message: Tree) -> torch.Tensor:
    """Return the update (P,) that a server decodes from a message."""
    return made.decode(map_leaves(lambda leaf: leaf[None], made.unpack(message, TASK)), TASK)[0]


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 20), st.data())
def test_bits_come_back(width: int, data: st.DataObject) -> None:
    values = torch.tensor(data.draw(st.lists(st.integers(0, 2**width - 1), min_size=1, max_size=30)))
    packed = pack_bits(values, width)
    assert len(packed) == -(-width * len(values) // 8)
    assert torch.equal(unpack_bits(packed, width, len(values)), values)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([spec for spec in LOSSY if spec != "clip:norm=0.05"]), st.integers(0, 2**32))
def test_forged_bytes_are_refused_or_a_bounded_update(spec: str, seed: int) -> None:
    made, luck = codec(spec), torch.Generator().manual_seed(seed)
    coded = encode(made, ROWS[:1], {}, DRAWS[:1] if made.random else None, TASK).coded
    message = made.pack(pick(coded, 0), TASK)
    for name in ("places", "steps"):
        if name in message:
            leaf = message[name]
            forged = torch.randint(0, 256, leaf.shape, generator=luck).to(torch.uint8)
            message[name] = forged if leaf.dtype == torch.uint8 else forged.view(torch.int8)
    try:
        update = read(made, message)
    except ValueError:
        return
    assert tuple(update.shape) == (TASK.space.size,)
    assert bool(update.isfinite().all())
