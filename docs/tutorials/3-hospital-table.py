# %% [markdown]
# # Your hospital's table, from diagnosis to decision
#
# **You will learn** to go from a table with a column of clients to a decision: how the clients differ, whether training
# together helps them, which method to take, and what the chosen model says about a new person.
#
# **Time:** 15 minutes of reading. The code runs within half a minute.
#
# **You need** a little pandas. [A first comparison](2-first-comparison.py) explains the table of results.

# %% [markdown]
# ## The table
#
# Four hospitals recorded 13 facts of 920 people, and whether an artery of the heart was narrowed. The table comes with
# fedskew. We write it to a CSV file, as you would have your own: one row for each person, one column with the
# *label*, one with the *client*.

# %%
import pandas as pd

import fedskew as fs
from fedskew.data.datasets.heart import CSV

people = pd.read_csv(CSV)
people = people.replace({"chol": {0: None}, "trestbps": {0: None}})
people["ill"] = (people.pop("num") > 0).map({True: "yes", False: "no"})
people.to_csv("visits.csv", index=False)
people[["hospital", "age", "sex", "chol", "thalach", "ill"]].sample(5, random_state=1)

# %% [markdown]
# A row is a person. Empty cells are missing values; fedskew marks them for the model. Some hospitals wrote 0 for a
# cholesterol or a blood pressure that nobody had measured. Such zeros would teach the model nonsense, so they became
# empty cells, too.

# %%
overview = people.groupby("hospital").agg(people=("ill", "size"), ill=("ill", lambda ill: (ill == "yes").mean()))
overview.round(2)

# %%
assert overview["people"].sum() == 920
assert overview["ill"].idxmin() == "Budapest"
assert overview["ill"].idxmax() == "Switzerland"
assert overview["ill"]["Switzerland"] > 0.9

# %% [markdown]
# The hospitals see different people: in Budapest a minority is ill, in Switzerland more than nine in ten.
#
# ## Diagnosis: how do the clients differ?
#
# `fs.diagnose` measures four kinds of difference, the *faces*: in labels, in features, in the number of rows
# (quantity), and in what the features say about the label (concept). Each number is between 0 (equal) and 1. `chance`
# is the number that equal clients would show. `p` is the probability that they show at least the measured number.

# %%
found = fs.diagnose("visits.csv", label="ill", client="hospital", progress=False)
faces = found.table().set_index("face")
faces[["value", "chance", "p", "verdict"]]

# %%
assert (faces["p"] < 0.05).all()
assert found["dominant"] == "feature"
assert faces["value"].drop("feature").max() < 0.3 < faces["value"]["feature"]
print("strongest face:", found["dominant"])

# %% [markdown]
# All four differ by more than chance, but one stands out: the features. Part of the reason is what the hospitals did
# *not* measure.

# %% Share of missing values by hospital
import matplotlib.pyplot as plt

missing = people.set_index("hospital").isna().groupby(level=0).mean()
often = missing.max().nlargest(5).index
figure, axes = plt.subplots(figsize=(6.4, 3))
cells = axes.imshow(100 * missing[often], cmap="Blues", vmin=0, vmax=100, aspect="auto")
axes.set(xticks=range(5), xticklabels=often, yticks=range(4), yticklabels=missing.index)
axes.set_title("Some hospitals hardly ever measured some facts")
figure.colorbar(cells, label="missing, %")
plt.show()
assert missing["ca"].drop("Cleveland").min() > 0.9 > 0.1 > missing["ca"]["Cleveland"]

# %% [markdown]
# Only Cleveland examined the number of coloured vessels, `ca`. In the other hospitals more than nine in ten values are
# missing. That is a feature skew of real life: no method can replace a measurement. But the model can learn from the
# hospitals that have it.
#
# ## Does training together help?
#
# Compare four ways, with a fifth of each hospital's people held out:
#
# - `local-only`: each hospital trains alone;
# - `fedavg`, `fedprox`, `scaffold`: one model for all.

# %%
table_of = {"name": "table", "path": "visits.csv", "label": "ill", "client": "hospital"}
setting = {"dataset": table_of, "skew": "natural", "model": "softmax", "held_out": 0.2, "rounds": 20, "lr": 0.03}
runs = fs.compare(["fedavg", "fedprox:mu=0.1", "scaffold", "local-only"], seeds=5, progress=False, **setting)
runs.table()

# %% [markdown]
# The accuracy in this table belongs to the *server's* model. Under `local-only` nothing reaches the server, so it
# has none. The fair question is: how good is the model that a hospital would *use*, on its own
# held-out people?

# %% Accuracy by hospital of the common model and of a model of its own
last = runs.measurements().query("round == 20 and name == 'accuracy'")
method_of = {record.id: record.name for record in runs.records}
used = last[last["split"].isin(["global-model", "personal-model"])].assign(
    method=lambda rows: rows["run"].map(method_of)
)
used = used[(used["method"] != "local-only") | (used["split"] == "personal-model")]
by_hospital = 100 * used.pivot_table(index="client", columns="method", values="value")
by_hospital.index = sorted(people["hospital"].unique())
figure, axes = plt.subplots()
for place, method in enumerate(["local-only", "fedavg", "scaffold"]):
    axes.bar([k + 0.27 * place for k in range(4)], by_hospital[method], 0.25, label=method)
