"""The feature and concept faces from sums that leave each site, in place of rows.

A site computes `scale_sums`, `outer_sums`, `moment_sums` and `face_counts` of the `coordinates` of its own rows. The server makes
the next question of all sites' answers (`first_frame`, `classifiers`, `kinds`), and the faces of the last ones (`faces`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.core.seeding import stream
from fedskew.measure.heterogeneity.concept import BINS, alignment, separating
from fedskew.measure.heterogeneity.diagnose import TABLES, Diagnosis, check, compared, label_chance, random_tables
from fedskew.measure.heterogeneity.feature import discriminants
from fedskew.measure.heterogeneity.label import label_measures
from fedskew.measure.heterogeneity.residuals import cells
from fedskew.measure.heterogeneity.rounding import rounded, rounded_pairs
from fedskew.measure.heterogeneity.rows import CLIP, WIDTH, Floats, Ints, divided, largest, remainder, sums_by, table

Numbers = Mapping[str, NDArray[np.float64]]

CONCEPT_TABLES = 199
"""Random tables of kinds and labels."""

DRAWN = 3000
"""Random points in place of rows, from which the kinds of inputs are made."""


def coordinates(x: NDArray[np.generic], frame: Numbers) -> Floats:
    """Return the columns of `rows.embed` (n, d) as far as the frame is known: standardised columns, then principal directions."""
    z = np.asarray(x, dtype=np.float64)
    if "mean" in frame:
        z = np.clip((z[:, frame["kept"].astype(np.int64)] - frame["mean"]) / frame["scale"], -CLIP, CLIP)
    if "directions" in frame:
        kept = z @ frame["directions"]
        z = np.column_stack([kept, remainder(z, kept)])
    if "mean of directions" in frame:
        z = np.clip((z - frame["mean of directions"]) / frame["scale of directions"], -CLIP, CLIP)
    return z


def scale_sums(z: Floats) -> dict[str, Floats]:
    """A site's sums of its columns and of their squares."""
    return {"sum": z.sum(0), "square": (z * z).sum(0)}


def outer_sums(z: Floats) -> dict[str, Floats]:
    """A site's sums of the products of each two columns."""
    return {"products": z.T @ z}


def scales(answers: Sequence[Numbers], rows: int) -> tuple[Floats, Floats]:
    """Return the mean and the deviation of columns over all sites."""
    mean, square = (sum(answer[name] for answer in answers) / rows for name in ("sum", "square"))
    return np.asarray(mean), np.sqrt(np.maximum(square - mean**2, 0))


def first_frame(answers: Sequence[Numbers], rows: int) -> dict[str, Floats]:
    """The frame that standardises columns and leaves out constant ones."""
    mean, deviation = scales(answers, rows)
    kept = deviation > 1e-6 * (1 + np.abs(mean))
    return {"kept": np.flatnonzero(kept).astype(float), "mean": mean[kept], "scale": deviation[kept]}


def with_directions(frame: Numbers, answers: Sequence[Numbers], rows: int) -> dict[str, Floats]:
    """The frame with the principal directions of standardised columns."""
    products = np.asarray(sum(answer["products"] for answer in answers) / rows)
    return {**frame, "directions": largest(products)[1]}


def with_scales(frame: Numbers, answers: Sequence[Numbers], rows: int) -> dict[str, Floats]:
    """The frame that standardises the principal directions, too."""
    mean, deviation = scales(answers, rows)
    return {**frame, "mean of directions": mean, "scale of directions": np.where(deviation > 0, deviation, 1.0)}


def wide(frame: Numbers) -> bool:
    """Whether the rows need principal directions."""
    return len(frame["mean"]) > WIDTH


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
    return {
        "rows by class": table(half, y, (2, classes)),
        "sums by class": cells.reshape(2, classes, -1),
        "products by half": np.stack([phi[half == h].T @ phi[half == h] for h in (0, 1)]),
    }


def classifiers(answers: Sequence[Numbers]) -> dict[str, Floats]:
    """The discriminant of each site and half, as in `feature.feature_distance`: directions (2, sites, d), thresholds (2, sites)."""
    counts, sums, products = (np.stack([a[name] for a in answers], axis=1) for name in MOMENTS)
    made = []
    for half in (0, 1):
        n, total = counts[half], sums[half]
        mean = total.sum((0, 1)) / n.sum()
        covariance = products[half].sum(0) / n.sum() - np.outer(mean, mean)
        sizes = n.sum(1, keepdims=True)
        of_class = divided(total.sum(0), n.sum(0)[:, None])
        made.append(discriminants(divided(total.sum(1), sizes), divided(n, sizes) @ of_class, covariance))
    return {"classifiers": np.stack([beta for beta, _ in made]), "thresholds": np.stack([t for _, t in made])}


MOMENTS = ("rows by class", "sums by class", "products by half")


