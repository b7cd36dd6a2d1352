"""Execute one run: play its rounds, store its measurements, save checkpoints. A resumed run gives bit-identical numbers."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from fedskew.core.errors import BadInput, Diverged, FedskewError, Interrupted, TooFew, first_line, require
from fedskew.core.machine import on_threads, profiled, span
from fedskew.core.records import Server
from fedskew.core.user_code import fault
from fedskew.data.dataset import Dataset
from fedskew.engine.group import Distributed, Lost
from fedskew.engine.states import AnyStates, ClientStates, DiskStates
from fedskew.execution.build import Assembly
from fedskew.execution.facts import new_warnings, note, note_start, note_where, watch_of
from fedskew.execution.learned import CHECKSUM, checksum, write_toml
from fedskew.execution.measurements import at_most, forgetting_rows, recovery_rows, test_row_values, unseen_rows
from fedskew.execution.patience import patience_of
from fedskew.execution.plan import Latest, Plan
from fedskew.execution.rounds import checkpoint_of, resume, rounds_of
from fedskew.execution.site import LocalClients, Site
from fedskew.execution.sites import measured_at_sites, reported_by_sites
from fedskew.execution.torchrun import group_of_run, in_step, lead
from fedskew.experiment.config import Experiment, from_toml
from fedskew.loop.evaluate import RowValues
from fedskew.loop.work import Engine
from fedskew.measure.history import Watch
from fedskew.measure.registry import Measure
from fedskew.skew.partition import Partition
from fedskew.store import checkpoints, test_rows
from fedskew.store.lock import held
from fedskew.store.runs import Row, RunRecord, RunStore
from fedskew.store.test_rows import Split


@dataclass(frozen=True)
class Progress:
    """Progress of a run. Listeners get it after the start and after each round."""

    run: int
    name: str
    seed: int
    round: int
    rounds: int
    seconds: float  # of this round
    values: Mapping[str, float]  # this round's values, by the keys of `measures`
    measures: Sequence[Measure]  # those that progress shows

    @property
    def accuracy(self) -> float | None:
        """Accuracy on the test set; None if it was not measured in this round."""
        return self.values.get("accuracy")

    @property
    def drift(self) -> float | None:
        """The round's drift; None if it was not measured."""
        return self.values.get("drift")


@dataclass(frozen=True)
class Ended:
    """How a run ended."""

    run: int
    error: FedskewError | None  # None: finished


Listener = Callable[[Progress], None]
Stop = Callable[[], bool]


def register(
    store: RunStore, experiment: Experiment, engine: Mapping[str, object] | None = None, comparison: int | None = None
) -> int:
    """Add a run with status planned to the store, and write its TOML file; return its number.

    ``engine`` is the fact that says how its engine was chosen, if known.
    """
    run = store.add_run(
        name=experiment.name,
        experiment=experiment.toml(),
        experiment_hash=experiment.hash(),
        seed=experiment.training.seed,
        partition_seed=experiment.clients.partition_seed,
        rounds=experiment.training.rounds,
        comparison=comparison,
    )
    if engine:
        store.add_facts(run, {"engine": engine})
    write_toml(store, run, experiment)
    return run


Begin = Callable[[], tuple[Assembly, Site | None]]
"""Assembles a run; returns the assembly and the site of its clients. None stands for this process."""


def begin(
    store: RunStore, run: int, data: Dataset | Latest | None, plan: Plan | None = None, dealt: Partition | None = None
) -> tuple[Assembly, None]:
    """Assemble a run whose clients are in this process, from its plan, or from the store with these ``dealt`` rows."""
    plan = plan or Plan(from_toml(store.run(run).experiment, f"run {run}"), dealt)
    assembly, trial = plan.assembled(data if isinstance(data, Dataset) else (data or Latest())(plan.experiment.dataset))
    if trial:
        store.add_facts(run, {"engine": trial})
    return assembly, None


def execute(
    store: RunStore,
    run: int,
    dataset: Dataset | None = None,
    listener: Listener = lambda _: None,
    stop: Stop = lambda: False,
    begun: Begin | None = None,
) -> None:
    """Execute a stored run from its newest checkpoint, or from the beginning.

    ``begun`` assembles the run. By default it runs in this process with the stored experiment, on ``dataset`` if given.

    Raises `Diverged`, `Interrupted` or another `FedskewError`; the store then has the error and all finished rounds. Raises
    `BadInput` while another process executes the run.
    """
    if "flower" in store.run(run).facts and begun is None:
        raise BadInput(
            f"run {run}: its clients are on Flower's nodes; continue with `flwr run` and --run-config 'resume={run}'"
        )
    with held(store, run), on_threads(torch.get_num_threads()):
        try:
            assemble_and_play(store, store.run(run), listener, stop, begun or partial(begin, store, run, dataset))
        except Diverged as error:
            store.update(run, status="diverged", message=str(error))
            raise
        except (Interrupted, KeyboardInterrupt):
            store.update(run, status="interrupted")
            raise
        except (Exception, SystemExit) as error:
            for_user = readable(run, error)
            name = "" if for_user else f"{type(error).__name__}: "
            store.update(run, status="failed", message=f"{name}{for_user or error}".splitlines()[0])
            if for_user is None or for_user is error:
                raise
            raise for_user from None


def readable(run: int, error: Exception | SystemExit) -> FedskewError | None:
    """Return the error that ended a run, with a one-line message; None for an unexpected exception in fedskew's own code."""
    if isinstance(error, Lost):
        return Lost(
            f"run {run}: {error}; everything up to the last checkpoint is stored; `fedskew resume {run}` continues"
        )
    if isinstance(error, FedskewError):
        return error
    if isinstance(error, SystemExit):
        return FedskewError(
            f"run {run}: code that it calls ended the program, sys.exit({error.code!r}); raise an error instead"
        )
    return fault(error)


