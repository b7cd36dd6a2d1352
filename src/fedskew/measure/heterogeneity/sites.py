"""The faces from sums over each site's rows. Rows in one place are the sites of one process.

A site computes `sums` of the `coordinates` of its own rows. The server makes the next question of all sites' answers
(`first_frame`, `classifiers`, `kinds`), and the faces of the last ones (`faces`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import require
from fedskew.core.seeding import stream
from fedskew.measure.heterogeneity.concept import RESIDUAL_BINS, alignment, residual_cells, separating, target_sums
from fedskew.measure.heterogeneity.counts import label_measures
from fedskew.measure.heterogeneity.diagnose import TABLES, Diagnosis, check, compared, label_chance, random_tables
from fedskew.measure.heterogeneity.rounding import rounded, rounded_pairs
from fedskew.measure.heterogeneity.rows import CLIP, WIDTH, Floats, Ints, divided, largest, remainder, sums_by, table

Numbers = Mapping[str, NDArray[np.float64]]

RIDGE = 0.1
"""Added to the variances of the standardised columns of a classifier."""

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


def sums(
    step: str, z: Floats, asked: Numbers, y: Ints | None = None, strata: int = 0, response: Floats | None = None
) -> dict[str, Floats]:
    """A site's answer in a step. ``z`` (n, d) are its coordinates, ``y`` (n,) its rows' classes or strata, below ``strata``."""
    if step in ("scale", "directions"):
        return scale_sums(z)
    if step == "products":
        return outer_sums(z)
    assert y is not None
    if step == "moments":
        return {**moment_sums(z, y, strata), **({} if response is None else target_sums(z, response))}
    return face_counts(z, y, strata, asked, response)


def scale_sums(z: Floats) -> dict[str, Floats]:
    """A site's sums of its columns and of their squares."""
    return {"sum": z.sum(0), "square": (z * z).sum(0)}


def outer_sums(z: Floats) -> dict[str, Floats]:
    """A site's sums of the products of each two columns."""
    return {"products": z.T @ z}


def scales(answers: Iterable[Numbers], rows: int) -> tuple[Floats, Floats]:
    """Return the mean and the deviation of columns over all sites."""
    totals = [np.stack([answer["sum"], answer["square"]]) for answer in answers]
    mean, square = np.sum(totals, axis=0) / rows
    return mean, np.sqrt(np.maximum(square - mean**2, 0))


def first_frame(answers: Iterable[Numbers], rows: int) -> dict[str, Floats]:
    """The frame that standardises columns and leaves out constant ones."""
    mean, deviation = scales(answers, rows)
    kept = deviation > 1e-6 * (1 + np.abs(mean))
    require(bool(kept.any()), "diagnose: each input has the same value in all rows")
    return {"kept": np.flatnonzero(kept).astype(float), "mean": mean[kept], "scale": deviation[kept]}


def with_directions(frame: Numbers, answers: Iterable[Numbers], rows: int) -> dict[str, Floats]:
    """The frame with the principal directions of standardised columns."""
    products = np.asarray(sum(answer["products"] for answer in answers) / rows)
    return {**frame, "directions": largest(products)[1]}


def with_scales(frame: Numbers, answers: Iterable[Numbers], rows: int) -> dict[str, Floats]:
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


def discriminants(own: Floats, matched: Floats, covariance: Floats) -> tuple[Floats, Floats]:
    """Return directions (sites, d) and thresholds (sites,) that separate each site's mean from the pooled mean."""
    beta: Floats = np.linalg.solve(covariance + RIDGE * np.eye(len(covariance)), (own - matched).T).T.astype(np.float64)
    return beta, (beta * (own + matched)).sum(1) / 2


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
    from sklearn.cluster import KMeans

    counts, totals = (np.stack([a[name] for a in answers], axis=1) for name in ("rows by class", "sums by class"))
    classes, width = counts.shape[2], totals.shape[3] // 2
    totals, squares = totals[..., :width], totals[..., width:] + counts[..., None]
    of_class, of_site = ((totals.sum((0, axis)), squares.sum((0, axis))) for axis in (1, 2))
    sizes = counts.sum(0)
    centre, scale, shift = alignment(sizes, of_class, of_site)
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
    clusters = KMeans(number, n_init=1, max_iter=15, random_state=0).fit(points @ lines)
    kind = clusters.labels_.astype(np.int64)
    start = divided(sums_by(kind, number, points @ other_lines), np.bincount(kind, minlength=number)[:, None])
    other = KMeans(number, init=start, n_init=1, max_iter=15).fit(other_points @ other_lines)
    centres = np.stack([clusters.cluster_centers_, other.cluster_centers_]).astype(np.float64)
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
        hits.append(sums_by(y[half != fold], classes, beyond.astype(np.float64)).T)
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
        of_cells = residual_cells(aligned, response, kind, asked)
        by_kind = table(group[y], of_cells, (group.max() + 1, number * RESIDUAL_BINS))
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
    answers: Iterable[Numbers],
    held: Ints,
    class_of: Ints,
    fewest: Ints,
    rounding: Callable[[Ints, np.random.Generator], Ints],
    distance: Callable[[Floats], Floats],
    seed: int,
    sizes: Ints,
) -> Diagnosis:
    """The diagnosis, from the last answers of all sites, their ``fewest`` and ``sizes`` (sites,): their numbers of rows.

    ``held`` (sites, bins) are their rows of each class, or of each bin of targets; ``class_of`` (bins,) is the class or tenth of a
    bin. ``rounding`` rounds counts like ``held`` as the sites do it.
    ``distance`` turns tables (sites, classes, kinds) into the concept face of each site (sites,).

    Chance needs no rows: see `feature_distances` and `concept_chance`. Small counts are rounded as the sites do it.
    """
    members, few = np.eye(class_of.max() + 1, dtype=np.int64)[class_of], fewest.max() > 1
    check(sizes)
    counts = held @ members
    rng, weights = stream(seed, "diagnose"), sizes / sizes.sum()
    everyone, of_own, tables = np.zeros(()), [], []
    for at, answer in enumerate(answers):
        beyond = answer["beyond thresholds"]  # folds, classifiers, classes, 2
        everyone = everyone + beyond
        of_own.append(beyond[:, at].copy())  # a view would keep all of it
        tables.append(answer["rows by kind"])
    own, by_kind = np.stack(of_own, axis=1).astype(np.int64), np.stack(tables).astype(np.int64)
    feature, chance_feature = feature_distances(everyone.astype(np.int64), own, fewest, weights, rng)
    concept = distance(by_kind.astype(float))
    chance_concept = concept_chance(by_kind, fewest, lambda drawn: float(weights @ distance(drawn.astype(float))), rng)

    def like_sites(dealt: NDArray[Any]) -> NDArray[Any]:
        return np.asarray((rounding(dealt, rng) if few else dealt) @ members)

    each = {"label": label_measures(counts)["total variation"], "feature": feature, "concept": concept}
    by_chance = {
        "label": label_chance(held, rng, weights, like_sites),
        "feature": chance_feature,
        "concept": chance_concept,
    }
    of_class = own.sum((0, 3))
    alone = of_class[:, (of_class > 0).sum(0) == 1].sum()
    return Diagnosis(compared(each, by_chance, sizes, rng), counts, int(by_kind.sum()), int(alone))


