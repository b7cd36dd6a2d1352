"""Time and memory of `list`, `show`, `report`, `watch`, `resume`, `tag`, `rename` and `rm` in a store of 5,000 runs.

A comparison has 50 methods and 20 seeds: 1,000 runs. One run of digits is carried out; all others are copies of its rows with
other values, written by the store's own interface. Each command is a process of its own.

python benchmarks/stores.py [--json]
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

METHODS, SEEDS, RUNS = 50, 20, 5_000
COMMANDS = (
    "list",
    "show c1",
    "report c1",
    "watch c1",
    "resume c1",
    "tag c2 good",
    "rename c2 copies",
    "rm c3 --yes",
)


def make(folder: Path, runs: int = RUNS) -> None:
    """Write a store with this many runs into ``folder``."""
    import fedskew as fs
    from fedskew.store.runs import RunStore

    fs.run(rounds=20, runs=folder / "one", progress=False)
    source, store = RunStore(folder / "one", read_only=True), RunStore(folder / "many")
    names = ["fedavg", *(f"fedprox:mu={i / 100:g}" for i in range(1, METHODS))]
    rng, left = random.Random(0), runs
    while left > 0:
        comparison = store.add_comparison(" vs ".join(names))
        for seed in range(SEEDS):
            for name in names[:left]:
                copy_run(source, store, name, seed, comparison, rng)
            left -= len(names[:left])


def copy_run(source: Any, store: Any, name: str, seed: int, comparison: int, rng: random.Random) -> None:
    """Copy the only run of ``source`` under another name and seed, with values up to 2 % larger."""
    [record] = source.runs()
    text = record.experiment.replace("seed = 0", f"seed = {seed}")
    if name != "fedavg":
        text = text.replace(
            '[algorithm]\nname = "fedavg"',
            f'[algorithm]\nname = "fedprox"\n{name.partition(":")[2].replace("=", " = ")}',
        )
        text = text.replace('name = "fedavg"', f'name = "{name}"', 1)
    run = store.add_run(
        name=name, experiment=text, experiment_hash=name, seed=seed, partition_seed=seed, rounds=record.rounds,
        comparison=comparison,
    )  # fmt: skip
    store.add_facts(run, record.facts)
    with store.transaction():
        for table in ("partitions", "test_rows", "test_units"):
            for _, *values in source.query(f"SELECT * FROM {table}"):
                store.db.execute(f"INSERT INTO {table} VALUES (?{', ?' * len(values)})", (run, *values))
        store.db.executemany(
            "INSERT INTO measurements VALUES (?, ?, ?, ?, ?, ?)",
            (
                (run, *about, value * (1 + 0.02 * rng.random()))
                for _, *about, value in source.query("SELECT * FROM measurements")
            ),
        )
        store.db.execute("UPDATE runs SET rounds_done=? WHERE id=?", (record.rounds_done, run))
    store.update(run, status="finished")


def measured() -> list[dict[str, Any]]:
    """Return a row for each command: seconds, seconds of the processor, peak of memory in MB, size of the page in MB."""
    rows = []
    with tempfile.TemporaryDirectory() as top:
        # in a process of its own: the peak of a new process is at least as high as in the process that starts it
        subprocess.run([sys.executable, __file__, "--make", top], check=True)
        folder = Path(top) / "many"
        for command in COMMANDS:
            words = [sys.executable, "-m", "fedskew", *command.split(), "--runs", str(folder)]
            began = time.perf_counter()
            process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
            _, status, used = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - began
            if status:
                raise SystemExit(f"fedskew {command}: wait status {status}")
            row = {"command": command, "seconds": seconds, "processor": used.ru_utime + used.ru_stime}
            page = (folder / "c1.html").stat().st_size / 1e6 if command.startswith("report") else 0.0
            rows.append(row | {"peak": used.ru_maxrss / 1e3, "page": page})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--make", type=Path, metavar="FOLDER", help="only write the store")
    parsed = parser.parse_args()
    if parsed.make:
        make(parsed.make)
        return
    rows = measured()
    if parsed.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(
            f"{row['command']:18} {row['seconds']:6.2f} s, {row['processor']:6.2f} s of the processor, "
            f"{row['peak']:5.0f} MB of memory" + f", a page of {row['page']:.1f} MB" * bool(row["page"])
        )


if __name__ == "__main__":
    main()
