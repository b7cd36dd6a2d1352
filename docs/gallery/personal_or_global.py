"""One model for all, or one for each client?

Every client measures the model that it would use, on rows that it held out. If a client has few classes, its own
model is good with little effort: it needs to know only these classes. Each dot is a client, the bar is their mean.
"""

import matplotlib.pyplot as plt
import numpy as np

import fedskew as fs

METHODS = ["fedavg", "fedper", "ditto", "local-only"]
figure, axes = plt.subplots()
for line, method in enumerate(METHODS):
    run = fs.run(algorithm=method, skew="label-dirichlet:alpha=0.3", clients=20, held_out=0.3, rounds=20)
    model = "global-model" if method == "fedavg" else "personal-model"
    found = run.measurements().query(f"split == '{model}' and name == 'accuracy' and round == 20")
    values = 100 * found["value"].to_numpy()
    axes.plot(values, line + np.linspace(-0.15, 0.15, len(values)), "o", alpha=0.5)
    axes.plot(values.mean(), line, "|", color="black", markersize=26)
axes.set_yticks(range(len(METHODS)), METHODS)
axes.set(xlabel="accuracy of the model that a client uses, on its held-out rows, %", ylim=(len(METHODS) - 0.5, -0.5))
axes.grid(axis="x")
axes.set_title("One model for all (FedAvg) or a model for each client")
figure.savefig("personal_or_global.png")