def feature_distances(
    everyone: Ints, own: Ints, fewest: Ints, weights: Floats, rng: np.random.Generator
) -> tuple[Floats, list[float]]:
    """The feature face of each site (sites,), and the mean values of random rows.

    ``everyone`` counts all sites' rows beyond and below each classifier's threshold (folds, classifiers, classes, 2), ``own`` the
    rows of the classifier's own site. The face is the classifier's true positive rate minus its false positive rate. This is a
    lower bound of the total variation between p_k(x) and sum_y p_k(y) p(x | y).

    Given a classifier, the rows of a site beyond its threshold are, by chance, draws without replacement from the rows of all sites
    with the same class. The classifiers of the two halves are alike, so both halves are high at once: their draws are added by
    rank, and no dependence makes a sum vary more.
    """
    tested = own.sum(-1)  # folds, sites, classes
    rows = tested.sum(-1)
    false = (tested * divided(everyone[..., 0], everyone.sum(-1))).sum(-1)
    some, draws = tested > 0, np.zeros_like(tested)
    beyond, below, drawn = everyone[some][:, 0], everyone[some][:, 1], tested[some]
    of_halves = []
    for _ in range(TABLES):
        draws[some] = rng.hypergeometric(beyond, below, drawn)
        hits = draws
        if fewest.max() > 1:
            parts = enumerate(fewest.tolist())
            hits = np.stack([rounded_pairs(draws[:, k], tested[:, k], few, rng) for k, few in parts], axis=1)
        of_halves.append(divided(hits.sum(-1) - false, rows) @ weights)
    by_chance: list[float] = (opposition(weights) * np.sort(of_halves, axis=0).mean(1)).tolist()
    return divided(own[..., 0].sum(-1) - false, rows).mean(0), by_chance


def concept_chance(
    by_kind: Ints, fewest: Ints, value: Callable[[Ints], float], rng: np.random.Generator
) -> list[float]:
    """Return the values of random tables (sites, classes, kinds) with the margins of ``by_kind``, rounded as the sites do it.

    Margins of rounded tables are uneven, and random tables with uneven margins have smaller values. How much smaller, a second
    random table with the margins of each random table shows. This is added.
    """

    def tables_like(tables: Ints) -> Callable[[], Ints]:
        """A function that draws a random table for each class."""
        classes = np.flatnonzero(tables.sum((0, 2))).tolist()
        draws = [random_tables(tables[:, at].sum(1), tables[:, at].sum(0)) for at in classes]

        def drawn() -> Ints:
            dealt = np.zeros_like(tables)
            for at, draw in zip(classes, draws, strict=True):
                dealt[:, at] = draw(rng)
            return rounded_by_sites(dealt, fewest, rng) if fewest.max() > 1 else dealt

        return drawn

    first, again = np.zeros((2, CONCEPT_TABLES))
    draw = tables_like(by_kind)
    for at in range(CONCEPT_TABLES):
        dealt = draw()
        first[at] = value(dealt)
        again[at] = value(tables_like(dealt)()) if fewest.max() > 1 else first[at]
    values: list[float] = (first + max(0.0, first.mean() - again.mean())).tolist()
    return values


def rounded_by_sites(tables: NDArray[Any], fewest: Ints, rng: np.random.Generator) -> Ints:
    """Round each site's table as the site does it."""
    return np.stack([rounded(one, int(few), rng) for one, few in zip(tables, fewest, strict=True)])
