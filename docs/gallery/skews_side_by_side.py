"""Six ways to deal the same digits to ten clients.

Each panel is one partition of the same training rows. A line is a client, a column is a digit, and a darker cell holds
more rows. IID clients are alike. Label skews give each client its own digits, and a quantity skew gives it its own
number of rows.
"""

import matplotlib.pyplot as plt

import fedskew as fs

SKEWS = {
    "iid": "iid: all alike",
    "label-dirichlet:alpha=1": "label-dirichlet, alpha = 1: mild",
    "label-dirichlet:alpha=0.1": "label-dirichlet, alpha = 0.1: strong",
    "label-shards:shards=2": "label-shards: two blocks each",
    "label-classes:k=3": "label-classes: exactly three digits",
    "quantity-lognormal:sigma=1": "quantity-lognormal: own sizes",
}
data = fs.load("digits")
figure, axes = plt.subplots(2, 3, figsize=(8, 5.2), sharex=True, sharey=True)
for panel, (skew, title) in zip(axes.flat, SKEWS.items(), strict=True):
    counts = fs.partition(data, skew, clients=10).label_counts(data.y, 10)
    cells = panel.imshow(counts, cmap="Blues", vmin=0, vmax=146)
    panel.set_title(title, fontsize=9)
    panel.set_xticks(range(10))
    panel.set_yticks(range(10))
    panel.spines[:].set_visible(False)
figure.supxlabel("digit")
figure.supylabel("client")
figure.colorbar(cells, ax=axes, label="rows", shrink=0.7)
figure.savefig("skews_side_by_side.png")
