"""Clients whose images look different.

With the skew `feature-rotation` each cluster of clients rotates its images by one angle. The labels stay the same. The
picture shows five digits of one client of each cluster, as its model sees them.
"""

import matplotlib.pyplot as plt
import numpy as np

import fedskew as fs

ANGLES = ["turned by 0 degrees", "by 90 degrees", "by 180 degrees", "by 270 degrees"]
data = fs.load("digits")
turned = [np.rot90(data.x.reshape(-1, 8, 8), k, axes=(1, 2)) for k in range(4)]
part = fs.partition(data, "iid", clients=4)
figure, axes = plt.subplots(4, 5, figsize=(5.2, 4.4))
for k, (line, images) in enumerate(zip(axes, turned, strict=True)):
    for panel, row in zip(line, part.rows(k), strict=False):
        panel.imshow(images[row], cmap="Greys")
        panel.set(xticks=[], yticks=[])
    line[0].set_ylabel(f"client {k}", rotation=0, ha="right", va="center")
    line[2].set_title(ANGLES[k], fontsize=9, loc="center", pad=3)
runs = fs.compare(
    ["fedavg", "ifca:k=4"], skew=["iid", "feature-rotation:clusters=4,side=8"], clients=8, rounds=20, seeds=2
)
table = runs.table().set_index("method")
one, clusters = table["worst_client"]["fedavg"], table["worst_personal"]["ifca:k=4"]
figure.suptitle(
    f"Accuracy of the worst client: {one:.0%} with one model,\n{clusters:.0%} with a model for each cluster (IFCA)",
    fontsize=11,
)
figure.savefig("rotated_digits.png")
