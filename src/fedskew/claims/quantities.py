"""Quantities of a run, which claims are about: ``accuracy``, ``rounds-to:0.8``, ``relative-drift`` and others."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import SupportsFloat

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedskew.core.errors import BadInput, require, suggestion
from fedskew.core.groups import grouped
from fedskew.measure import registry
from fedskew.measure.registry import OF_MODELS, Measure, primary_of
from fedskew.measure.statistics import Floats
from fedskew.store.runs import RunRecord, RunStore

NAN = math.nan
SETTLED = 5
"""Number of first rounds that are ignored when clients' losses are compared (From IID to Non-IID, Figure 12)."""


Series = tuple[NDArray[np.int64], Floats]
"""The rounds of a measure and its values, in order of rounds."""

Dealt = Sequence[tuple[int, str, str, int]]
"""A partition: client, its name, label, number of training rows."""

NONE: Series = (np.zeros(0, np.int64), np.zeros(0))

OF_CLIENTS = (
    "local-model/loss", "global-model/accuracy", "layer/cosine",
    "client/mu", "client/rule", "client/steady", "client/variance", "client/weight", "client/batch_size",
)  # fmt: skip
"""Measures of each client, or of each layer, that quantities and figures need."""

LOCAL_LOSS, LOCAL_ACCURACY = OF_CLIENTS[:2]

EARLY = 0.2
"""Share of the rounds after which DualMetric's report looks at clients: round 100 of 500."""

ALIKE = 0.15
"""Maximum difference of the accuracies of clients that are alike: 70 to 85 % in DualMetric's report."""


@dataclass(frozen=True, eq=False)
class Measured:
    """The measurements of one run, which may be unfinished.

    ``series`` has them by split, name, and client or layer (None: neither); ``dealt`` has the run's partition.
    """

    record: RunRecord
    series: Mapping[tuple[str, str, int | None], Series]
    dealt: Dealt = ()

    def curve(self, split: str, *names: str) -> Floats:
        """Return the values in order of rounds. The values of several names are added."""
        parts = [self.series[key][1] for name in names if (key := (split, name, None)) in self.series]
        return np.sum(parts, axis=0) if parts else np.zeros(0)

    def over_rounds(self, measure: Measure) -> Series:
        """Return the measured rounds and the measure after each. The model before training is left out."""
        keys = [(measure.split, name, None) for name in measure.of]
        rounds = next((self.series[key][0] for key in keys if key in self.series), NONE[0])
        trained = rounds > 0 if measure.split in OF_MODELS else rounds >= 0
        return rounds[trained], self.curve(measure.split, *measure.of)[trained] * measure.factor

    def values(self, measure: Measure) -> Floats:
        """Return the measure after each round. The model before training is left out."""
        return self.over_rounds(measure)[1]

    def within(self, measure: Measure, first: int, last: int) -> float:
        """Return the mean of a measure over the rounds from ``first`` to ``last``; NaN if none was measured."""
        rounds, values = self.over_rounds(measure)
        return REDUCTIONS["mean"](values[(rounds >= first) & (rounds <= last)])

    def of_clients(self, measure: str) -> dict[int, Series]:
        """Return the curves of a measure ``split/name`` by client or layer, in order."""
        split, name = measure.split("/")
        of_parts = {k: series for (s, n, k), series in self.series.items() if (s, n) == (split, name) and k is not None}
        return dict(sorted(of_parts.items()))

    def layer(self, last: bool) -> Series:
        """Return the first or the last layer's mean cosine over all pairs of updates."""
        layers = list(self.of_clients("layer/cosine").values())
        return layers[-1 if last else 0] if layers else NONE

    def by_client(self, measure: str) -> pd.DataFrame:
        """Return a measure ``split/name``: a row for each round, a column for each client."""
        clients = self.of_clients(measure)
        return pd.DataFrame({k: pd.Series(values, rounds) for k, (rounds, values) in clients.items()}).sort_index()


