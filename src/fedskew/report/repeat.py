"""The command that repeats stored runs."""

import shlex
from collections.abc import Sequence

from fedskew.core.titles import BY_PLAIN_NAME, plainly
from fedskew.report.experiments import parsed, settings_of
from fedskew.report.stated import folds_of
from fedskew.report.words import ranges
from fedskew.store.facts import Json
from fedskew.store.runs import RunRecord, RunStore


def repeat_command(store: RunStore, records: Sequence[RunRecord]) -> str:
    """Return ``fedskew compare runs/1/experiment.toml --algorithms fedavg scaffold --seeds 0 1``.

    That works if the methods have equal other settings and the same seeds. Otherwise return a command that repeats one run.
    """
    first = next((record for record in records if plain_method(record)), records[0])
    file = shlex.quote(str(store.run_folder(first.id) / "experiment.toml"))
    if len(records) == 1:
        return f"fedskew run {file}"
    methods = list(dict.fromkeys(record.name for record in records))
    runs = {method: [record for record in records if record.name == method] for method in methods}
    seeds = [[record.seed for record in own] for own in runs.values()]
    alike = all(
        record.partition_seed == record.seed
        and (others(record) == others(first) if plain_method(record) else plainly(base(record)) in BY_PLAIN_NAME)
        for record in records
    )
    folds = folds_of(first)
    whole = folds is None or len(seeds[0]) % folds.number == 0
    if not (alike and whole and plain_method(first)) or any(own != seeds[0] for own in seeds):
        return f"fedskew run {file}  (one for each of the runs {ranges([r.id for r in records])})"
    words = [*map(shlex.quote, methods), *(["--folds", str(folds)] if folds else []), "--seeds", *map(str, seeds[0])]
    return " ".join([f"fedskew compare {file} --algorithms", *words])


def plain_method(record: RunRecord) -> bool:
    """True if the run has the name of its algorithm. A combination, such as fedadam, has its own name and other settings."""
    algorithm: Json = parsed(record).get("algorithm", {})
    return isinstance(algorithm, dict) and base(record) == algorithm.get("name")


def base(record: RunRecord) -> str:
    """Return the run's name without options."""
    return record.name.partition(":")[0]


def others(record: RunRecord) -> dict[str, str]:
    """Return the run's settings without the method's own."""
    return {key: text for key, text in settings_of(record).items() if key.split(".")[0] != "algorithm"}
