"""Accuracy for every client, not only on average.

Clients are sorted from worst to best. Each has two digits only, so a model that neglects a digit fails some client. AFL
trains for the worst mixture of clients, and SCAFFOLD takes out the drift: both lift the left end of the line.
"""

import fedskew as fs

runs = fs.compare(
    ["fedavg", "afl:gamma=0.05", "scaffold"],
    skew="label-shards:shards=2",
    clients=20,
    held_out=0.3,
    rounds=20,
    seeds=3,
    evaluation__every=20,
)
worst = runs.table().set_index("method")["worst_client"]
assert worst["fedavg"] + 0.1 < min(worst["afl:gamma=0.05"], worst["scaffold"])
figure = runs.plot("clients")
figure.savefig("fairness.png")