def read_run(store: RunStore, record: RunRecord) -> Measured:
    """Read a run's measurements from the store."""
    read = [*store.curves([record.id]), *store.curves([record.id], OF_CLIENTS, per_client=True)]
    points = grouped(((m.split, m.name, m.client), (m.round, m.value)) for m in read)
    return Measured(
        record,
        {key: (np.array([r for r, _ in row]), np.array([v for _, v in row], float)) for key, row in points.items()},
        list(store.partition(record.id).itertuples(index=False, name=None)),
    )


def statistic(fewest: int, of: Callable[[Floats], SupportsFloat]) -> Callable[[Floats], float]:
    """Return a function that applies ``of`` to values over rounds; NaN for fewer than ``fewest`` values."""
    return lambda values: float(of(values)) if len(values) >= fewest else NAN


def roughness(values: Floats) -> float:
    """Return the sum of absolute second differences, divided by the range; 0 for a straight line."""
    width = float(np.ptp(values))
    return float(np.abs(np.diff(values, 2)).sum()) / width if width > 0 else NAN


def rank_trend(values: Floats) -> float:
    """Return Spearman's rank correlation of the values with the round."""
    from scipy import stats

    return float(stats.spearmanr(np.arange(len(values)), values).statistic)


REDUCTIONS = {
    "last": statistic(1, lambda values: values[-1]),
    "mean": statistic(1, np.mean),
    "max": statistic(1, np.max),
    "sum": statistic(0, np.sum),
}
"""By `Measure.reduce`: the function that reduces the rounds to a measure's number in a claim."""

PREFIXES = {
    "first": statistic(1, lambda values: values[0]),
    "last": REDUCTIONS["last"],
    "mean": REDUCTIONS["mean"],
    "lowest": statistic(1, np.min),
}
"""Statistics over the rounds by prefix of a measure's name: ``first-drift``. The trend is a suffix: ``drift-trend``."""

TREND = statistic(3, rank_trend)


def local_loss(run: Measured, early: bool) -> float:
    """Return the mean loss of local models on their own rows, in the first ten rounds if ``early``, else in the last round."""
    losses = run.by_client(LOCAL_LOSS)
    return float(np.nanmean((losses.loc[:10] if early else losses.tail(1)).to_numpy())) if len(losses) else NAN


def lagging(run: Measured) -> tuple[float, float]:
    """Return the mu of the client with the lowest accuracy after `EARLY`, and what it gains until three times `EARLY`."""

    def of_clients(measure: str, share: float) -> Floats:
        clients = run.of_clients(measure).values()
        return np.array([after_share(series, run.record.rounds, share) for series in clients])

    early, later = of_clients(LOCAL_ACCURACY, EARLY), of_clients(LOCAL_ACCURACY, 3 * EARLY)
    mu = of_clients("client/mu", EARLY)
    if np.isnan(early).all():
        return NAN, NAN
    lowest = np.nanargmin(early)
    return float(mu[lowest]) if len(mu) else NAN, float(later[lowest] - early[lowest])


def fifths(run: Measured, name: str) -> Floats:
    """Return the means of a curve in each fifth of its rounds; NaN for fewer than five rounds."""
    values = curve(name, run)[1]
    size = len(values) // 5
    return values[: 5 * size].reshape(5, size).mean(1) if size else np.full(5, NAN)


def partition(run: Measured, name: str) -> float:
    return float(run.record.facts.get("partition", {}).get(name, NAN))


def classes_each(run: Measured) -> float:
    """Return the mean over clients of the number of classes with more than a twentieth of the client's training rows."""
    rows = pd.DataFrame(run.dealt, columns=["client", "name", "label", "rows"])
    share = rows["rows"] / rows.groupby("client")["rows"].transform("sum")
    return float((share > 0.05).groupby(rows["client"]).sum().mean())


def deviation_of_clients(run: Measured) -> Floats:
    """Return the standard deviation of accuracy over the clients, after each measured round."""
    return run.values(measures()["accuracy-std"])


