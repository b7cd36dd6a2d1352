"""The price of privacy.

DP-FedAvg clips every update and adds noise, so that the model reveals little about any single client. Epsilon bounds
what it may reveal. It grows with every round. More noise keeps it small and costs accuracy. A guarantee needs many
clients. Here there are 200.
"""

import matplotlib.pyplot as plt

import fedskew as fs

figure, axes = plt.subplots()
for noise in [0.5, 1, 2, 4]:
    run = fs.run(
        algorithm=f"dp-fedavg:clip=0.5,noise={noise},q=0.2",
        selection="poisson:rate=0.2",
        skew="iid",
        clients=200,
        batch_size=4,
        rounds=30,
        evaluation__every=1,
    )
    found = run.measurements().pivot_table(index="round", columns=["split", "name"], values="value")
    epsilon, accuracy = found["round", "epsilon"], 100 * found["test", "accuracy"]
    axes.plot(epsilon, accuracy, label=f"noise {noise}")
axes.set(xscale="log", xlabel="epsilon: privacy loss so far (delta = 1e-5)", ylabel="test accuracy, %")
axes.set_xticks([0.3, 1, 3, 10, 30], ["0.3", "1", "3", "10", "30"])
axes.minorticks_off()
axes.grid()
axes.legend()
axes.set_title("Thirty rounds: more noise, less privacy loss, slower learning")
figure.savefig("privacy.png")
