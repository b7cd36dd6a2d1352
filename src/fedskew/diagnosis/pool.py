"""Rows in one place as the sites of one process: each client is a site, which computes what a site of a deployment would send."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import require
from fedskew.core.seeding import stream
from fedskew.diagnosis.questions import Numbers
from fedskew.diagnosis.server import faces_from, frame_of
from fedskew.diagnosis.subject import Subject, sizes_of
from fedskew.diagnosis.targets import ClassTargets, NumberTargets, SurvivalTargets, Targets
from fedskew.measure.heterogeneity.columns import BINS, edges
from fedskew.measure.heterogeneity.columns import moments as moments_by_client
from fedskew.measure.heterogeneity.diagnose import FEWEST_ROWS, Diagnosis, check, sample
from fedskew.measure.heterogeneity.rows import MANY, MOST_INPUTS, table
from fedskew.measure.heterogeneity.sites import coordinates, sums

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(eq=False)
class Pool:
    """Inputs ``x`` (n, d), strata ``y`` (n,) and clients (n,) of rows, and the targets of all clients.

    ``response`` (n,) has the standardised targets if they are numbers. ``sizes`` (clients,) are the clients' numbers of all rows.
    """

    x: NDArray[Any]
    y: Ints
    client: Ints
    targets: Targets
    response: Floats | None
    sizes: Ints
    seed: int = 0
    on_step: Callable[[str], None] = lambda step: None
    sites: list[Ints] = field(init=False)
    """The rows of each client, in their order."""

    def __post_init__(self) -> None:
        ends = np.cumsum(np.bincount(self.client, minlength=len(self.sizes)))
        self.sites = np.split(np.argsort(self.client, kind="stable"), ends[:-1])

    def faces(self) -> tuple[Diagnosis, Floats]:
        """Return the faces, and the columns (n, at most `rows.WIDTH` + 1) in which rows are compared."""
        frame = frame_of(self.compute, self.compute("scale", {}, {}), len(self.x))
        found = faces_from(self.compute, frame, self.targets, self.sizes, self.seed)
        z = np.concatenate([coordinates(self.x[rows], frame) for rows in self.sites])
        return found, z[np.argsort(np.concatenate(self.sites))]

    def compute(self, step: str, shapes: Mapping[str, tuple[int, ...]], *asked: Numbers) -> Iterator[Numbers]:
        """Yield the numbers of each site in a step."""
        self.on_step(step)
        for at, rows in enumerate(self.sites):
            question = asked[at if len(asked) > 1 else 0]
            response = None if self.response is None else self.response[rows]
            yield sums(step, coordinates(self.x[rows], question), question, self.y[rows], self.targets.strata, response)


def pooled(subject: Subject, seed: int = 0, on_step: Callable[[str], None] = lambda step: None) -> Pool:
    """Make the pool of at most `diagnose.MOST_ROWS` rows of the subject.

    Raises `BadInput` for one client, clients without rows, one class, or fewer than 30 rows.
    """
    sizes = sizes_of(subject)
    check(sizes)
    number = len(subject.client)
    require(number >= FEWEST_ROWS, f"diagnose: {number} rows are too few; give at least {FEWEST_ROWS}")
    targets, y = targets_and_strata(subject)
    rows = np.sort(sample(subject.client, stream(seed, "diagnose")))
    x, response = subject.x[rows], subject.response
    if x.shape[1] > MOST_INPUTS:
        from sklearn.random_projection import SparseRandomProjection

        x = SparseRandomProjection(MANY, random_state=0).fit_transform(x)
    if response is not None:
        response = ((response - response.mean()) / response.std())[rows]
    return Pool(x, y[rows], subject.client[rows], targets, response, sizes, seed, on_step)


def targets_and_strata(subject: Subject) -> tuple[Targets, Ints]:
    """Return the targets of all clients, and the stratum (n,) of each row."""
    clients = len(subject.clients)
    fewest = np.ones(clients, dtype=np.int64)
    if subject.response is None:
        several = (subject.counts.sum(0) > 0).sum() >= 2
        require(bool(several), "diagnose: all rows have the same label; choose another label column")
        return ClassTargets(subject.classes, subject.counts, fewest), subject.y
    moments = moments_by_client(subject.response, subject.client, clients)
    if subject.kind == "survival":
        return SurvivalTargets(subject.counts, fewest, moments, np.zeros(0)), subject.y
    inner = edges(moments)
    at = np.searchsorted(inner, subject.response)
    held = table(subject.client, at, (clients, BINS)).astype(np.int64)
    targets = NumberTargets(held, fewest, moments, inner)
    return targets, targets.stratum_of[at]
