# %% [markdown]
# # Personal models
#
# **You will learn** when one model for all is the wrong goal, four ways to give each client its own model, and how to
# measure them fairly.
#
# **Time:** 10 minutes of reading. The code runs within half a minute.
#
# **You need** to have seen [the four faces](4-four-faces.py).

# %% [markdown]
# ## One model, twenty clients
#
# Twenty clients with a few digits each. Three tenths of each client's rows are held out: a client measures a model on
# rows of its own that took no part in training.

# %%
import matplotlib.pyplot as plt
import numpy as np

import fedskew as fs

SETTING = {"skew": "label-dirichlet:alpha=0.3", "clients": 20, "held_out": 0.3, "rounds": 15, "progress": False}


def accuracy_by_client(method, **changes):
    """The accuracy of the model that each client uses after the last round: its own, or else the global one."""
    found = fs.run(algorithm=method, **(SETTING | changes)).measurements().query("name == 'accuracy'")
    found = found[found["round"] == found["round"].max()]
    own = found[found["split"] == "personal-model"]
    used = own if len(own) else found[found["split"] == "global-model"]
    return 100 * used.set_index("client")["value"].to_numpy()


one_for_all = accuracy_by_client("fedavg")
alone = accuracy_by_client("local-only")
print(f"mean of the clients: one model for all {one_for_all.mean():.1f} %, each alone {alone.mean():.1f} %")
print(f"worst client:        one model for all {one_for_all.min():.1f} %, each alone {alone.min():.1f} %")

# %% Accuracy of one model for all against a model trained alone, client by client
figure, axes = plt.subplots(figsize=(4.6, 4.4))
axes.plot([50, 100], [50, 100], color="grey", linewidth=0.8)
axes.plot(one_for_all, alone, "o", alpha=0.6)
axes.set(xlabel="one model for all, %", ylabel="trained alone, %", aspect="equal", title="Above the line: better alone")
plt.show()
better_alone = np.sum(alone > one_for_all)
print(f"{better_alone} of 20 clients are better off alone, {np.sum(alone < one_for_all)} with the common model")
assert 0 < better_alone < 20

# %% [markdown]
# Each dot is a client. Some do better alone: with few digits, a small task is easy to learn. Others gain from the
# common model. Can a client have both?
#
# ## Four ways to a model of one's own
#
# - **Fine-tuning:** train one model for all, then let each client take a few more steps on its own rows.
# - **FedPer:** share the first layers, keep the last one.
# - **Ditto:** train a second model at each client, with a spring to the global one.
# - **IFCA:** train a few models, and let each client choose.
#
# `evaluation__adapt_steps=20` fine-tunes the final model of a method for 20 steps on each client.

# %% Accuracy by client for six methods
results = {
    "one for all (FedAvg)": one_for_all,
    "alone (local-only)": alone,
    "fine-tuned FedAvg": accuracy_by_client("fedavg", evaluation__adapt_steps=20),
    "FedPer": accuracy_by_client("fedper"),
    "Ditto": accuracy_by_client("ditto"),
    "IFCA, 2 models": accuracy_by_client("ifca:k=2"),
}
figure, axes = plt.subplots(figsize=(6.6, 3.8))
for line, values in enumerate(results.values()):
    axes.plot(values, line + np.linspace(-0.2, 0.2, 20), "o", alpha=0.5)
    axes.plot(values.mean(), line, "|", color="black", markersize=24)
axes.set(yticks=range(6), yticklabels=results, ylim=(5.5, -0.5), xlabel="accuracy on a client's held-out rows, %")
axes.set_title("Each dot is a client, the bar is the mean")
plt.show()

# %%
means = {name: values.mean() for name, values in results.items()}
for name, values in results.items():
    print(f"{name:22s} mean {values.mean():5.1f} %   worst {values.min():5.1f} %")
assert means["fine-tuned FedAvg"] > max(means["one for all (FedAvg)"] - 1, means["alone (local-only)"])
assert results["fine-tuned FedAvg"].min() > results["one for all (FedAvg)"].min()

# %% [markdown]
# Fine-tuning the common model beats training alone on average, and lifts the worst client of the common model at about
# the same mean. It costs nothing during training, so it is the baseline that any other personal method must beat.
#
# ## How much data does a client need to go alone?
#
# Give the clients fewer rows: more clients share the same digits.

# %% Mean accuracy with a growing number of clients
numbers = [5, 10, 20, 40, 80]
curves = {name: [] for name in ("one for all", "alone", "fine-tuned")}
for number in numbers:
    few = {"clients": number, "rounds": 10}
    curves["one for all"].append(accuracy_by_client("fedavg", **few).mean())
    curves["alone"].append(accuracy_by_client("local-only", **few).mean())
    curves["fine-tuned"].append(accuracy_by_client("fedavg", evaluation__adapt_steps=20, **few).mean())
figure, axes = plt.subplots()
for name, values in curves.items():
    axes.plot(numbers, values, "o-", label=name)
axes.set(xscale="log", xlabel="number of clients (rows a client)", ylabel="mean accuracy on held-out rows, %")
axes.set_xticks(numbers, [f"{n}\n({1438 // n})" for n in numbers])
axes.minorticks_off()
axes.legend()
axes.set_title("Fewer rows a client: going alone gets worse")
plt.show()

# %%
alone_loses = curves["alone"][0] - curves["alone"][-1]
print(f"from 5 to 80 clients, training alone loses {alone_loses:.0f} points")
assert alone_loses > 5
assert all(tuned > alone for tuned, alone in zip(curves["fine-tuned"], curves["alone"], strict=True))

# %% [markdown]
# The fewer rows a client has, the worse it does alone. The fine-tuned common model is ahead of training alone at every
# number of clients. Each point is one seed: for a claim about your data, use `fs.compare` with seeds.
#
# ## The model itself
#
# A run gives back a client's own model as a PyTorch module.

# %%
import torch

run = fs.run(algorithm="ditto", **SETTING)
own, everyones = run.model(client=0), run.model()
x = torch.tensor(fs.load("digits").x_test[:5]).float()
with torch.no_grad():
    print("client 0:", own(x).argmax(1).tolist())
    print("global:  ", everyones(x).argmax(1).tolist())
assert own is not everyones

# %% [markdown]
# **What to remember**
#
# - The test accuracy of the server's model says little if clients use their own models. Measure the models that they
#   use, on rows that they held out.
# - Fine-tuning is the baseline to beat.
# - The fewer rows a client has, the worse it does alone.
