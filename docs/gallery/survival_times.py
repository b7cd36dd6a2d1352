"""Survival in six regions.

Breast cancer patients of six regions are the clients. Most are censored: they were alive when last seen. The model sorts
patients by risk; the test patients of the upper half die sooner. The script needs the data: `fedskew data get tcga-brca`.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import fedskew as fs

try:
    data = fs.load("tcga-brca")
except fs.FedskewError as error:
    raise SystemExit("it needs TCGA-BRCA: fedskew data get tcga-brca") from error

runs = fs.run(dataset="tcga-brca", algorithm="fedavg", lr=0.1, epochs=1, batch_size="all", rounds=20)
with torch.no_grad():
    risk = runs.model()(torch.tensor(data.x_test)).numpy().ravel()


def alive(time, event):
    """Kaplan-Meier: the share alive after each day on which somebody died."""
    days = np.unique(time[event == 1])
    share = [1 - ((time == day) & (event == 1)).sum() / (time >= day).sum() for day in days]
    return [0, *days / 365.25, time.max() / 365.25], [1, *np.cumprod(share), np.prod(share)]


figure, axes = plt.subplots()
for name, part in {"lower": risk <= np.median(risk), "upper": risk > np.median(risk)}.items():
    years, share = alive(*data.y_test[part].T)
    axes.step(years, 100 * np.array(share), where="post", label=f"{name} half by predicted risk")
axes.set(xlabel="years", ylabel="test patients alive, %", ylim=(0, 102))
axes.legend(loc="lower left")
axes.set_title(f"One model of six regions: C-index {runs.table()['c_index'][0]:.2f} on the test patients")
figure.savefig("survival_times.png")
