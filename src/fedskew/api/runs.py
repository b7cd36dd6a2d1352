"""Stored runs in Python: their tables, curves, figures, report and trained models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import wraps
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Literal, ParamSpec, TypeVar

from fedskew.core.errors import BadInput, FedskewError, require, suggestion
from fedskew.core.text import count, listed
from fedskew.data.dataset import Dataset
from fedskew.report import answer, files, html, plots, series
from fedskew.report.console import self_showing
from fedskew.report.experiments import name_of
from fedskew.report.tables import filled
from fedskew.report.words import SPREADS
from fedskew.store.lock import present
from fedskew.store.runs import RunRecord, RunStore
from fedskew.store.test_rows import TABLES, Split

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from torch import nn

    from fedskew.report.shown import MethodTable


P = ParamSpec("P")
R = TypeVar("R")


Interval = Literal["ci95", "std", "sem"]
"""What follows a mean after ±: the 95 % interval, the standard deviation over seeds, or the standard error."""


def plainly(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: raise fedskew's errors again from here, so that the traceback ends at the user's own line."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except FedskewError as error:
            raise error.with_traceback(None) from None

    return called


class Shown(ABC):
    """A result that prints as a heading and a table."""

    heading: str

    @abstractmethod
    def table(self) -> pd.DataFrame: ...

    def __repr__(self) -> str:
        return f"{self.heading}\n{self.table().to_string(index=False)}"

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.heading)}</p>{self.table().to_html(index=False, border=0)}"


@dataclass(frozen=True, repr=False)
class Runs:
    """Some runs of a store. ``runs[3]`` is run 3; ``runs["scaffold"]`` are the runs of this method."""

    store: RunStore
    ids: tuple[int, ...]
    data: Dataset | None = field(default=None, compare=False)  # the data that the Python program gave

    @property
    def records(self) -> list[RunRecord]:
        """The store's record of each run."""
        return [present(self.store, record) for record in self.store.numbered(self.ids)]

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Runs]:
        return (self[i] for i in self.ids)

    @plainly
    def __getitem__(self, which: int | str) -> Runs:
        if isinstance(which, str):
            ids = tuple(r.id for r in self.records if which in (r.name, str(name_of(r.name))))
        else:
            ids = tuple(i for i in self.ids if i == which)
        names = listed([repr(name) for name in dict.fromkeys(r.name for r in self.records)])
        require(bool(ids), f"there is no {which!r} among these runs; they are {words(self.ids)}, methods {names}")
        return Runs(self.store, ids, self.data)

    def __repr__(self) -> str:
        return "\n".join([self.title, repr(self.shown()), *self.unfinished()])

    def _repr_html_(self) -> str:
        notes = "<br>".join(escape(line) for line in [self.title, *self.unfinished()])
        return f"{self.shown()._repr_html_()}<small>{notes}</small>"

    @property
    def title(self) -> str:
        return f"{count(len(self), 'run')} in {self.store.folder}: {words(self.ids)}"

    def unfinished(self) -> list[str]:
        """Return a line for each run that did not finish."""
        return answer.unfinished(self.records)

    def results(self, columns: Sequence[str] = (), interval: Interval = "ci95", by: Split = "test") -> series.Results:
        """Return the numbers of the runs. Raises `BadInput` for an unknown interval or split, and if ``columns`` is no list."""
        require(not isinstance(columns, str), f"columns: write them as a list, [{columns!r}]")
        require(interval in SPREADS, f"interval: unknown {interval!r}; known are {', '.join(SPREADS)}")
        require(by in TABLES, f"by: unknown {by!r}; known are {', '.join(TABLES)}")
        return series.Results(self.store, self.records, layout=series.Layout(tuple(columns), interval, by))

    @plainly
    def table(
        self, full: bool = False, columns: Sequence[str] = (), interval: Interval = "ci95", by: Split = "test"
    ) -> pd.DataFrame:
        """Return one row for each method: accuracy with 95 % interval, worst client, drift, megabytes, difference, ...

        The frame has all numbers, with shares in 0..1, but prints only the main columns, like `fedskew show`. ``columns`` and
        ``interval`` change what it prints; ``full`` prints all columns with values. ``by="sites"`` compares the methods
        at the sites, where each row is answered by the model that its site would use.
        """
        results = self.results(columns, interval, by)
        return filled(results.summary) if full else self.shown(results)

    def shown(self, results: series.Results | None = None) -> MethodTable:
        from fedskew.report.shown import MethodTable

        results = results or self.results()
        dropped = ["clients' rows", *([] if results.layout.columns else ["seeds"])]
        return MethodTable.of(results.summary, files.readable(results).drop(columns=dropped, errors="ignore"))

    @plainly
    def sites(self) -> pd.DataFrame:
        """Return one row for each site and method: site, method, rows, the primary measure, and recall of the rarest class.

        It is empty if the data do not name the sites. See `fedskew.report.series.by_site`.
        """
        return series.by_site(self.results().titled)

    @plainly
    def curves(self, measure: str = "") -> pd.DataFrame:
        """Return a measure by round, by default the primary one, with its 95 % interval over seeds.

        Columns are method, round, mean, low, high, runs, stopped. For what methods decide about clients, such as ``mu``, there is a
        row for each client that took part: method, run, round, client (its number), client_name, value.
        """
        results = self.results()
        curved, measure = {m.key: m for m in results.measures.shown("curve")}, measure or results.measure.key
        possible = [*curved, *(m.name for m in results.measures.decided)]
        require(measure in possible, f"there is no curve of {measure!r}; {suggestion(measure, possible)}")
        if measure not in curved:
            rows = series.decided(results)
            return rows[rows["name"] == measure].drop(columns="name").reset_index(drop=True)
        frame = series.curves(results, curved[measure])
        if curved[measure].unit == "%":  # no share is above 1
            frame[["low", "high"]] = frame[["low", "high"]].clip(0, 1)
        return frame

    def measurements(self) -> pd.DataFrame:
        """Return all measurements, with columns run, round, client, split, name, value."""
        return self.store.measurements(self.ids)

    @plainly
    def plot(self, what: str = "", interval: Interval = "ci95", along: str = "rounds") -> Figure:
        """Draw a matplotlib figure: ``loss``, ``drift``, ``clients``, ``partition``, ...; by default the primary measure.

        ``along`` is the horizontal axis of a curve: rounds, steps, u, bytes or seconds.
        """
        return self_showing(plots.plot(self.results(interval=interval), what, along))

    @plainly
    def report(self, path: str | Path, by: Split = "test") -> Path:
        """Write the self-contained HTML report. ``by`` is as in `table`."""
        return html.write_report(self.results(by=by), Path(path))

    @plainly
    def latex(self, columns: Sequence[str] = (), interval: Interval = "ci95") -> str:
        """Return the table of methods in LaTeX."""
        return files.latex(self.results(columns, interval))

    @plainly
    def csv(
        self, folder: str | Path | None = None, columns: Sequence[str] = (), interval: Interval = "ci95"
    ) -> str | list[Path]:
        """Return the table of methods as CSV. With a ``folder``, write all tables and the numbers of all figures there."""
        results = self.results(columns, interval)
        return files.csv(files.numbers(results)) if folder is None else files.write_tables(results, Path(folder))

    @plainly
    def model(self, client: int | None = None) -> nn.Module:
        """Return the trained model as a module that maps rows to one score for each class.

        With ``client``, it is this client's personal model. If the model is your own class, its module is returned. Any
        floating-point rows are converted to the model's type.
        """
        from fedskew.models.own import OwnNet
        from fedskew.serving.export import WithAnswer, check_alone, in_dtype_of, trained

        check_alone(self.store, self.one("model"), "model: a module", "use predict, or export a folder")
        learned = trained(self.store, self.one("model"), dataset=self.data, client=client)
        net = learned.net.eval()
        of_user = isinstance(net, OwnNet) and learned.kind.target == "classes"
        model = net.get_submodule("inner") if of_user else WithAnswer(net, learned.kind.predictions)
        model.register_forward_pre_hook(in_dtype_of)
        return model

    @plainly
    def predict(self, rows: object, client: int | str | None = None) -> pd.DataFrame:
        """Predict each row of a data frame, a table, a file or an array. Rows are preprocessed as in training.

        With ``client`` (number or name), the client's personal model predicts. See `fedskew.load_model`.
        """
        from fedskew.serving.predict import load

        return load(self.store, self.one("predict"), client, dataset=self.data).predict(rows)

    def one(self, verb: str) -> int:
        """Return the number of the only run. Raises `BadInput`, which lists the runs, if there are several."""
        if len(self.ids) == 1:
            return self.ids[0]
        choice = [f"{r.id} ({name_of(r.name)}, seed {r.seed})" for r in self.records[:12]]
        more = ", ..." if len(self) > len(choice) else ""
        if self.store.titles().get(self.records[0].comparison or 0, "").startswith("study:"):
            more += "; or repeat the study with --final, which trains the decided method on all rows"
        raise BadInput(f"{verb}: these are {len(self)} runs; name one of them: {', '.join(choice)}{more}")

    def confirm(self, trust: bool) -> None:
        """Raise `BadInput` if the runs name code that this user has never run. ``trust`` confirms it."""
        from fedskew.experiment.config import from_toml

        for record in self.records:
            from_toml(record.experiment, f"run {record.id}", trusted=trust)


