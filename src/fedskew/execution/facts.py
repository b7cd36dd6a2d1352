"""What a run stores beside its numbers: its defaults, the scores of trivial models, and warnings."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from fedskew.core.task import ConstantAnswer
from fedskew.data.dataset import Baselines
from fedskew.execution.build import Assembly
from fedskew.experiment.config import COMPONENTS, SETTINGS, SEVERAL, Experiment
from fedskew.loop.evaluate import evaluate_constant
from fedskew.measure.history import Warned, Watch
from fedskew.skew.compose import mixture
from fedskew.store import checkpoints
from fedskew.store.runs import Row, RunStore


def defaults_of(cls: type) -> dict[str, object]:
    """Return the default of each option of a component or section, as TOML values. Options without a default are left out."""
    options = {}
    for f in dataclasses.fields(cls):
        default = f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
        if default is not dataclasses.MISSING:
            options[f.name] = msgspec.to_builtins(default)
    return options


def defaults(experiment: Experiment) -> dict[str, dict[str, object]]:
    """Return, by section, the default options of its component. The name is included if the component itself is the default."""
    options = {section: defaults_of(cls) for section, cls in SETTINGS.items()}
    table, usual = experiment.table(), Experiment(dataset=experiment.dataset).table()
    for section in COMPONENTS.keys() & table.keys() - SEVERAL.keys():
        options[section] = defaults_of(type(getattr(experiment, section)))
        if table[section]["name"] == usual.get(section, {}).get("name"):
            options[section]["name"] = table[section]["name"]
    return options


def baselines(assembly: Assembly) -> Baselines:
    """Return metrics on the test rows of the best constant prediction, and of the data set's own baselines."""
    task, kind, data = assembly.federation.task, assembly.experiment.task, assembly.dataset
    if not isinstance(kind, ConstantAnswer) or not len(data.y):
        return data.baselines
    scores = evaluate_constant(task, kind.fitted(data.y).constant(data.y, task.num_outputs), assembly.test_targets(0))
    metrics = {m.name: scores[m.name] for m in kind.metrics if not math.isnan(scores.get(m.name, np.nan))}
    return {"always the same answer": metrics, **data.baselines}


def watch_of(store: RunStore, run: int, assembly: Assembly, rounds: int) -> Watch:
    """Return a watch that has seen the run's first ``rounds`` rounds. A resumed run then warns like an uninterrupted one."""
    by_rows = getattr(assembly.federation.algorithm, "weighting", "samples") == "samples"
    watch = Watch(
        assembly.strata,
        assembly.label_counts(),
        assembly.partition.names,
        by_rows,
        natural=mixture(assembly.experiment.skew).by_groups,
        has_labels=assembly.labels_known and bool(assembly.dataset.num_classes),
        measure=assembly.experiment.measure,
        rounds=assembly.experiment.training.rounds,
    )
    note(store, run, watch.begin())
    if rounds:
        frame = store.measurements([run]).astype({"client": object})
        frame["client"] = frame["client"].where(frame["client"].notna(), None)
        for round_ in range(1, rounds + 1):
            of_round = frame[frame["round"] == round_]
            new_warnings(
                watch, round_, list(of_round[["client", "split", "name", "value"]].itertuples(index=False, name=None))
            )
    return watch


def new_warnings(watch: Watch, round_: int, rows: Sequence[Row]) -> list[Warned]:
    """Return new warnings from a round's rows."""
    totals = {(split, name): value for c, split, name, value in rows if c is None}
    absent = watch.count_clients(round_, {name: value for (split, name), value in totals.items() if split == "round"})
    cohort = np.array([c for c, split, name, _ in rows if (split, name) == ("client", "steps")], dtype=np.int64)
    if not len(cohort):
        return absent
    local = {
        c: value for c, split, name, value in rows if (split, name) == ("local-model", "accuracy") and c is not None
    }
    tested = totals.get(("test", watch.measure.name))
    return absent + watch.after_round(round_, cohort, totals.get(("round", "divergence")), tested, local)


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
    if newest is None or checkpoints.rounds_in(newest) <= used or used == store.used(run) < covered:
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
        event = f"{reason}, so the run {'continues from this round' if used else 'starts again'}"
        remedy = "check the disk if this happens again; the later rounds are repeated"
        note(
            store, run, [Warned("checkpoint", used, event, "cannot be read, or another checksum", "on resume", remedy)]
        )


def tell_where(warn: Callable[[str], None], store: RunStore, run: int, used: int) -> None:
    """Call ``warn`` with one line if a newer checkpoint than the one after ``used`` rounds exists but cannot be used."""
    if reason := passed_over(store, run, used):
        warn(f"run {run}: {reason}; using the checkpoint before it, after round {used}")
