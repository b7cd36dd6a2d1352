"""Where in the network clients disagree.

The cosine between two clients' updates is 1 if they agree and 0 if they have nothing in common. Here it is lowest in
the last layer: its rows are the classes, and each client has its own classes.
"""

import matplotlib.pyplot as plt

import fedskew as fs

run = fs.run(
    model="mlp:hidden=[32,32]",
    skew="label-dirichlet:alpha=0.1",
    rounds=20,
    evaluation__layers=True,
    evaluation__every=1,
)
found = run.measurements().query("split == 'layer' and name == 'cosine'")
names = ["first hidden layer", "second hidden layer", "last layer"]
figure, axes = plt.subplots()
for (_, rows), name in zip(found.groupby("client"), names, strict=True):
    axes.plot(rows["round"], rows["value"], label=name)
axes.set(xticks=range(0, 21, 5), xlabel="round", ylabel="mean cosine of two clients' updates")
axes.grid(axis="y")
axes.legend()
axes.set_title("The clients' updates agree least in the last layer")
figure.savefig("drift_by_layer.png")
