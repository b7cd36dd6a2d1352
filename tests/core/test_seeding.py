"""Random numbers out of a secret."""

import hashlib
import itertools

import numpy as np
import torch
from scipy.special import ndtri

from fedskew.core.seeding import PURPOSES, Secret, normals, normals_of, stream, torch_stream

SECRET = Secret(bytes(range(32)))


def test_numbers_of_a_secret_are_the_inverse_distribution_of_shake_256() -> None:
    place = (PURPOSES.index("noise"), 3)
    words = np.frombuffer(hashlib.shake_256(bytes(range(32)) + repr(place).encode()).digest(8 * 1000), "<u8")
    u = np.array([(int(word) // 2**12 * 2 + 1) / 2**53 for word in words])
    np.testing.assert_allclose(normals(SECRET, 1000, "noise", 3), ndtri(u), rtol=1e-12)


def test_the_ends_are_finite_and_symmetric() -> None:
    low, middle, high = normals_of(np.array([0, 2**63, 2**64 - 1], dtype=np.uint64)).tolist()
    assert low == -high == ndtri(2.0**-53)
    assert abs(middle) < 1e-15


def test_numbers_of_a_seed_come_from_its_torch_stream() -> None:
    drawn = torch.randn(5, generator=torch_stream(7, "noise", 2), dtype=torch.float64)
    assert torch.equal(normals(7, 5, "noise", 2), drawn)


def test_streams_of_a_secret_differ_by_secret_purpose_and_round() -> None:
    secrets = [SECRET, Secret(bytes([1] * 32))]
    firsts = [
        stream(s, purpose, round_).integers(2**63)
        for s, purpose, round_ in itertools.product(secrets, ("select", "codec"), (0, 1))
    ]
    assert len(set(firsts)) == 8
    assert stream(SECRET, "select", 0).integers(2**63) == firsts[0]
    assert torch_stream(SECRET, "select", 0).initial_seed() == stream(SECRET, "select", 0).integers(2**63 - 1)
