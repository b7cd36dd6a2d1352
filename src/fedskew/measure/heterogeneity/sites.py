"""The sums over each site's rows from which the faces are made. Rows in one place are the sites of one process.

A site computes `sums` of the `coordinates` of its own rows. The server makes the next question of all sites' answers
(`first_frame`, `classifiers`, `kinds`), and the faces of the last ones (`fedskew.measure.heterogeneity.faces.faces`).
"""

from collections.abc import Iterable, Mapping, Sequence
from warnings import catch_warnings, simplefilter

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import require
from fedskew.core.seeding import stream
from fedskew.measure.heterogeneity.concept import RESIDUAL_BINS, alignment, residual_cells, separating, target_sums
from fedskew.measure.heterogeneity.rows import CLIP, Floats, Ints, divided, sums_by, table

Numbers = Mapping[str, NDArray[np.float64]]

RIDGE = 0.1
"""Added to the variances of the standardised columns of a classifier."""

DRAWN = 3000
"""Random points in place of rows, from which the kinds of inputs are made."""


def coordinates(x: NDArray[np.generic], frame: Numbers) -> Floats:
    """Return the columns (n, d) of rows, as far as the frame is known: standardised columns, then principal directions."""
    z = np.asarray(x, dtype=np.float64)
    if "mean" in frame:
        z = np.clip((z[:, frame["kept"].astype(np.int64)] - frame["mean"]) / frame["scale"], -CLIP, CLIP)
    if "directions" in frame:
        along = z @ frame["directions"]
        # the last column is log(1 + squared length) of the part of each row that the directions leave out
        z = np.column_stack([along, np.log1p(np.maximum((z * z).sum(1) - (along * along).sum(1), 0))])
    if "mean of directions" in frame:
        z = np.clip((z - frame["mean of directions"]) / frame["scale of directions"], -CLIP, CLIP)
    return z


def sums(
    step: str, z: Floats, parameters: Numbers, y: Ints | None = None, strata: int = 0, response: Floats | None = None
) -> dict[str, Floats]:
    """A site's answer in a step. ``z`` (n, d) are its coordinates, ``y`` (n,) its rows' classes or strata, below ``strata``."""
    if step in ("scale", "directions"):
        return {"sum": z.sum(0), "square": (z * z).sum(0)}
    if step == "products":
        return {"products": z.T @ z}
    assert y is not None
    if step == "moments":
        return {**moment_sums(z, y, strata), **({} if response is None else target_sums(z, response))}
    return face_counts(z, y, strata, parameters, response)


def scales(answers: Iterable[Numbers], rows: int) -> tuple[Floats, Floats]:
    """Return the mean and the deviation of columns over all sites."""
    totals = [np.stack([answer["sum"], answer["square"]]) for answer in answers]
    mean, square = np.sum(totals, axis=0) / rows
    return mean, np.sqrt(np.maximum(square - mean**2, 0))


def first_frame(answers: Iterable[Numbers], rows: int) -> dict[str, Floats]:
    """The frame that standardises columns and leaves out constant ones."""
    mean, deviation = scales(answers, rows)
    varies = deviation > 1e-6 * (1 + np.abs(mean))
    require(bool(varies.any()), "diagnose: each input has the same value in all rows")
    return {"kept": np.flatnonzero(varies).astype(float), "mean": mean[varies], "scale": deviation[varies]}


def halves(y: Ints) -> Ints:
    """A random half (n,), 0 or 1, for each row; equally many of each class, up to one."""
    order = np.lexsort((stream(0, "diagnose", 3).random(len(y)), y))
    half = np.empty(len(y), dtype=np.int64)
    half[order] = np.arange(len(y)) % 2
    return half


def moment_sums(z: Floats, y: Ints, classes: int) -> dict[str, Floats]:
    """A site's sums over each half of its rows: of columns and squares by class, and of their products; rows by class."""
    phi, half = np.column_stack([z, z * z - 1]), halves(y)
    cells = np.zeros((2 * classes, phi.shape[1]))
    np.add.at(cells, half * classes + y, phi)
    rows, products = table(half, y, (2, classes)), np.stack([phi[half == h].T @ phi[half == h] for h in (0, 1)])
    return {"rows by class": rows, "sums by class": cells.reshape(2, classes, -1), "products by half": products}


def discriminants(means: Floats, matched: Floats, covariance: Floats) -> tuple[Floats, Floats]:
    """Return directions (sites, d) and thresholds (sites,) that separate each site's mean from the pooled mean."""
    beta = np.asarray(np.linalg.solve(covariance + RIDGE * np.eye(len(covariance)), (means - matched).T).T, np.float64)
    return beta, (beta * (means + matched)).sum(1) / 2


def classifiers(answers: Sequence[Numbers], products: Floats) -> dict[str, Floats]:
    """The discriminant of each site and half: directions (2, sites, d), thresholds (2, sites).

    ``products`` (2, d, d) are the sums of all sites. Each discriminant separates the site's rows from the rows of all sites,
    weighted to the site's frequencies of classes. It is linear in the columns and their squares, with the covariance of all rows.
    """
    counts, totals = (np.stack([a[name] for a in answers], axis=1) for name in ("rows by class", "sums by class"))
    halves = []
    for n, total, product in zip(counts, totals, products, strict=True):
        mean = total.sum((0, 1)) / n.sum()
        sizes = n.sum(1, keepdims=True)
        of_class = divided(total.sum(0), n.sum(0)[:, None])
        covariance = product / n.sum() - np.outer(mean, mean)
        halves.append(discriminants(divided(total.sum(1), sizes), divided(n, sizes) @ of_class, covariance))
    return {"classifiers": np.stack([beta for beta, _ in halves]), "thresholds": np.stack([t for _, t in halves])}


