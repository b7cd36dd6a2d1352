"""Which classes the model forgets from round to round.

Only two of ten clients train in each round, and each has few digits. The model learns the digits of the present clients
and forgets the absent clients' digits. Each line of the picture is a digit, darker is more accurate.
"""

import matplotlib.pyplot as plt

import fedskew as fs

figure, axes = plt.subplots(2, 1, sharex=True, figsize=(6.4, 5))
for panel, cohort in zip(axes, [2, 10], strict=True):
    run = fs.run(
        skew="label-shards:shards=2",
        cohort=cohort,
        rounds=30,
        evaluation__classes=True,
        evaluation__every=1,
    )
    found = run.measurements().query("split == 'class' and name == 'accuracy'")
    grid = found.pivot(index="client", columns="round", values="value")
    cells = panel.imshow(100 * grid, cmap="Blues", vmin=0, vmax=100, aspect="auto")
    panel.set(yticks=range(10), ylabel="digit")
    panel.set_title("all clients in each round" if cohort == 10 else f"{cohort} of 10 clients in each round")
axes[1].set_xlabel("round")
figure.colorbar(cells, ax=axes, label="test accuracy, %")
figure.savefig("forgetting_by_class.png")
