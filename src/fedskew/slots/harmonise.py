"""Harmonisation: it removes differences between sites that a model should not learn, from the rows or from the outputs.

A site is a client. Each component has ``unknown``: how rows are treated whose site is not known, or took no part in training.

``fit`` changes input rows by site. It gets sums of the sites' training rows (`fedskew.core.sites`), never the rows.
``rate`` and ``intercept`` are about an intercept of each site, which is added to the model's outputs.

Where they are applied:

    rows      in a simulation        `client_data` in fedskew.execution.deal
              on a node              `harmonised` in fedskew.flower.tables, from its own rows or from all sites' sums
              sums and tests there   `with_maps` in fedskew.flower.server
              new rows               `TrainedModel.harmonised` in fedskew.serving.predict
    outputs   trained intercept      fedskew.models.intercept adds it to the network; `OwnPart` in fedskew.loop.sharing
                                     puts it into the client's state
              computed intercept     `intercepts_of` in fedskew.execution.build, `answering` in fedskew.loop.sharing
              new rows               `TrainedModel.outputs` in fedskew.serving.predict

`TrainedModel.sites_of` finds each new row's site. An export does all this in fedskew.serving.graph. `Sites` in
fedskew.execution.learned stores what differs between sites.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedskew.core.contract import Setup
from fedskew.core.limits import NonNegativeFloat
from fedskew.core.privacy import alone
from fedskew.core.records import Privacy
from fedskew.core.sites import Floats, SiteMaps, SiteSums

STILL = 1e-12
"""Share of a number that is only rounding: of a mean, or of a column's squares after the effect of protected columns."""
MOST_STEPS, CLOSE = 1000, 1e-14
"""Most steps of the empirical Bayes estimates, and the relative change after which they stop."""


@dataclass(frozen=True, kw_only=True)
class Unharmonised:
    """Changes nothing."""

    idea: ClassVar[str] = "rows and outputs as they are"
    unknown: ClassVar[str] = "treated like all others"
    private = alone


@dataclass(frozen=True, kw_only=True)
class SiteScale:
    """Standardise each column at each site with the site's own mean and standard deviation.

        x -> (x - mean_k) / deviation_k, with the root of the mean square as deviation

    A column that is constant at a site becomes 0 there. A site with one training row is treated like an unknown site.
    """

    protected: ClassVar[tuple[str, ...]] = ()
    own_rows_only: ClassVar[bool] = True
    idea: ClassVar[str] = "standardise each column with the means and deviations of the row's own site"
    unknown: ClassVar[str] = "standardised with the means and deviations of all sites' rows together"
    private = alone

    def fit(self, sites: SiteSums) -> SiteMaps:
        mean, deviation = sites.pooled()
        own = np.sqrt(sites.squares / sites.rows[:, None])
        scale = np.where(own > 0, own, 1.0)
        shifts = np.vstack([sites.mean, mean])
        factor = 1 / np.vstack([scale, np.where(deviation > STILL * np.abs(mean), deviation, 1.0)])
        return single_rows_apart(sites, factor, -shifts * factor, np.zeros((len(factor), 0, len(mean))))


@dataclass(frozen=True, kw_only=True)
class Combat:
    """Align each column's location and scale between sites by empirical Bayes (Johnson, Li and Rabinovic 2007).

        model      x_ij = alpha_j + protected_i beta_j + sigma_j (gamma_kj + delta_kj e_ij) for row i of site k, column j
        estimates  beta by least squares beside an intercept of each site; alpha is the mean of these, weighted by rows;
                   sigma^2, gamma and delta^2 from each site's sums, as mean squares
        shrinkage  gamma* and delta*^2: posterior means over the site's columns, with a normal and an inverse gamma prior
        result     x -> (x - alpha - protected beta - sigma gamma*) / delta* + alpha + protected beta

    ``protected`` names columns that stay as they are, and whose effect on other columns stays, too. Words that became several
    inputs have the name of their column. Without ``shrinkage``, gamma* and delta* are the estimates. The result then is
    alpha + sigma (x - mean_k) / deviation_k, if no column is protected.
    A column that is constant at a site does not count for the priors. A site with one training row is treated like an unknown
    site.

    Departure: sigma^2 and delta^2 divide by the number of rows, not by one less. So a single site stays exactly as it is.
    """

    protected: tuple[str, ...] = ()
    shrinkage: bool = True

    idea: ClassVar[str] = "align each column's location and scale between sites by empirical Bayes (ComBat)"
    cites: ClassVar[tuple[str, ...]] = ("combat",)
    unknown: ClassVar[str] = "left as they are"

    def private(self, privacy: Privacy) -> str:
        """Return why this is not private: each site's change depends on the rows of all sites."""
        return "combat changes each client's rows with sums of all clients' rows; use --harmonisation site-scale"

    def fit(self, sites: SiteSums) -> SiteMaps:
        p, n = sites.protected, sites.rows[:, None]
        within = sites.products.sum(0)  # (p, D)
        beta = np.linalg.pinv(within[:, p], hermitian=True) @ within
        beta[:, p] = 0.0
        level = sites.mean - sites.mean[:, p] @ beta
        explained = np.einsum("kpd,pd->kd", 2 * sites.products - sites.products[:, :, p] @ beta, beta)
        squares = np.where(explained < (1 - STILL) * sites.squares, sites.squares - explained, 0.0)
        alpha = sites.shares @ level
        variance = squares.sum(0) / sites.rows.sum()
        moved = np.setdiff1d(np.flatnonzero(variance > 0), p)
        sigma = np.sqrt(variance[moved])
        gamma, ratio = (level - alpha)[:, moved] / sigma, (squares / n)[:, moved] / variance[moved]
        delta = np.where(ratio > 0, ratio, 1.0)
        if self.shrinkage:
            both = [shrunk(*site) for site in zip(gamma, ratio, sites.rows, strict=True)]
            gamma, delta = (np.array(part) for part in zip(*both, strict=True))
        factor, shift = np.ones((len(n) + 1, len(alpha))), np.zeros((len(n) + 1, len(alpha)))
        factor[:-1, moved] = 1 / np.sqrt(delta)
        shift[:-1, moved] = sigma * gamma
        still = np.setdiff1d(np.flatnonzero(variance == 0), p)
        shift[:-1, still] = (level - alpha)[:, still]
        offset = alpha * (1 - factor) - shift * factor
        return single_rows_apart(sites, factor, offset, beta * (1 - factor)[:, None])


