# %% [markdown]
# # Is my difference real?
#
# **You will learn** why one seed proves nothing, why differences are paired, what Holm's correction does, when the
# answer is *undecided*, and why methods must be tuned before they are compared.
#
# **Time:** 15 minutes of reading. The code runs within half a minute.
#
# **You need** to have seen [a first comparison](2-first-comparison.py), and to know what a mean and a standard
# deviation are.

# %% [markdown]
# ## One seed proves nothing
#
# Ten seeds of FedAvg and SCAFFOLD, with strongly skewed labels. A seed decides the partition, the initial model and the
# batches. Only test accuracy counts here, so no client holds rows out.

# %% Accuracy of two methods on ten seeds
import matplotlib.pyplot as plt
import numpy as np

import fedskew as fs

SETTING = {"dataset": "digits", "skew": "label-dirichlet:alpha=0.1", "rounds": 8, "epochs": 3, "held_out": 0}


def scores(runs):
    """Test accuracy after the last round: one row a seed, one column a method."""
    names = {record.id: (record.name, record.partition_seed, record.seed) for record in runs.records}
    found = runs.measurements().query("split == 'test' and name == 'accuracy'")
    last = found.sort_values("round").groupby("run")["value"].last()
    methods = list(dict.fromkeys(name for name, *_ in names.values()))
    columns = [[value for run, value in last.items() if names[run][0] == method] for method in methods]
    return 100 * np.array(columns).T


runs = fs.compare(["fedavg", "scaffold"], seeds=10, **SETTING)
fedavg, scaffold = scores(runs).T
figure, axes = plt.subplots()
axes.plot(fedavg, "o-", label="FedAvg")
axes.plot(scaffold, "s-", label="SCAFFOLD")
axes.set(xlabel="seed", ylabel="test accuracy, %", xticks=range(10), title="The seed matters more than the method")
axes.legend()
plt.show()

# %%
differences = scaffold - fedavg
print(f"FedAvg alone: from {fedavg.min():.0f} to {fedavg.max():.0f} %")
print("SCAFFOLD minus FedAvg:", differences.round(1))
print(f"SCAFFOLD is ahead on {np.sum(differences > 0)} of 10 seeds")
assert 0 < np.sum(differences > 0) < 10
assert np.ptp(fedavg) > 2 * abs(differences.mean())

# %% [markdown]
# FedAvg's own accuracy moves over a range that is more than twice the mean difference of the methods. And the order
# changes: with the right seed you can "show" whatever you like.
#
# ## Compare within a seed
#
# Both methods get the same partition and the same batches on a seed. A hard seed is hard for both. So the *difference*
# on a seed varies less than the accuracies do.

# %%
apart = np.sqrt(fedavg.var(ddof=1) + scaffold.var(ddof=1))
paired = differences.std(ddof=1)
print(f"standard deviation of a difference: {apart:.1f} points if the seeds were not shared, {paired:.1f} as they are")
assert paired < apart

# %% [markdown]
# A smaller standard deviation means fewer seeds for the same certainty. The 95 % interval of the mean difference
# narrows with the number of seeds. Watch it:

# %% Mean difference and its 95 % interval for a growing number of seeds
from scipy import stats

counts = np.arange(2, 11)
means = np.array([differences[:n].mean() for n in counts])
halves = np.array([stats.t.ppf(0.975, n - 1) * differences[:n].std(ddof=1) / np.sqrt(n) for n in counts])
figure, axes = plt.subplots()
axes.axhline(0, color="grey", linewidth=0.8)
axes.errorbar(counts, means, yerr=halves, fmt="o", capsize=4)
axes.set(xlabel="number of seeds", ylabel="SCAFFOLD minus FedAvg, points", ylim=(-25, 35))
axes.set_title("More seeds, narrower intervals")
plt.show()
assert halves[-1] < halves[1] / 2

# %% [markdown]
# If the interval contains zero, the difference may be chance. fedskew then says *undecided*. That is not "equal": it
# means that these seeds cannot tell.

# %%
row = runs.table().iloc[1]
print(
    f"{100 * row['difference']:.1f} ± {100 * row['difference_half']:.1f} points, p = {row['p']:.3f}: {row['verdict']}"
)
assert np.isclose(100 * row["difference"], differences.mean())
assert 100 * row["difference_half"] >= halves[-1] - 1e-9
assert (row["verdict"] == "undecided") == (abs(row["difference"]) < row["difference_half"])

# %% [markdown]
# The verdict says whether the table's interval contains zero. That interval is never narrower than the last one of the
# picture, because it covers one more source of chance: the test rows.
#
# ## The test rows are a sample, too
#
# The heart data set has 307 test rows. One person more on the right side is a third of a point. With `redraw=false` all
# seeds are tested on the same people, so more seeds do not make this chance smaller.

# %%
hearts = fs.compare(["fedavg", "scaffold"], dataset="heart:redraw=false", seeds=5, rounds=20)
row, by_seed = hearts.table().iloc[1], np.diff(scores(hearts)).ravel()
alone = stats.t.ppf(0.975, 4) * by_seed.std(ddof=1) / np.sqrt(5)
print(f"SCAFFOLD minus FedAvg: {by_seed.mean():+.1f} points, {by_seed.mean() * 3.07:.0f} people of 307")
print(f"95 % interval over seeds alone: ± {alone:.1f}; over seeds and test rows: ± {100 * row['difference_half']:.1f}")
assert alone < 100 * row["difference_half"]

