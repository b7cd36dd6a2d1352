"""Sinks copy measurements of stored runs to TensorBoard, MLflow or Weights & Biases. Each is an optional package.

A sink reads the run store. A run itself needs none of these packages, no address and no key. The packages read keys from their
own environment variables or files.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import groupby
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

from fedskew.core.component import build
from fedskew.core.errors import FedskewError, first_line, require
from fedskew.report.experiments import parsed, untrained
from fedskew.store.runs import RunRecord, RunStore

ENDED = ("finished", "diverged", "interrupted", "failed")


class Page(NamedTuple):
    """A run in a sink. ``write(round, values)`` stores a round's values by name; ``end(status)`` closes the page."""

    write: Callable[[int, Mapping[str, float]], None]
    end: Callable[[str], None]


class Sink(Protocol):
    """Opens a page for a run."""

    def open(self, record: RunRecord) -> Page: ...


class Feed:
    """Sends each stored round of runs to sinks, once. On exit of the context, it ends all open pages."""

    def __init__(self, store: RunStore, sinks: Sequence[Sink]) -> None:
        self.store, self.sinks = store, sinks
        self.pages: dict[int, list[tuple[Sink, Page]]] = {}
        self.sent: dict[int, int] = {}

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as runs:
            for run in list(self.pages):
                runs.callback(self.close, run, "interrupted")

    def send(self, records: Sequence[RunRecord]) -> None:
        """Send the finite values of the new rounds of each run. End the pages of runs that have ended."""
        for record in records if self.sinks else ():
            run = record.id
            values = self.store.curves([run], after=self.sent)
            if values and run not in self.pages:
                # a run that was resumed after its end gets a new page with all its rounds
                values = self.store.curves([run])
                self.open(record)
            for round_, group in groupby(values, key=lambda measurement: measurement.round):
                trained = [m for m in group if math.isfinite(m.value) and m.split not in untrained(record)]
                by_name = {f"{m.split}/{m.name}": m.value for m in trained}
                for sink, page in self.pages[run]:
                    with explained(sink):
                        page.write(round_, by_name)
                self.sent[run] = round_
            if record.status in ENDED:
                self.close(run, record.status)

    def open(self, record: RunRecord) -> None:
        self.pages[record.id] = []
        for sink in self.sinks:
            with explained(sink):
                self.pages[record.id].append((sink, sink.open(record)))

    def close(self, run: int, status: str) -> None:
        """End all pages of a run, even if one raises an error."""
        with ExitStack() as pages:
            for sink, page in self.pages.pop(run, ()):
                pages.enter_context(explained(sink))
                pages.callback(page.end, status)


@dataclass(frozen=True, kw_only=True)
class TensorBoard:
    """Writes event files into a folder for each run, under ``folder``. Sending a run again replaces its values."""

    folder: str = "tensorboard"

    def open(self, record: RunRecord) -> Page:
        folder = f"{self.folder}/{record.id}-" + re.sub(r"[^\w.=,-]", "-", record.name)
        writer = import_module("torch.utils.tensorboard").SummaryWriter(folder, purge_step=0)
        writer.add_text("experiment", f"```toml\n{record.experiment}\n```")

        def write(round_: int, values: Mapping[str, float]) -> None:
            for name, value in values.items():
                writer.add_scalar(name, value, round_)
            writer.flush()

        def end(status: str) -> None:
            writer.add_text("status", status)
            writer.close()

        return Page(write, end)


