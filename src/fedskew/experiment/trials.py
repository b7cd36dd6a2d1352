"""Tuning by Optuna: it proposes settings, and prunes (ends early) bad ones. Needs the optional extra ``tune``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedskew.core.errors import BadInput, Interrupted, require
from fedskew.experiment.runner import DONE
from fedskew.experiment.search import Setting, Tried, Work, is_number

if TYPE_CHECKING:
    import optuna


def by_optuna(work: Work, space: Mapping[str, tuple[object, ...]]) -> list[Tried]:
    """Try ``search.trials`` settings.

    The sampler has a fixed seed and gets the stored values of finished runs. A second call therefore proposes the same settings
    and continues after the last stored run.
    """
    try:
        import optuna
    except ImportError:
        raise BadInput("tune: trials need Optuna; `pip install 'fedskew[tune]'`, or leave out --trials") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.TPESampler(seed=0), pruner=optuna.pruners.MedianPruner()
    )
    pruned = optuna.trial.TrialState.PRUNED
    tried: list[Tried] = []
    for _ in range(work.search.trials):
        trial = study.ask()
        setting = {key: proposed(trial, key, values) for key, values in space.items()}
        tried.append(one(work, trial, setting))
        finished = tried[-1].ended == "finished"
        study.tell(trial, tried[-1].score if finished else None, state=None if finished else pruned)
    return tried


def proposed(trial: optuna.Trial, key: str, values: Sequence[object]) -> object:
    """Return Optuna's proposal for one option.

    If all values are numbers, it lies between the smallest and the largest, on a logarithmic scale; else it is one of them.
    """
    numbers = [value for value in values if is_number(value)]
    if not len(values) == len(numbers) > 1:
        return values[trial.suggest_categorical(key, list(range(len(values))))]
    require(
        min(numbers) > 0, f"tune: {key} is tried on a logarithmic scale and needs values above 0, got {min(numbers)}"
    )
    whole = [value for value in numbers if isinstance(value, int)]
    if len(whole) == len(numbers):
        return trial.suggest_int(key, min(whole), max(whole), log=True)
    return float(f"{trial.suggest_float(key, min(numbers), max(numbers), log=True):.4g}")


def one(work: Work, trial: optuna.Trial, setting: Setting) -> Tried:
    """Run a setting on one seed after the other, until all are done or the setting is pruned."""
    runs: list[int] = []
    for number, seed in enumerate(work.search.seeds):
        run = work.registered([setting], [seed])[0, seed]
        runs.append(run)
        behind = Behind(work, trial, run, number * work.base.training.rounds)
        if not behind():
            try:
                work.execute([run], behind.or_stopped)
            except Interrupted:
                if work.stop():
                    raise
        status = work.store.run(run).status
        if behind.pruned and status not in DONE:
            work.store.update(run, status="interrupted", message=f"pruned after round {behind.reported}")
        if behind.pruned or status == "diverged":
            break
    return work.judged(setting, runs)


class Behind:
    """Calling it reports new stored rounds of a run to Optuna, and returns True if the trial is pruned."""

    def __init__(self, work: Work, trial: optuna.Trial, run: int, offset: int) -> None:
        self.work, self.trial, self.run, self.offset = work, trial, run, offset
        self.reported = 0
        self.pruned = False

    def __call__(self) -> bool:
        for round_, value in self.work.curve(self.run).items():
            if round_ > self.reported and not self.pruned:
                self.reported = round_
                self.trial.report(self.work.sign * value, self.offset + round_)
                self.pruned = self.trial.should_prune()
        return self.pruned

    def or_stopped(self) -> bool:
        return self.work.stop() or self()