def kinds(
    answers: Sequence[Numbers], directions: int, number: int, seed: int
) -> tuple[list[dict[str, Floats]], dict[str, Floats]]:
    """The kinds of inputs: each site's alignment, and directions and centres (2, ...) of both halves.

    Kinds differ along the directions that separate classes within sites. If two sites have swapped classes, the same inputs still
    get the same kinds. The centres are clusters of normal points with the moments of each site's classes. Each half has its own
    kinds, and they count the rows of the other half. The first half's ``number`` clusters are where the second half's start.
    """
    from scipy.cluster.vq import kmeans2

    counts, totals = (np.stack([a[name] for a in answers], axis=1) for name in ("rows by class", "sums by class"))
    classes, width = counts.shape[2], totals.shape[3] // 2
    totals, squares = totals[..., :width], totals[..., width:] + counts[..., None]
    of_class, of_site = ((totals.sum((0, axis)), squares.sum((0, axis))) for axis in (1, 2))
    centre, scale, shift = alignment(counts.sum(0), of_class, of_site)
    rng = stream(seed, "diagnose", 4)

    def of_half(half: int) -> tuple[Floats, Floats]:
        """Directions (width, q), and points (m, width)."""
        n = counts[half]
        means = divided(totals[half], n[..., None])
        within = np.zeros((width, width))
        # around the mean of each site's class, in aligned columns
        for answer, rows, of_classes, stretch in zip(answers, n, means, scale, strict=True):
            product = answer["products by half"][half, :width, :width] - (rows[:, None] * of_classes).T @ of_classes
            within += stretch[:, None] * product * stretch
        within /= n.sum()
        means = (means - centre[:, None]) * scale[:, None] + (centre + shift)[:, None]
        cells, often = means.reshape(-1, width), n.ravel().astype(np.int64)
        lines = separating(cells, np.repeat(centre + shift, classes, axis=0), often, within)
        points = np.repeat(cells, np.ceil(often * min(1.0, DRAWN / often.sum())).astype(np.int64), axis=0)
        values, vectors = np.linalg.eigh(within)
        points += rng.standard_normal(points.shape) @ (vectors * np.sqrt(np.maximum(values, 0))).T
        return lines[:, -directions:], points

    (lines, points), (other_lines, other_points) = of_half(0), of_half(1)
    with catch_warnings():
        simplefilter("ignore", UserWarning)  # SciPy warns of a kind without points, which keeps its centre
        centres, kind = kmeans2(points @ lines, number, iter=15, minit="++", seed=np.random.default_rng(0))
        points_of_kind = np.bincount(kind, minlength=number)[:, None]
        start = divided(sums_by(kind.astype(np.int64), number, points @ other_lines), points_of_kind)
        other_centres, _ = kmeans2(other_points @ other_lines, start, iter=15, minit="matrix")
    centres = np.stack([centres, other_centres])
    alignments = [{"centre": c, "stretch": s, "shift": d} for c, s, d in zip(centre, scale, shift, strict=True)]
    # by the last direction, so that neighbours are alike
    return alignments, {"lines": np.stack([lines, other_lines]), "centres": centres[:, np.argsort(centres[0, :, -1])]}


def face_counts(z: Floats, y: Ints, classes: int, parameters: Numbers, response: Floats | None) -> dict[str, Floats]:
    """A site's last counts: rows beyond each classifier's threshold by class, and rows by kind and class.

    Classifiers and kinds are made of one half of the rows, and count the other half. If the targets are numbers, ``response`` (n,)
    has them and ``y`` their strata, and each kind is divided by residuals.
    """
    phi, half = np.column_stack([z, z * z - 1]), halves(y)
    hits, tested = [], table(1 - half, y, (2, classes))
    for fold in (0, 1):
        beyond = phi[half != fold] @ parameters["classifiers"][fold].T > parameters["thresholds"][fold]
        hits.append(sums_by(y[half != fold], classes, beyond.astype(np.float64)).T)
    centre = parameters["centre"]
    aligned = (z - centre) * parameters["stretch"] + centre + parameters["shift"]
    kind = np.zeros(len(z), dtype=np.int64)
    for fold, (lines, centres) in enumerate(zip(parameters["lines"], parameters["centres"], strict=True)):
        places = aligned[half != fold] @ lines
        kind[half != fold] = ((centres**2).sum(1) - 2 * places @ centres.T).argmin(1)
    beyond, number = np.stack(hits).astype(float), parameters["centres"].shape[1]
    by_kind = table(y, kind, (classes, number))
    if response is not None:
        group = parameters["groups"].astype(np.int64)
        of_cells = residual_cells(aligned, response, kind, parameters)
        by_kind = table(group[y], of_cells, (group.max() + 1, number * RESIDUAL_BINS))
    return {"beyond thresholds": np.stack([beyond, tested[:, None] - beyond], axis=-1), "rows by kind": by_kind}
