# %% [markdown]
# # A method of your own
#
# **You will learn** to write a federated method as one small class with four kinds of hooks, to check it, and to
# compare it with others.
#
# **Time:** 15 minutes of reading. The code runs within half a minute.
#
# **You need** PyTorch and dataclasses. [Client drift, seen](1-client-drift.py) explains what methods change.

# %% [markdown]
# ## The idea
#
# A method is FedAvg with something changed. Your class takes over everything from `fs.Algorithm`, which *is* FedAvg,
# and replaces single hooks:
#
# | hook | it changes | example |
# | --- | --- | --- |
# | `objective` | the local loss | FedProx |
# | `direction` | each local step | SCAFFOLD |
# | `client_init`, `local_init`, `local_final` | what a client remembers | SCAFFOLD, FedDyn |
# | `aggregate` | what the server does with the updates | robust means |
#
# The model is one flat vector `w`. In a round, `view.x` is the global model that the client received. The fields of the
# class are the options.
#
# ## 1. The objective: a spring
#
# The client's loss gets a term that grows with the distance to the round's start. That is FedProx, in one line.

# %%
from dataclasses import dataclass

import torch

import fedskew as fs
from fedskew.core.algorithm import local_loss
from fedskew.core.records import Upload


@dataclass(frozen=True, kw_only=True)
class Spring(fs.Algorithm):
    mu: float = 0.1

    idea = "a spring to the global model"
    changes = "loss landscape"
    reduces_to = {"mu=0": "fedavg"}  # noqa: RUF012

    def objective(self, task, view, w, batch):
        return local_loss(task, w, batch) + self.mu / 2 * (w - view.x).square().sum()


# %% [markdown]
# `reduces_to` is a promise: without its spring, the method is FedAvg. `fs.check` tests it, and the promises of every
# method, on a very small federation.

# %%
checked = fs.check(Spring)
assert checked
print(checked.heading)
for promise in checked.table()["promise"]:
    print("-", promise)

# %% [markdown]
# The class is defined in a cell of this notebook. fedskew stores its text with each run, so you can resume and repeat
# the run.
#
# Our spring is FedProx. So it must give FedProx's numbers, on every seed:

# %%
setting = {"dataset": "digits", "skew": "label-dirichlet:alpha=0.1", "rounds": 10, "progress": False}
ours = fs.run(algorithm=Spring(mu=0.5), engine="stacked", **setting).table()["accuracy"][0]
theirs = fs.run(algorithm="fedprox:mu=0.5", engine="stacked", **setting).table()["accuracy"][0]
print(f"Spring {ours:.4f}, FedProx {theirs:.4f}")
assert abs(ours - theirs) < 0.01

# %% [markdown]
# ## 2. The direction: short steps
#
# `direction` returns the gradient for the next step. This method shortens gradients that are too long. `grad_fn(w)`
# returns the gradient and the loss. The second result of the hook is the *scratch*, which a client carries from step to
# step. This method does not change it.
#
# Clients may be computed as a stack, so a hook must not branch on the value of a tensor. Write `clamp` or
# `torch.where`, not `if`.


# %%
@dataclass(frozen=True, kw_only=True)
class ShortSteps(fs.Algorithm):
    longest: float = 1.0

    idea = "no local gradient is longer than a limit"
    changes = "update path"

    def direction(self, grad_fn, view, w, scratch):
        gradient = grad_fn(w)[0]
        return gradient * (self.longest / (gradient.norm() + 1e-12)).clamp(max=1.0), scratch


assert fs.check(ShortSteps)

# %% [markdown]
# ## 3. The state: a client that remembers
#
# A client's *state* stays with it from round to round. Three hooks handle it: `client_init` makes it before the
# client's first round, `local_init` puts it into the scratch, `local_final` takes it out again and makes the message,
# an `Upload`. Hooks return new values and change none in place.


# %%
@dataclass(frozen=True, kw_only=True)
class Momentum(fs.Algorithm):
    beta: float = 0.5

    idea = "each client keeps its momentum from round to round"
    changes = "update path"
    reduces_to = {"beta=0": "fedavg"}  # noqa: RUF012

    def client_init(self, x):
        return {"v": torch.zeros_like(x)}

    def local_init(self, task, solver, view):
        return view.x, {"v": view.state["v"]}

    def direction(self, grad_fn, view, w, scratch):
        v = self.beta * scratch["v"] + grad_fn(w)[0]
        return v, {"v": v}

    def local_final(self, solver, view, carry, after):
        return Upload(carry.w - view.x, {}, {}), {"v": carry.scratch["v"]}


assert fs.check(Momentum)

# %% [markdown]
# ## 4. The server: only where clients agree
#
# `aggregate` gets the updates of all clients, one line each, and returns the step of the global model. This server
# leaves out every coordinate in which the clients' signs disagree too much. The second result is the server's state. It
# is empty here.


# %%
@dataclass(frozen=True, kw_only=True)
class Agreement(fs.Algorithm):
    least: float = 0.2

    idea = "drop the coordinates in which the clients' signs disagree"
    changes = "aggregation"
    reduces_to = {"least=0": "fedavg"}  # noqa: RUF012

    def aggregate(self, server, cohort):
        agree = cohort.uploads.delta.sign().mean(0).abs()
        step = self.mean_delta(server, cohort)
        return torch.where(agree >= self.least, step, torch.zeros_like(step)), server.state


assert fs.check(Agreement)

# %% [markdown]
# ## A method that breaks a promise
#
# This class changes its state in place. Two engines would give different numbers, and nobody would notice. `fs.check`
# does.


# %%
@dataclass(frozen=True, kw_only=True)
class Careless(Momentum):
    idea = "momentum, written carelessly"
    changes = "update path"

    def direction(self, grad_fn, view, w, scratch):
        v = scratch["v"].mul_(self.beta).add_(grad_fn(w)[0])
        return v, {"v": v}


broken = fs.check(Careless).table().query("not kept")
assert len(broken) >= 1
print(f"{len(broken)} promises broken; the first: it {broken['promise'].iloc[0]}")

# %% [markdown]
# ## Compare
#
# A class goes wherever a name goes.

# %% Test accuracy of four own methods and FedAvg
runs = fs.compare(["fedavg", Spring(), ShortSteps(), Momentum(), Agreement()], seeds=3, **setting)
runs.plot("accuracy")

# %%
runs.table()

# %% [markdown]
# All four differences are undecided: three seeds differ too much from one another. Take more seeds. And tune your method
# and its rivals with the same effort, as in [Is my difference real?](5-is-it-real.py)

# %%
table = runs.table().set_index("method")
assert set(table["verdict"][1:]) == {"undecided"}
assert len(table) == 5

# %% [markdown]
# **What to remember**
#
# - A method is a frozen dataclass. Its fields are the options, its hooks change FedAvg.
# - Promise what it reduces to, and run `fs.check` before you believe a number.
# - Compare on the same partitions and seeds, against tuned rivals.
