"""Warnings of a run, found in the measurements of each round and stored in the run's facts."""

from collections.abc import Callable, Sequence

import numpy as np

from fedskew.execution.build import Assembly
from fedskew.measure.history import Warned, Watch
from fedskew.measure.registry import primary
from fedskew.store import checkpoints
from fedskew.store.runs import Row, RunStore


def watch_of(store: RunStore, run: int, assembly: Assembly, rounds: int) -> Watch:
    """Return a watch that has seen the run's first ``rounds`` rounds. A resumed run then warns like an uninterrupted one."""
    by_rows = getattr(assembly.federation.algorithm, "weighting", "samples") == "samples"
    watch = Watch(
        assembly.strata,
        assembly.label_counts(),
        assembly.partition.names,
        by_rows,
        assembly.labels_known and bool(assembly.dataset.num_classes),
        primary(assembly.experiment.task.primary),
        assembly.experiment.training.rounds,
    )
    note(store, run, watch.begin())
    if rounds:
        frame = store.measurements([run]).astype({"client": object})
        frame["client"] = frame["client"].where(frame["client"].notna(), None)
        for round_ in range(1, rounds + 1):
            own = frame[frame["round"] == round_]
            new_warnings(
                watch, round_, list(own[["client", "split", "name", "value"]].itertuples(index=False, name=None))
            )
    return watch


def new_warnings(watch: Watch, round_: int, rows: Sequence[Row]) -> list[Warned]:
    """Return new warnings from a round's rows."""
    known = {(split, name): value for c, split, name, value in rows if c is None}
    absent = watch.count_clients(round_, {name: value for (split, name), value in known.items() if split == "round"})
    cohort = np.array([c for c, split, name, _ in rows if (split, name) == ("client", "steps")], dtype=np.int64)
    if not len(cohort):
        return absent
    local = {
        c: value for c, split, name, value in rows if (split, name) == ("local-model", "accuracy") and c is not None
    }
    tested = known.get(("test", watch.measure.name))
    return absent + watch.after_round(round_, cohort, known.get(("round", "divergence")), tested, local)


def note(store: RunStore, run: int, warned: Sequence[Warned]) -> None:
    """Add warnings to the run's facts, if their kind is not there yet."""
    before = store.run(run).facts.get("warnings", []) if warned else []
    kinds = {entry["kind"] for entry in before}
    fresh = [w._asdict() | {"line": w.line()} for w in warned if w.kind not in kinds]
    if fresh:
        store.add_facts(run, {"warnings": before + fresh})


def passed_over(store: RunStore, run: int, used: int) -> str:
    """Return why the checkpoint after ``used`` rounds is used, and not a newer one; empty if it is the newest."""
    newest, covered = checkpoints.latest(store.run_folder(run)), store.covered(run)
    if newest is None or checkpoints.rounds_in(newest) <= used:
        return ""
    if checkpoints.rounds_in(newest) > covered:
        return f"the store has no numbers of round {covered + 1}, which the checkpoint {newest.name} needs"
    return f"the checkpoint {newest.name} is damaged"


def note_where(store: RunStore, run: int, used: int, every: int) -> None:
    """Add a warning if the run continues from an earlier round than it should, with a checkpoint after every ``every`` rounds."""
    reason = passed_over(store, run, used)
    if not reason and not used and store.run(run).rounds_done >= every:
        reason = f"there is no checkpoint of the {store.run(run).rounds_done} rounds that were done"
    if reason:
        found = f"{reason}, so the run {'continues from this round' if used else 'starts again'}"
        remedy = "check the disk if this happens again; the later rounds are repeated"
        note(
            store, run, [Warned("checkpoint", used, found, "cannot be read, or another checksum", "on resume", remedy)]
        )


def tell_where(warn: Callable[[str], None], store: RunStore, run: int, used: int) -> None:
    """Call ``warn`` with one line if a newer checkpoint than the one after ``used`` rounds exists but cannot be used."""
    if reason := passed_over(store, run, used):
        warn(f"run {run}: {reason}; using the checkpoint before it, after round {used}")