def words(ids: Sequence[int]) -> str:
    """Format run numbers: ``1 to 4`` or ``1, 3 and 7``."""
    if len(ids) > 2 and list(ids) == list(range(ids[0], ids[-1] + 1)):
        return f"{ids[0]} to {ids[-1]}"
    return listed([str(i) for i in ids])


@dataclass(frozen=True, repr=False)
class Opened:
    """An open run store. ``opened[3]``, ``opened["c2"]`` and ``opened.latest`` are `Runs`."""

    store: RunStore

    @plainly
    def __getitem__(self, which: int | str) -> Runs:
        return Runs(self.store, tuple(r.id for r in self.store.select([str(which)])))

    @property
    def latest(self) -> Runs:
        """The newest comparison, or the newest run."""
        return self["latest"]

    def runs(self) -> Runs:
        """Return all runs."""
        return Runs(self.store, tuple(r.id for r in self.store.runs()))

    def comparisons(self) -> dict[str, Runs]:
        """Return all comparisons by name: ``c1``, ``c2``, ..."""
        numbers = dict.fromkeys(r.comparison for r in self.store.runs() if r.comparison)
        return {f"c{number}": self[f"c{number}"] for number in numbers}

    def __repr__(self) -> str:
        return f"{count(len(self.runs()), 'run')} in {self.store.folder}"


@plainly
def open(folder: str | Path = "runs") -> Opened:
    """Open a run store to read its runs: ``open("runs").latest``, ``open("runs")["c2"]``, ``open("runs").runs()``."""
    return Opened(RunStore(folder, read_only=True))


def runs_of(runs: Runs | int | str, folder: str | Path = "runs") -> Runs:
    """Return `Runs` unchanged; look up a number or name in a run store."""
    return runs if isinstance(runs, Runs) else open(folder)[runs]


def model_of(runs: Runs | int | str, folder: str | Path = "runs") -> Runs:
    """As `runs_of`, but ``latest`` is the newest final model of a study, if the store has one."""
    if runs == "latest":
        store = RunStore(folder, read_only=True)
        finals = [record.id for record in store.runs("facts LIKE '%\"final\"%'") if "final" in record.facts]
        return Runs(store, (finals[-1],)) if finals else runs_of(runs, folder)
    return runs_of(runs, folder)


@plainly
def cite(runs: Runs | int | str = "latest") -> str:
    """Return BibTeX entries for the runs. A comment above each entry names the parts that use it."""
    from fedskew.experiment.references import bibliography, bibtex

    return bibtex(*bibliography(runs_of(runs).records))
