"""A hospital that took no part.

Three hospitals train, the fourth is the test set. Training saw nobody of the fourth hospital, so this is what a
new hospital can expect. The black line is the accuracy of always giving the hospital's more frequent answer.
"""

import matplotlib.pyplot as plt
import numpy as np

import fedskew as fs

heart = fs.load("heart")
figure, axes = plt.subplots()
for place in range(4):
    new = heart.groups == place
    others = fs.Dataset(
        x=heart.x[~new],
        y=heart.y[~new],
        x_test=heart.x[new],
        y_test=heart.y[new],
        classes=heart.classes,
        groups=heart.groups[~new],
        group_names=heart.group_names,
    )
    for line, method in enumerate(["fedavg", "scaffold"]):
        runs = fs.compare([method], data=others, skew="natural", model="softmax", rounds=20, seeds=3)
        label = {"label": method} if place == 0 else {}
        axes.barh(place + 0.3 * line, 100 * runs.table()["accuracy"][0], 0.28, color=f"C{line}", **label)
    usual = max(heart.y[new].mean(), 1 - heart.y[new].mean())
    axes.plot(
        [100 * usual] * 2, [place - 0.2, place + 0.5], color="black", label=None if place else "always the same answer"
    )
axes.set_yticks(np.arange(4) + 0.15, heart.group_names)
axes.set(xlabel="accuracy on the people of the hospital that took no part, %", xlim=(40, 100))
figure.legend(loc="outside lower center", ncols=3)
axes.set_title("Trained in three hospitals, tested in the fourth")
figure.savefig("unseen_hospital.png")