def kinds(
    answers: Sequence[Numbers], directions: int, number: int, seed: int
) -> tuple[list[dict[str, Floats]], dict[str, Floats]]:
    """The kinds of inputs, as in `concept.clusters`: each site's alignment, and directions and centres (2, ...) of both halves.

    The centres are clusters of normal points with the moments of each site's classes. Each half has its own kinds, and they
    count the rows of the other half. The first half's ``number`` clusters are where the second half's clusters start.
    """
    from sklearn.cluster import KMeans

    counts, sums, products = (np.stack([a[name] for a in answers], axis=1) for name in MOMENTS)
    classes, width = counts.shape[2], sums.shape[3] // 2
    sums, squares = sums[..., :width], sums[..., width:] + counts[..., None]
    of_class, of_site = ((sums.sum((0, axis)), squares.sum((0, axis))) for axis in (1, 2))
    sizes = counts.sum(0)
    centre, scale, shift = alignment(sizes, of_class, of_site)
    rng = stream(seed, "diagnose", 4)

    def of_half(half: int) -> tuple[Floats, Floats]:
        """Directions (width, q), and points (m, width)."""
        n = counts[half]
        means = divided(sums[half], n[..., None])
        # around the mean of each site's class, in aligned columns
        inside = products[half][:, :width, :width] - np.einsum("kc,kci,kcj->kij", n, means, means)
        within = np.einsum("kij,ki,kj->ij", inside, scale, scale) / n.sum()
        means = (means - centre[:, None]) * scale[:, None] + (centre + shift)[:, None]
        cells, often = means.reshape(-1, width), n.ravel().astype(np.int64)
        lines = separating(cells, np.repeat(centre + shift, classes, axis=0), often, within)
        points = np.repeat(cells, np.ceil(often * min(1.0, DRAWN / often.sum())).astype(np.int64), axis=0)
        values, vectors = np.linalg.eigh(within)
        points += rng.standard_normal(points.shape) @ (vectors * np.sqrt(np.maximum(values, 0))).T
        return lines[:, -directions:], points

    (lines, points), (other_lines, other_points) = of_half(0), of_half(1)
    found = KMeans(number, n_init=1, max_iter=15, random_state=0).fit(points @ lines)
    kind = found.labels_.astype(np.int64)
    start = divided(sums_by(kind, number, points @ other_lines), np.bincount(kind, minlength=number)[:, None])
    other = KMeans(number, init=start, n_init=1, max_iter=15).fit(other_points @ other_lines)
    centres = np.stack([found.cluster_centers_, other.cluster_centers_]).astype(np.float64)
    own = [
        dict(zip(("centre", "stretch", "shift"), parts, strict=True))
        for parts in zip(centre, scale, shift, strict=True)
    ]
    # by the last direction, so that neighbours are alike
    return own, {"lines": np.stack([lines, other_lines]), "centres": centres[:, np.argsort(centres[0, :, -1])]}


def face_counts(z: Floats, y: Ints, classes: int, asked: Numbers, response: Floats | None = None) -> dict[str, Floats]:
    """A site's last counts: rows beyond each classifier's threshold by class, and rows by kind and class.

    Classifiers and kinds are made of one half of the rows, and count the other half. If the targets are numbers, ``response`` (n,)
    has them and ``y`` their strata, and each kind is divided by residuals.
    """
    phi, half = np.column_stack([z, z * z - 1]), halves(y)
    hits, tested = [], table(1 - half, y, (2, classes))
    for fold in (0, 1):
        beyond = phi[half != fold] @ asked["classifiers"][fold].T > asked["thresholds"][fold]
        hits.append(np.stack([beyond[y[half != fold] == c].sum(0) for c in range(classes)], axis=1))
    centre = asked["centre"]
    aligned = (z - centre) * asked["stretch"] + centre + asked["shift"]
    kind = np.zeros(len(z), dtype=np.int64)
    for fold, (lines, centres) in enumerate(zip(asked["lines"], asked["centres"], strict=True)):
        places = aligned[half != fold] @ lines
        kind[half != fold] = ((centres**2).sum(1) - 2 * places @ centres.T).argmin(1)
    beyond, number = np.stack(hits).astype(float), asked["centres"].shape[1]
    by_kind = table(y, kind, (classes, number))
    if response is not None:
        group = asked["groups"].astype(np.int64)
        of_cells = cells(aligned, response, kind, asked)
        by_kind = table(group[y], of_cells, (group.max() + 1, number * BINS))
    return {"beyond thresholds": np.stack([beyond, tested[:, None] - beyond], axis=-1), "rows by kind": by_kind}


