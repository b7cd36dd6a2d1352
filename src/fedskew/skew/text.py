"""Feature skew of texts: a style of writing for each cluster of clients."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedskew.core.errors import require
from fedskew.core.seeding import stream
from fedskew.skew.feature import Floats, Own, clusters
from fedskew.skew.partition import Ints

HURRIED = """
you=u your=ur are=r please=pls thanks=thx because=cuz for=4 to=2 and=n people=ppl before=b4 today=2day tomorrow=tmrw account=acct
message=msg information=info company=co government=govt president=pres million=mn percent=pct international=intl department=dept
number=nr minutes=min delivery=dlvry payment=pymt order=ordr refund=rfnd
"""
SHORT = dict(pair.split("=") for pair in HURRIED.split())
"""Short forms of common words."""

TEMPLATES = (
    ("hello there,", "kind regards"),
    ("hi,", "thanks a lot in advance"),
    ("listen up:", "that is all"),
    ("dear all,", "yours sincerely"),
    ("just saw this:", "what do you think?"),
    ("fyi", "sent from my phone"),
)
"""Openings and closings of texts."""

TYPOS, SHORTENED, CAPITALS = 0.3, 1.0, 0.5
"""Largest shares of words with typos, in short form, and in capitals, at strength 1."""


@dataclass(frozen=True, kw_only=True)
class FeatureText:
    """Each cluster of clients has a style of writing: typing errors, short forms, capitals, an opening and a closing.

    Each cluster draws three shares of its words: with two letters exchanged, in short form, and in capitals. A share
    ``strength`` of its texts gets the cluster's opening and closing. With strength 0 texts do not change. Word ids do not
    depend on capitals.
    """

    clusters: int = 4
    strength: float = 0.5

    idea: ClassVar[str] = (
        "texts in one style for each cluster of clients: typing errors, short forms, capitals, opening and closing"
    )

    def __post_init__(self) -> None:
        require(self.clusters >= 1, f"clusters must be at least 1, got {self.clusters}")
        require(0 <= self.strength <= 1, f"strength must be at least 0 and at most 1, got {self.strength}")

    def draw(self, x: Floats, num_clients: int, rng: np.random.Generator) -> Own:
        cluster = clusters(self.clusters, num_clients, rng)
        shares = self.strength * rng.uniform(0, (TYPOS, SHORTENED, CAPITALS), (self.clusters, 3))
        templates = np.resize(rng.permutation(len(TEMPLATES)), self.clusters)
        return {
            "cluster": cluster.astype(np.float64),
            **dict(zip(("typos", "short", "capitals"), shares[cluster].T, strict=True)),
            "framed": np.full(num_clients, self.strength),
            "template": templates[cluster].astype(np.float64),
        }

    def transform(self, x: Floats, own: Own, rng: np.random.Generator) -> Floats:
        """Return the numbers of the rows unchanged; `rewritten` changes their texts."""
        return x


def rewritten(skew: FeatureText, own: Own, texts: Sequence[str], owner: Ints, seed: int, place: int) -> list[str]:
    """Rewrite each text in the style of its client. A text without an owner (-1) does not change.

    ``own`` has the clients' parameters. ``place`` is the position of the skew among the feature skews. Random numbers depend
    only on the seed and the texts.
    """
    rng, made = stream(seed, "features", place, 1), []
    for text, k in zip(texts, owner.tolist(), strict=True):
        words = text.split()
        dice = rng.random((3, len(words) + 1))
        if k < 0 or not skew.strength:
            made.append(text)
            continue
        shares = (own["typos"][k], own["short"][k], own["capitals"][k])
        changed = [
            styled(word, *(chance < share for chance, share in zip(dice[:, i], shares, strict=True)))
            for i, word in enumerate(words)
        ]
        opening, closing = TEMPLATES[int(own["template"][k])] if dice[0, -1] < own["framed"][k] else ("", "")
        made.append(" ".join(filter(None, (opening, *changed, closing))))
    return made


def styled(word: str, typo: bool, short: bool, capitals: bool) -> str:
    """Change a word: use its short form, exchange its second and third letter (from four letters on), write it in capitals."""
    if short:
        word = SHORT.get(word.lower(), word)
    if typo and len(word) > 3:
        word = word[0] + word[2] + word[1] + word[3:]
    return word.upper() if capitals else word
