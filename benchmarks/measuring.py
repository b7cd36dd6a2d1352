"""Share of the rounds' time that measuring takes by default, in one run of each workload: python benchmarks/measuring.py."""

import json
import subprocess
import sys
import tempfile

WORKS = {
    "digits, MLP": ["--rounds", "30"],
    "UCI-HAR, MLP, one epoch": [
        *("--dataset", "uci-har:form=features", "--skew", "natural", "--model", "mlp:hidden=[128]", "--lr", "0.05"),
        *("--batch-size", "64", "--epochs", "1", "--rounds", "32"),
    ],
    "CIFAR-10, CNN, 10 x 2500 rows": [
        *("--dataset", "cifar-10", "--skew", "iid", "--server-data", "0.5", "--model", "cnn", "--batch-size", "50"),
        *("--epochs", "2", "--rounds", "12"),
    ],
}
METHODS = ("fedavg", "fedprox:mu=0.1", "scaffold", "moon", "feddyn")


def main() -> None:
    wanted = sys.argv[1:] or list(WORKS)
    for work in wanted:
        methods = METHODS[:1] if "CNN" in work else METHODS
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "fedskew", "compare", *WORKS[work], "--seeds", "1", "--jobs", "1"]
            output = subprocess.run(
                [*command, "--algorithms", *methods, "--runs", folder], capture_output=True, text=True, check=True
            ).stdout
        print(
            json.dumps(
                {"work": work, "measuring": " ".join(output.split()).partition("Measuring")[2].partition(".")[0]}
            )
        )


if __name__ == "__main__":
    main()