def round_of_lowest_loss(run: Measured) -> float:
    rounds, losses = run.over_rounds(measures()["loss"])
    return float(rounds[losses.argmin()]) if len(losses) else NAN


LOSS = {
    "overfitting": statistic(1, lambda values: values[-1] / values.min() - 1),
    "test-loss-roughness": statistic(3, roughness),
}
"""Statistics of the test loss."""

QUANTITIES: dict[str, Callable[[Measured], float]] = {
    "fluctuation": lambda run: statistic(2, np.std)(later_half(run.values(primary_of([run.record])))),
    # share of rounds in which the clients' mean loss rises
    "training-loss-rises": lambda run: statistic(2, lambda v: np.mean(np.diff(v) > 0))(
        run.curve("clients", "loss_mean")
    ),
    "round-of-lowest-loss": round_of_lowest_loss,
    "early-local-loss": lambda run: local_loss(run, early=True),
    "late-local-loss": lambda run: local_loss(run, early=False),
    # standard deviation of local models' losses over the clients, mean over the rounds after the fifth
    "client-loss-spread": lambda run: float(run.by_client(LOCAL_LOSS).loc[SETTLED + 1 :].std(axis=1, ddof=0).mean()),
    "first-layer-cosine": lambda run: REDUCTIONS["mean"](run.layer(last=False)[1]),
    "last-layer-cosine": lambda run: REDUCTIONS["mean"](run.layer(last=True)[1]),
    "client-variance": lambda run: REDUCTIONS["last"](deviation_of_clients(run)) ** 2,
    "early-client-variance": lambda run: REDUCTIONS["mean"](deviation_of_clients(run)[:5]) ** 2,
    # the clients' variance after the last round, divided by that after the first five rounds
    "variance-fall": lambda run: statistic(1, lambda v: v[-1] ** 2 / v[:5].mean() ** 2)(deviation_of_clients(run)),
    "lagging-mu": lambda run: lagging(run)[0],
    "lagging-gain": lambda run: lagging(run)[1],
    # how much more often a rule fires in the first fifth of the rounds than later, or in the next two fifths than in the first
    "intra-early": lambda run: float((of := fifths(run, "intra-rule"))[0] - of[1:].mean()),
    "inter-later": lambda run: float((of := fifths(run, "inter-rule"))[1:3].mean() - of[0]),
    "label-distance": lambda run: partition(run, "label_distance"),
    "classes-each": classes_each,
    # training rows that leave their owner: the server's own, and copies of the public share
    "rows-moved": lambda run: (
        partition(run, "server_rows") + partition(run, "clients") * partition(run, "shared_rows_each")
    ),
    "smallest-client": lambda run: partition(run, "smallest") / partition(run, "rows"),
}
"""Quantities that are no statistic of a single measure."""


def over_clients(measure: str, of: Callable[[Floats], Floats]) -> Callable[[Measured], Series]:
    """Return a function that applies ``of`` to the values (rounds, clients) of a measure ``split/name``."""

    def read(run: Measured) -> Series:
        table = run.by_client(measure)
        return (table.index.to_numpy(), of(table.to_numpy(float))) if len(table) else NONE

    return read


def most_alike(values: Floats) -> Floats:
    """Return the largest number of values of each row that lie within `ALIKE`."""
    above = values[:, None, :] - values[:, :, None]
    return ((above >= 0) & (above <= ALIKE + 1e-9)).sum(-1).max(-1).astype(float)


def client_variance(run: Measured) -> Series:
    rounds, deviation = run.over_rounds(measures()["accuracy-std"])
    return rounds, deviation**2


