"""`fedskew.study`: from rows to a decision."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

from fedskew.api.caller import Caller, ShowProgress, caller_of
from fedskew.api.diagnose import diagnose
from fedskew.api.execute import complete, execute, start
from fedskew.api.functions import asked, listing
from fedskew.api.runs import Runs, plainly
from fedskew.core.component import compact, label
from fedskew.core.errors import BadInput, Diverged, require
from fedskew.core.files import write_whole
from fedskew.core.machine import cores
from fedskew.core.text import count, listed
from fedskew.data.dataset import Dataset
from fedskew.data.datasets.own import OwnData
from fedskew.data.preprocessing import Array
from fedskew.execution.deal import client_column
from fedskew.execution.plan import idle, processes, threads_of
from fedskew.experiment.combinations import suited
from fedskew.experiment.config import COMPONENTS, Experiment, from_toml
from fedskew.experiment.keywords import StudyKeywords, StudyOptions, TableColumns, declared, take
from fedskew.report.series import Layout, Results
from fedskew.report.study import HARMONISED, NO_SITES, Findings, page, printed, title_of
from fedskew.serving.export import has_personal
from fedskew.skew.compose import mixture
from fedskew.store.runs import RunStore
from fedskew.studies import study as plans
from fedskew.studies.runner import Facts, stored_runs
from fedskew.studies.tune import Setting, words

if TYPE_CHECKING:
    import pandas as pd


UNUSED = ("algorithm", "training.seed", "training.patience", "clients.partition_seed")
"""Settings of an experiment that each arm of a study has its own values of."""

LEAST = 1e-6
"""No smaller learning rate is tried."""


@dataclass(frozen=True, repr=False, eq=False)
class Decided:
    """The result of `fedskew.study`. It prints as at most 30 lines."""

    runs: Runs  # of the comparison
    findings: Findings
    final: Runs | None = None  # the model that was trained on all rows

    @property
    def decision(self) -> str:
        """The decision in two sentences."""
        return " ".join(self.findings.sentences())

    def __repr__(self) -> str:
        return "\n".join(printed(self.findings))

    def table(self) -> pd.DataFrame:
        """Return one row for each arm, as `Runs.table` does: measured at the sites, compared with FedAvg."""
        return self.findings.results.summary

    def report(self, path: str | Path) -> Path:
        """Write the HTML page."""
        return write_whole(path, page(self.findings), "page")


@listing(StudyKeywords)
@plainly
def study(
    path: str | Path | None = None,
    *,
    experiment: Experiment | None = None,
    data: Dataset | None = None,
    runs: str | Path = "runs",
    jobs: int | None = None,
    progress: ShowProgress | Caller = True,
    **keywords: Unpack[StudyKeywords],
) -> Decided:
    """Go from rows to a decision: ``study("visits.csv", label="outcome", client="hospital")``, or ``study(dataset="heart")``.

    It diagnoses how the clients differ, measures what this costs and what helps, and says for whom and how sure. It plans within
    the ``minutes``. All runs are in the folder ``runs``, so that the same call continues after an interruption. ``jobs`` is the
    number of processes, by default one for each core. With ``final``, the decided method is then trained on all rows;
    `load_model` and `export` take this model by default.
    """
    words_ = [] if experiment or data else words_of(path, cast(dict[str, Any], keywords), jobs)
    settings = cast(dict[str, Any], keywords)
    options, caller, jobs = take(settings, StudyOptions), caller_of(progress), processes(jobs)
    caller.lines = True  # its minutes are too long for a silent log
    columns = {name: options[name] for name in TableColumns.__annotations__ if name in options}
    if path is not None:
        require("dataset" not in settings and data is None, "study: give a file or a data set, not both")
        settings["dataset"] = {"name": "table", "path": str(path), **columns}
    else:
        require(not columns, f"study: {next(iter(columns), '')} is for a file; give its path")
    base, data = asked("study", experiment, data, settings, runs, caller.warn)
    if unused := [name for name in UNUSED if attrgetter(name)(base) != attrgetter(name)(Experiment())]:
        caller.warn(
            f"study: {listed(unused)} without effect: a study has methods, partitions and seeds of its own, and no patience"
        )
    rows = data or base.dataset.load()
    if path is not None and "skew" not in settings:
        diagnosis = diagnose(path, runs=runs, progress=caller, **columns)
    else:
        source = data or label(base.dataset, COMPONENTS["dataset"])
        skew, number = base.labels("skew"), base.clients.number
        diagnosis = diagnose(dataset=source, skew=skew, clients=number, runs=runs, progress=caller)
    for note in diagnosis["notes"]:
        caller.warn(note)
    if diagnosis["column_notes"]:
        caller.warn(f"{count(len(diagnosis['column_notes']), 'note')} on how columns were read: see the page")
    if data is not None:
        base = base.replace(dataset=OwnData(fingerprint=data.fingerprint()))
    every = base.training.rounds
    base = suited(base, rows).replace(evaluation__every=every, evaluation__local_models=False, checkpoint__every=every)
    chosen = experiment is not None or any(name.partition("__")[0] == "model" for name in settings)
    simpler = None if chosen or rows.x.ndim < 3 else base.replace(model="mlp")
    return Execution(base, rows, diagnosis, RunStore(runs), jobs, caller, simpler).decided(options, words_)


def words_of(path: str | Path | None, keywords: Mapping[str, object], jobs: int | None) -> list[str]:
    """Return the words of a command line with these keywords; empty if one of them is an object, which only Python has."""
    known, words_ = declared(StudyKeywords), ["study", *([] if path is None else [str(path)])]
    for name, value in keywords.items():
        option = [f"--{name.replace('_', '-')}"]
        values = list(value) if isinstance(value, list | tuple) else [value]
        if not all(isinstance(each, str | int | float) for each in values):
            return []
        if name not in known:
            words_ += ["--set", f"{name.replace('__', '.', 1)}={compact(value)}"]
        elif known[name].repeated:
            words_ += [word for each in values for word in (*option, str(each))]
        elif name != "final" and value is not False:
            texts = [f"{each:.15g}" if isinstance(each, float) else str(each) for each in values]
            words_ += option if value is True else [*option, ",".join(texts)]
    return [*words_, *(["--jobs", str(jobs)] if jobs not in (None, cores()) else [])]


@dataclass(frozen=True)
class Execution:
    """A study that is about to be executed."""

    base: Experiment
    rows: Dataset
    diagnosis: Mapping[str, Any]
    store: RunStore
    jobs: int
    caller: Caller
    simpler: Experiment | None  # with a quicker model, if nobody chose one and these rows allow it

    def execute(self, experiments: Sequence[Experiment], rows: Dataset | None, label: str, facts: Facts) -> int:
        """Execute what the store lacks."""
        return complete(self.store, experiments, label, self.jobs, self.caller, rows, facts, label)

    def timed(self) -> tuple[plans.Timing, Experiment]:
        """Execute a short run of FedAvg. Return the times of a whole one, and the base with the engine that suits it.

        The last round also measures the model: this counts once a run. The first one prepares the engine, which a process does only
        once: this does not count. Where FedAvg diverges, the base gets a tenth of the learning rate, as often as needed.
        """
        threads, local = self.base.training.threads or threads_of(self.jobs), self.base.local  # as when all jobs run
        pictures = self.rows.x.ndim > 2 and local.steps is None and local.batch_size != "all"
        short = plans.Arm(plans.FIRST).experiment(
            self.base.replace(training__rounds=plans.SHORT, training__threads=threads)
        )
        part = min(1.0, plans.PASSES / (local.epochs * len(self.rows.y))) if pictures else 1.0
        if part < 1:
            short = short.replace(local__epochs=local.epochs * part)
        stored = stored_runs(self.store, [short], self.rows).get(short.hash())
        if stored is None or "study" not in stored.facts:
            rows = self.rows if isinstance(self.base.dataset, OwnData) else None
            started = start([short], rows, self.store.folder, comparison=False)
            began, text = time.perf_counter(), "study: a short run to measure the time"
            [run] = started.runs.ids
            with suppress(Diverged):
                execute(replace(started, words=()), self.caller, label=text)
            rest = time.perf_counter() - began
            seconds = [m.value for m in self.store.curves([run], ["round/seconds"])][:-1]
            a_round = min(seconds, default=math.nan)
            a_run = max(rest - sum(seconds) - a_round, 0.0)
            times = {"a_round": a_round / part, "a_run": a_run} if seconds else {}
            self.store.add_facts(run, {"asked": short.hash(), "study": times})
            stored = self.store.run(run)
        if not stored.facts["study"]:
            lr = self.base.solver.lr
            if lr <= LEAST:
                raise BadInput(
                    f"study: FedAvg diverges even at learning rate {lr:g}; look at the columns with `fedskew diagnose`"
                )
            self.caller.warn(f"study: FedAvg diverges at learning rate {lr:g}; rates around {lr / 10:g} are tried")
            return replace(self, base=self.base.replace(solver__lr=lr / 10)).timed()
        ready = from_toml(stored.experiment)
        base = self.base.replace(engine=ready.engine, training__threads=ready.training.threads)
        return plans.Timing(**stored.facts["study"]), base

    def decided(self, options: Mapping[str, Any], words_: Sequence[str], why: Sequence[str] = ()) -> Decided:
        """Execute all steps. ``words_`` name the data on the command line. ``why`` says why the model is a simpler one."""
        by = options.get("by", ())
        columns = [name.strip() for name in by.split(",")] if isinstance(by, str) else [*by]
        groups = plans.groups_of([self.rows], columns)  # a wrong name is refused before anything runs
        arms, notes = plans.arms_of(self.base, self.rows, self.diagnosis)
        skews = mixture(self.base.skew)
        if not skews.by_groups or skews.features or skews.concepts:
            groups = {}  # the store has no site of a row
        timing, base = self.timed()
        steps = plans.Study(self.store, base, self.rows, self.execute)
        rounds = self.base.training.rounds
        try:
            plan = plans.schedule(arms, steps.tunings, timing, rounds, options.get("minutes"), self.jobs)
        except BadInput as error:
            if self.simpler is None:
                raise
            slow, quick = (label(each.model, COMPONENTS["model"]) for each in (self.base, self.simpler))
            note = f"the model is {quick}, since {slow} takes too long: {str(error).removeprefix('study: ')}"
            self.caller.warn(f"study: {note}")
            return replace(self, base=self.simpler, simpler=None).decided(options, words_, [note])
        for line in (*idle([arm.experiment(self.base) for arm in plan.arms]), described(plan, rounds, steps.nested)):
            self.caller.warn(line)
        tuned, plan = steps.tuned(plan)
        notes = [described(plan, rounds, steps.nested), *why, *notes]
        records = steps.compared(plan, tuned)
        settings = {arm.name: [of_split[arm.name].best.setting for of_split in tuned] for arm in plan.arms}
        if groups and steps.nested:
            splits = [steps.split(base, dealt).dataset.load() for dealt in range(plan.partitions)]
            groups = plans.groups_of(splits, columns)
        if lost := [name for name in columns if not any(group.startswith(f"{name} ") for group in groups)]:
            notes.append(
                f"no groups by {listed(lost)}: {NO_SITES}, or its values differ between rows that count as one"
            )
        findings = Findings(
            title=str(self.diagnosis["data"]),
            diagnosis=self.diagnosis,
            results=Results(self.store, records, layout=Layout(by="sites")),
            costs=plans.COSTS,
            settings={name: usual(each) for name, each in settings.items()},
            notes=notes,
            commands=[],
            groups=groups,
        )
        used = next(arm for arm in plan.arms if arm.name == findings.used)
        findings.commands.extend(self.commands(used, words_, bool(options.get("final"))))
        of_all = Runs(self.store, tuple(record.id for record in records))
        if not options.get("final"):
            return Decided(of_all, findings)
        setting = max(settings[used.name], key=settings[used.name].count)
        expected = {
            "arm": used.name,
            "setting": words(setting),
            "sentences": findings.sentences(),
            "sites": findings.sites(),
            "expected": findings.reached(used.name),
        }
        final = steps.final(plan, used, setting, expected)
        return Decided(of_all, findings, Runs(self.store, (final.id,)))

    def commands(self, used: plans.Arm, words_: Sequence[str], final: bool) -> list[str]:
        """Return the next commands. ``used`` is the arm to train for use, unless it is ``final`` already."""
        folder = [] if str(self.store.folder) == "runs" else ["--runs", str(self.store.folder)]
        file = "NEW_ROWS.npy" if isinstance(self.rows.preprocessing, Array) else "NEW_ROWS.csv"
        whose, personal = ["--client", "NAME"], has_personal(used.experiment(self.base))
        in_rows = bool(client_column(self.base))  # a column of the rows names their client
        by_site = personal or used.name.startswith(HARMONISED)
        predict = ["predict", file, *(whose if by_site and not in_rows else [])]
        export = ["export", *(whose if personal else [])]
        lines = [shlex.join(["fedskew", *command, *folder]) for command in (predict, export)]
        if not final:
            again = "# first the same call with final=True, or the same command with --final"
            lines.insert(0, shlex.join(["fedskew", *words_, "--final", *folder]) if words_ else again)
        if self.diagnosis["paste"]:
            mend = ", ".join(block["file"] for block in self.diagnosis["paste"])
            lines.insert(0, f"# first write the lines of the page into {mend} beside the data, and repeat the study")
        return lines


def usual(settings: Sequence[Setting]) -> str:
    """Return the most frequent setting, and on how many partitions it was the best."""
    best = max(settings, key=settings.count)
    text = words(best).replace("solver.lr=", "learning rate ")
    partitions = settings.count(best)
    return text if partitions == len(settings) else f"{text} on {partitions} of {len(settings)} partitions"


def described(plan: plans.Schedule, rounds: int, nested: bool) -> str:
    """Say what was planned for the minutes, and what was left out."""
    tuning = "on each partition's other rows" if nested else "with seeds of its own"
    reasons = {"no time for": plan.left_out, "diverged in tuning:": plan.diverged}
    left_out = "; ".join(f"{why} {', '.join(map(title_of, arms))}" for why, arms in reasons.items() if arms)
    more = "; more --minutes plan more" if plan.rounds < rounds or plan.left_out else ""
    return (
        f"planned for {plan.minutes:g} min: {count(len(plan.arms), 'arm')}, {plan.rounds} of {count(rounds, 'round')}, tuned "
        f"{tuning}, compared on {count(plan.partitions, 'partition')} x {count(plan.seeds, 'seed')}; "
        f"{left_out or 'nothing left out'}{more}"
    )
