# %% [markdown]
# # Client drift, seen
#
# **You will learn** what client drift is, why it costs accuracy, and what FedAvg, FedProx, SCAFFOLD and FedDyn change
# on a client's way. You compute every path yourself, first for two clients in a plane, then for a real model.
#
# **Time:** 15 minutes of reading. The code runs within half a minute.
#
# **You need** NumPy, a little PyTorch, and no knowledge of federated learning.

# %% [markdown]
# ## Two clients, two goals
#
# In federated learning the data stay where they are. Each *client* holds its own rows. A *server* sends its model to
# the clients, each client trains it on its own rows, and the server averages the models that come back. That is one
# *round*.
#
# A client's loss depends on its rows. So two clients with different rows pull the model to different places. The
# smallest example has two clients, and a model of two numbers, `w`. Each loss is a bowl with its own centre and its own
# shape.

# %%
import matplotlib.pyplot as plt
import numpy as np

CENTRES = np.array([[-1.0, 0.0], [1.5, 1.0]])
SHAPES = np.array([[[4.0, 0.0], [0.0, 0.5]], [[0.5, 0.0], [0.0, 2.0]]])


def loss(k, w):
    away = w - CENTRES[k]
    return 0.5 * np.einsum("...i,ij,...j", away, SHAPES[k], away)


def gradient(k, w):
    return SHAPES[k] @ (w - CENTRES[k])


# %% [markdown]
# The goal of federated learning is the model with the smallest *mean* loss. For two bowls it can be computed: there the
# two gradients cancel.

# %%
OPTIMUM = np.linalg.solve(SHAPES.sum(0), np.einsum("kij,kj->i", SHAPES, CENTRES))
assert np.allclose(gradient(0, OPTIMUM) + gradient(1, OPTIMUM), 0)
print("mean of the two centres:", CENTRES.mean(0))
print("best common model:      ", OPTIMUM.round(2))

# %% [markdown]
# The best common model is not the mean of the two centres. Along each axis it lies nearer to the client with the
# steeper bowl.

# %% Contours of the two clients' losses, with both centres and the best common model
COLOURS = ["tab:blue", "tab:orange"]


def draw_bowls(axes):
    a, b = np.meshgrid(np.linspace(-2, 2.4, 120), np.linspace(-1.2, 2.2, 120))
    for k, colour in enumerate(COLOURS):
        axes.contour(
            a, b, loss(k, np.stack([a, b], -1)), levels=[0.1, 0.5, 1.5, 4], colors=colour, linewidths=0.7, alpha=0.6
        )
        axes.plot(*CENTRES[k], "o", color=colour, markersize=7)
    axes.plot(*OPTIMUM, "*", color="black", markersize=13)
    axes.set(aspect="equal", xticks=[], yticks=[])


figure, axes = plt.subplots()
draw_bowls(axes)
axes.annotate("client 0's best model", CENTRES[0], (-1.9, 0.25), color=COLOURS[0])
axes.annotate("client 1's best model", CENTRES[1], (1.0, 1.25), color=COLOURS[1])
axes.annotate("best common model", OPTIMUM, xytext=(8, -18), textcoords="offset points")
axes.set_title("Each client has its own best model")
plt.show()

# %% [markdown]
# ## One round of FedAvg
#
# A client takes several gradient steps on its own loss before it sends anything. We keep every model on its way: a
# *path*. The argument `extra` is a place for what other methods add to the gradient. FedAvg adds nothing.

# %%
LEARNING_RATE = 0.1


def local_path(k, x, steps, extra=lambda w: 0.0):
    path = [x]
    for _ in range(steps):
        w = path[-1]
        path.append(w - LEARNING_RATE * (gradient(k, w) + extra(w)))
    return np.array(path)


def fedavg(x, steps, memory):
    paths = [local_path(k, x, steps) for k in (0, 1)]
    return np.mean([path[-1] for path in paths], axis=0), paths


# %% Paths of both clients in the first round of FedAvg, and their mean
def draw_round(axes, paths, new):
    for path, colour in zip(paths, COLOURS, strict=True):
        axes.plot(*path.T, ".-", color=colour, markersize=5, linewidth=1.4)
        axes.plot(*np.array([path[-1], new]).T, ":", color="black", linewidth=0.9)
    axes.plot(*paths[0][0], "s", color="black", markersize=6)
    axes.plot(*new, "D", color="tab:green", markersize=7)


