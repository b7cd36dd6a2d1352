"""The one way from experiments to executed runs, for Python, the command line and documents."""

from collections.abc import Sequence
from pathlib import Path

from fedskew.api.caller import Caller, Started
from fedskew.api.runs import Runs
from fedskew.data.dataset import Dataset
from fedskew.execution.plan import prepare, processes
from fedskew.execution.run import Listener, Progress, register
from fedskew.experiment.config import Experiment
from fedskew.report.sinks import Sink, tracked
from fedskew.store.runs import RunStore
from fedskew.studies.progress import play
from fedskew.studies.runner import Facts, no_facts, register_all, to_execute, worst_error


def start(
    planned: Sequence[Experiment],
    data: Dataset | None,
    folder: str | Path,
    jobs: int | None = None,
    comparison: bool = True,
) -> Started:
    """Plan the experiments and store them, as one comparison or as a single run. Nothing is stored if a plan is refused."""
    jobs = min(processes(jobs), len(planned))
    plans, dataset = prepare(planned, data, jobs)
    store = RunStore(folder)
    if comparison:
        waiting = register_all(store, plans, " vs ".join(dict.fromkeys(plan.experiment.name for plan in plans)))
        word = f"c{store.run(min(waiting)).comparison}"
    else:
        waiting = {register(store, plan.experiment, plan.trial): plan for plan in plans}
        word = str(min(waiting))
    return Started(Runs(store, tuple(waiting), data), waiting, dataset, jobs, (word,))


def execute(
    started: Started,
    caller: Caller,
    listener: Listener = lambda _: None,
    label: str = "",
    sinks: Sequence[Sink] = (),
) -> Runs:
    """Execute the waiting runs and return all runs of the call. ``caller`` decides which errors are raised.

    With a ``label``, the progress of all runs is one part. The ``sinks`` get each round.
    """
    store, waiting = started.runs.store, started.waiting
    face, command = caller.begin(started), caller.resume_call(started)
    with tracked(store, list(waiting), sinks, caller.warn) as send:

        def on_progress(progress: Progress) -> None:
            listener(progress)
            send(progress.run)

        results = play(store, waiting, started.dataset, started.jobs, face, command, on_progress, label)
    caller.end(started, results, worst_error(results), face.shows)
    return started.runs


def complete(
    store: RunStore,
    experiments: Sequence[Experiment],
    title: str,
    jobs: int | None,
    caller: Caller,
    dataset: Dataset | None = None,
    facts: Facts = no_facts,
    label: str = "",
) -> int:
    """Execute the experiments that the store lacks, as one comparison, and the interrupted runs. Return how many there were.

    All use ``dataset``, if given. ``facts`` are stored with new runs; ``label`` is as for `execute`.
    """
    if waiting := to_execute(store, experiments, title, facts=facts, dataset=dataset):
        jobs = min(processes(jobs), len(waiting))
        execute(Started(Runs(store, tuple(waiting)), waiting, dataset, jobs, ()), caller, label=label)
    return len(waiting)
