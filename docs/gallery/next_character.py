"""The next character, on telephones that each know one speaker.

The clients are the five speakers of Shakespeare with the longest texts. A small LSTM learns to predict the next character
of what they say. The dashed line is a table of the training texts: the most frequent character after the present one.
This script needs the data: `fedskew data get shakespeare`.
"""

import matplotlib.pyplot as plt
import numpy as np

import fedskew as fs

try:
    plays = fs.load("shakespeare:smallest=25000")
except fs.FedskewError as error:
    raise SystemExit("it needs the plays: fedskew data get shakespeare") from error

figure, axes = plt.subplots()
for epochs in [1, 3]:
    run = fs.run(
        dataset="shakespeare:smallest=25000",
        model="symbol-lstm:hidden=64",
        solver="adamw:lr=0.01",
        epochs=epochs,
        batch_size=8,
        rounds=8,
        evaluation__every=1,
    )
    found = run.measurements().query("split == 'test' and name == 'accuracy'")
    axes.plot(found["round"], 100 * found["value"], "o-", label=f"{epochs} epoch{'s' * (epochs > 1)} a round")
known, asked = plays.y >= 0, plays.y_test >= 0
pairs = np.zeros((len(plays.classes), len(plays.classes)))
np.add.at(pairs, (plays.x[known], plays.y[known]), 1)
right = pairs.argmax(1)[plays.x_test[asked]] == plays.y_test[asked]
axes.axhline(100 * right.mean(), color="black", linestyle="--", label="table of pairs")
axes.set(xlabel="round", ylabel="characters predicted, %")
axes.grid(axis="y")
axes.legend(loc="lower right")
axes.set_title("An LSTM of five speakers' texts, trained where they are")
figure.savefig("next_character.png")
