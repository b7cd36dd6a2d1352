"""When labels change their meaning.

At round 20 half of the digits exchange their labels for all clients. The accuracy falls, and the model learns the new
meaning. A sudden change hurts at once; a gradual one over ten rounds hurts less and longer.
"""

import matplotlib.pyplot as plt

import fedskew as fs

figure, axes = plt.subplots()
for course in ["sudden", "gradual"]:
    change = f"concept-swap:clusters=1,strength=0.5,at_round=20,course={course},rounds=10"
    run = fs.run(skew=["label-dirichlet:alpha=0.5", change], rounds=50, evaluation__every=1)
    found = run.measurements().query("split == 'test' and name == 'accuracy'")
    axes.plot(found["round"], 100 * found["value"], label=f"{course} change")
axes.axvline(20, color="black", linewidth=0.8, linestyle=":")
axes.set(xlabel="round", ylabel="test accuracy, %")
axes.grid(axis="y")
axes.legend(loc="lower right")
axes.set_title("Half of the digits exchange their labels at round 20")
figure.savefig("concept_drift.png")