CURVES: dict[str, Callable[[Measured], Series]] = {
    "first-layer-cosine": lambda run: run.layer(last=False),
    "last-layer-cosine": lambda run: run.layer(last=True),
    "local-loss": over_clients(LOCAL_LOSS, lambda losses: np.nanmean(losses, axis=1)),
    "client-variance": client_variance,
    "client-range": over_clients(LOCAL_ACCURACY, lambda accuracy: np.ptp(accuracy, axis=1)),
    "clients-alike": over_clients(LOCAL_ACCURACY, most_alike),
    # shares of the clients whose mu a rule of DualMetric changes
    "intra-rule": over_clients("client/rule", lambda rule: (rule % 2).mean(axis=1)),
    "inter-rule": over_clients("client/rule", lambda rule: (rule // 2).mean(axis=1)),
}
"""Curves that are not measures."""

AT_MOST_ONE = {"first-layer-cosine", "last-layer-cosine", "client-range", "intra-rule", "inter-rule"}
"""The curves whose values are at most 1."""


def later_half(values: Floats) -> Floats:
    return values[len(values) // 2 :]


def measures() -> dict[str, Measure]:
    """Return the measures of a round by their names in claims: ``worst-client``."""
    of_rounds = [measure for measure in registry.MEASURES if measure.split in (*OF_MODELS, "round")]
    return {measure.figure: measure for measure in reversed(of_rounds)}  # the first of a name counts


def counted() -> set[str]:
    """Return the quantities that the settings alone determine. They are equal for all seeds."""
    return {name for name, measure in measures().items() if measure.counted}


def reader(name: str) -> Callable[[Measured], float]:
    """Return a function that computes the quantity of this name from a run.

    ``rounds-to:0.8`` is the first measured round with this test accuracy; if there is none, the number of rounds plus 1.
    ``accuracy-at:0.2`` is the accuracy after a fifth of the rounds, ``accuracy-in:5-30`` its mean over these rounds.
    Raises `BadInput` for an unknown name.
    """
    if name in QUANTITIES:
        return QUANTITIES[name]
    if name.startswith("rounds-to:"):
        return lambda run: rounds_to(run, float(name.partition(":")[2]))
    names = measures()
    of, at, share = name.partition("-at:")
    if at and (of in names or of in CURVES):
        return lambda run: after_share(curve(of, run), run.record.rounds, float(share))
    of, inside, rounds = name.partition("-in:")
    if inside and of in names:
        return lambda run: run.within(names[of], *map(int, rounds.split("-")))
    prefix, _, rest = name.partition("-")
    if name in names:
        measure, reduced = names[name], REDUCTIONS[names[name].reduce]
    elif name in LOSS:
        measure, reduced = names["loss"], LOSS[name]
    elif prefix in PREFIXES and rest in names:
        measure, reduced = names[rest], PREFIXES[prefix]
    elif name.removesuffix("-trend") in names:
        measure, reduced = names[name.removesuffix("-trend")], TREND
    else:
        raise BadInput(f"claim: unknown quantity {name!r}; {suggestion(name, [*names, *LOSS, *QUANTITIES])}")
    return lambda run: reduced(run.values(measure))


def after_share(series: Series, rounds: int, share: float) -> float:
    """Return the value after this share of the rounds; NaN if there is none."""
    return float(next(iter(series[1][series[0] == round(share * rounds)]), NAN))


def rounds_to(run: Measured, level: float) -> float:
    rounds, values = run.over_rounds(primary_of([run.record]))
    return float(next(iter(rounds[values >= level]), run.record.rounds + 1))


def quantity(name: str, run: Measured) -> float:
    """Return the quantity of this name. Raises `BadInput` for an unknown name."""
    return float(reader(name)(run))


def words_for(name: str) -> str:
    """Return the words for a quantity: ``accuracy-at:0.2`` gives ``accuracy at 20 % of the rounds``."""
    of, at, share = name.partition("-at:")
    if at:
        return f"{words_for(of)} at {100 * float(share):g} % of the rounds"
    name = re.sub(r"-in:(\d+)-", r" in rounds \1 to ", name)
    return re.sub("[-:]", " ", name)


def curve(name: str, run: Measured) -> Series:
    """Return the rounds and a measure after each. Raises `BadInput` like `quantity`."""
    if name in CURVES:
        return CURVES[name](run)
    names = measures()
    require(name in names, f"claim: unknown curve {name!r}; {suggestion(name, [*names, *CURVES])}")
    return run.over_rounds(names[name])
