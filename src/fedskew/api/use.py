"""Python functions that load or export a run's model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedskew.api.functions import chosen, open
from fedskew.api.runs import Runs, plainly
from fedskew.core.errors import require

if TYPE_CHECKING:
    from fedskew.serving.export import Format
    from fedskew.serving.predict import TrainedModel


@plainly
def load_model(
    run: Runs | int | str = "latest", client: int | str | None = None, runs: str | Path = "runs"
) -> TrainedModel:
    """Load a run's model: ``load_model(7).predict("new.csv")``, ``.evaluate("new.csv")``.

    ``run`` is a number, a tag or `Runs`. The model preprocesses rows as in training. With ``client`` (number or name), it is
    this client's personal model.
    """
    from fedskew.serving.predict import load

    wanted = run if isinstance(run, Runs) else open(runs)[run]
    return load(wanted.store, wanted.one("load_model"), client, dataset=wanted.data)


@plainly
def export(
    runs: Runs | int | str = "latest",
    path: str | Path | None = None,
    format: Literal["folder"] | Format = "folder",
    client: int | str | None = None,
) -> Path:
    """Write a run's model for other programs: a folder with ONNX, weights, a model card and a Python file; or one file.

    ``format`` is folder, safetensors, torchscript or onnx. With ``client`` (number or name), it is this client's personal
    model. A run's number or tag is looked up in the folder ``runs``.
    """
    from fedskew.serving.export import SUFFIX
    from fedskew.serving.export import export as write
    from fedskew.serving.folder import write_folder
    from fedskew.serving.predict import number_of, warn_python

    wanted, place = chosen(runs), Path(path) if path else None
    require(format in ("folder", *SUFFIX), f"export: format must be folder, {', '.join(SUFFIX)}, got {format!r}")
    run = wanted.one("export")
    whose = number_of(wanted.store, run, client)
    if format == "folder":
        return write_folder(wanted.store, run, place, whose, warn_python, wanted.data)
    return write(wanted.store, run, format, place, dataset=wanted.data, client=whose)
