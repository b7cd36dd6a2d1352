"""Execute planned runs for the Python functions, with progress and errors."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from fedskew.api.runs import Runs
from fedskew.core.errors import Diverged, require
from fedskew.data.dataset import Dataset
from fedskew.execution.plan import Plan, prepare, remarks_on
from fedskew.execution.run import Listener
from fedskew.experiment.config import Experiment
from fedskew.report.console import say
from fedskew.report.progress import face_for
from fedskew.store.runs import RunStore
from fedskew.studies.progress import play
from fedskew.studies.runner import register_all, worst_error

ShowProgress = bool | Literal["curves"]
"""True: progress bars on a terminal or in a notebook. "curves": also live curves in a notebook. False: no output."""


def carry_out(
    planned: Sequence[Experiment],
    data: Dataset | None,
    runs: str | Path,
    jobs: int,
    progress: ShowProgress,
    listener: Listener = lambda _: None,
) -> Runs:
    """Store the experiments as one comparison and execute it."""
    plans, dataset = prepare(planned, data, jobs)
    store = RunStore(runs)
    registered = register_all(store, plans, " vs ".join(dict.fromkeys(plan.experiment.name for plan in plans)))
    comparison = f"c{store.run(min(registered)).comparison}"
    return finish(Runs(store, tuple(registered), data), registered, dataset, jobs, progress, listener, comparison)


def finish(
    made: Runs,
    runs: Mapping[int, Plan | None],
    dataset: Dataset | None,
    jobs: int,
    progress: ShowProgress,
    listener: Listener,
    name: str,
) -> Runs:
    """Execute the runs; return them. Raises the error of a single run, or of several runs if all failed.

    Other errors are warnings; the store has the finished runs.
    """
    require(progress in (True, False, "curves"), f"progress must be True, False or 'curves', got {progress!r}")
    folder = "" if str(made.store.folder) == "runs" else f", runs={str(made.store.folder)!r}"
    again = f"fedskew.resume({name!r}{folder})"
    for line in remarks_on(runs.values()) if progress else []:
        say(line, error=True)
    draw: Callable[[], str] = str
    if progress == "curves":
        from fedskew.report.plots import image_of_curves  # loads matplotlib

        draw = partial(image_of_curves, made.store, list(runs))
    face = face_for(bool(progress), lines=False, draw=draw)
    results = play(made.store, runs, dataset, jobs, face, again, listener)
    errors = [result.error for result in results if result.error]
    error = worst_error(results)
    if error and (len(runs) == 1 or (len(errors) == len(runs) and not isinstance(error, Diverged))):
        raise error
    for one in () if face.shows else errors:  # a face has printed them already
        warnings.warn(str(one), RuntimeWarning, stacklevel=5)
    return made
