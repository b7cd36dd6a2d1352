"""The plane of two clients' models.

Three models span a plane: the global model, and two clients' models after one more round. The lines show the clients'
losses on this plane. Each client moves towards its own valley, and the next global model lies between the two.
"""

import matplotlib.pyplot as plt

import fedskew as fs

runs = fs.run(skew="label-sorted", clients=2, model="softmax", rounds=5)
found = fs.landscape(runs, clients=(0, 1), points=21)
figure, axes = plt.subplots()
for client, colour in zip(("client 0", "client 1"), ("tab:blue", "tab:orange"), strict=True):
    lines = axes.contour(found.window.a, found.window.b, found.sheets[client], levels=10, colors=colour, linewidths=0.8)
    axes.plot(*found.points[client], "o", color=colour, markersize=9, label=f"{client} and its loss")
axes.plot(*found.points["global"], "s", color="black", markersize=8, label="global model")
axes.plot(*found.points["next global"], "D", color="tab:green", markersize=8, label="next global model")
axes.set(aspect="equal", xticks=[], yticks=[])
figure.legend(loc="outside lower center", ncols=2)
axes.set_title("Two clients with different digits")
figure.savefig("loss_plane.png")