# %% [markdown]
# The seeds agree that SCAFFOLD gets some of *these* people right. They cannot know how it does on others. fedskew's
# intervals of the accuracy cover both, so it says *undecided* here, and only a larger test set can change that. By default
# each seed draws its own test people of heart or of your table, and the interval knows that two draws have people in common.
# [What a verdict means](../explanations/statistics.md) has the formula.
#
# ## Many comparisons find something by chance
#
# A test at the 5 % level is wrong in 5 of 100 cases in which there is no difference. Compare twenty methods, and one
# will look better by luck. Try it with methods that do not differ at all: random numbers.

# %%
rng = np.random.default_rng(0)
false_alarms, after_holm = 0, 0
for _ in range(500):  # 500 papers, each with 20 useless methods on 5 seeds
    p = np.sort(stats.ttest_1samp(rng.standard_normal((20, 5)), 0, axis=1).pvalue)
    false_alarms += p[0] < 0.05
    after_holm += p[0] * 20 < 0.05  # the first step of Holm's correction; without it there is no second
print(f"papers that report a winner: {false_alarms / 500:.0%} without correction, {after_holm / 500:.0%} with Holm's")
assert false_alarms / 500 > 0.5
assert after_holm / 500 < 0.08

# %% [markdown]
# Without a correction more than half of these papers report a winner that does not exist. Holm's correction multiplies
# the smallest p by the number of comparisons, the next by one less, and so on. Every verdict of fedskew is corrected
# for all comparisons of its table.

# %%
more = fs.compare(["fedavg", "fedprox:mu=0.01", "fedprox:mu=1", "fedavgm:beta=0.5", "scaffold"], seeds=5, **SETTING)
table = more.table()
by_hand = stats.ttest_1samp((scores(more)[:, 1:].T - scores(more)[:, 0]).T, 0).pvalue
table.assign(uncorrected=[np.nan, *by_hand])[["method", "difference", "uncorrected", "p", "verdict"]].round(3)

# %%
assert (table["p"][1:] >= by_hand - 1e-9).all()
before, after = (by_hand < 0.05).sum(), (table["p"][1:] < 0.05).sum()
print(f"{before} of {len(by_hand)} below 0.05 before the correction, {after} after it")
assert before > after

# %% [markdown]
# The corrected `p` is never below the uncorrected one. Only lines below 0.05 after the correction are decided.
#
# ## A fair comparison is a tuned one
#
# All runs above used the learning rate 0.1, fedskew's default. Perhaps it suits one method and not the other. Tune each
# method with the same effort: try the same learning rates, and measure on rows that the clients hold out. The test rows
# take no part.

# %% Accuracy on held-out rows by learning rate
RATES = [0.03, 0.1, 0.3, 1.0]
figure, axes = plt.subplots()
best = {}
for method in ["fedavg", "scaffold"]:
    accuracy = []
    for rate in RATES:
        run = fs.run(algorithm=method, lr=rate, seed=100, partition_seed=100, **(SETTING | {"held_out": 0.2}))
        found = run.measurements().query("split == 'clients' and name == 'accuracy_mean'")
        accuracy.append(100 * found["value"].iloc[-1])
    best[method] = RATES[int(np.argmax(accuracy))]
    axes.plot(RATES, accuracy, "o-", label=f"{method}: best at {best[method]}")
axes.set(
    xscale="log",
    xlabel="learning rate",
    ylabel="accuracy on held-out rows, %",
    title="Both methods want more than 0.1",
)
axes.set_xticks(RATES, [str(rate) for rate in RATES])
axes.minorticks_off()
axes.legend()
plt.show()
assert min(best.values()) > 0.1
assert max(best.values()) < max(RATES)

# %% [markdown]
# The seed 100 takes part in no comparison. If you tune and compare on the same seeds, the comparison looks better than
# it is. If the best rate is the smallest or the largest of the grid, a wider grid may hold a better one.
#
# Now compare again, each method at its own best rate.

# %%
tuned = [fs.compare([method], seeds=10, lr=rate, **SETTING) for method, rate in best.items()]
gain = np.ravel(scores(tuned[1]) - scores(tuned[0]))
test = stats.ttest_1samp(gain, 0)
print(
    f"one rate for both: {differences.mean():+.1f} points; own best rates: {gain.mean():+.1f} points, p = {test.pvalue:.2f}"
)
assert fs.Experiment().solver.lr == 0.1
assert differences.mean() > 4
assert abs(gain.mean()) < differences.mean() / 2
assert test.pvalue > 0.05

# %% [markdown]
# At the common rate SCAFFOLD looked better by several points. With its own best rate FedAvg has caught up, as far as ten
# seeds can tell: most of the difference was one of learning rates, not of methods. Report the second number. `fs.tune` does
# all this in one call, and the command line has `fedskew compare --tuned`.
#
# **What to remember**
#
# - Use at least five seeds, and compare within each seed.
# - Correct for the number of comparisons. fedskew does.
# - If a difference is *undecided*, run more seeds, or claim less.
# - Tune every method with the same effort, on other rows and other seeds than those that decide.
