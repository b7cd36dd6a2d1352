"""Real clients: people who wear a motion sensor.

In UCI-HAR each of 21 people is a client. On rows of the same person, that person's own model is hard to
beat. But it knows nothing of other people. This script needs the data: `fedskew data get uci-har`.
"""

import matplotlib.pyplot as plt

import fedskew as fs

try:
    fs.load("uci-har:form=features")
except fs.FedskewError as error:
    raise SystemExit("it needs UCI-HAR: fedskew data get uci-har") from error

figure, axes = plt.subplots()
for method in ["fedavg", "local-only"]:
    run = fs.run(
        dataset="uci-har:form=features",
        skew="natural",
        algorithm=method,
        lr=0.05,
        epochs=1,
        batch_size=32,
        held_out=0.2,
        rounds=10,
        evaluation__every=1,
    )
    split = "clients" if method == "fedavg" else "personal"
    found = run.measurements().query(f"split == '{split}' and name == 'accuracy_mean'")
    axes.plot(found["round"], 100 * found["value"], "o-", label=method)
axes.set(xlabel="round", ylabel="mean accuracy on a person's held-out rows, %")
axes.grid(axis="y")
axes.legend(loc="lower right")
axes.set_title("On their own rows, people do better alone")
figure.savefig("sensors_of_people.png")