start = np.array([-0.2, -0.9])
new, paths = fedavg(start, steps=15, memory=None)
figure, axes = plt.subplots()
draw_bowls(axes)
draw_round(axes, paths, new)
axes.annotate("start", start, xytext=(8, -6), textcoords="offset points")
axes.annotate("new global model", new, xytext=(8, 6), textcoords="offset points", color="tab:green")
axes.set_title("One round: each client walks towards its own best model")
plt.show()

# %% [markdown]
# Both paths begin at the square. They part at once, because each client sees only its own bowl. The server takes the
# mean of the two ends, the green diamond. The distance of the ends from their mean is the **drift**.

# %%
drift = np.mean([np.linalg.norm(path[-1] - new) for path in paths])
short = np.mean([np.linalg.norm(path[1] - np.mean([p[1] for p in paths], 0)) for path in paths])
print(f"drift after 1 step {short:.2f}, after 15 steps {drift:.2f}")
assert drift > 4 * short

# %% [markdown]
# The drift after 15 steps is more than four times that after one step: the longer clients work alone, the farther they
# part.
#
# ## Many rounds: FedAvg stops at the wrong place
#
# Drift would not matter if the mean went to the right place. Run 200 rounds, once with one local step and once with 15.


# %%
def train(method, steps, rounds=200):
    memory, models, last = {}, [start], None
    for _ in range(rounds):
        new, last = method(models[-1], steps, memory)
        models.append(new)
    return np.array(models), last


def error(models):
    return float(np.linalg.norm(models[-1] - OPTIMUM))


ends = {steps: error(train(fedavg, steps)[0]) for steps in (1, 5, 15)}
for steps, far in ends.items():
    print(f"{steps:2d} local steps a round: {far:.4f} away from the best common model")
assert ends[1] < 1e-4 < ends[5] < ends[15]

# %% [markdown]
# With one local step, FedAvg is ordinary gradient descent and finds the best common model. With more steps it stops
# elsewhere. The more steps, the farther away it stops. More rounds do not help: the two clients pull in opposite
# directions, and the mean stands still. But local steps are the reason for FedAvg: they save messages. The methods below
# keep the local steps and correct the paths.
#
# ## What the methods change
#
# Each method is one line: what it adds to the gradient of a client.
#
# | method | adds to client *k*'s gradient at *w* | in words |
# | --- | --- | --- |
# | FedAvg | nothing | |
# | FedProx | `mu * (w - x)` | a spring back to the round's start *x* |
# | SCAFFOLD | `c - c_k` | the mean of all clients' gradients instead of one's own |
# | FedDyn | `alpha * (w - x) - h_k` | a spring, and a push that the client learns over the rounds |
#
# SCAFFOLD and FedDyn need a memory. In SCAFFOLD, `c_k` is the mean of the client's gradients in its last round, and `c`
# is the mean of all `c_k`. In FedDyn, `h_k` adds up how far the spring was stretched.


# %%
def fedprox(x, steps, memory, mu=1.0):
    paths = [local_path(k, x, steps, lambda w: mu * (w - x)) for k in (0, 1)]
    return np.mean([path[-1] for path in paths], axis=0), paths


def scaffold(x, steps, memory):
    own = memory.get("c", np.zeros((2, 2)))
    paths = [local_path(k, x, steps, lambda w, k=k: own.mean(0) - own[k]) for k in (0, 1)]
    ends = np.array([path[-1] for path in paths])
    memory["c"] = own - own.mean(0) + (x - ends) / (steps * LEARNING_RATE)
    return ends.mean(0), paths


def feddyn(x, steps, memory, alpha=1.0):
    pushes, total = memory.get("h", (np.zeros((2, 2)), np.zeros(2)))
    paths = [local_path(k, x, steps, lambda w, k=k: alpha * (w - x) - pushes[k]) for k in (0, 1)]
    ends = np.array([path[-1] for path in paths])
    memory["h"] = pushes - alpha * (ends - x), total - alpha * (ends - x).mean(0)
    return ends.mean(0) - memory["h"][1] / alpha, paths


