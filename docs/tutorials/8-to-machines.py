# %% [markdown]
# # From simulation to machines
#
# **You will learn** what changes when clients are real machines, what a message holds and how long it is, and how the
# simulated experiment runs on a server and nodes with Flower.
#
# **Time:** 10 minutes of reading. The code runs within half a minute.
#
# **You need** to have seen [a first comparison](2-first-comparison.py). The last step needs Flower, `pip install
# '.[flower]'` in the clone. Without Flower, its cells only say so.

# %% [markdown]
# ## What a simulation leaves out
#
# In a simulation all clients are in one process. They share one memory, no message is lost, and every client answers. On
# machines
#
# - a client's rows never leave its machine;
# - messages have a length, and the network has a speed;
# - clients are slow, fail or are unavailable.
#
# The second and third can be simulated first. Do that before you rent machines.
#
# ## The recipe
#
# An experiment is a recipe: one TOML text that says everything. Simulation and machines use the same one.

# %%
from pathlib import Path

import fedskew as fs

experiment = fs.Experiment(dataset="heart", skew="natural", clients=4, algorithm="scaffold", rounds=10)
Path("recipe.toml").write_text(experiment.toml())
print("\n".join(experiment.toml().splitlines()[:8]), "\n...")

# %%
simulated = fs.run(experiment, progress=False)
simulated.table()

# %% [markdown]
# Four hospitals, ten rounds of SCAFFOLD, in a second.
#
# ## How long are the messages?

# %%
import matplotlib.pyplot as plt

sent = simulated.measurements().query("split == 'round' and name == 'bytes_up'")["value"]
parameters = sum(p.numel() for p in simulated.model().parameters())
print(f"the model has {parameters} parameters; a client sends {sent.iloc[-1] / 4:.0f} bytes a round")
assert sent.iloc[-1] / 4 == 2 * 4 * parameters

# %% [markdown]
# A parameter takes four bytes. SCAFFOLD's client sends its update and its correction: twice the model. For a model with
# a hundred million parameters that would be 800 MB a round, and a codec would matter. Here is what codecs save with an
# MLP on the digits.

# %% Accuracy and bytes for three codecs
codecs = ["none", "int8", "top-k:share=0.05"]
figure, axes = plt.subplots()
megabytes = {}
for codec in codecs:
    run = fs.run(codec=codec, skew="label-dirichlet:alpha=0.3", rounds=15, evaluation__every=1, progress=False)
    found = run.measurements()
    up = found.query("name == 'bytes_up'").set_index("round")["value"].cumsum() / 1e6
    accuracy = 100 * found.query("split == 'test' and name == 'accuracy'").set_index("round")["value"]
    megabytes[codec] = up.iloc[-1]
    axes.plot(up, accuracy.loc[up.index], "o-", label=codec)
axes.set(xscale="log", xlabel="megabytes sent by all clients so far", ylabel="test accuracy, %")
axes.set_xticks([0.03, 0.1, 0.3, 1, 3], ["0.03", "0.1", "0.3", "1", "3"])
axes.minorticks_off()
axes.legend(title="codec")
axes.set_title("The same fifteen rounds with shorter messages")
plt.show()
assert megabytes["int8"] < 0.3 * megabytes["none"]
assert megabytes["top-k:share=0.05"] < 0.15 * megabytes["none"]

# %% [markdown]
# With `int8` messages have less than a third of the length, with `top-k` less than a seventh. Read from left to right:
# at the same number of megabytes, the shorter messages are ahead.
#
# ## What if clients fail?
#
# Half of the hospitals finish only a part of their work, and one answer in five is lost:

# %%
rough = fs.run(experiment, system="stragglers=0.5,dropout=0.2", progress=False)
answered = rough.measurements().query("split == 'round' and name == 'answered'")["value"]
print(f"{answered.mean():.1f} of 4 hospitals answer on average; accuracy {rough.table()['accuracy'][0]:.1%}")
print(f"without failures: {simulated.table()['accuracy'][0]:.1%}")
assert answered.mean() < 4

# %% [markdown]
# Now you know what to expect from a bad network, before the first machine is rented.
#
# ## The app
#
# `fedskew flower init` writes an app for Flower from the recipe. `--rows` also writes the simulated clients' rows, one
# file a client, so that you can try the app. A real hospital has its own file.

# %%
import importlib.util
import subprocess
import sys

import numpy as np

WITH_FLOWER = importlib.util.find_spec("flwr") is not None
if WITH_FLOWER:
    command = [sys.executable, "-m", "fedskew", "flower", "init", "app", "--recipe", "recipe.toml", "--rows"]
    subprocess.run(command, check=True, capture_output=True)
    print(*sorted(str(path) for path in [*Path("app").rglob("*.toml"), *Path("app-rows").iterdir()]), sep="\n")
    rows = np.load("app-rows/0.npz")
    print("client 0:", {name: rows[name].shape for name in rows.files})
else:
    print("Flower is not installed: pip install '.[flower]' in the clone")

# %% [markdown]
# A client's file holds its rows `x` and their labels `y`. Nothing else of the client is needed.
#
# ## Run it
#
# On one machine, one command starts a server and nodes, runs the recipe, and stores the numbers beside the simulated
# runs. Every node is a separate process, so the start takes longer than the training. The next cell runs it only if you
# set `FEDSKEW_MACHINES=1`.

# %%
import os

if WITH_FLOWER and os.environ.get("FEDSKEW_MACHINES") == "1":
    command = [sys.executable, "-m", "fedskew", "flower", "demo", "--recipe", "recipe.toml", "--nodes", "4"]
    subprocess.run([*command, "--rounds", "2", "--runs", "machines"], check=True, capture_output=True, timeout=500)
    on_machines = fs.open("machines").latest.curves()["mean"].to_numpy()
    in_simulation = fs.run(experiment, rounds=2, progress=False).curves()["mean"].to_numpy()
    print("test accuracy after each round, machines: ", on_machines)
    print("test accuracy after each round, simulated:", in_simulation)
    assert np.allclose(on_machines, in_simulation)
else:
    print("not run here: fedskew flower demo --recipe recipe.toml --nodes 4")

# %% [markdown]
# The numbers of both ways agree, because the rounds, the hooks and the messages are the same code. [From simulation to
# machines, step by step](../how-to/deploy.md) has the commands for two machines, with certificates and keys.
#
# **What to remember**
#
# - One recipe serves simulation and machines.
# - Simulate failures and count bytes before you deploy.
# - A client sends its updates, never its rows. Updates can still reveal something: see [the price of
#   privacy](../gallery/privacy.py).