axes.set(xticks=[k + 0.27 for k in range(4)], xticklabels=by_hospital.index, ylim=(50, 100))
axes.set_ylabel("accuracy on held-out people, %")
figure.legend(loc="outside lower center", ncols=3)
axes.set_title("The model that each hospital would use, mean of five seeds")
plt.show()

# %%
by_hospital.round(1)

# %%
gain = by_hospital["local-only"] - by_hospital["fedavg"]
assert gain.idxmax() == "Switzerland"
assert gain["Switzerland"] > 5
assert gain.drop("Switzerland").abs().max() < 6

# %% [markdown]
# Switzerland is better off alone, by more than five points: nine in ten of its people are ill, and a model that knows
# this is right nine times in ten. A common model cannot know the hospital of a person. For the other three the
# bars differ by less than five points. How many people is that?

# %%
held_out = (overview["people"] * 2 / 3 * 0.2).astype(int)
print("about", held_out.to_dict(), "held-out people")
assert held_out.max() < 45

# %% [markdown]
# With at most some forty people behind a bar, one person is worth more than two points. Those differences mean little.
#
# ## Decide
#
# fedskew's verdicts compare each method with the first, over the seeds, with Holm's correction.

# %%
table = runs.table().set_index("method")
for method in ["fedprox:mu=0.1", "scaffold"]:
    row = table.loc[method]
    print(f"{method:15s} {100 * row['difference']:+.1f} points against FedAvg: {row['verdict']}")

    assert row["verdict"] == "undecided"

# %% [markdown]
# Both are *undecided*: five seeds cannot tell these methods from FedAvg. SCAFFOLD sends twice as much. So take FedAvg,
# the simplest.
#
# And the two columns of zeros? Train on the raw table, too.

# %%
pd.read_csv(CSV).assign(ill=lambda rows: rows.pop("num") > 0).to_csv("raw.csv", index=False)
raw = fs.compare(["fedavg"], seeds=5, progress=False, **(setting | {"dataset": table_of | {"path": "raw.csv"}}))
with_zeros, cleaned = raw.table()["accuracy"][0], table["accuracy"]["fedavg"]
print(f"FedAvg on the raw table {with_zeros:.1%}, on the cleaned one {cleaned:.1%}")
assert abs(cleaned - with_zeros) < 0.01

# %% [markdown]
# The difference is below one point: this model can do without the two columns. Nobody knows that before the run, so look at
# the table before you look for a method.
#
# What remains is the learning rate. Tune it on held-out rows, with seeds that took no part so far.

# %%
tuned = fs.tune(["fedavg"], grid={"solver.lr": [0.01, 0.03, 0.1]}, tuning_seeds=(100, 101), progress=False, **setting)
tuned.table()[["method", "setting", "accuracy"]].round(3)

# %%
assert tuned.table()["accuracy"].max() - tuned.table()["accuracy"].min() < 0.05
best = tuned.best["fedavg"]["solver.lr"]
print("learning rate:", best)

# %% [markdown]
# The first line is the best. The three rates differ by less than five points.

# %% [markdown]
# ## Use the model
#
# `runs.model()` is the trained model as a PyTorch module. It takes rows as the data set holds them: encoded and
# standardised.

# %%
import torch

chosen = fs.run(algorithm="fedavg", progress=False, **(setting | {"lr": best}))
data = fs.table("visits.csv", label="ill", client="hospital")
with torch.no_grad():
    chance_of_illness = (
        chosen.model()(torch.tensor(data.x_test).float()).softmax(1)[:, data.classes.index("yes")].numpy()
    )
right = (chance_of_illness > 0.5) == (data.y_test == data.classes.index("yes"))
print(f"{len(right)} people of the test set: {right.mean():.0%} right")
assert abs(right.mean() - chosen.table()["accuracy"][0]) < 1e-6

# %% Predicted chance of illness for people who are ill and who are not
figure, axes = plt.subplots()
for label, colour in (("no", "C0"), ("yes", "C1")):
    axes.hist(
        chance_of_illness[data.y_test == data.classes.index(label)],
        bins=20,
        range=(0, 1),
        alpha=0.6,
        color=colour,
        label=f"ill: {label}",
    )
axes.set(xlabel="predicted chance of illness", ylabel="people")
axes.legend(loc="upper center")
axes.set_title("Most people are on the right side, some are not")
plt.show()
assert 0.7 < right.mean() < 0.95

# %% [markdown]
# The two groups overlap. A decision about a person needs more than this model, and a study before it is used: these
# data are from 1988.
#
# The whole way in one call, with remedies for the data beside the methods, tuned and compared at the sites:
# `fs.study("visits.csv", label="ill", client="hospital", minutes=1)` prints the decision, and its `report("study.html")`
# is a page for the hospitals ([from your table to a decision](../how-to/own-table.md)).
#
# **What to remember**
#
# - Diagnose before you train: the face that differs most decides which methods make sense.
# - Compare with `local-only`. If training together does not help a hospital, it has no reason to take part.
# - Clean the table first: here that changed more than the method.
# - Measure each client's own model on held-out rows, and count the people behind a percentage.
