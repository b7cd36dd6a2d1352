"""The diagnosis of sequences of symbols: symbol frequencies (label), numbers of rows, and pairs of symbols (concept)."""

from collections.abc import Callable

import numpy as np
from scipy.sparse import csr_array

from fedskew.core.errors import BadInput, require
from fedskew.core.seeding import stream
from fedskew.measure.heterogeneity.concept import table_distance
from fedskew.measure.heterogeneity.counts import label_distances
from fedskew.measure.heterogeneity.faces import FEWEST_ROWS, Diagnosis, check, compared, sample
from fedskew.measure.heterogeneity.rows import Floats, Ints

PERMUTATIONS = 99

COMMON = 30
"""Number of symbols that are distinguished in pairs: the most frequent ones. All others count as one symbol."""


def counts_of(y: Ints, client: Ints, clients: int, symbols: int) -> Ints:
    """Count the symbols of each client, (clients, symbols), in rows ``y`` (n, T); -1 is no symbol."""
    filled = y >= 0
    owner = np.broadcast_to(client[:, None], y.shape)[filled]
    return np.bincount(owner * symbols + y[filled], minlength=clients * symbols).reshape(clients, symbols)


def diagnose_symbols(
    y: Ints,
    client: Ints,
    sizes: Ints,
    symbols: int,
    *,
    seed: int = 0,
    permutations: int = PERMUTATIONS,
    on_progress: Callable[[float], None] = lambda fraction: None,
) -> Diagnosis:
    """Measure clients' rows ``y`` (n, T) of symbols 0..``symbols`` - 1; -1 is no symbol. ``client`` is (n,).

    ``sizes`` (clients,) are the clients' numbers of all rows. The label face compares frequencies of symbols. The concept face
    compares pairs of a symbol and the next one with the pooled odds ratios. There is no feature face, because the inputs are the
    previous symbols. For the values by chance, whole rows are dealt at random.
    """
    clients = len(sizes)
    check(sizes)
    require(len(y) >= FEWEST_ROWS, f"diagnose: {len(y)} rows are too few; give at least {FEWEST_ROWS}")
    counts = counts_of(y, client, clients, symbols)
    if (counts.sum(0) > 0).sum() < 2:
        raise BadInput("diagnose: all rows hold the same symbol; there is nothing to compare")
    rng = stream(seed, "diagnose")
    rows = sample(client, rng)
    y, client = y[rows], client[rows]
    common = np.full(symbols, COMMON)
    order = np.argsort(-counts.sum(0), kind="stable")[:COMMON]
    common[order] = np.arange(len(order))
    # places of pairs in which both symbols are known
    row, at = np.nonzero((y[:, :-1] >= 0) & (y[:, 1:] >= 0))
    pair = common[y[row, at]] * (COMMON + 1) + common[y[row, at + 1]]
    row_of, place = np.nonzero(y >= 0)
    of_symbols = summed(row_of, y[row_of, place], (len(y), symbols))
    of_pairs = summed(row, pair, (len(y), (COMMON + 1) ** 2))
    weights = sizes / sizes.sum()

    def both(owner: Ints) -> tuple[Floats, Floats]:
        by_client = summed(owner, np.arange(len(owner)), (clients, len(owner)))
        tables = (by_client @ of_pairs).toarray().reshape(clients, COMMON + 1, COMMON + 1)
        return label_distances((by_client @ of_symbols).toarray().astype(np.int64)), table_distance(tables)

    each = dict(zip(("label", "concept"), both(client), strict=True))
    by_chance: dict[str, list[float]] = {"label": [], "concept": []}
    for done in range(permutations):
        for name, values in zip(by_chance, both(rng.permutation(client)), strict=True):
            by_chance[name].append(float(weights @ values))
        on_progress((done + 1) / permutations)
    return Diagnosis(faces=compared(each, by_chance, sizes, rng), counts=counts, measured_rows=len(rows), alone=0)


def summed(row: Ints, column: Ints, shape: tuple[int, int]) -> csr_array:
    """Return a sparse matrix that counts how often each (row, column) occurs."""
    return csr_array((np.ones(len(row)), (row, column)), shape=shape)
