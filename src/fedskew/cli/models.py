"""Verbs on the trained model of a run: ``predict``, ``export`` and ``landscape``."""

import argparse
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from fedskew.api import models as functions
from fedskew.api.caller import CommandLine
from fedskew.cli.output import number, print_json, save_figure, warn
from fedskew.cli.request import one_run
from fedskew.cli.verbs import keywords_of
from fedskew.core.errors import BadInput, FedskewError, require
from fedskew.core.files import replacing
from fedskew.core.text import count
from fedskew.data.targets import Rows
from fedskew.experiment.keywords import LandscapeKeywords
from fedskew.report.console import Console, say
from fedskew.report.experiments import stored_section
from fedskew.serving.predict import TrainedModel, unseen_line
from fedskew.store.runs import RunRecord
from fedskew.studies.landscape import Landscape

TABLES = (".csv", ".parquet")
MOST_MEASURED = 1_000_000
"""Largest number of rows whose metrics are computed, since these need all rows at once."""


def trained_on(record: RunRecord, rows: Path) -> bool:
    """Whether the run's training rows come from this file, or its folder."""
    path = stored_section(record, "dataset").get("path")
    return isinstance(path, str) and rows.resolve().is_relative_to(Path(path).resolve())


def metrics_on(model: TrainedModel, rows: pd.DataFrame | Rows) -> dict[str, float]:
    """The metrics on the rows, if they have targets of the kind that the model predicts. If not, a warning says why."""
    try:
        return model.metrics(rows) if model.has_targets(rows) else {}
    except BadInput as error:
        warn(f"no metrics: {error}")
        return {}


@contextmanager
def writer(output: Path | None) -> Iterator[Callable[[pd.DataFrame], None]]:
    """Yield a function that adds rows to a file, or to standard output. All rows arrive at the end, or none."""
    try:
        with TemporaryDirectory() as folder:
            target = output or Path(folder) / "answers.csv"
            with replacing(target) as path, ExitStack() as stack:
                parquet: pq.ParquetWriter | None = None

                def add_to_parquet(rows: pd.DataFrame) -> None:
                    nonlocal parquet
                    table = pa.Table.from_pandas(rows, preserve_index=False)
                    parquet = parquet or stack.enter_context(pq.ParquetWriter(path, table.schema))
                    try:
                        parquet.write_table(table.cast(parquet.schema))
                    except (pa.ArrowException, ValueError) as error:
                        raise BadInput(
                            f"predict {output}: the parts of the file have other types: {error}; write .csv"
                        ) from None

                if target.suffix == ".parquet":
                    yield add_to_parquet
                else:
                    file = stack.enter_context(path.open("w", encoding="utf-8", newline=""))
                    yield lambda rows: rows.to_csv(file, index=False, header=file.tell() == 0)
            if output is None:
                with target.open(encoding="utf-8", newline="") as answers:
                    shutil.copyfileobj(answers, sys.stdout)
    except OSError as error:
        if output is None:
            raise
        raise FedskewError(f"predict {output}: cannot be written: {error.strerror or error}") from None


def predict(parsed: argparse.Namespace) -> None:
    """Write the answers for the rows of a file, beside the columns of the file. Without ``--output``, write to standard output."""
    output: Path | None = parsed.output
    if output is not None and output.suffix not in TABLES:
        raise BadInput(f"predict --output {output}: unknown kind of file; write {' or '.join(TABLES)}")
    if output is not None and output.exists() and parsed.rows.exists() and output.samefile(parsed.rows):
        raise BadInput(f"predict --output {output}: it is the file of the rows; give another name")
    run = one_run(parsed, "predict")
    record = run.records[0]
    model, total = functions.load_model(run, parsed.client, warn=warn, calibrated=parsed.calibrated), 0
    if calibration := model.calibration:
        picture = run.store.run_folder(record.id) / "reliability.svg"
        save_figure(calibration.plot(), picture)
        errors = "{:.3f} before, {:.3f} after".format(*calibration.errors)
        say(
            f"temperature {calibration.temperature:.4g}; calibration error on test rows {errors}; {picture}", error=True
        )
    read: dict[str, str] | None = None
    unseen: dict[str, tuple[str, int]] = {}
    to_measure: list[pd.DataFrame] = []
    with writer(output) as write:
        for rows, columns in model.blocks(parsed.rows):
            answers, odd = model.table(rows)
            total += len(answers)
            for strange, what in odd:
                first, number = unseen.get(what.partition(", such as")[0], (what, 0))
                unseen[what.partition(", such as")[0]] = first, number + int(strange.sum())
            if model.has_targets(rows) and isinstance(rows, pd.DataFrame):
                to_measure = [*to_measure, rows] if total <= MOST_MEASURED else []
            if columns is not None:
                if read is None:
                    read = {name: f"{name}_of_run_{record.id}" for name in answers if name in model.names}
                    for name, new in read.items():
                        warn(f"the model reads a column {name!r}, so the answers are in the column {new!r}")
                answers = answers.rename(columns=read)
                twice = [name for name in answers if name in columns]
                require(not twice, f"predict {parsed.rows}: it has a column {str(*twice[:1])!r} already; rename it")
                answers = pd.concat([columns, answers], axis=1)
            write(answers)
        for what, number in unseen.values():
            warn(unseen_line(number, total, what))
        if total > MOST_MEASURED and model.has_targets(rows):
            warn(f"no metrics: {count(total, 'row')} are more than {MOST_MEASURED:,}; measure a part of them")
        metrics = metrics_on(model, pd.concat(to_measure)) if to_measure else {}
    if parsed.json:
        print_json({"run": record.id, "rows": total, "output": str(output or ""), "metrics": metrics})
    elif output is not None:
        say(f"wrote {output}: {count(total, 'row')} with the answers of run {record.id}")
    if metrics and not parsed.json:
        values = ", ".join(f"{name} {value:.6g}" for name, value in metrics.items())
        print(f"against column {', '.join(map(repr, model.target))}: {values}", file=sys.stderr)
        if trained_on(record, parsed.rows) and metrics.get("accuracy") != 0:
            warn("the model was trained on rows of this file, so these numbers are too good; measure it on other rows")


