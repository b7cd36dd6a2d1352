# %% [markdown]
# # The four faces
#
# **You will learn** the four ways in which clients can differ, how each one looks, how it is measured, and what it does
# to FedAvg.
#
# **Time:** 10 minutes of reading. The code runs within half a minute.
#
# **You need** to have seen [a first comparison](2-first-comparison.py).

# %% [markdown]
# ## Four ways to differ
#
# A row is a pair: an input *x* and a label *y*. Clients can differ in
#
# - **labels:** some classes are frequent here and rare there;
# - **features:** the same class looks different;
# - **quantity:** one client has many rows, another few;
# - **concept:** the same input has another label.
#
# We make each face alone, with ten clients of digits.

# %%
import matplotlib.pyplot as plt
import numpy as np

import fedskew as fs

FACES = {
    "none": "iid",
    "label": "label-dirichlet:alpha=0.1",
    "feature": ["iid", "feature-affine:strength=1"],
    "quantity": "quantity-lognormal:sigma=1.5",
    "concept": ["iid", "concept-swap:clusters=2"],
}
data = fs.load("digits")

# %% [markdown]
# ## Labels and quantity: seen in the counts

# %% Rows by client and digit for three partitions
figure, axes = plt.subplots(1, 3, figsize=(8, 3.1), sharey=True)
for panel, face in zip(axes, ["none", "label", "quantity"], strict=True):
    counts = fs.partition(data, FACES[face], clients=10).label_counts(data.y, 10)
    panel.imshow(counts, cmap="Blues", vmin=0, vmax=80)
    panel.set(xticks=range(10), yticks=range(10), xlabel="digit")
    panel.set_title({"none": "no skew", "label": "label skew", "quantity": "quantity skew"}[face])
axes[0].set_ylabel("client")
plt.show()

# %%
sizes = fs.partition(data, FACES["quantity"], clients=10).sizes
labels = fs.partition(data, FACES["label"], clients=10).label_counts(data.y, 10)
print(f"quantity skew: from {sizes.min()} to {sizes.max()} rows a client")
print(f"label skew: on average {np.mean((labels == 0).sum(1)):.1f} of 10 digits are missing")
assert sizes.max() > 20 * sizes.min()
assert np.mean((labels == 0).sum(1)) > 4

# %% [markdown]
# Without a skew all cells are alike. A label skew makes cells dark or empty. A quantity skew makes whole lines dark or
# pale: the largest client has more than twenty times the rows of the smallest.
#
# ## Features and concept: not seen in the counts
#
# A feature skew changes the inputs, a concept skew the meaning of labels. The counts by client and digit can stay
# equal. So fedskew measures them. `fs.diagnose` gives a number for each face; `chance` is what equal clients would
# show.

# %% Strength of the four faces for five partitions
names = ["label", "feature", "quantity", "concept"]
half = fs.Dataset(x=data.x[::2], y=data.y[::2], x_test=data.x_test, y_test=data.y_test, classes=data.classes)
strength = []
for skew in FACES.values():
    found = fs.diagnose(dataset=half, skew=skew, clients=10, progress=False)
    strength.append([face["strength"] if face["p"] < 0.05 else 0.0 for face in found["faces"]])
    assert [face["face"] for face in found["faces"]] == names
strength = np.array(strength)
figure, axes = plt.subplots(figsize=(6, 5))
axes.imshow(strength, cmap="Blues", vmin=0, vmax=1)
for made, measured in np.ndindex(strength.shape):
    value = strength[made, measured]
    axes.text(measured, made, f"{value:.2f}", ha="center", va="center", color="white" if value > 0.5 else "black")
axes.set(xticks=range(4), xticklabels=names, yticks=range(5), yticklabels=FACES, xlabel="measured", ylabel="made")
axes.set_title("Strength of each face beyond chance")
plt.show()

# %%
assert (strength[0] == 0).all()
assert [names[k] for k in strength[1:].argmax(1)] == names

# %% [markdown]
# The first line has no skew, and fedskew finds no face. In every other line the face that we made is the strongest. So a
# diagnosis of your own data shows which face is the strongest there.
#
# ## What each face does to FedAvg

# %% Test accuracy of FedAvg and worst client for each face
settings = {"dataset": "digits", "clients": 10, "held_out": 0.2, "rounds": 10, "seeds": 3, "progress": False}
rows = {face: fs.compare(["fedavg"], skew=skew, **settings).table().iloc[0] for face, skew in FACES.items()}
figure, axes = plt.subplots()
for place, row in enumerate(rows.values()):
    axes.bar(place - 0.2, 100 * row["accuracy"], 0.36, color="C0", label=None if place else "test set")
    axes.bar(place + 0.2, 100 * row["worst_client"], 0.36, color="C1", label=None if place else "worst client")
axes.set(xticks=range(5), xticklabels=rows, ylabel="accuracy after 10 rounds, %", xlabel="face", ylim=(0, 100))
figure.legend(loc="outside lower center", ncols=2)
axes.set_title("The same rows and rounds, five kinds of clients")
plt.show()

# %%
accuracy = {face: row["accuracy"] for face, row in rows.items()}
assert min(accuracy, key=accuracy.get) == "concept"
assert max(accuracy["label"], accuracy["concept"]) < accuracy["none"]

# %% [markdown]
# Concept skew costs most: no single model can give one input two labels. Label skew costs, too, because clients drift.
# The other two cost less here.
#
# ## Each face has its own remedy
#
# Where concepts differ, one model for all is the wrong goal. IFCA keeps several models, and each client trains the one
# that fits its rows.

# %%
two = fs.run(skew=FACES["concept"], algorithm="ifca:k=2", held_out=0.2, rounds=10, progress=False).table()
one = fs.run(skew=FACES["concept"], algorithm="fedavg", held_out=0.2, rounds=10, progress=False)
one_mean = one.measurements().query("split == 'clients' and name == 'accuracy_mean'")["value"].iloc[-1]
print(f"mean accuracy on the clients' held-out rows: one model {one_mean:.0%}, two models {two['personal'][0]:.0%}")
assert two["personal"][0] > one_mean + 0.1

# %% [markdown]
# Two models beat one by more than ten points, because there are two concepts.
#
# | face | what helps |
# | --- | --- |
# | label | methods against drift: SCAFFOLD, FedDyn, logits with margins (FedLC) |
# | feature | normalise per client, keep normalisation layers local (FedBN) |
# | quantity | look at the weights: by rows, or the same for every client |
# | concept | personal models or clusters: Ditto, FedPer, IFCA |
#
# These are starting points. [Is my difference real?](5-is-it-real.py) shows how to find out whether they help on your
# data.
#
# **What to remember**
#
# - Label and quantity skew are visible in the counts. Feature and concept skew must be measured.
# - Diagnose first. A method against the wrong face cannot help.
# - If concepts differ, do not ask for one model.
