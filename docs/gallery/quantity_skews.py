"""Clients of very different size.

A quantity skew sets how many rows each client has. With equal shares, each of twenty clients has 5 % of the rows. The
stronger the skew, the more a few clients decide: FedAvg weights each client by its rows.
"""

import matplotlib.pyplot as plt
import numpy as np

import fedskew as fs

SKEWS = ["iid", "quantity-lognormal:sigma=0.5", "quantity-lognormal:sigma=1.5", "quantity-dirichlet:beta=0.3"]
data = fs.load("digits")
figure, axes = plt.subplots()
for skew in SKEWS:
    sizes = np.sort(fs.partition(data, skew, clients=20, seed=1).sizes)[::-1]
    shares = 100 * sizes.cumsum() / sizes.sum()
    axes.plot(np.arange(1, len(shares) + 1), shares, "o-", label=skew)
axes.set(
    xlabel="number of clients, largest first", ylabel="share of all rows, %", ylim=(0, 103), xticks=[1, 5, 10, 15, 20]
)
axes.grid(axis="y")
axes.legend(loc="lower right")
axes.set_title("How much of the data the largest clients hold")
figure.savefig("quantity_skews.png")
