"""Is the difference to FedAvg real?

All methods get the same partitions and seeds, so their results can be compared seed by seed. Small dots are the
differences of single seeds. The large dot is their mean, the line its 95 % interval. The verdict is a paired t test
with Holm's correction. A difference that is not decided may be chance.
"""

import matplotlib.pyplot as plt

import fedskew as fs

METHODS = ["fedavg", "fedprox:mu=1", "scaffold", "fedavgm"]
runs = fs.compare(METHODS, dataset="digits", skew="label-dirichlet:alpha=0.1", rounds=8, evaluation__every=8, seeds=6)
table = runs.table().set_index("method")
names = {record.id: (record.name, record.partition_seed, record.seed) for record in runs.records}
found = runs.measurements().query("split == 'test' and name == 'accuracy' and round == 8")
of_seed = {names[run]: value for run, value in zip(found["run"], found["value"], strict=True)}

figure, axes = plt.subplots()
axes.axvline(0, color="black", linewidth=0.8)
for line, method in enumerate(METHODS[1:]):
    mean, half, verdict = (table.loc[method, key] for key in ("difference", "difference_half", "verdict"))
    singles = [value - of_seed["fedavg", p, s] for (name, p, s), value in of_seed.items() if name == method]
    colour = "tab:grey" if verdict == "undecided" else "tab:blue"
    axes.plot([100 * value for value in singles], [line + 0.2] * len(singles), ".", color=colour, alpha=0.5)
    axes.errorbar(100 * mean, line, xerr=100 * half, fmt="o", markersize=8, capsize=4, color=colour)
    axes.text(1.02, line, verdict, transform=axes.get_yaxis_transform(), va="center", color=colour)
axes.set_yticks(range(len(METHODS) - 1), METHODS[1:])
axes.set(xlabel="test accuracy minus FedAvg's, percentage points", ylim=(len(METHODS) - 1.5, -0.5))
axes.set_title("Six seeds: which differences are more than chance?")
figure.savefig("paired_differences.png")
