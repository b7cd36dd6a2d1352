"""When only some clients take part.

In each round the server asks a few of fifty clients. The fewer it asks, the more the accuracy jumps from round to
round, because each cohort has other classes.
"""

import matplotlib.pyplot as plt

import fedskew as fs

figure, axes = plt.subplots()
for cohort in [50, 10, 3]:
    run = fs.run(skew="label-shards:shards=2", clients=50, cohort=cohort, rounds=40, lr=0.1, evaluation__every=1)
    found = run.measurements().query("split == 'test' and name == 'accuracy'")
    axes.plot(found["round"], 100 * found["value"], label=f"{cohort} of 50 clients a round")
axes.set(xlabel="round", ylabel="test accuracy, %")
axes.grid(axis="y")
axes.legend(loc="lower right")
axes.set_title("Small cohorts make the accuracy jump")
figure.savefig("partial_participation.png")
