"""What the server does with the mean update.

FedAvg adds the mean update to the model. FedAvgM gives it momentum, FedAdam and FedYogi scale each coordinate. The
clients do the same work in all four.
"""

import matplotlib.pyplot as plt

import fedskew as fs

METHODS = ["fedavg", "fedavgm:beta=0.7", "fedadam:lr=0.03", "fedyogi:lr=0.03"]
figure, axes = plt.subplots()
for method in METHODS:
    run = fs.run(algorithm=method, skew="label-dirichlet:alpha=0.1", epochs=1, rounds=30, evaluation__every=1)
    found = run.measurements().query("split == 'test' and name == 'accuracy'")
    axes.plot(found["round"], 100 * found["value"], "--" if method.startswith("fedyogi") else "-", label=method)
axes.set(xlabel="round", ylabel="test accuracy, %")
axes.grid(axis="y")
axes.legend(loc="lower right")
axes.set_title("Server optimisers on the same clients, one seed")
figure.savefig("server_optimisers.png")
