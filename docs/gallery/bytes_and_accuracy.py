"""Accuracy for the bytes that clients send.

A codec shortens the updates. Each point is one codec after the same fifteen rounds: further left is cheaper, further up
is better.
"""

import matplotlib.pyplot as plt

import fedskew as fs

CODECS = ["none", "int8", "qsgd:levels=15", "top-k:share=0.1", "top-k:share=0.01"]
figure, axes = plt.subplots()
for codec in CODECS:
    runs = fs.compare(["fedavg"], codec=codec, skew="label-dirichlet:alpha=0.3", rounds=15, seeds=3)
    row = runs.table().iloc[0]
    half = 100 * row["accuracy_half"]
    axes.errorbar(row["megabytes_up"], 100 * row["accuracy"], yerr=half, fmt="o", markersize=8, capsize=4, label=codec)
axes.set(xscale="log", xlabel="megabytes that all clients send", ylabel="test accuracy, %")
axes.set_xticks([0.03, 0.1, 0.3, 1, 3], ["0.03", "0.1", "0.3", "1", "3"])
axes.minorticks_off()
axes.grid()
axes.legend(title="codec", loc="lower right")
axes.set_title("What a smaller message costs, three seeds with 95 % intervals")
figure.savefig("bytes_and_accuracy.png")
