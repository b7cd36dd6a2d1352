"""Where the numbers of runs can go besides the store: TensorBoard, MLflow, Weights & Biases, each an optional package.

A sink follows the store, so a run needs none of these packages and knows no address or key; keys are read by the packages
themselves, from their own environment variables or files.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from types import MappingProxyType
from typing import Any, Literal, Protocol

from fedskew.core.errors import BadInput, FedskewError, require
from fedskew.report.experiments import parsed
from fedskew.store.runs import RunRecord, RunStore

ENDED = ("finished", "diverged", "interrupted", "failed")

NEW_ROUNDS = """
SELECT round, split || '/' || name, value FROM measurements WHERE run=? AND round>? AND client IS NULL ORDER BY round
"""


class Page(Protocol):
    """What one run becomes in a sink."""

    def write(self, round_: int, values: Mapping[str, float]) -> None: ...

    def end(self, status: str) -> None: ...


class Sink(Protocol):
    """Opens a page for a run, from its first round on."""

    def open(self, record: RunRecord) -> Page: ...


class Feed:
    """Sends what the store has of some runs to some sinks, each round once; ends what has not ended when it is left."""

    def __init__(self, store: RunStore, sinks: Sequence[Sink]) -> None:
        self.store, self.sinks = store, sinks
        self.pages: dict[int, list[Page]] = {}
        self.sent: dict[int, int] = {}

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as runs:
            for run in list(self.pages):
                runs.callback(self.close, run, "interrupted")

    def send(self, records: Sequence[RunRecord]) -> None:
        """The rounds that are new of each run, and the end of those that have ended."""
        for record in records if self.sinks else ():
            for round_, values in self.unsent(record):
                for page in self.opened(record):
                    with told(page):
                        page.write(round_, values)
                self.sent[record.id] = round_
            if record.status in ENDED:
                self.close(record.id, record.status)

    def unsent(self, record: RunRecord) -> list[tuple[int, dict[str, float]]]:
        """The rounds that are new; all of them if the run has no page, which a run that goes on after its end gets anew."""
        new = list(self.after(record.id, self.sent.get(record.id, -1)))
        return new if record.id in self.pages or not new else list(self.after(record.id, -1))

    def after(self, run: int, round_: int) -> Iterator[tuple[int, dict[str, float]]]:
        rows = self.store.query(NEW_ROUNDS, (run, round_))
        for round_, group in groupby(rows, key=lambda row: int(row[0])):
            yield round_, {name: value for _, name, value in group if value is not None and math.isfinite(value)}

    def opened(self, record: RunRecord) -> list[Page]:
        if record.id not in self.pages:
            self.pages[record.id] = []
            for sink in self.sinks:
                with told(sink):
                    self.pages[record.id].append(sink.open(record))
        return self.pages[record.id]

    def close(self, run: int, status: str) -> None:
        with ExitStack() as pages:  # one that fails keeps none of the others open
            for page in self.pages.pop(run, ()):
                pages.enter_context(told(page))
                pages.callback(page.end, status)


@dataclass(frozen=True, kw_only=True)
class TensorBoard:
    """Event files in a folder a run under ``folder``; what is sent again takes the place of what was there."""

    folder: str = "tensorboard"

    def open(self, record: RunRecord) -> Page:
        needed("tensorboard")
        writer = import_module("torch.utils.tensorboard").SummaryWriter(
            f"{self.folder}/{record.id}-{plain(record.name)}", purge_step=0
        )
        writer.add_text("experiment", f"```toml\n{record.experiment}\n```")
        return TensorBoardPage(writer)


@dataclass(frozen=True)
class TensorBoardPage:
    writer: Any

    def write(self, round_: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, round_)
        self.writer.flush()

    def end(self, status: str) -> None:
        self.writer.add_text("status", status)
        self.writer.close()


@dataclass(frozen=True, kw_only=True)
class MlFlow:
    """A run of MLflow for each run, in ``experiment`` on the server ``uri``; by default where MLflow keeps its runs."""

    uri: str = ""
    experiment: str = "fedskew"

    def __post_init__(self) -> None:
        require("@" not in self.uri, "uri holds a name or password; set MLFLOW_TRACKING_USERNAME and _PASSWORD instead")

    def open(self, record: RunRecord) -> Page:
        needed("mlflow")
        client = import_module("mlflow.tracking").MlflowClient(self.uri or None)
        known = client.get_experiment_by_name(self.experiment)
        experiment = known.experiment_id if known else client.create_experiment(self.experiment)
        tags = {"fedskew.run": str(record.id), "fedskew.hash": record.experiment_hash}
        made = client.create_run(experiment, run_name=record.name, tags=tags).info.run_id
        for name, value in flat(parsed(record)).items():
            client.log_param(made, name, str(value)[:500])
        return MlFlowPage(client, made)


@dataclass(frozen=True)
class MlFlowPage:
    client: Any
    run: str

    def write(self, round_: int, values: Mapping[str, float]) -> None:
        metric, now = import_module("mlflow.entities").Metric, int(1000 * time.time())
        self.client.log_batch(self.run, metrics=[metric(name, value, now, round_) for name, value in values.items()])

    def end(self, status: str) -> None:
        states = {"finished": "FINISHED", "interrupted": "KILLED"}
        self.client.set_terminated(self.run, status=states.get(status, "FAILED"))


@dataclass(frozen=True, kw_only=True)
class Wandb:
    """A run of Weights & Biases for each run, in ``project``; ``mode=offline`` writes to ``folder`` and needs no network."""

    project: str = "fedskew"
    mode: Literal["online", "offline"] = "online"
    folder: str = "."

    def open(self, record: RunRecord) -> Page:
        needed("wandb")
        return WandbPage(
            import_module("wandb").init(
                project=self.project, mode=self.mode, dir=self.folder, name=f"{record.name} {record.seed}",
                config=parsed(record), reinit="create_new",
            )
        )  # fmt: skip


@dataclass(frozen=True)
class WandbPage:
    run: Any

    def write(self, round_: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=round_)

    def end(self, status: str) -> None:
        self.run.summary["status"] = status
        self.run.finish(exit_code=0 if status == "finished" else 1)


SINKS: Mapping[str, type] = MappingProxyType({"tensorboard": TensorBoard, "mlflow": MlFlow, "wandb": Wandb})


@contextmanager
def told(of: Sink | Page) -> Iterator[None]:
    """Whatever a package complains of, as one line: each has errors of its own."""
    try:
        yield
    except FedskewError:
        raise
    except Exception as error:
        raise FedskewError(
            f"sink {type(of).__name__.removesuffix('Page')}: {(str(error) or type(error).__name__).splitlines()[0]}"
        ) from None


def needed(package: str) -> None:
    """Raise `BadInput` if an optional package is not there."""
    try:
        import_module(package)
    except ImportError:
        raise BadInput(f"sink {package}: needs the package {package}; pip install 'fedskew[{package}]'") from None


def plain(name: str) -> str:
    """The name as part of a file's."""
    return re.sub(r"[^\w.=,-]", "-", name)


def flat(table: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """``{"solver.lr": 0.1}`` from nested values."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        inner = flat(value, f"{before}{key}.") if isinstance(value, Mapping) else {f"{before}{key}": value}
        found |= inner
    return found