def assemble_and_play(store: RunStore, record: RunRecord, listener: Listener, stop: Stop, begun: Begin) -> None:
    """Assemble the run and play its rounds. The seconds of each part, also of earlier starts, become the fact ``profile``."""
    assembly, site = begun()
    experiment = assembly.experiment
    torch.set_num_threads(experiment.training.threads)
    seconds: dict[str, float] = {}
    try:
        with profiled(record.facts.get("profile", {})) as seconds:
            play(store, record.id, assembly, listener, stop, site)
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not isinstance(error, torch.OutOfMemoryError | MemoryError) and "allocate memory" not in str(error):
            raise
        raise BadInput(
            f"out of memory with --batch-size {experiment.local.batch_size} ({first_line(error)}); use a smaller one, "
            "--engine sequential, which holds one client's model at a time, or a smaller model"
        ) from None
    finally:
        store.add_facts(record.id, {"profile": {name: round(value, 6) for name, value in seconds.items()}})


def play(store: RunStore, run: int, assembly: Assembly, listener: Listener, stop: Stop, site: Site | None) -> None:
    """Play the rounds of one run. ``site`` is None if the clients are in this process or in the ranks of ``torchrun``."""
    group = group_of_run()
    with span("setting up"):
        server, states = resume(store, run, assembly, site.states if site else None)
        note_where(store, run, server.round, assembly.experiment.checkpoint.every)
        note_start(store, run, assembly)
        watch = watch_of(store, run, assembly, server.round)
        patience = patience_of(store, run, assembly, states, server.round)
    experiment, rounds = assembly.experiment, assembly.experiment.training.rounds
    known_as = store.run(run).experiment_hash
    engine: Engine = assembly.engine
    if group:
        engine = Distributed(engine, group)
        lead(group, assembly, server, states)
    remote, site = site is not None, site or LocalClients(engine, experiment.faults)
    with contextlib.closing(in_step(group, rounds_of(assembly, site, server, states))) as played:
        for at, rows, seconds in played:
            fresh = at.round > server.round
            better = fresh and patience.after(at.round, rows)
            if fresh:
                rows += recovery_rows(store, run, experiment, at.round, rows)
                rows += forgetting_rows(store, run, at.round, rows)
            last = at.round == rounds or patience.ended
            stopping = fresh and stop() and not last
            due = fresh and (better or stopping or last or at.round % experiment.checkpoint.every == 0)
            if rows:
                with span("store"):
                    # durable: the checkpoint, and the model that nodes get next, must not be newer than the stored rounds
                    store.write_round(run, at.round, rows, durable=due or remote)
            if fresh:
                watch.rounds = at.round if last else watch.rounds
                note(store, run, new_warnings(watch, at.round, rows))
            if due:
                # states on disk belong to the newest checkpoint only
                keep = 1 if isinstance(states, DiskStates) else 2
                with span("store"):
                    facts = {"round": at.round, "experiment": known_as, CHECKSUM: checksum(store, run)}
                    tree = checkpoint_of(at, states)
                    checkpoints.save(store.run_folder(run), at.round, tree, facts, keep, patience.best)
                    states.saved()
            listener(progress(run, assembly, at, rows, seconds))
            if stopping:
                command = store.resume_command(run)
                raise Interrupted(f"run {run} stopped after round {at.round} of {rounds}; `{command}` continues")
            if last:
                break
    if watch.untrained:
        raise TooFew(f"{watch.absence()}. The model was never trained, so there is no result; try {watch.cure()}")
    with span("evaluation"):
        measure_last(store, run, assembly, at, states, patience.best, watch)
    store.update(run, status="finished")


def measure_last(
    store: RunStore, run: int, assembly: Assembly, server: Server, states: AnyStates, best: int, watch: Watch
) -> None:
    """Measure the models that the run ends with at the sites, and store the values of the rows.

    They are the models of the ``best`` round if there is one, else of the last.
    """
    if best:
        if best < server.round:
            server, states = resume(store, run, assembly, ClientStates, best)
            require(
                server.round == best, f"run {run}: the checkpoint of its best round {best} is gone; start a new run"
            )
        store.replace_splits(run, best, unseen_rows(assembly, assembly.engine, server))
        store.add_facts(run, {"best_round": best})
    values: dict[Split, RowValues | None] = {"test": test_row_values(assembly, server)}
    rows = reported_by_sites(store, run, assembly, server.round)
    if len(assembly.federation.x):
        sites = at_most(np.arange(len(assembly.data.sites)), assembly)
        rows, values["sites"] = measured_at_sites(assembly, assembly.engine, server, states, sites)
    store.replace_splits(run, server.round, rows)
    for split, of_rows in values.items():
        if of_rows is not None:
            test_rows.write(store, run, server.round, *of_rows, split)
    note(store, run, watch.at_sites(server.round, {name: v for site, _, name, v in rows if site is None}))


def progress(run: int, assembly: Assembly, server: Server, rows: list[Row], seconds: float) -> Progress:
    totals = {(split, name): value for client, split, name, value in rows if client is None}
    untrained = ("test", "clients") if assembly.federation.shares_nothing else ()
    live = [m for m in assembly.experiment.measures.shown("live") if m.split not in untrained]
    measures = [m for m in live if (m.split, m.name) in totals]
    values = {m.key: totals[m.split, m.name] for m in measures}
    name, training = assembly.experiment.name, assembly.experiment.training
    return Progress(run, name, training.seed, server.round, training.rounds, seconds, values, measures)
