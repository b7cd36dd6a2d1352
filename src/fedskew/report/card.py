"""A model card in Markdown: a run's training data, its results for each client, and the command that repeats it."""

from collections.abc import Iterable

from fedskew.measure.registry import METRICS, primary_of, shown
from fedskew.report.experiments import measured_rows, name_of, repeat_command, settings
from fedskew.report.tables import summary
from fedskew.report.words import rows_of, value, with_interval
from fedskew.store.runs import RunRecord, RunStore


def card(store: RunStore, run: int, client: int | None, without_graph: str) -> str:
    """Write the card of the global model, or of one client's personal model, as Markdown.

    ``without_graph`` says why there is no ONNX file; it is empty if there is one.
    """
    record = store.run(run)
    data, dealt = record.facts.get("data", {}), record.facts.get("partition", {})
    whose = (
        "the global model" if client is None else f"the personal model of client {name_of_client(store, run, client)}"
    )
    parts = [
        f"# {name_of(record.name)} on {data.get('name', 'unknown data')}",
        f"This is {whose} of run {run}, after round {record.rounds_done} of {record.rounds}.",
        "## Data",
        bullets(
            [data.get("source", ""), data.get("notes", ""), f"fingerprint of the arrays: {data.get('fingerprint', '')}"]
        ),
        f"{dealt.get('rows', 0):,} training rows of {dealt.get('clients', 0)} clients, {dealt.get('smallest', 0)} to "
        f"{dealt.get('largest', 0)} rows each, dealt by {dealt.get('skews', 'an unknown skew')}.",
        differ(record),
        "## Method",
        bullets(f"{one.label}: {', '.join(v.text for v in one.values)}" for one in settings([record])),
        "## Results",
        results(store, record) if client is None else own_results(store, record, client),
        "## Each client",
        clients(store, record, client),
        "## Privacy",
        privacy(store, record),
        "## Repeat",
        f"```sh\n{repeat_command(store, [record])}\n```",
        "`experiment.toml` has every setting. Versions: "
        + ", ".join(f"{name} {number}" for name, number in record.facts.get("versions", {}).items())
        + ".",
        "## Use",
        use(without_graph),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines if line)


def differ(record: RunRecord) -> str:
    """Say how much the clients' labels differ; empty if the run has not stored it."""
    found = record.facts.get("partition", {})
    if "label_distance" not in found:
        return ""
    return (
        f"Labels differ between clients: distance {found['label_distance']:.3f}, by chance alone "
        f"{found['label_distance_by_chance']:.3f} (0: all alike, 1: no class in common). "
        "`fedskew diagnose` measures features, sizes and concepts, too."
    )


def results(store: RunStore, record: RunRecord) -> str:
    """A table of the test metrics: of this run, and over all seeds of its method in the same comparison."""
    alike = [
        r for r in store.runs() if r.name == record.name and record.comparison and r.comparison == record.comparison
    ]
    frame = store.measurements([record.id], per_client=False)
    frame = frame[(frame["split"] == "test") & frame["name"].isin([metric.name for metric in METRICS])]
    last = frame[frame["round"] == frame["round"].max()]
    known = {measure.name: measure for measure in shown() if measure.split == "test"}
    lines = ["| metric on the test rows | this run | all seeds, mean and 95 % interval |", "| --- | --- | --- |"]
    rows = rows_of(summary(store, alike)) if len(alike) > 1 else []
    for name, number in zip(last["name"], last["value"], strict=True):
        measure, over = known.get(str(name)), ""
        if measure is None:
            continue
        if rows and measure.key in rows[0]:
            over = f"{with_interval(measure, rows[0][measure.key], rows[0][f'{measure.key}_half'])}, {len(alike)} seeds"
        lines.append(f"| {measure.title} | {value(measure, number)} | {over or 'one seed: no interval'} |")
    return "\n".join(lines)


def name_of_client(store: RunStore, run: int, client: int) -> str:
    held = store.partition(run)
    return str(held.loc[held["client"] == client, "client_name"].iloc[0])


def own_results(store: RunStore, record: RunRecord, client: int) -> str:
    """The metrics of a client's personal model on the client's rows."""
    frame = store.measurements([record.id], per_client=True)
    frame = frame[(frame["split"] == "personal-model") & (frame["client"] == client)]
    if frame.empty:
        return "The client's result was not measured."
    last = frame[frame["round"] == frame["round"].max()]
    known = {measure.name: measure for measure in shown() if measure.split == "test"}
    lines = ["| metric on the client's rows | this model |", "| --- | --- |"]
    for name, number in zip(last["name"], last["value"], strict=True):
        if measure := known.get(str(name)):
            lines.append(f"| {measure.title} | {value(measure, number)} |")
    return "\n".join([*lines, "", f"Measured on {measured_rows([record])}. The server's model has other results."])


def clients(store: RunStore, record: RunRecord, client: int | None) -> str:
    """A table of the primary metric on each client's rows: of the global model, or with a ``client`` of personal models."""
    measure = primary_of([record])
    split = "global-model" if client is None else "personal-model"
    frame = store.measurements([record.id], per_client=True)
    frame = frame[(frame["split"] == split) & (frame["name"] == measure.name)]
    if frame.empty:
        return "The clients' results were not measured."
    last = frame[frame["round"] == frame["round"].max()]
    held = store.partition(record.id).groupby(["client", "client_name"])["rows"].sum().reset_index()
    table = held.merge(last[["client", "value"]], on="client")
    lines = [f"| client | training rows | {measure.title} |", "| --- | --- | --- |"]
    lines += [f"| {n} | {r} | {value(measure, v)} |" for n, r, v in table[["client_name", "rows", "value"]].to_numpy()]
    return "\n".join([*lines, "", f"Measured on {measured_rows([record])}."])


def privacy(store: RunStore, record: RunRecord) -> str:
    frame = store.measurements([record.id], per_client=False)
    loss = frame[(frame["split"] == "round") & (frame["name"] == "epsilon")]
    said = (
        f"The method bounds the privacy loss of a client: epsilon {loss['value'].iloc[-1]:.3g} after all rounds."
        if len(loss)
        else "The method gives no bound on what the model reveals of its training rows."
    )
    return (
        f"{said} `preprocessing.json` and `model.onnx` hold facts of the training rows: means, deviations, smallest and largest "
        "values, and the words of each column."
    )


def use(without_graph: str) -> str:
    if without_graph:
        return f"`model.safetensors` has the weights by name. There is no ONNX file: {without_graph}."
    return (
        "`python predict.py rows.csv > answers.csv` needs onnxruntime and pandas. `model.onnx` takes the columns as "
        "they are: the preprocessing is inside. `model.safetensors` has the weights by name."
    )