# %%
METHODS = {"FedAvg": fedavg, "FedProx": fedprox, "SCAFFOLD": scaffold, "FedDyn": feddyn}
results = {name: train(method, steps=15) for name, method in METHODS.items()}
for name, (models, _) in results.items():
    print(f"{name:8s} {error(models):.4f} away from the best common model after 200 rounds")
assert error(results["FedProx"][0]) < error(results["FedAvg"][0])
assert error(results["FedProx"][0]) > 0.1
assert max(error(results[name][0]) for name in ("SCAFFOLD", "FedDyn")) < 1e-4

# %% [markdown]
# FedProx comes nearer than FedAvg, but does not arrive: its spring shortens the paths, it does not turn them. SCAFFOLD
# and FedDyn arrive although they take 15 local steps, too. The paths of an early round show why.

# %% The clients' paths in the third round of four methods
figure, axes = plt.subplots(2, 2, figsize=(7.2, 5.9))
for panel, (name, method) in zip(axes.flat, METHODS.items(), strict=True):
    models, paths = train(method, steps=15, rounds=3)
    draw_bowls(panel)
    draw_round(panel, paths, models[-1])
    panel.set_title(f"{name}: in the end {error(results[name][0]):.2f} away")
    results[name] += (sum(np.linalg.norm(path[-1] - path[0]) for path in paths),)
figure.suptitle("The clients' paths in round 3")
assert max(results[name][2] for name in ("SCAFFOLD", "FedDyn")) < 0.6 * results["FedProx"][2] < results["FedAvg"][2]
plt.show()

# %% [markdown]
# - **FedAvg:** each client walks towards its own centre, as in round 1.
# - **FedProx:** the same walk on a shorter leash.
# - **SCAFFOLD:** the paths are short. The correction takes out most of what pulls a client to its own centre.
# - **FedDyn:** the paths are short, too. The push that each client has learnt works against its own gradient.
#
# And in round 200? We measure the length of the paths.

# %%
lengths = {name: sum(np.linalg.norm(path[-1] - path[0]) for path in paths) for name, (_, paths, _) in results.items()}
for name, length in lengths.items():
    print(f"{name:8s} {length:.3f}")
assert lengths["FedProx"] < 0.7 * lengths["FedAvg"]
assert max(lengths["SCAFFOLD"], lengths["FedDyn"]) < 1e-3

# %% [markdown]
# In FedAvg and FedProx the clients leave the common model in every round. In SCAFFOLD and FedDyn the clients stay: at
# the star, the added term cancels the client's own gradient.
#
# ## The same in a real model
#
# Now softmax regression on handwritten digits: 650 parameters instead of two. Client 0 holds the digits 0 to 4, client
# 1 the digits 5 to 9 and two fours. fedskew deals the rows, plain PyTorch trains.

# %%
import torch
from torch.nn.functional import cross_entropy

import fedskew as fs

data = fs.load("digits")
part = fs.partition(data, "label-sorted", clients=2)
x, y = torch.tensor(data.x).float(), torch.tensor(data.y)
rows = [torch.tensor(part.rows(k)) for k in (0, 1)]
print(part.label_counts(data.y, 10))


def digit_loss(w, which):
    return cross_entropy(x[which] @ w[:640].reshape(64, 10) + w[640:], y[which])


def digit_path(k, w, steps, extra):
    path = [w]
    for _ in range(steps):
        w = path[-1].clone().requires_grad_()
        (g,) = torch.autograd.grad(digit_loss(w, rows[k]), w)
        path.append((w - RATE * (g + extra)).detach())
    return torch.stack(path)


# %% [markdown]
# The counts show who holds what: a row is a client, a column is a digit. Take five rounds with 20 steps each, once with
# FedAvg and once with SCAFFOLD, and keep the paths of the sixth.

# %%
STEPS, RATE = 20, 0.5


def digit_rounds(rounds, with_correction):
    w, own = torch.zeros(650), torch.zeros(2, 650)
    for _ in range(rounds):
        corrections = own.mean(0) - own if with_correction else torch.zeros(2, 650)
        paths = [digit_path(k, w, STEPS, corrections[k]) for k in (0, 1)]
        ends = torch.stack([path[-1] for path in paths])
        own = own - own.mean(0) + (w - ends) / (STEPS * RATE)
        start, w = w, ends.mean(0)
    return start, ends, paths


