"""Learning curves with their uncertainty.

Three methods, four seeds each. A line is the mean accuracy over the seeds, the band its 95 % interval. Where bands
overlap, the picture alone cannot say which method is better: see [paired differences](paired_differences.py).
"""

import fedskew as fs

runs = fs.compare(
    ["fedavg", "fedprox:mu=0.1", "scaffold"],
    dataset="digits",
    skew="label-dirichlet:alpha=0.1",
    rounds=15,
    seeds=4,
    evaluation__every=1,
)
figure = runs.plot("accuracy")
figure.savefig("learning_curves.png")
