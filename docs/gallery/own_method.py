"""A method of your own.

One class with one hook: every client shortens its update to a fixed length before it sends it. The method runs beside
the built-in ones on the same partitions and seeds.
"""

from dataclasses import dataclass

import fedskew as fs
from fedskew.core.records import Upload


@dataclass(frozen=True, kw_only=True)
class ShortSteps(fs.Algorithm):
    longest: float = 1.0

    def local_final(self, solver, view, carry, after):
        delta = carry.w - view.x
        scale = (self.longest / delta.norm()).clamp(max=1.0)
        return Upload(scale * delta, {}, {}), view.state


runs = fs.compare(
    ["fedavg", ShortSteps(), ShortSteps(longest=0.5)],
    skew="label-dirichlet:alpha=0.5",
    rounds=20,
    seeds=4,
    evaluation__every=1,
)
figure = runs.plot("accuracy")
figure.savefig("own_method.png")
