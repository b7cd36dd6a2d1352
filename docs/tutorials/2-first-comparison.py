# %% [markdown]
# # A first comparison
#
# **You will learn** to run federated learning on one machine, to see what skewed clients cost, and to compare three
# methods on equal terms.
#
# **Time:** 10 minutes of reading. The code runs within half a minute.
#
# **You need** to know what a training and a test set are. [Client drift, seen](1-client-drift.py) explains what a round
# is.

# %% [markdown]
# ## The data and the clients
#
# The digits are 1,797 small pictures that come with scikit-learn. A *partition* decides which client holds which rows.
# The skew `label-dirichlet:alpha=0.1` gives each of ten clients a few digits only.

# %% Rows of each client and digit
import matplotlib.pyplot as plt

import fedskew as fs

data = fs.load("digits")
part = fs.partition(data, "label-dirichlet:alpha=0.1", clients=10)
counts = part.label_counts(data.y, 10)
print(f"{len(data.x)} training rows, {len(data.x_test)} test rows, {len(part)} clients")

figure, axes = plt.subplots(figsize=(5, 3.8))
axes.imshow(counts, cmap="Blues")
for (client, digit), rows in zip(zip(*counts.nonzero(), strict=True), counts[counts > 0], strict=True):
    axes.text(digit, client, rows, ha="center", va="center", fontsize=8, color="white" if rows > 50 else "black")
axes.set(xticks=range(10), yticks=range(10), xlabel="digit", ylabel="client", title="Each client holds a few digits")
plt.show()

# %%
missing = (counts == 0).sum(1)
print("digits that a client has never seen:", missing)
assert missing.min() == 3

# %% [markdown]
# Every client lacks at least three digits. The test set has all ten.
#
# ## One run
#
# A run is one method on one partition with one seed. `fs.run` takes the same names as the command line: the data set,
# the skew, the number of clients and rounds, the method.

# %% Test accuracy over the rounds
skewed = fs.run(dataset="digits", skew="label-dirichlet:alpha=0.1", clients=10, algorithm="fedavg", rounds=20)
skewed.plot("accuracy")

# %% [markdown]
# The line is the accuracy of the global model on the test set after each round. No client has seen the test set.
#
# ## What does the skew cost?
#
# Run the same method once more with IID clients: each one gets a random share of all digits.

# %%
iid = fs.run(dataset="digits", skew="iid", clients=10, algorithm="fedavg", rounds=20)
accuracy = {name: runs.table()["accuracy"][0] for name, runs in {"IID": iid, "skewed": skewed}.items()}
for name, value in accuracy.items():
    print(f"{name:6s} {value:.1%}")
assert accuracy["IID"] > accuracy["skewed"] + 0.005

# %% [markdown]
# With the same model, the same rows in total and the same number of rounds, skewed clients give the lower accuracy.
# Methods against client drift try to win this difference back.
#
# ## Three methods on equal terms
#
# `fs.compare` runs several methods. Each seed draws a new partition and new batches, and all methods get the same ones.
# So a difference between two methods on a seed comes from the methods.

# %%
runs = fs.compare(
    ["fedavg", "fedprox:mu=0.1", "scaffold"],
    dataset="digits",
    skew="label-dirichlet:alpha=0.1",
    clients=10,
    rounds=15,
    seeds=4,
)
table = runs.table()
table[["accuracy", "accuracy_half", "worst_client", "drift", "megabytes"]].set_axis(table["method"]).round(3)

# %% [markdown]
# Each row is a method, each number a mean over four seeds:
#
# - `accuracy`: of the global model on the test set; the 95 % interval is plus or minus `accuracy_half`;
# - `worst_client`: its accuracy on the client where it is lowest;
# - `drift`: how far the clients' models are from their mean after a round;
# - `megabytes`: what all clients sent and received.

# %%
by = table.set_index("method")
print(f"SCAFFOLD sends {by['megabytes']['scaffold'] / by['megabytes']['fedavg']:.1f} times as much as FedAvg")
assert abs(by["megabytes"]["scaffold"] / by["megabytes"]["fedavg"] - 2) < 0.02
assert by["drift"].idxmax() == "fedavg"

# %% [markdown]
# SCAFFOLD sends twice as much as FedAvg: each message holds a model and a correction. And FedAvg drifts most.

# %% Test accuracy over the rounds with bands
runs.plot("accuracy")

# %% [markdown]
# A line is the mean over the seeds, its band the 95 % interval of that mean. The bands overlap. Does this mean that
# there is no difference? Not yet: the seeds differ more from one another than the methods do. So compare within each
# seed.

# %% Accuracy of each method minus FedAvg's, seed by seed
import numpy as np

names = {record.id: (record.name, record.seed) for record in runs.records}
found = runs.measurements().query("split == 'test' and name == 'accuracy' and round == 15")
score = {names[run]: value for run, value in zip(found["run"], found["value"], strict=True)}
methods = list(dict.fromkeys(name for name, _ in score))
seeds = sorted({seed for _, seed in score})
figure, axes = plt.subplots(figsize=(6.4, 2.6))
for line, method in enumerate(methods[1:]):
    differences = [100 * (score[method, seed] - score[methods[0], seed]) for seed in seeds]
    axes.plot(differences, [line] * len(seeds), "o", alpha=0.6)
    axes.plot(np.mean(differences), line, "|", color="black", markersize=24)
axes.axvline(0, color="grey", linewidth=0.8)
axes.set(yticks=range(len(methods) - 1), yticklabels=methods[1:], ylim=(1.5, -0.5))
axes.set(xlabel="accuracy minus FedAvg's, percentage points", title="Each dot is a seed, the bar is the mean")
plt.show()

# %%
table[["difference", "difference_half", "p", "verdict"]].set_axis(table["method"]).round(3)

# %% [markdown]
# `difference` is the mean of the paired differences, `p` their t test after Holm's correction. The *verdict* is
# `higher` or `lower` only if `p` is below 0.05. Anything else is `undecided`: these seeds cannot tell. [Is my
# difference real?](5-is-it-real.py) shows how to get an answer.

# %%
decided = table["p"] < 0.05
assert ((table["verdict"] == "undecided") == ~decided)[1:].all()

# %% [markdown]
# ## Keep it
#
# Every number is in the folder `runs`. `runs.report` writes a page with all tables and figures that needs no server.

# %%
page = runs.report("comparison.html")
print(page.name, f"{page.stat().st_size // 1000} kB")

# %% [markdown]
# **What to remember**
#
# - `fs.run` is one method with one seed. `fs.compare` is several methods on the same partitions and seeds.
# - Look at the paired differences and the verdict, not at two lines in a plot.
# - Look at the worst client and at the megabytes, too: a higher mean may have a price.
