"""Attackers among the clients.

A share of the clients sends the opposite of what it learnt. The mean follows the attackers. The median and the trimmed mean
leave out extreme values, and Krum takes only the most central update.
"""

import matplotlib.pyplot as plt

import fedskew as fs

METHODS = ["fedavg", "median", "trimmed-mean:beta=0.3", "krum:f=3"]
SHARES = [0.0, 0.1, 0.2, 0.3]
figure, axes = plt.subplots()
curves = {method: [] for method in METHODS}
for share in SHARES:
    attack = {"faults__attackers": share, "faults__attack": "sign-flip"} if share else {}
    runs = fs.compare(METHODS, skew="label-dirichlet:alpha=1", rounds=10, seeds=2, **attack)
    for method, accuracy in zip(METHODS, runs.table()["accuracy"], strict=True):
        curves[method].append(100 * accuracy)
for method, values in curves.items():
    axes.plot([100 * share for share in SHARES], values, "o-", label=method)
assert max(curves, key=lambda name: curves[name][0] - curves[name][-1]) == "fedavg"
axes.set(xlabel="clients that attack, %", ylabel="test accuracy, %")
axes.grid(axis="y")
axes.legend()
axes.set_title("Under attack the mean loses most")
figure.savefig("attacks.png")
