"""A model card in Markdown: a run's training data, its results for each client, and the command that repeats it."""

from collections.abc import Callable

from fedskew.measure.registry import METRICS, Measure, Measures, primary_of
from fedskew.report.experiments import measured_rows, name_of, repeat_command, settings
from fedskew.report.series import Results
from fedskew.report.style import rendered
from fedskew.report.words import rows_of, value, with_interval
from fedskew.store.runs import RunStore


def card(store: RunStore, run: int, client: int | None, without_graph: str) -> str:
    """Write the card of the global model, or of one client's personal model, as Markdown.

    ``without_graph`` says why there is no ONNX file; it is empty if there is one.
    """
    record, partition = store.run(run), store.partition(run)
    names = dict(zip(partition["client"], partition["client_name"], strict=True))
    metrics = {metric.name for metric in METRICS}
    measures = [m for m in Measures().shown() if m.split == "test" and m.name in metrics]
    split, per_client = ("test", False) if client is None else ("personal-model", True)
    last = store.last([run], [f"{split}/{m.name}" for m in measures], per_client=per_client)
    numbers = {m.name: m.value for m in last if m.client == client}
    primary, split = primary_of([record]), "global-model" if client is None else "personal-model"
    scores = {m.client: m.value for m in store.last([run], [f"{split}/{primary.name}"], per_client=True)}
    return (
        rendered(
            "card.md",
            record=record,
            name=name_of(record.name),
            client=client,
            whose="the global model" if client is None else f"the personal model of client {names[client]}",
            data=record.facts.get("data", {}),
            dealt=record.facts.get("partition", {}),
            versions=record.facts.get("versions", {}),
            settings=settings([record]),
            metrics=[(measure, numbers[measure.name]) for measure in measures if measure.name in numbers],
            over_seeds=over_seeds(store, run),
            value=value,
            primary=primary,
            clients=[
                (names[number], rows, scores[number])
                for number, rows in partition.groupby("client")["rows"].sum().items()
                if number in scores
            ],
            measured_rows=measured_rows([record]),
            epsilon=store.last([run], ["round/epsilon"]),
            repeat=repeat_command(store, [record]),
            without_graph=without_graph,
        )
        + "\n"
    )


def over_seeds(store: RunStore, run: int) -> Callable[[Measure], str]:
    """Return a function that formats a measure over all seeds of the run's method in the same comparison."""
    record = store.run(run)
    alike = [r for r in store.runs("comparison=?", (record.comparison,)) if r.name == record.name]
    row = rows_of(Results(store, alike).summary)[0] if len(alike) > 1 else {}

    def text(measure: Measure) -> str:
        if measure.key not in row:
            return "one seed: no interval"
        return f"{with_interval(measure, row[measure.key], row[f'{measure.key}_half'])}, {len(alike)} seeds"

    return text
