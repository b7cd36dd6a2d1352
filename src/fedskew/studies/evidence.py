"""Execute the protocol of the evidence, and make its cases: each method's gain over FedAvg on the same seeds."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Literal, TypeAlias

from msgspec.structs import replace

from fedskew.advice import evidence
from fedskew.core.errors import BadInput, FedskewError
from fedskew.core.groups import grouped
from fedskew.data.dataset import Dataset
from fedskew.data.splits import Redrawn
from fedskew.diagnosis.diagnose import faces_of
from fedskew.diagnosis.subject import from_experiment
from fedskew.execution.build import assemble
from fedskew.experiment.combinations import suited, with_method
from fedskew.experiment.config import Experiment, from_toml
from fedskew.measure import registry
from fedskew.measure.statistics import mean_interval, paired_p
from fedskew.report.experiments import observations, repeat_command, without_seeds
from fedskew.report.tables import ByRow, Seeds, Splits, by_method, estimate, splits
from fedskew.store.runs import RunRecord, RunStore
from fedskew.studies.runner import DONE, stored_runs

Faces: TypeAlias = tuple[evidence.Face | Literal[""], dict[evidence.Face, float]]
"""The dominant face (empty: none), and the strength of each face."""

PARTITIONS = 3
"""Number of partitions (one a seed) that are diagnosed. The strengths are averaged over them."""

ALIKE = 0.05
"""Largest relative difference of FedAvg's values in a case's file and here."""


def values_of(store: RunStore, record: RunRecord, metric: str) -> dict[evidence.Measure, float]:
    """Return the run's metric: ``own`` is the mean on the clients' held-out rows, ``test`` is on the test rows.

    If clients have personal models, ``own`` is of these, and there is no ``test``. A run that diverged counts with its untrained
    model.
    """
    measures = [f"personal/{metric}_mean", f"clients/{metric}_mean", f"test/{metric}"]
    at = record.used_round if record.status == "finished" else 0
    newest = store.last([record.id], measures, until={record.id: at})
    values = {m.split: m.value for m in newest if m.round == at and not math.isnan(m.value)}
    if "personal" in values:
        return {"own": values["personal"]}
    names: dict[evidence.Measure, str] = {"own": "clients", "test": "test"}
    return {name: values[split] for name, split in names.items() if split in values}


def lines_of(
    store: RunStore,
    runs: Mapping[str, Sequence[RunRecord]],
    primary: registry.Measure,
    measures: Sequence[evidence.Measure],
) -> list[evidence.Gain]:
    """Return the gains of each method over FedAvg, if both have ended on at least two common seeds."""
    records = [record for of_method in runs.values() for record in of_method if record.status in DONE]
    by_row, drawn, observed = by_method(store, records), splits(records), observations(records)
    reached = grouped(
        ((record.name, measure, observed[record.id]), value)
        for record in records
        for measure, value in values_of(store, record, primary.name).items()
    )
    lines = []
    for method, of_method in runs.items():
        for measure in measures if method != evidence.REFERENCE else ():
            gains = {
                seeds: primary.sign
                * (fmean(reached[method, measure, seeds]) - fmean(reached[evidence.REFERENCE, measure, seeds]))
                for seeds in sorted({*observed.values()})
                if (method, measure, seeds) in reached and (evidence.REFERENCE, measure, seeds) in reached
            }
            if len(gains) > 1:
                solver = from_toml(of_method[0].experiment, f"run {of_method[0].id}").solver
                rows = (by_row, drawn) if measure == "test" else ({}, None)
                lines.append(line_of(method, measure, float(getattr(solver, "lr", 0.0)), gains, *rows))
    return lines


def line_of(
    method: str, measure: evidence.Measure, lr: float, gains: Mapping[Seeds, float], by_row: ByRow, drawn: Splits | None
) -> evidence.Gain:
    """Return one gain with its interval and p, computed as in a comparison."""
    values = list(gains.values())
    mean, half = mean_interval(values)
    p = paired_p(values)
    whole = estimate(by_row, method, evidence.REFERENCE, gains, drawn)
    if whole and whole.half():
        half, p = whole.half(), max(whole.p(), p)
    return evidence.Gain(method, measure, lr, short(mean), short(half), short(p), len(gains))


def short(value: float) -> float:
    """Round to four digits, to keep the file small."""
    return float(f"{value:.4g}")


def case_of(
    store: RunStore,
    runs: Mapping[str, Sequence[RunRecord]],
    experiment: Experiment,
    dataset: Dataset,
    faces: Faces | None = None,
    command: str = "",
) -> evidence.Case:
    """Make the case from runs by method, with FedAvg among them. ``experiment`` is one of FedAvg's.

    Without ``faces``, the partitions are diagnosed.
    """
    base = [r for r in runs[evidence.REFERENCE] if r.status in DONE]
    primary = registry.primary_of(base)
    measures: list[evidence.Measure] = [
        name for name in evidence.MEASURES if name == "test" or experiment.clients.held_out > 0
    ]
    reached = [values_of(store, r, primary.name) for r in base]
    dominant, strengths = faces or faces_over(experiment, dataset, sorted({r.partition_seed for r in base}))
    return evidence.Case(
        data=experiment.labels("dataset")[0],
        skew=" + ".join(experiment.labels("skew", True)),
        model=experiment.labels("model")[0],
        target=dataset.target,
        metric=primary.name,
        better="lower" if primary.better == "lower" else "higher",
        dominant=dominant,
        strengths=strengths,
        fedavg={name: short(fmean(values[name] for values in reached)) for name in measures if name in reached[0]},
        methods=tuple(lines_of(store, runs, primary, measures)),
        command=command,
    )


def faces_over(experiment: Experiment, dataset: Dataset, partition_seeds: Sequence[int]) -> Faces:
    """Diagnose the first `PARTITIONS` partitions; return the most frequent dominant face and the mean strengths."""
    diagnoses = [
        faces_of(from_experiment(experiment.replace(clients__partition_seed=seed), "", dataset))
        for seed in partition_seeds[:PARTITIONS]
    ]
    any_face: tuple[evidence.Face | Literal[""], ...] = (*evidence.FACES, "")
    dominant = [face for diagnosed in diagnoses for face in any_face if face == diagnosed.dominant]
    strengths = [diagnosed.strengths for diagnosed in diagnoses]
    means = {face: round(max(0.0, fmean(of_faces[face] for of_faces in strengths)), 4) for face in evidence.FACES}
    return max(sorted(set(dominant)), key=dominant.count), means


def case_of_comparison(store: RunStore, word: str) -> evidence.Case:
    """Make the case of a finished comparison, such as ``c7``. Raises `BadInput` if FedAvg or a second seed is missing."""
    records = store.select([word])
    by_name = grouped((record.name, record) for record in records)
    if evidence.REFERENCE not in by_name or len(by_name) < 2:
        raise BadInput(
            f"evidence add {word}: gains are over FedAvg; compare it with other methods: --algorithms fedavg scaffold"
        )
    base = from_toml(by_name[evidence.REFERENCE][0].experiment)
    if isinstance(base.dataset, Redrawn):
        base = base.replace(dataset=dataclasses.replace(base.dataset, fold=""))
    if len({str(without_seeds(record.experiment).get("dataset")) for record in records}) > 1:
        raise BadInput(f"evidence add {word}: its runs have several data sets; name the comparison of one")
    if base.labels("dataset")[0] == "own":
        raise BadInput(
            f"evidence add {word}: its rows came from Python and are not stored; save them as a table, and compare with "
            f"--dataset table:..."
        )
    case = case_of(store, by_name, base, base.dataset.load(), command=repeat_command(store, records))
    if not case.methods:
        raise BadInput(
            f"evidence add {word}: no method has two seeds in common with FedAvg; run `fedskew resume {word}`, or more --seeds"
        )
    return case


def experiment_of(case: evidence.Planned, method: str, rate: float, seed: int) -> Experiment:
    """Return one run of the protocol. Its name is the method."""
    experiment = with_method(Experiment(**case.settings()), method)
    return experiment.replace(name=method, solver__lr=rate, training__seed=seed, clients__partition_seed=seed)


def able(case: evidence.Planned, methods: Sequence[str], data: Dataset) -> Iterator[str]:
    """Yield the methods that can run on this case."""
    for method in methods:
        try:
            assemble(experiment_of(case, method, evidence.RATES[0], 0), data)
        except BadInput:
            continue
        yield method


def tuned(store: RunStore, case: evidence.Planned, method: str) -> float | None:
    """Return the learning rate with the best value on the clients' held-out rows; None until all tuning runs are done.

    A run that diverged has the worst value.
    """
    experiments = {rate: experiment_of(case, method, rate, evidence.TUNING_SEED) for rate in evidence.RATES}
    stored = stored_runs(store, list(experiments.values()))
    scores: dict[float, float] = {}
    for rate, experiment in experiments.items():
        record = stored.get(experiment.hash())
        if record is None or record.status not in DONE:
            return None
        measure = registry.primary_of([record])
        value = values_of(store, record, measure.name).get("own", math.nan) * measure.sign
        scores[rate] = -math.inf if record.status != "finished" or math.isnan(value) else value
    return max(evidence.RATES, key=lambda rate: scores[rate])


def gathered(
    store: RunStore, case: evidence.Planned, rates: Mapping[str, float], data: Dataset, file: Path
) -> evidence.Case | None:
    """Return the case with the methods measured so far, by their tuned learning rates; None until FedAvg has two seeds.

    If ``file`` already has this case, its faces are not measured again, and gains of other methods stay: None until FedAvg has
    their seeds. Gains are beside FedAvg on the same machine; on another machine its values differ a little. Raises `BadInput`
    if they differ by more than `ALIKE`.
    """
    experiments = {
        method: [experiment_of(case, method, rate, seed) for seed in evidence.SEEDS] for method, rate in rates.items()
    }
    stored = stored_runs(store, [experiment for of_method in experiments.values() for experiment in of_method])
    runs = {
        method: [stored[e.hash()] for e in of_method if e.hash() in stored] for method, of_method in experiments.items()
    }
    before = next((earlier for earlier in evidence.read_file(file).cases if earlier.title == case.title), None)
    others = [line for line in before.methods if line.method not in rates] if before else []
    needed = max([2, *(line.seeds for line in others)])
    if sum(record.status in DONE for record in runs.get(evidence.REFERENCE, [])) < needed:
        return None
    faces = (before.dominant, before.strengths) if before else None
    measured = case_of(store, runs, suited(experiments[evidence.REFERENCE][0], data), data, faces)
    fedavg = before.fedavg if before and others else measured.fedavg
    if not all(math.isclose(value, measured.fedavg[name], rel_tol=ALIKE) for name, value in fedavg.items()):
        raise BadInput(
            f"evidence {file}: FedAvg on {case.title} has other values there than here, so its gains cannot stand beside these; "
            "write to another file: --output FILE"
        )
    methods_ = (*others, *measured.methods)
    return replace(measured, data=case.data, skew=" + ".join(case.skew), fedavg=fedavg, methods=methods_)


def run_protocol(
    store: RunStore,
    cases: Sequence[evidence.Planned],
    methods: Sequence[str],
    file: Path,
    complete: Callable[[Sequence[Experiment], str, Dataset], object],
    seeds: Sequence[int] = evidence.SEEDS,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Complete the runs of all cases on the first seeds, then of all on the others. Each measured case is written to ``file``.

    ``complete(experiments, title, data)`` executes those that are not in the store.
    """
    methods = list(dict.fromkeys([evidence.REFERENCE, *methods]))
    for number, part in enumerate(evidence.PASSES, 1):
        for at, case in enumerate(cases, 1):
            say(f"pass {number} of {len(evidence.PASSES)}, case {at} of {len(cases)}: {case.title}")
            try:
                data = Experiment(**case.settings()).dataset.load()
            except FedskewError as error:
                say(f"left out: {error}")
                continue
            fit = list(able(case, methods, data))
            tuning = [
                experiment_of(case, method, rate, evidence.TUNING_SEED) for method in fit for rate in evidence.RATES
            ]
            complete(tuning, f"tuning: {case.title}", data)
            rates = {method: rate for method in fit if (rate := tuned(store, case, method)) is not None}
            measured = [
                experiment_of(case, method, rate, seed)
                for seed in part
                if seed in seeds
                for method, rate in rates.items()
            ]
            complete(measured, case.title, data)
            if measured_case := gathered(store, case, rates, data, file):
                evidence.add_case(file, measured_case)
