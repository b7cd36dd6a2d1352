"""``predict``: a run's model on a file of new rows."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fedskew.cli.output import print_json, warn
from fedskew.cli.request import confirm, require_one
from fedskew.cli.terminal import say
from fedskew.core.counting import count
from fedskew.core.errors import BadInput, FedskewError, require
from fedskew.core.places import replacing
from fedskew.report.experiments import parsed as parsed_experiment
from fedskew.store.runs import RunRecord, RunStore

if TYPE_CHECKING:
    import pandas as pd

    from fedskew.data.targets import Rows
    from fedskew.experiment.predict import TrainedModel

TABLES = (".csv", ".parquet")


def trained_on(record: RunRecord, rows: Path) -> bool:
    """Whether the run's training rows come from this file, or its folder."""
    dataset = parsed_experiment(record).get("dataset")
    path = dataset.get("path") if isinstance(dataset, dict) else None
    return isinstance(path, str) and rows.resolve().is_relative_to(Path(path).resolve())


def measured(model: "TrainedModel", rows: "pd.DataFrame | Rows") -> dict[str, float]:
    """The metrics on the rows, if they have targets of the kind that the model predicts. If not, a warning says why."""
    try:
        return model.evaluate(rows) if model.has_targets(rows) else {}
    except BadInput as error:
        warn(f"no metrics: {error}")
        return {}


def predict(parsed: argparse.Namespace) -> int:
    """Write the answers for the rows of a file, with its columns where it has any; on standard output without ``--output``."""
    output: Path | None = parsed.output
    require(
        output is None or output.suffix in TABLES,
        f"predict --output {output}: unknown kind of file; write {' or '.join(TABLES)}",
    )
    require(
        output is None or not (output.exists() and parsed.rows.exists() and output.samefile(parsed.rows)),
        f"predict --output {output}: it is the file of the rows; give another name",
    )
    store = RunStore(parsed.runs, read_only=True)
    chosen = store.select([parsed.run])
    require_one("predict", chosen)
    confirm(parsed, chosen)
    # imported on first use: PyTorch takes longer than the checks above
    import numpy as np
    import pandas as pd

    from fedskew.experiment.predict import as_written, load

    model = load(store, chosen[0].id, parsed.client, warn)
    rows = model.read(parsed.rows)
    answers = model.predict(rows, warn)
    metrics = measured(model, rows)
    if not isinstance(rows, np.ndarray):
        own = rows if parsed.rows.suffix == ".txt" else as_written(parsed.rows)
        read = {name: f"{name}_of_run_{chosen[0].id}" for name in answers if name in model.names}
        for name, new in read.items():
            warn(f"the model reads a column {name!r}, so the answers are in the column {new!r}")
        answers = answers.rename(columns=read)
        twice = [name for name in answers if name in own]
        require(not twice, f"predict {parsed.rows}: it has a column {str(*twice[:1])!r} already; rename it")
        answers = pd.concat([own, answers], axis=1)
    if output is None:
        answers.to_csv(sys.stdout, index=False)
    else:
        try:
            with replacing(output) as partial:
                write = answers.to_parquet if output.suffix == ".parquet" else answers.to_csv
                write(partial, index=False)
        except OSError as error:
            raise FedskewError(f"predict {output}: cannot be written: {error.strerror or error}") from None
    if parsed.json:
        print_json({"run": chosen[0].id, "rows": len(answers), "output": str(output or ""), "metrics": metrics})
    elif output is not None:
        say(f"wrote {output}: {count(len(answers), 'row')} with the answers of run {chosen[0].id}")
    if metrics and not parsed.json:
        found = ", ".join(f"{name} {value:.6g}" for name, value in metrics.items())
        print(f"against column {', '.join(map(repr, model.target))}: {found}", file=sys.stderr)
        if trained_on(chosen[0], parsed.rows) and metrics.get("accuracy") != 0:
            warn("the model was trained on rows of this file, so these numbers are too good; measure it on other rows")
    return 0
