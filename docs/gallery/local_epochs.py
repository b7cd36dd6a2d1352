"""More local work, fewer messages?

Every run takes the same number of local epochs in total, but sends models after 1, 2, 5 or 10 of them. With IID clients
rare messages cost little. With skewed clients the models drift apart between two messages.
"""

import matplotlib.pyplot as plt

import fedskew as fs

TOTAL, EPOCHS = 40, [1, 2, 5, 10, 20]
figure, axes = plt.subplots()
for skew in ["iid", "label-dirichlet:alpha=0.3", "label-shards:shards=2"]:
    accuracy = [
        100 * fs.compare(["fedavg"], skew=skew, epochs=e, rounds=TOTAL // e, seeds=2).table()["accuracy"][0]
        for e in EPOCHS
    ]
    axes.plot(EPOCHS, accuracy, "o-", label=skew)
axes.set(xscale="log", xlabel="local epochs a round (fewer messages to the right)", ylabel="test accuracy, %")
axes.set_xticks(EPOCHS, [f"{e}\n{TOTAL // e} rounds" for e in EPOCHS])
axes.minorticks_off()
axes.grid(axis="y")
axes.legend()
axes.set_title(f"The same {TOTAL} epochs in fewer and longer rounds")
figure.savefig("local_epochs.png")