def shrunk(gamma: Floats, ratio: Floats, rows: float) -> tuple[Floats, Floats]:
    """Return the posterior means of a site's locations and variances (D,), by the paper's iteration.

    ``gamma`` and ``ratio`` (D,) are the estimates. Priors of variance 0 are limits: they give the prior's mean. With fewer than two
    columns that vary at the site there is no prior, and locations and variances stay as they are.
    """
    varying = ratio > 0
    if varying.sum() < 2:
        return gamma, np.where(varying, ratio, 1.0)
    center, spread = gamma[varying].mean(), gamma[varying].var(ddof=1)
    mean, square = ratio[varying].mean(), ratio[varying].var(ddof=1)
    posterior, variance = gamma, ratio
    for _ in range(MOST_STEPS):
        before = variance
        posterior = (spread * rows * gamma + variance * center) / (spread * rows + variance)
        squares = rows * (ratio + np.square(gamma - posterior))
        # the paper's (squares / 2 + b) / (n / 2 + a - 1), with a = mean^2 / square + 2 and b = mean (a - 1), times square
        variance = (square * (squares / 2 + mean) + mean**3) / (square * (rows / 2 + 1) + mean**2)
        if np.abs(variance - before).max() <= CLOSE * variance.max():
            break
    return posterior, variance


def single_rows_apart(sites: SiteSums, factor: Floats, offset: Floats, effect: Floats) -> SiteMaps:
    """Return the maps (K + 1, ...). A site with a single row has no deviation, so it gets the map of unknown sites."""
    at = np.where(np.append(sites.rows, 2) > 1, np.arange(len(factor)), len(factor) - 1)
    return SiteMaps(factor[at], offset[at], effect[at], sites.protected)


@dataclass(frozen=True, kw_only=True)
class SiteBias:
    """Train an intercept of each site, which is added to the model's outputs. It starts at 0 and stays at the site.

    Its steps are ``rate`` times as long as other parameters' steps. With 0 it stays at 0, as in FedAvg.
    """

    rate: NonNegativeFloat = 1.0

    idea: ClassVar[str] = "add a trained intercept of the site to the outputs, kept at the site"
    unknown: ClassVar[str] = "answered by the shared model, with intercept 0"
    private = alone

    def accepts(self, setup: Setup) -> str:
        if self.rate and setup.tries_models:
            return "keeps an intercept at each site, but the server tries or trains models on its own rows; use prior"
        return one_model(setup)

    def intercept(self, counts: Floats, total: Floats) -> None:
        """Return None: the intercept is trained."""


@dataclass(frozen=True, kw_only=True)
class Prior:
    """Correct the outputs to the classes' shares at the site, where a model answers. Training does not change.

        logit_c -> logit_c + log(share of class c at the site) - log(share of class c at all sites)

    A site's share of a class has a row for each class added, dealt as the classes are at all sites: (n_kc + C share_c) /
    (n_k + C). So a site that lacks a class still expects it, and equal shares change nothing at any size.
    """

    rate: ClassVar[float] = 0.0
    cites: ClassVar[tuple[str, ...]] = ("prior-shift",)
    idea: ClassVar[str] = "correct the outputs to the classes' shares at the site, where a model answers"
    unknown: ClassVar[str] = "answered by the shared model, for the classes' shares at all sites"

    def private(self, privacy: Privacy) -> str:
        """Return why this is not private: the answers use numbers of rows of each class, without noise."""
        return "prior uses the classes' numbers of rows without noise; use --harmonisation none"

    def accepts(self, setup: Setup) -> str:
        if setup.target != "classes":
            return "corrects shares of classes, and these targets are no classes; use site-bias"
        if not setup.labels_known:
            return "needs the rows of each class at each site; set deployment.labels, or use site-bias"
        return one_model(setup)

    def intercept(self, counts: Floats, total: Floats) -> Floats:
        """Return the difference of the logarithms of the shares (..., C); 0 for a class without any row."""
        share = total / total.sum()
        own = (counts + len(share) * share) / (counts.sum(-1, keepdims=True) + len(share))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(share > 0, np.log(own) - np.log(share), 0.0)


def one_model(setup: Setup) -> str:
    """Return why sites cannot have an intercept in this setup; empty if they can."""
    several = not setup.one_architecture
    return "adds to the outputs of one model, and clients have several; use --model mlp" if several else ""
