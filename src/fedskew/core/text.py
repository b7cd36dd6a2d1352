"""Text for readers and from users: numbers with a noun, names as papers write them, folds of cross-validation."""

import re
from typing import NamedTuple

from fedskew.core.errors import require


def count(number: int, noun: str) -> str:
    """``1 seed``, ``3 seeds``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def percent(share: float) -> str:
    """``12 %``; one decimal below 1 %."""
    return f"{100 * share:.{int(0 < share < 0.01)}f} %"


METHODS = {
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "scaffold": "SCAFFOLD",
    "fednova": "FedNova",
    "feddyn": "FedDyn",
    "moon": "MOON",
    "fedntd": "FedNTD",
    "fedlc": "FedLC",
    "fedproc": "FedProc",
    "fedga-alignment": "FedGA (alignment)",
    "fedsam": "FedSAM",
    "mofedsam": "MoFedSAM",
    "fedsol": "FedSOL",
    "fedpa": "FedPA",
    "fedsmoo": "FedSMOO",
    "fedbs": "FedBS",
    "fedpbs": "FedPBS",
    "fedga": "FedGA",
    "fedga-generalisation": "FedGA (generalisation)",
    "dualmetric": "DualMetric",
    "median": "Median",
    "trimmed-mean": "Trimmed mean",
    "krum": "Krum",
    "qfedavg": "q-FedAvg",
    "afl": "AFL",
    "drfa": "DRFA",
    "fairfed": "FairFed",
    "f3": "F3",
    "f3-gradient": "F3 (gradient)",
    "ditto": "Ditto",
    "per-fedavg": "Per-FedAvg",
    "ifca": "IFCA",
    "fedmd": "FedMD",
    "dp-fedavg": "DP-FedAvg",
    # combinations
    "fedavgm": "FedAvgM",
    "fedadagrad": "FedAdagrad",
    "fedadam": "FedAdam",
    "fedyogi": "FedYogi",
    "fedcm": "FedCM",
    "feddf": "FedDF",
    "data-sharing": "Data sharing",
    "centralised": "Centralised",
    "parallel-sgd": "Parallel SGD",
    "local-sgd": "Local SGD",
    "fedper": "FedPer",
    "fedbn": "FedBN",
    "fedavg-ft": "FedAvg + FT",
    "local-only": "Local only",
}

SERVERS = {"sgd": "SGD", "momentum": "momentum", "adagrad": "Adagrad", "adam": "Adam", "yogi": "Yogi"}

SKEWS = {
    "iid": "IID",
    "iid-stratified": "stratified IID",
    "label-dirichlet": "Dirichlet labels",
    "label-dirichlet-balanced": "balanced Dirichlet labels",
    "label-dirichlet-per-class": "Dirichlet labels, per class",
    "label-dirichlet-top-up": "topped-up Dirichlet labels",
    "label-shards": "label shards",
    "label-classes": "k classes a client",
    "label-similarity": "label similarity",
    "label-blocks": "label blocks",
    "label-sorted": "sorted labels",
    "quantile-dirichlet": "Dirichlet quantiles",
    "column-dirichlet": "Dirichlet column",
    "time-blocks": "blocks of time",
    "quantity-lognormal": "log-normal sizes",
    "quantity-power-law": "power-law sizes",
    "quantity-dirichlet": "Dirichlet sizes",
    "quantity-sizes": "listed sizes",
    "feature-noise": "feature noise",
    "feature-affine": "gain and offset",
    "feature-sensor": "turned sensors",
    "feature-rotation": "rotated images",
    "feature-blur": "blurred images",
    "feature-style": "image styles",
    "feature-text": "changed texts",
    "concept-swap": "swapped labels",
    "concept-flip": "flipped labels",
    "natural": "natural clients",
    "pooled": "pooled",
    "from-folder": "exported clients",
}


def plainly(name: str) -> str:
    """Return the name in lower case, without spaces, hyphens and underscores."""
    return re.sub(r"[-_\s]", "", name.lower())


BY_PLAIN_NAME = {plainly(name): title for table in (METHODS, SKEWS) for name, title in table.items()}


def title(name: str) -> str:
    """Return the name of a method or skew as papers write it, ``SCAFFOLD``, for any spelling; another name unchanged."""
    return BY_PLAIN_NAME.get(plainly(name), name)


class Folds(NamedTuple):
    """A split into folds. Each row is in one fold. If ``of_clients``, all rows of a client are in the same fold."""

    number: int
    of_clients: bool

    def __str__(self) -> str:
        return f"{self.number}{':clients' * self.of_clients}"


def parse_folds(text: str) -> Folds:
    """Parse ``5`` or ``4:clients``."""
    match = re.fullmatch(r"(\d{1,9})(:clients)?", text, re.ASCII)
    require(
        match is not None and int(match[1]) >= 2,
        f"folds: write a number of at least 2, such as 5, or 4:clients to leave out whole clients; got {text!r}",
    )
    assert match
    return Folds(int(match[1]), match[2] is not None)