sixth = {"FedAvg": digit_rounds(6, False), "SCAFFOLD": digit_rounds(6, True)}

# %% [markdown]
# A path in 650 dimensions cannot be drawn. But three models span a plane: the global model and the two ends. We draw
# the loss of all rows on this plane and project the paths onto it. Both pictures have the same scale.

# %% The loss of all rows in the plane of the global model and two local models, with both paths
everything = torch.cat(rows)


def draw_plane(axes, start, ends, paths, reach=3.2):
    u = ends[0] - start
    u = u / u.norm()
    v = (ends[1] - start) - ((ends[1] - start) @ u) * u
    v = v / v.norm()
    ticks = torch.linspace(-reach, reach, 30)
    heights = torch.tensor([[float(digit_loss(start + a * u + b * v, everything)) for a in ticks] for b in ticks])
    shades = axes.contourf(ticks, ticks, heights, levels=np.arange(0.2, 3, 0.2), cmap="Greys", alpha=0.6, extend="max")
    for path, colour in zip(paths, COLOURS, strict=True):
        axes.plot(*((path - start) @ torch.stack([u, v], 1)).T, ".-", color=colour)
    axes.plot(0, 0, "s", color="black")
    axes.plot(*((ends.mean(0) - start) @ torch.stack([u, v], 1)), "D", color="tab:green")
    axes.set(aspect="equal", xticks=[], yticks=[])
    return shades


figure, axes = plt.subplots(1, 2, figsize=(7.4, 3.7))
for panel, (name, found) in zip(axes, sixth.items(), strict=True):
    shades = draw_plane(panel, *found)
    panel.set_title(f"{name}, round 6")
figure.colorbar(shades, ax=axes, label="loss over all rows")
plt.show()

# %%
losses = {}
for name, (start, ends, _) in sixth.items():
    models = {"start": start, "client 0": ends[0], "client 1": ends[1], "mean": ends.mean(0)}
    losses[name] = {what: float(digit_loss(model, everything)) for what, model in models.items()}
    print(name, {what: round(value, 2) for what, value in losses[name].items()})
both = ("client 0", "client 1")
assert all(losses["FedAvg"][k] > losses["FedAvg"]["start"] > losses["FedAvg"]["mean"] for k in both)
assert all(losses["SCAFFOLD"][k] < losses["SCAFFOLD"]["start"] for k in both)
assert losses["SCAFFOLD"]["mean"] < losses["FedAvg"]["mean"]

# %% [markdown]
# The darker the plane, the larger the loss over *all* rows. With FedAvg each client walks uphill: its own model forgets
# the digits that it does not have. The mean of the two (diamond) is better than the start (square) all the same, and
# that is why FedAvg works at all. But the clients undo much of each other's work. With SCAFFOLD both clients walk
# downhill.
#
# ## Let fedskew do it
#
# fedskew has these methods and about forty more, and measures the drift in every round. One call runs three methods on
# the same two clients.

# %% Drift over the rounds for three methods
runs = fs.compare(
    ["fedavg", "fedprox:mu=1", "scaffold"], skew="label-sorted", clients=2, model="softmax", rounds=20, seeds=1
)
runs.plot("drift")

# %%
table = runs.table().set_index("method")
drift = table["drift"]
assert drift["scaffold"] < drift["fedavg"]
assert drift["fedprox:mu=1"] < drift["fedavg"]
print(table[["drift", "accuracy"]].round(2))
assert table["accuracy"].idxmin() == "fedprox:mu=1"

# %% [markdown]
# Both methods have a smaller drift than FedAvg. But a small drift is not the goal: here FedProx has the lowest accuracy,
# because its clients learn less in each round. The next tutorial compares methods by accuracy, over several seeds.
#
# **What to remember**
#
# - Clients with different rows walk to different models. Their distance from the mean model is the drift.
# - With many local steps, FedAvg stops at a model that is not the best common one.
# - FedProx shortens the paths. SCAFFOLD and FedDyn turn them towards the common goal, and need a memory for it.