def columns(parsed: argparse.Namespace) -> None:
    """Print a table: counts of answers by class, which columns the answers need, or how far the rows are from training rows."""
    verb = parsed.verb.name
    table = getattr(functions.load_model(one_run(parsed, verb), parsed.client, warn=warn), verb)(parsed.rows)
    print_json(table.to_dict("records")) if parsed.json else say(
        table.to_string(index=False, float_format="{:.4g}".format)
    )


def export(parsed: argparse.Namespace) -> None:
    """Write the model of the newest checkpoint to a folder or a file, or every client's model to a folder."""
    run, output = one_run(parsed, "export"), parsed.output
    places, names = {parsed.client: output}, dict[object, str]()
    if parsed.client == "all":
        if parsed.format not in (None, "folder"):
            raise BadInput("export: --client all writes folders; name one client to write a file")
        clients = range(run.records[0].facts["partition"]["clients"])
        places = {client: output and output / f"client-{client}" for client in clients}
        of_clients = run.store.partition(run.records[0].id)
        names = dict(zip(of_clients["client"], of_clients["client_name"], strict=True))
    for client, place in places.items():
        path = functions.export(run, place, parsed.format, client, warn)
        Console().print(f"wrote {path}{f': client {names[client]}' if client in names else ''}", soft_wrap=True)


PICTURES = ("svg", "png", "pdf")


def landscape(parsed: argparse.Namespace) -> None:
    """Draw slices of the loss landscape of one run."""
    run = one_run(parsed, "landscape")
    output: Path | None = parsed.output
    if output is not None and output.suffix[1:] not in PICTURES:
        raise BadInput(f"landscape: {output.name} is not a picture's name; it must end in {', '.join(PICTURES)}")
    result = functions.landscape(run, progress=CommandLine(), **keywords_of(parsed, LandscapeKeywords))
    path = output or run.store.run_folder(run.ids[0]) / f"landscape-{result.kind}.svg"
    save_figure(result.plot(), path)
    print_json({**result.numbers(), "picture": str(path)}) if parsed.json else print_landscape(result, path)


def print_landscape(result: Landscape, path: Path) -> None:
    console = Console()
    for name, sheet in result.sheets.items():
        row, column = divmod(int(sheet.argmin()), sheet.shape[1])
        second = f", b = {result.window.b[row]:.3g}" if len(sheet) > 1 else ""
        place = f"a = {result.window.a[column]:.3g}{second}"
        console.print(f"{name}: loss {sheet.min():.4g} to {sheet.max():.4g}, lowest at {place}")
    for model, (a, b) in result.points.items():
        console.print(f"{model} lies at a = {a:.3g}, b = {b:.3g}", style="dim")
    s = result.sharpness
    console.print(
        f"sharpness: the training loss rises by {s.rise:.4g} within {s.radius:.3g}; largest curvature {s.eigenvalue:.4g}"
    )
    if result.overlap is not None:
        console.print(f"the two clients' losses correlate by {number(result.overlap, 2)} over the window")
    console.print(f"picture: {path}", soft_wrap=True)
