"""Client states in memory, against a plain dictionary."""

from typing import Any

import numpy as np
import torch

from fedskew.engine.states import ClientStates


def test_states_equal_a_dictionarys():
    """The states are compared over many rounds, in which the population grows."""
    rng, states, plain = np.random.default_rng(0), ClientStates(), {}

    def fresh() -> dict[str, Any]:
        return {"a": torch.full((3,), -1.0), "b": {"c": torch.tensor(-2)}}

    for turn in range(60):
        clients = np.sort(rng.choice(5 + 3 * turn, size=min(4, 5 + 3 * turn), replace=False))
        got = states.get(clients, fresh)
        for i, k in enumerate(clients):
            expected = plain.get(int(k), fresh())
            assert torch.equal(got["a"][i], expected["a"])
            assert torch.equal(got["b"]["c"][i], expected["b"]["c"])
        new = {"a": torch.tensor(rng.standard_normal((4, 3)), dtype=torch.float32), "b": {"c": torch.arange(4) + turn}}
        states.put(clients, new)
        for i, k in enumerate(clients):
            plain[int(k)] = {"a": new["a"][i].clone(), "b": {"c": new["b"]["c"][i].clone()}}
        if turn % 20 == 19:
            states = ClientStates.restore(*states.export())
    ids, rows = states.export()
    assert sorted(ids) == sorted(plain)
    for i, k in enumerate(ids):
        assert torch.equal(rows["a"][i], plain[int(k)]["a"])


def test_returned_states_are_copies():
    states = ClientStates()
    given = {"a": torch.ones(2, 3)}
    states.put(np.array([4, 7]), given)
    given["a"].zero_()
    returned = states.get(np.array([4, 7]), lambda: {"a": torch.zeros(3)})
    assert (returned["a"] == 1).all()
    returned["a"].zero_()
    assert (states.get(np.array([7]), lambda: {"a": torch.zeros(3)})["a"] == 1).all()
    x = torch.ones(3)
    states.get(np.array([9]), lambda: {"a": x})["a"].zero_()
    assert (x == 1).all(), "a fresh state is a copy too"
