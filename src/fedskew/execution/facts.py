"""What a run stores beside its numbers: versions, data, partition, its defaults, the scores of trivial models, and warnings."""

import dataclasses
import math
import platform
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import msgspec
import numpy as np

from fedskew.core.component import to_table
from fedskew.core.errors import BadInput
from fedskew.core.machine import hardware
from fedskew.core.task import ConstantAnswer
from fedskew.core.user_code import offered_by
from fedskew.data.dataset import Baselines
from fedskew.engine import ENGINES
from fedskew.execution.build import Assembly
from fedskew.execution.learned import keep, write_toml
from fedskew.execution.measurements import measured_every
from fedskew.execution.sites import facts_of_sites
from fedskew.experiment.config import COMPONENTS, SETTINGS, SEVERAL, Experiment
from fedskew.loop.evaluate import evaluate_constant
from fedskew.loop.personal import ROWS
from fedskew.measure.history import Warned, Watch
from fedskew.skew.compose import mixture
from fedskew.store import checkpoints
from fedskew.store.runs import Row, RunStore

SHOWN_CLIENTS = 1000
"""Maximum number of clients whose partition is stored for the report."""


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


def note_start(store: RunStore, run: int, assembly: Assembly) -> None:
    """Store the facts of a run that begins. Raises `BadInput` if data or frozen layers have changed since it first began."""
    experiment = assembly.experiment
    facts: dict[str, Any] = {}
    stored: Mapping[str, Any] = store.run(run).facts
    if "engine" not in stored:
        facts["engine"] = {"name": to_table(experiment.engine, ENGINES)["name"]}
    dataset = assembly.dataset
    facts["versions"] = {name: version(name) for name in ("fedskew", "torch", "numpy")} | {
        "python": platform.python_version(),
        **{k: v for part in experiment.components() for k, v in offered_by(type(part)).items()},
    }
    facts["machine"] = hardware()
    facts["data"] = {
        "name": dataset.name,
        "source": dataset.source,
        "notes": dataset.notes,
        "fingerprint": dataset.fingerprint(),
        **{f"{part}_rows": len(y) for part, y in (("training", dataset.y), ("test", dataset.y_test))},
    }
    if dataset.test_units is not None:
        facts["data"]["test_units"] = len(np.unique(dataset.test_units))
    facts["partition"] = assembly.partition_facts()
    facts["measured_every"], facts["sites"] = measured_every(assembly), facts_of_sites(assembly)
    if assembly.initial.round:
        facts["first_round"] = assembly.initial.round
    facts["parameters"] = int(assembly.x0.numel())
    facts["shares_model"] = assembly.federation.contract.shares_model
    facts["layers"] = list(assembly.federation.task.space.layers())
    facts["classes"] = list(assembly.dataset.classes if assembly.dataset.target == "labels" else assembly.strata)
    if assembly.data.unseen is not None:
        facts["adaptation"] = ["all" if rows is None else str(rows) for rows in ROWS]
    facts |= experiment.declared
    facts["baselines"] = baselines(assembly)
    facts["primary"], facts["defaults"] = experiment.task.primary, defaults(experiment)
    if assembly.frozen:
        facts["frozen"] = assembly.frozen._asdict()
    for what, name in (("data", "data"), ("frozen", "model's frozen layers")):
        before, now = (part.get(what, {}).get("fingerprint") for part in (stored, facts))
        if before not in (None, now):
            raise BadInput(
                f"run {run}: the {name} have changed since it began (fingerprint {before}, now {now}); start a new run"
            )
    store.update(run, status="running", experiment=experiment.toml())
    store.add_facts(run, facts)
    write_toml(store, run, experiment)
    keep(store, run, assembly)
    counts, classes = assembly.data.label_counts(), assembly.strata
    store.set_partition(
        run,
        [
            (k, assembly.partition.names[k], classes[c], int(counts[k, c]))
            for k in range(min(len(counts), SHOWN_CLIENTS))
            for c in range(len(classes))
            if counts[k, c]
        ],
    )


def watch_of(store: RunStore, run: int, assembly: Assembly, rounds: int) -> Watch:
    """Return a watch that has seen the run's first ``rounds`` rounds. A resumed run then warns like an uninterrupted one."""
    by_rows = getattr(assembly.federation.algorithm, "weighting", "samples") == "samples"
    watch = Watch(
        assembly.strata,
        assembly.data.label_counts(),
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
            rows = of_round[["client", "split", "name", "value"]].itertuples(index=False, name=None)
            new_warnings(watch, round_, list(rows))
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
        threshold = "cannot be read, or another checksum"
        note(store, run, [Warned("checkpoint", used, event, threshold, "on resume", remedy)])


def tell_where(warn: Callable[[str], None], store: RunStore, run: int, used: int) -> None:
    """Call ``warn`` with one line if a newer checkpoint than the one after ``used`` rounds exists but cannot be used."""
    if reason := passed_over(store, run, used):
        warn(f"run {run}: {reason}; using the checkpoint before it, after round {used}")
