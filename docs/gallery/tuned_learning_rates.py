"""Each method at its own best learning rate.

A method that looks bad may only have the wrong learning rate. The picture shows the accuracy of three methods over a
grid of learning rates, on rows that the clients hold out. `fs.tune` chooses the best of them without looking at the
test rows.
"""

import matplotlib.pyplot as plt

import fedskew as fs

RATES = [0.01, 0.03, 0.1, 0.3, 1.0]
figure, axes = plt.subplots()
for method in ["fedavg", "fedprox:mu=1", "scaffold"]:
    scores = []
    for rate in RATES:
        run = fs.run(algorithm=method, lr=rate, skew="label-dirichlet:alpha=0.1", held_out=0.2, rounds=10)
        found = run.measurements().query("split == 'clients' and name == 'accuracy_mean'")
        scores.append(100 * found["value"].iloc[-1])
    best = max(scores)
    [line] = axes.plot(RATES, scores, "o-", label=method)
    axes.plot(RATES[scores.index(best)], best, "o", markersize=11, fillstyle="none", color=line.get_color())
axes.set(xscale="log", xlabel="learning rate of the clients", ylabel="accuracy on held-out rows, %")
axes.set_xticks(RATES, [str(rate) for rate in RATES])
axes.grid(axis="y")
axes.legend()
axes.set_title("Each method has its own best learning rate (circle)")
figure.savefig("tuned_learning_rates.png")