def opposition(weights: Floats) -> float:
    """Return the feature face's standard deviation by chance, divided by its value for independent sites.

    ``weights`` (sites,) are the sites' shares of all rows. A site's mean and the other sites' mean lie on opposite sides of the
    pooled mean. So their classifiers point apart, and their numbers rise together. Normal inputs give the correlations.
    """
    odds = np.sqrt(weights / (1 - weights))
    shared = np.outer(weights, weights) * np.arcsin(np.minimum(np.outer(odds, odds), 1)) * 2 / np.pi
    alone = weights * (1 - weights)
    np.fill_diagonal(shared, alone)
    return float(np.sqrt(shared.sum() / alone.sum()))


def faces(
    answers: Sequence[Numbers],
    held: Ints,
    class_of: Ints,
    fewest: Ints,
    rounding: Callable[[Ints, np.random.Generator], Ints],
    distance: Callable[[Floats], Floats],
    seed: int,
) -> Diagnosis:
    """The diagnosis, from the last answers of all sites, and their ``fewest`` (sites,).

    ``held`` (sites, bins) are their rows of each class, or of each bin of targets; ``class_of`` (bins,) is the class or tenth of a
    bin. ``rounding`` rounds counts like ``held`` as the sites do it.
    ``distance`` turns tables (sites, classes, kinds) into the concept face of each site (sites,).

    Chance needs no rows. Given a classifier, the rows of a site beyond its threshold are, by chance, draws without replacement from
    the rows of all sites with the same class. The classifiers of the two halves are alike, so both halves are high at once: their
    draws are added by rank, and no dependence makes a sum vary more. For concepts see `concept_chance`. Small counts are rounded as
    the sites do it.
    """
    sizes, members = held.sum(1), np.eye(class_of.max() + 1, dtype=np.int64)[class_of]
    check(sizes)
    counts = held @ members
    rng, weights = stream(seed, "diagnose"), sizes / sizes.sum()
    beyond = np.stack([a["beyond thresholds"] for a in answers]).astype(
        np.int64
    )  # sites, folds, classifiers, classes, 2
    by_kind = np.stack([a["rows by kind"] for a in answers]).astype(np.int64)  # sites, classes, kinds
    everyone = beyond.sum(0)
    same = np.arange(len(sizes))
    own = np.moveaxis(beyond[same, :, same], 0, 1)  # folds, sites, classes, 2
    tested = own.sum(-1)
    rows = tested.sum(-1)
    false = (tested * divided(everyone[..., 0], everyone.sum(-1))).sum(-1)
    feature = divided(own[..., 0].sum(-1) - false, rows).mean(0)
    of_halves = []
    for _ in range(TABLES):
        drawn = rng.hypergeometric(everyone[..., 0], everyone[..., 1], tested)
        for at in np.flatnonzero(fewest > 1).tolist():
            drawn[:, at] = rounded_pairs(drawn[:, at], tested[:, at], int(fewest[at]), rng)
        of_halves.append(divided(drawn.sum(-1) - false, rows) @ weights)
    chance_feature = (opposition(weights) * np.sort(of_halves, axis=0).mean(1)).tolist()

    concept = distance(by_kind.astype(float))
    chance_concept = concept_chance(by_kind, fewest, lambda drawn: float(weights @ distance(drawn.astype(float))), rng)
    each = {"label": label_measures(counts)["total variation"], "feature": feature, "concept": concept}
    by_chance = {
        "label": label_chance(held, rng, changed=lambda drawn: rounding(drawn, rng) @ members),
        "feature": chance_feature,
        "concept": chance_concept,
    }
    alone = counts[:, (counts > 0).sum(0) == 1].sum()
    return Diagnosis(compared(each, by_chance, sizes, rng), counts, int(by_kind.sum()), int(alone))


def concept_chance(
    by_kind: Ints, fewest: Ints, value: Callable[[Ints], float], rng: np.random.Generator
) -> list[float]:
    """Return the values of random tables (sites, classes, kinds) with the margins of ``by_kind``, rounded as the sites do it.

    Margins of rounded tables are uneven, and random tables with uneven margins have smaller values. How much smaller, a second
    random table with the margins of each random table shows. This is added.
    """

    def dealt(tables: Ints) -> Ints:
        made = np.zeros_like(tables)
        for at in np.flatnonzero(tables.sum((0, 2))).tolist():
            made[:, at] = random_tables(tables[:, at].sum(1), tables[:, at].sum(0))(rng)
        return rounded_by_sites(made, fewest, rng)

    found, again = np.zeros((2, CONCEPT_TABLES))
    for at in range(CONCEPT_TABLES):
        made = dealt(by_kind)
        found[at] = value(made)
        again[at] = value(dealt(made)) if fewest.max() > 1 else found[at]
    values: list[float] = (found + max(0.0, found.mean() - again.mean())).tolist()
    return values


def rounded_by_sites(tables: NDArray[Any], fewest: Ints, rng: np.random.Generator) -> Ints:
    """Round each site's table as the site does it."""
    return np.stack([rounded(one, int(few), rng) for one, few in zip(tables, fewest, strict=True)])
