"""How sharp the minimum is that a method finds.

The lines show the loss along random directions through the final model. FedSAM looks for flat regions, where the loss
rises slowly.
"""

import matplotlib.pyplot as plt

import fedskew as fs

figure, axes = plt.subplots()
for method in ["fedavg", "fedsam:rho=0.3"]:
    runs = fs.run(algorithm=method, skew="label-dirichlet:alpha=0.3", rounds=30)
    found = fs.landscape(runs, kind="line", clients=[0], points=31, reach=1.5)
    [line] = found.sheets["test set"]
    axes.plot(found.window.a, line, label=f"{method}, largest curvature {found.sharpness.eigenvalue:.1f}")
axes.set(xlabel="distance from the final model in a random direction", ylabel="test loss")
axes.grid(axis="y")
axes.legend()
axes.set_title("The loss around the final model")
figure.savefig("flat_minima.png")
