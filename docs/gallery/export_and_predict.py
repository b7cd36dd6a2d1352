"""Use the trained model like any other PyTorch module.

`runs.model()` gives the trained `nn.Module`. The picture counts its answers for each true digit. Ten
clients trained it, and none of them had all digits.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import fedskew as fs

runs = fs.run(algorithm="scaffold", skew="label-dirichlet:alpha=0.1", rounds=20)
data = fs.load("digits")
with torch.no_grad():
    predicted = runs.model()(torch.tensor(data.x_test).float()).argmax(1).numpy()
counts = np.zeros((10, 10), dtype=int)
np.add.at(counts, (data.y_test, predicted), 1)
figure, axes = plt.subplots(figsize=(5, 4.4))
axes.imshow(np.sqrt(counts), cmap="Blues")
for row, column in zip(*counts.nonzero(), strict=True):
    colour = "white" if row == column else "black"
    axes.text(column, row, counts[row, column], ha="center", va="center", color=colour, fontsize=8)
axes.set(xticks=range(10), yticks=range(10), xlabel="predicted digit", ylabel="true digit")
axes.spines[:].set_visible(False)
axes.set_title(f"{(predicted == data.y_test).mean():.1%} of the test digits are right")
figure.savefig("export_and_predict.png")
