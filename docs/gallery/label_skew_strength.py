"""How strong a label skew is.

The parameter alpha of a Dirichlet skew says little by itself. The mean total variation distance between one client's
label frequencies and all clients' says more: 0 means equal, and near 1 means that a client has classes that hardly
anybody else has. Each dot is one random partition of the digits.
"""

import matplotlib.pyplot as plt
import numpy as np

import fedskew as fs

data = fs.load("digits")
alphas = [0.03, 0.1, 0.3, 1, 3, 10]
figure, axes = plt.subplots()
means = []
for alpha in alphas:
    distances = []
    for seed in range(10):
        part = fs.partition(data, f"label-dirichlet:alpha={alpha}", clients=10, seed=seed)
        counts = part.label_counts(data.y, data.num_classes)
        own = counts / counts.sum(1, keepdims=True)
        everyone = counts.sum(0) / counts.sum()
        distances.append(np.average(np.abs(own - everyone).sum(1) / 2, weights=counts.sum(1)))
    axes.plot([alpha] * 10, distances, "o", color="tab:blue", alpha=0.4)
    means.append(np.mean(distances))
axes.plot(alphas, means, color="tab:blue")
axes.set(xscale="log", ylim=(0, 1), xlabel="alpha of label-dirichlet", ylabel="distance of a client's labels from all")
axes.set_xticks(alphas, [str(alpha) for alpha in alphas])
axes.grid(axis="y")
axes.set_title("The smaller alpha, the fewer classes a client shares with others")
figure.savefig("label_skew_strength.png")