@dataclass(frozen=True, kw_only=True)
class MlFlow:
    """Makes an MLflow run for each run, in ``experiment`` on the server ``uri`` (empty: MLflow's default)."""

    uri: str = ""
    experiment: str = "fedskew"

    def __post_init__(self) -> None:
        require("@" not in self.uri, "uri holds a name or password; set MLFLOW_TRACKING_USERNAME and _PASSWORD instead")

    def open(self, record: RunRecord) -> Page:
        client = import_module("mlflow.tracking").MlflowClient(self.uri or None)
        metric = import_module("mlflow.entities").Metric
        earlier = client.get_experiment_by_name(self.experiment)
        experiment = earlier.experiment_id if earlier else client.create_experiment(self.experiment)
        tags = {"fedskew.run": str(record.id), "fedskew.hash": record.experiment_hash}
        run = client.create_run(experiment, run_name=record.name, tags=tags).info.run_id
        for name, value in flat(parsed(record)).items():
            client.log_param(run, name, str(value)[:500])

        def write(round_: int, values: Mapping[str, float]) -> None:
            now = int(1000 * time.time())
            client.log_batch(run, metrics=[metric(name, value, now, round_) for name, value in values.items()])

        def end(status: str) -> None:
            states = {"finished": "FINISHED", "interrupted": "KILLED"}
            client.set_terminated(run, status=states.get(status, "FAILED"))

        return Page(write, end)


@dataclass(frozen=True, kw_only=True)
class Wandb:
    """Makes a W&B run for each run, in ``project``. ``mode=offline`` writes to ``folder`` and needs no network."""

    project: str = "fedskew"
    mode: Literal["online", "offline"] = "online"
    folder: str = "."

    def open(self, record: RunRecord) -> Page:
        run = import_module("wandb").init(
            project=self.project, mode=self.mode, dir=self.folder, name=f"{record.name} {record.seed}",
            config=parsed(record), reinit="create_new",
        )  # fmt: skip

        def write(round_: int, values: Mapping[str, float]) -> None:
            run.log(dict(values), step=round_)

        def end(status: str) -> None:
            run.summary["status"] = status
            run.finish(exit_code=0 if status == "finished" else 1)

        return Page(write, end)


SINKS: Mapping[str, type] = MappingProxyType({"tensorboard": TensorBoard, "mlflow": MlFlow, "wandb": Wandb})


def sinks_from(texts: str | Sequence[str], where: str) -> list[Sink]:
    """Make the sinks: ``wandb:project=p``, or several of them. Raises `BadInput` for an unknown one and a missing package."""
    sinks: list[Sink] = [build("sink", SINKS, text, where) for text in ([texts] if isinstance(texts, str) else texts)]
    for package, cls in SINKS.items():
        missing = any(isinstance(sink, cls) for sink in sinks) and find_spec(package) is None
        require(not missing, f"sink {package}: needs the package {package}; pip install '.[{package}]' in the clone")
    return sinks


@contextmanager
def tracked(
    store: RunStore, runs: Sequence[int], sinks: Sequence[Sink], warn: Callable[[str], None]
) -> Iterator[Callable[[int], None]]:
    """Yield a function that sends the new rounds of one of the ``runs``, and of others under way. At the end, all are sent.

    A sink that fails stops no training: ``warn`` gets one line, and the sinks get nothing more.
    """
    with Feed(store, sinks) as feed:

        def send(*runs: int) -> None:
            try:
                feed.send(store.numbered([*dict.fromkeys([*feed.pages, *runs])]) if feed.sinks else ())
            except FedskewError as error:
                feed.sinks = ()
                feed.pages.clear()
                warn(f"{error}; the runs go on, and `fedskew watch --to` sends all their rounds again")

        try:
            yield send
        finally:
            send(*runs)


@contextmanager
def explained(sink: Sink) -> Iterator[None]:
    """Turn an exception of a sink's package into a one-line `FedskewError` that names the sink."""
    try:
        yield
    except FedskewError:
        raise
    except Exception as error:
        raise FedskewError(f"sink {type(sink).__name__}: {first_line(error)}") from None


def flat(table: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Flatten nested tables: ``{"solver": {"lr": 0.1}}`` becomes ``{"solver.lr": 0.1}``."""
    values: dict[str, object] = {}
    for key, value in table.items():
        values |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return values
