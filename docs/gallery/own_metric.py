"""A measure of your own: is the model as sure as it should be?

The model says how sure it is of each prediction. If it is well calibrated, 80 % of the predictions with 80 % confidence
are right. The trained module gives the probabilities; the rest is NumPy.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import fedskew as fs

data = fs.load("digits")
x = torch.tensor(data.x_test).float()
figure, axes = plt.subplots(figsize=(5.2, 4.4))
axes.plot([0, 100], [0, 100], color="grey", linewidth=0.8)
for skew in ["iid", "label-shards:shards=2"]:
    with torch.no_grad():
        shares = fs.run(skew=skew, rounds=10).model()(x).softmax(1).numpy()
    sure, right = shares.max(1), shares.argmax(1) == data.y_test
    groups = np.array_split(np.argsort(sure), 6)
    axes.plot([100 * sure[g].mean() for g in groups], [100 * right[g].mean() for g in groups], "o-", label=skew)
axes.set(xlabel="confidence of the model, %", ylabel="predictions that are right, %", aspect="equal")
axes.grid()
axes.legend(loc="lower right")
axes.set_title("Above the line the model is too modest")
figure.savefig("own_metric.png")
