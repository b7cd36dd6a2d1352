"""Clients that do not finish their work.

In each round a share of the clients finishes only a part of its local epochs. The server can drop this part, average
it, or weight it by the number of steps, as FedNova does.
"""

import matplotlib.pyplot as plt

import fedskew as fs

SHARES = [0.0, 0.3, 0.6, 0.9]
CASES = {
    "FedAvg, partial work dropped": {"algorithm": "fedavg", "system__drop_stragglers": True},
    "FedAvg, partial work averaged": {"algorithm": "fedavg"},
    "FedNova, partial work averaged": {"algorithm": "fednova"},
}
figure, axes = plt.subplots()
for name, settings in CASES.items():
    accuracy = []
    for share in SHARES:
        method = settings["algorithm"]
        others = {key: value for key, value in settings.items() if key != "algorithm"}
        runs = fs.compare(
            [method], skew="label-shards:shards=2", rounds=15, seeds=2, system__stragglers=share, **others
        )
        accuracy.append(100 * runs.table()["accuracy"][0])
    axes.plot([100 * share for share in SHARES], accuracy, "o-", label=name)
axes.set(xlabel="clients that do only a part of their work, %", ylabel="test accuracy, %")
axes.grid(axis="y")
axes.legend()
axes.set_title("Dropping slow clients costs most")
figure.savefig("stragglers.png")
