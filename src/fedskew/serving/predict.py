"""A run's model in use: answers for new rows, with exactly the preprocessing that its training fitted."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from torch import Tensor

from fedskew.core.errors import BadInput, require, suggestion
from fedskew.core.files import require_exists
from fedskew.core.records import channels_last, rows_of, targets_of
from fedskew.core.task import Probabilistic
from fedskew.core.text import count
from fedskew.data.dataset import Dataset, Ints, places_of
from fedskew.data.find import reading
from fedskew.data.preprocessing import Array, Cells, Number, Preprocessing, Symbols, Tabular, Text, Texts, Unseen
from fedskew.data.tables.columns import cells_for, cells_of, numbers, strings, to_pandas, unseen
from fedskew.data.tables.files import Reading, files_of, typed
from fedskew.data.tables.mapping import holds_strings, plainly_spelt
from fedskew.data.tables.survey import joined
from fedskew.data.targets import PADDING, TARGETS, Rows
from fedskew.data.texts import UNKNOWN, encoded, windows
from fedskew.execution.deal import client_column
from fedskew.execution.learned import kept
from fedskew.execution.rounds import data_of, state_of
from fedskew.experiment.config import Architecture, from_toml
from fedskew.loop.evaluate import CHUNK, over_rows, scored_outputs
from fedskew.measure.registry import Measures
from fedskew.models.encoder import Encoder
from fedskew.models.mixed import Mixed
from fedskew.report.experiments import between_sites
from fedskew.serving import export
from fedskew.serving.calibrate import Calibration, temperature_of
from fedskew.store.runs import RunStore

SHARED = "which the shared model answers"
"""What happens to rows of unknown sites where clients have personal models."""

PREDICTION, PROBABILITY, OUTPUT, OUTSIDE = "prediction", "probability_", "output_", "outside"
"""Columns of the answers; the name of a class follows `PROBABILITY`, or `OUTPUT` if the task has no probabilities."""


def warn_python(line: str) -> None:
    warnings.warn(line, UserWarning, stacklevel=5)


@dataclass(frozen=True, repr=False, eq=False)
class TrainedModel:
    """The model of a run. It takes rows in the form that a file has them; see `predict`.

    ``training`` loads the data set of the run. With a ``calibration`` its temperature divides the outputs. ``personal`` gives the
    parameters (P,) for the rows of a site, by its number, where clients have models of their own; -1 is for unknown sites.
    ``client`` names the client whose personal model answers all rows. ``column`` is the column of the clients, if it names them.
    ``warn`` gets a line if cells of rows are changed as the TOML files of training say, or cannot be.
    """

    run: int
    trained: export.Trained
    training: Callable[[], Dataset]
    calibration: Calibration | None = None
    personal: Callable[[int], Tensor] | None = None
    client: str = ""
    column: str = ""
    warn: Callable[[str], None] = warn_python

    def __repr__(self) -> str:
        classes = ", ".join(self.trained.learned.classes)
        return f"model of run {self.run}: {self.reads}; predict(rows) gives {classes or 'numbers'}"

    @property
    def preprocessing(self) -> Preprocessing | None:
        """The preprocessing of the training rows."""
        return self.trained.learned.preprocessing

    @property
    def reads(self) -> str:
        """What new rows must have, in words."""
        if self.preprocessing is None:
            return "rows as the data set holds them"
        shape = f"rows of shape {self.preprocessing.shape}" if isinstance(self.preprocessing, Array) else ""
        return shape or f"columns {', '.join(self.preprocessing.names)}"

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that the model reads or predicts; empty for arrays."""
        return (*self.preprocessing.names, *self.target) if self.preprocessing else ()

    @property
    def target(self) -> tuple[str, ...]:
        """The columns of the targets in a file; empty if they have no names."""
        preprocessing = self.preprocessing
        return (preprocessing.target, *preprocessing.others) if preprocessing and preprocessing.target else ()

    def predict(self, rows: object, warn: Callable[[str], None] = warn_python) -> pd.DataFrame:
        """Predict each row of a data frame, a table, a file (CSV, Parquet, Arrow, JSON lines, npy, npz) or an array.

        Column ``prediction`` has a class, labels joined by ``|``, the next symbol, or a number in the target's unit. Each class,
        label or symbol has a column with its probability. ``outside`` says what no training row held, such as a new category.
        ``warn`` gets one line for each kind of these. Raises `BadInput` if columns are missing.
        """
        table, unseen = self.table(self.read(rows))
        for strange, what in unseen:
            warn(unseen_line(int(strange.sum()), len(strange), what))
        return table

    def table(self, rows: pd.DataFrame | Rows) -> tuple[pd.DataFrame, list[Unseen]]:
        """Return the answers for rows of `read` or `blocks`, and what no training row held."""
        answers, unseen = self.answers(self.inputs(rows), self.sites_of(rows)), self.unseen(rows)
        said = [(strange, what.partition(", such as ")[0]) for strange, what in unseen]  # the cell is in the row
        outside = ["; ".join(what for strange, what in said if strange[i]) for i in range(len(answers))]
        index = rows.index if isinstance(rows, pd.DataFrame) else None
        return pd.DataFrame({**columns_of(self.trained, answers), OUTSIDE: outside}, index=index), unseen

    def blocks(self, path: Path) -> Iterator[tuple[pd.DataFrame | Rows, pd.DataFrame | None]]:
        """Yield the rows of a file in parts: as `read` does, and the columns as the file has them (None for arrays).

        The cells of a CSV stay text in the latter. Arrays and a text are one part.
        """
        if not self.names or path.suffix == ".txt":
            rows = self.read(path)
            yield rows, rows if isinstance(rows, pd.DataFrame) else None
            return
        raw = Reading([path], raw=True).tables()
        for part, (_, written) in zip(self.tables(path), raw, strict=True):
            cells = written.to_pandas(types_mapper=pd.ArrowDtype, ignore_metadata=True)
            yield self.checked(to_pandas(part)), pd.DataFrame(cells)

    def tables(self, path: Path) -> Iterator[pa.Table]:
        """Yield the rows of a file in parts, read as in training. Raises `BadInput`, also after the last part."""
        require(not path.is_dir(), f"predict {path}: it is a folder; give one file")
        preprocessing, mappings = self.preprocessing, self.trained.learned.mappings
        reading = Reading(files_of([path]), training=mappings, client=self.client)
        classes = self.target if self.trained.kind.target == "classes" else ()
        if isinstance(preprocessing, Tabular):
            reading.words, reading.missing = preprocessing.texts, preprocessing.missing
            reading.spellings = preprocessing.spellings
        elif isinstance(preprocessing, Texts | Symbols):
            reading.words, reading.text = frozenset([preprocessing.column]), preprocessing.column
        columns = [self.trained.learned.by_site.column, mappings.column]
        reading.words, rows = reading.words.union(classes, filter(None, columns)), 0
        for _, part in reading.tables():
            rows += len(part)
            yield part
        for line in reading.notes:
            self.warn(line)
        require(rows > 0, f"predict {path}: no rows")
        require(
            not reading.malformed,
            f"predict {path}: {count(reading.malformed, 'line')} with too few or too many cells; correct them first",
        )

    def evaluate(self, rows: object) -> dict[str, float]:
        """The loss and the metrics over rows with targets, as a run measures them. Rows without a target are left out."""
        return self.metrics(self.read(rows))

    def metrics(self, rows: pd.DataFrame | Rows) -> dict[str, float]:
        """Return the loss and the metrics over rows of `read` or `blocks`."""
        frame = self.measurable(rows)
        if isinstance(self.preprocessing, Symbols):
            x, y = self.sequences(self.preprocessing, frame)
        else:
            x, y = self.inputs(frame), self.targets(frame)
        targets, site = targets_of(y, self.trained.dtype, torch.device("cpu")), self.sites_of(frame)
        scores = scored_outputs(self.trained.task, self.outputs_in_parts(x, site), targets)
        return over_rows(self.trained.task, *scores)

    def confusion(self, rows: object) -> pd.DataFrame:
        """How often rows of each class get each answer, over rows with targets.

        Columns: ``class``, ``as NAME`` for each answer, ``rows``, and ``recall`` and ``precision`` of the class (0..1; NaN where
        no row has the class, or the answer). Raises `BadInput` for a model that predicts no classes.
        """
        require(self.trained.kind.target == "classes", "confusion: the model predicts no classes")
        frame, classes = self.measurable(self.read(rows)), self.trained.learned.classes
        true, answers = self.targets(frame), self.answers(self.inputs(frame), self.sites_of(frame)).argmax(1)
        every = range(len(classes))
        counts = pd.crosstab(true, answers).reindex(index=every, columns=every, fill_value=0)
        right, of_class, of_answer = np.diag(counts), counts.sum(axis=1), counts.sum(axis=0)
        table = counts.set_axis([f"as {name}" for name in classes], axis=1)
        table.insert(0, "class", classes)
        return table.assign(rows=of_class, recall=right / of_class, precision=right / of_answer)

    def measurable(self, frame: pd.DataFrame | Rows) -> pd.DataFrame:
        """The rows of `read` that have a target. Raises `BadInput` if there are none."""
        names, listed = [*self.target], ", ".join(map(repr, self.target))
        if not names:
            raise BadInput(
                "evaluate: this model does not say which column holds its targets, so answers cannot be compared"
            )
        if isinstance(frame, np.ndarray) or not self.has_targets(frame):
            raise BadInput(f"evaluate: the rows have no column {listed} of targets")
        frame = frame[frame[names].notna().all(axis=1)]
        if isinstance(self.preprocessing, Texts):
            frame = frame[words_of(frame[self.preprocessing.column]) != ""]
        require(len(frame) > 0, f"evaluate: no row has a value in {listed}")
        return frame

    def importance(self, rows: object, repeats: int = 10) -> pd.DataFrame:
        """By how much the primary metric gets worse if a column's cells change places between rows with targets, by column.

        Columns: ``column``, ``fall`` and its ``deviation`` over the ``repeats``. Raises `BadInput` for rows without columns.
        """
        frame, measure = self.read(rows), Measures().primary(self.trained.kind.primary)
        if isinstance(frame, np.ndarray):
            raise BadInput("importance: the model reads arrays, which have no columns")
        frame = self.measurable(frame)
        rng = np.random.default_rng(0)
        names, score = self.preprocessing.names if self.preprocessing else (), self.metrics(frame)[measure.name]
        falls = np.zeros((len(names), repeats))
        for column, at in np.ndindex(falls.shape):
            cells = frame[names[column]].to_numpy()[rng.permutation(len(frame))]
            shuffled = self.metrics(frame.assign(**{names[column]: cells}))[measure.name]
            falls[column, at] = measure.sign * (score - shuffled)
        table = pd.DataFrame({"column": names, "fall": falls.mean(1), "deviation": falls.std(1)})
        return table.sort_values("fall", ascending=False, ignore_index=True)

    def monitor(self, rows: object) -> pd.DataFrame:
        """How far new rows are from the rows of training of the clients that they name, by column; texts are left out.

        Columns: ``column``, ``stability_index``, its ``p`` value by chance, and ``outside``, the share of the rows with a value
        that no training row had. Raises `BadInput` if the model reads no table.
        """
        preprocessing, frame = self.preprocessing, self.read(rows)
        if not isinstance(preprocessing, Tabular) or isinstance(frame, np.ndarray):
            raise BadInput("monitor: the model reads no table; only columns of tables are compared")
        table = []
        for part, old in preprocessing.parts(self.training_rows_of(frame)):
            if not isinstance(part, Text):
                # without gaps in training there is no mark for missing numbers: they would count as the mean
                complete = isinstance(part, Number) and not part.gaps
                same = msgspec.structs.replace(part, marked=True) if complete else part
                now = same.decode(same.encode(cells_for(part, frame[part.name])).astype(np.float32).astype(np.float64))
                outside = np.any([at for at, _ in unseen(part, frame[part.name])], axis=0)
                table.append((part.name, *stability(part.decode(old), now), float(np.mean(outside))))
        answer = pd.DataFrame(table, columns=["column", "stability_index", "p", "outside"])
        return answer.sort_values("stability_index", ascending=False, ignore_index=True)

    def training_rows_of(self, frame: pd.DataFrame) -> Rows:
        """The training rows of the clients that new rows name, or of the client of a personal model; otherwise all, with a line."""
        data = self.training()
        if data.groups is None or len(data.group_names) < 2:
            return data.x
        named = words_of(frame[self.column]) if self.column in frame else [self.client]
        mine = np.isin(data.groups, np.flatnonzero(np.isin(data.group_names, [*named])))
        if mine.any():
            return data.x[mine]
        self.warn("the new rows name no client of training, so they are compared with the rows of all clients together")
        return data.x

    def has_targets(self, rows: pd.DataFrame | Rows) -> bool:
        """Whether `evaluate` can be called on the rows."""
        return bool(self.target) and not isinstance(rows, np.ndarray) and set(self.target) <= {*rows}

    def targets(self, rows: pd.DataFrame) -> Rows:
        """The targets (n, ...) in the rows. Raises `BadInput` unless they are of the kind that the model predicts."""
        name, *others = self.target
        kind, learned = self.trained.kind.target, self.trained.learned
        if kind != "classes":
            columns = [numbers(rows[column]) for column in self.target]
            y = np.stack(columns, axis=1) if others else columns[0]
            if kind == "labels":
                # a value that is no number becomes -1, which the check below names
                y = np.nan_to_num(y, nan=-1).astype(np.int64)
            TARGETS[kind].check(f"evaluate: column {', '.join(self.target)}", y, learned.categories)
            return y
        places = {word: at for at, word in enumerate(learned.classes)}
        words = words_of(rows[name])
        strange = sorted(set(words) - set(places))
        require(
            not strange,
            f"evaluate: column {name!r} holds {''.join(strange[:1])!r}, which is no class of run {self.run}: {', '.join(places)}",
        )
        return np.array([places[word] for word in words], dtype=np.int64)

    def read(self, rows: object) -> pd.DataFrame | Rows:
        """The rows as a data frame, or as an array where the run was trained on arrays. Raises `BadInput`."""
        preprocessing = self.preprocessing
        if preprocessing is None:
            raise BadInput(
                f"run {self.run}: its preprocessing is not known here; model() takes rows as the data set holds them"
            )
        if isinstance(preprocessing, Array):
            array = array_of(rows)
            require(
                array.shape[1:] == preprocessing.shape,
                f"predict: rows have shape {array.shape[1:]}, but run {self.run} needs {preprocessing.shape}",
            )
            return array
        return self.checked(self.frame(rows))

    def checked(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the rows. Raises `BadInput` if columns that the model reads are missing, or are there twice."""
        preprocessing = self.preprocessing
        assert preprocessing
        twice = frame.columns[frame.columns.duplicated()]
        require(twice.empty, f"predict: two columns are called {str(*twice[:1])!r}; give each its own name")
        missing = [name for name in preprocessing.names if name not in frame]
        lack = f"column{'s' if len(missing) > 1 else ''} {', '.join(missing)}, which the model of run {self.run} was trained with"
        near = suggestion("".join(missing[:1]), map(str, frame))
        require(not missing, f"predict: the rows lack the {lack}; {near}; without values, leave its cells empty")
        return frame

    def frame(self, rows: object) -> pd.DataFrame:
        """Rows as a data frame, changed as for training. A file whose name ends in .txt is one text."""
        if isinstance(rows, pd.DataFrame):
            return self.mended(rows)
        if isinstance(rows, str | Path):
            path, preprocessing = Path(rows), self.preprocessing
            if path.suffix != ".txt" or not isinstance(preprocessing, Texts | Symbols):
                return to_pandas(joined([*self.tables(path)]))
            require_exists(path)
            with reading("text", path):
                return pd.DataFrame({preprocessing.column: [path.read_text(encoding="utf-8")]})
        if isinstance(rows, pa.Table):
            return self.mended(rows.to_pandas())
        if not isinstance(rows, Mapping):
            raise BadInput("predict: give a data frame, a table, or a file with the columns of the training rows")
        try:
            return self.mended(pd.DataFrame(dict(rows)))
        except ValueError:
            raise BadInput("predict: give a list of values for each column, all of one length") from None

    def mended(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Rows that come from no file, changed as for training. Raises `BadInput` for cells that cannot be changed."""
        mapping, line = self.trained.learned.mappings.of("these rows", "", [*map(str, rows)], self.client)
        if line:
            self.warn(line)
        agreed = self.preprocessing.spellings if isinstance(self.preprocessing, Tabular) else {}
        rows = plainly_spelt(rows, agreed | {old: agreed.get(new, "") for old, new in mapping.rename.items()})
        if not mapping.brief:
            return rows
        try:
            table = pa.Table.from_pandas(rows, preserve_index=False)
        except pa.ArrowException as error:
            raise BadInput(f"predict: these rows cannot be changed as for training: {error}") from None

        def read(name: str, cells: pa.ChunkedArray) -> pa.ChunkedArray:
            return typed(cells, pa.string()) if name in mapping.numbers and holds_strings(cells.type) else cells

        return to_pandas(mapping(table, Path("these rows"), {}, read)).set_index(rows.index)

    def inputs(self, rows: pd.DataFrame | Rows) -> Tensor:
        """The inputs of the network."""
        preprocessing = self.preprocessing
        if isinstance(rows, np.ndarray):
            assert isinstance(preprocessing, Array)
            return self.tensor(self.harmonised(preprocessing(rows), rows))
        if isinstance(preprocessing, Symbols):
            return self.tensor(self.last_symbols(preprocessing, rows))
        assert isinstance(preprocessing, Tabular | Texts)
        return self.tensor(self.harmonised(inputs_of(preprocessing, self.trained.model, rows), rows))

    def harmonised(self, x: Rows, rows: pd.DataFrame | Rows) -> Rows:
        """The inputs after the change of rows by site."""
        maps = self.trained.learned.by_site.maps
        return x if maps is None else maps.changed(x, self.sites_of(rows))

    def sites_of(self, rows: pd.DataFrame | Rows) -> Ints:
        """The number (n,) of each row's site; -1 if it is not known, took no part in training, or is the same for all rows."""
        sites = self.trained.learned.by_site
        if isinstance(rows, np.ndarray) or sites.column not in rows:
            return np.full(len(rows), -1)
        return places_of(words_of(rows[sites.column]), sites.names)

    def tensor(self, x: Rows) -> Tensor:
        return rows_of(x, self.trained.dtype, torch.device("cpu"), self.trained.task.ids)

    def last_symbols(self, symbols: Symbols, rows: pd.DataFrame) -> Rows:
        """The last symbols (n, length) of each text."""
        x, encode = np.full((len(rows), *self.trained.learned.shape), PADDING, dtype=np.int64), symbols.encoder()
        for row, text in zip(x, strings(rows[symbols.column]), strict=True):
            last = encode(text)[-len(row) :]
            row[: len(last)] = last
        return x

    def sequences(self, symbols: Symbols, rows: pd.DataFrame) -> tuple[Tensor, Rows]:
        """The symbols of all texts in rows, and the symbol after each, as a run cuts its test texts. Raises `BadInput`."""
        texts, encode, [length] = strings(rows[symbols.column]), symbols.encoder(), self.trained.learned.shape
        strange = symbols.unknown("".join(texts))
        require(
            not strange,
            f"evaluate: column {symbols.column!r} holds {strange[:1]!r}, which no text of run {self.run} had",
        )
        x, y = map(np.concatenate, zip(*(windows(encode(text), length, length) for text in texts), strict=True))
        require(len(x) > 0, f"evaluate: no text in {symbols.column!r} has two symbols")
        return self.tensor(x), y

    def outputs(self, x: Tensor, site: Ints) -> Tensor:
        """The network's outputs (n, ..., K) for rows of these sites (n,). A personal model has its site's intercept."""
        outputs = self.outputs_of_network(channels_last(x), site)
        if self.personal is None and (intercept := self.trained.learned.by_site.intercept):
            added = torch.tensor(intercept)[torch.as_tensor(site)].to(outputs)
            outputs = outputs + added.reshape(len(x), *[1] * (outputs.dim() - 2), -1)
        return outputs / self.calibration.temperature if self.calibration else outputs

    def outputs_of_network(self, x: Tensor, site: Ints) -> Tensor:
        """The outputs without calibration, each row's by the personal model of its site if there is one."""
        task = self.trained.task
        if self.personal is None:
            return task.logits(self.trained.w, x)
        rows = [torch.as_tensor(np.flatnonzero(site == number)) for number in np.unique(site)]
        parts = [task.logits(self.personal(int(site[at[0]])), x[at]) for at in rows]
        return torch.cat(parts)[torch.cat(rows).argsort()]

    def outputs_in_parts(self, x: Tensor, site: Ints) -> Iterator[Tensor]:
        """Yield `outputs`, at most `CHUNK` rows at a time."""
        parts = zip(x.cpu().split(CHUNK), np.split(site, range(CHUNK, len(site), CHUNK)), strict=True)
        return (self.outputs(*part) for part in parts)

    def every_output(self, x: Tensor, site: Ints) -> Tensor:
        """The outputs (n, K) of all rows, in parts; of symbols those after the row's last one. ``site`` as in `sites_of`."""
        parts = []
        with torch.no_grad():
            for part, outputs in zip(x.split(CHUNK), self.outputs_in_parts(x, site), strict=True):
                if self.trained.kind.target == "symbols":
                    outputs = outputs[torch.arange(len(part)), (part >= 0).sum(-1).clamp(min=1) - 1]
                parts.append(outputs)
        return torch.cat(parts)

    def answers(self, x: Tensor, site: Ints) -> Rows:
        """The probabilities (n, K) of classes, labels or symbols, or the predicted numbers (n,). ``site`` as in `sites_of`."""
        return export.answered(self.trained.kind, self.every_output(x, site)).numpy()

    def unseen(self, rows: pd.DataFrame | Rows) -> list[Unseen]:
        """What no training row held, with the name of the column."""
        preprocessing = self.preprocessing
        if isinstance(rows, np.ndarray):
            assert isinstance(preprocessing, Array)
            strange = preprocessing.unseen(rows)
        elif isinstance(preprocessing, Tabular):
            strange = [(at, f"{p.name} {what}") for p in preprocessing.columns for at, what in unseen(p, rows[p.name])]
        elif isinstance(preprocessing, Symbols):
            texts = strings(rows[preprocessing.column])
            odd, column = [preprocessing.unknown(text) for text in texts], preprocessing.column
            what = f"{column} has unknown characters, which are left out, such as {''.join(odd)[:1]!r}"
            strange = [(np.array([*map(bool, odd)]), what), (texts.eq("").to_numpy(), f"{column} is empty")]
        else:
            assert isinstance(preprocessing, Texts)
            ids = encoded(words_of(rows[preprocessing.column]).tolist(), preprocessing)
            strange = [(np.all(ids <= UNKNOWN, axis=1), f"no word of {preprocessing.column} is known")]
        strange = [*strange, *self.unknown_sites(rows), *self.unmended_sites(rows)]
        return [(at, what) for at, what in strange if at.any()]

    def unknown_sites(self, rows: pd.DataFrame | Rows) -> list[Unseen]:
        """Which rows are of no known site, and how they are treated."""
        sites, strange = self.trained.learned.by_site, self.sites_of(rows) < 0
        if not sites.unknown or not strange.any():
            return []
        if not isinstance(rows, np.ndarray) and sites.column in rows:
            name = words_of(rows[sites.column])[strange].iloc[0]
            return [(strange, f"of a site that took no part in training, {sites.unknown}, such as {name!r}")]
        lack = f"no column {sites.column!r}" if sites.column else "no column names it"
        return [(strange, f"of an unknown site ({lack}; --client NAME is for rows of one site), {sites.unknown}")]

    def unmended_sites(self, rows: pd.DataFrame | Rows) -> list[Unseen]:
        """Which rows are of a client for which no line of a TOML file can have been written."""
        mappings = self.trained.learned.mappings
        if isinstance(rows, np.ndarray) or not mappings.clients or mappings.column not in rows:
            return []
        strange = ~words_of(rows[mappings.column]).isin(mappings.clients).to_numpy()
        what = f"of a client without training rows (column {mappings.column}): its units and words count as agreed"
        return [(strange, what)]


def inputs_of(preprocessing: Tabular | Texts, model: Architecture, rows: pd.DataFrame) -> Rows:
    """The inputs (n, ...) of a model's network, from the columns of a table."""
    if isinstance(preprocessing, Tabular):
        return preprocessing(cells_of(rows, preprocessing))
    texts = words_of(rows[preprocessing.column]).tolist()
    return model.tokens(texts) if isinstance(model, Encoder) else encoded(texts, preprocessing)


def words_of(cells: pd.Series[Any]) -> pd.Series[Any]:
    """Texts and classes as training reads them from a table: without spaces around them, and 1 for 1.0."""
    return strings(cells).str.strip().str.replace(r"^(-?\d+)\.0+$", r"\1", regex=True)


def columns_of(trained: export.Trained, answers: Rows) -> dict[str, Rows]:
    """The columns of a table of answers."""
    if answers.ndim == 1:
        return {PREDICTION: answers}
    require(answers.ndim == 2, f"predict: the task {type(trained.kind).__name__} has no single answer for a row")
    names = trained.learned.classes or tuple(map(str, range(answers.shape[1])))
    if not isinstance(trained.kind, Probabilistic):
        return {f"{OUTPUT}{name}": answers[:, at] for at, name in enumerate(names)}
    words = np.array(names, dtype=object)[answers.argmax(1)]
    if trained.kind.target == "labels":
        words = np.array(["|".join(np.array(names)[row >= 0.5]) for row in answers], dtype=object)
    return {PREDICTION: words, **{PROBABILITY + name: answers[:, at] for at, name in enumerate(names)}}


def array_of(rows: object) -> Rows:
    """Rows of numbers from an array, or from the array or the array ``x`` of a file."""
    if not isinstance(rows, str | Path):
        return np.asarray(rows)
    path = Path(rows)
    try:
        arrays = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        why = getattr(error, "strerror", None) or "not such a file"
        raise BadInput(
            f"predict {path}: the model reads arrays, a .npy or the array x of a .npz, with raw values as in the files of its data "
            f"set: {why}"
        ) from None
    if isinstance(arrays, np.ndarray):
        return arrays
    require("x" in arrays.files, f"predict {path}: it has no array x; write np.savez(FILE, x=rows)")
    return np.asarray(arrays["x"])


def unseen_line(number: int, rows: int, what: str) -> str:
    return f"{count(number, 'row')} of {rows}: {what}; no training row was like that"


def load(
    store: RunStore,
    run: int,
    client: int | str | None = None,
    warn: Callable[[str], None] = warn_python,
    dataset: Dataset | None = None,
    calibrated: bool = False,
) -> TrainedModel:
    """The global model of a run's newest checkpoint, or the personal model of a ``client``, by number or name.

    If ``calibrated``, a temperature makes its probabilities fit the rows that the clients, or the client, hold out.
    """
    number, experiment = number_of(store, run, client, dataset), from_toml(store.run(run).experiment, f"run {run}")
    by_site = number is None and export.has_personal(experiment)
    if by_site and between_sites(store.run(run)):
        warn(f"run {run}: the sites keep their personal models; all rows get the model that they share")
        by_site = False
    column, one_network = client_column(experiment), not isinstance(experiment.model, Mixed)
    alone = by_site and bool(column) and one_network and not export.shares_all(experiment)
    basis = export.trained(store, run, warn, dataset, 0 if alone else number)
    name = "" if number is None else "".join(export.names_of_clients(store, run, dataset)[number:][:1])
    if between_sites(store.run(run)) and isinstance(basis.learned.preprocessing, Tabular):
        warn(
            f"run {run}: the sites keep their NAME.columns.toml; rows of a site need its lines in such a file of their own"
        )
    model = TrainedModel(run, basis, lambda: training_rows(store, run, dataset), client=name, column=column, warn=warn)
    if by_site:
        model = with_personal(model, store, dataset, alone)
    return replace(model, calibration=calibration(model, store, number)) if calibrated else model


def training_rows(store: RunStore, run: int, dataset: Dataset | None) -> Dataset:
    """Return the data of a run. Raises `BadInput` if they have changed or are at sites, since the server's rows are others."""
    require(not between_sites(store.run(run)), f"run {run}: the rows of training are at the sites, and are needed here")
    return data_of(store, run, dataset)


def with_personal(model: TrainedModel, store: RunStore, dataset: Dataset | None, alone: bool) -> TrainedModel:
    """Return the model with the personal models of the sites, which its ``column`` names. Sites that are ``alone`` share none.

    They are computed when a row of a known site needs them, from the run's data.
    """
    run, column = model.run, model.column
    # what holds at all sites; a model without a shared one was loaded for one of them
    learned = kept(store, run) or model.trained.learned
    names = export.names_of_clients(store, run, dataset)
    unknown = ", ".join(filter(None, [learned.by_site.unknown, SHARED]))
    sites = msgspec.structs.replace(learned.by_site, names=names, column=column, unknown=unknown)
    of_clients_ = cache(lambda: export.of_clients(store, run, dataset))

    def personal(site: int) -> Tensor:
        if site >= 0:
            return of_clients_()(site)
        lack = f"run {run}: its clients share no model, and column {column!r} of a row names none of them"
        require(not alone, f"{lack}; {export.name_one(store, run)}")
        return model.trained.w

    learned = msgspec.structs.replace(learned, sites=sites)
    return replace(model, trained=model.trained._replace(learned=learned), personal=personal)


def calibration(model: TrainedModel, store: RunStore, client: int | None) -> Calibration:
    """Fit a temperature to held-out rows. Raises `BadInput` if the model has no probabilities of classes, or no row is held out."""
    kind, (assembly, server, _) = model.trained.kind, state_of(store, model.run, model.training())
    fed, test_owner = assembly.federation, assembly.data.test_owner
    require(
        isinstance(kind, Probabilistic) and kind.target == "classes" and assembly.frozen is None,
        "calibrated: only probabilities of classes of a model without frozen layers are calibrated; leave it out",
    )
    whose = [*range(len(fed.partition))] if client is None else [client]
    parts = [fed.partition.measured_rows(k) for k in whose]
    rows, owner = np.concatenate(parts), np.full(len(assembly.y_test), -1) if test_owner is None else test_owner
    some = fed.partition.held_out is not None and len(rows) > 0
    none = "no client held out rows" if client is None else f"client {fed.partition.names[client]} held out no rows"
    require(some, f"calibrated: in run {model.run} {none}; leave it out")
    mine = owner == client
    mine |= not mine.any()

    def outputs_of(x: Tensor, sites: Ints) -> Tensor:
        """Outputs as `predict` gives them: of no known site if no column of a row names it."""
        return model.every_output(x, sites if model.column else np.full(len(sites), -1)).double()

    held = outputs_of(fed.x[rows], np.repeat(whose, [*map(len, parts)]))
    temperature = temperature_of(held, fed.targets(server.round)[rows].cpu())
    tested = outputs_of(assembly.x_test[mine], owner[mine])
    before, after = (outputs.softmax(1).numpy() for outputs in (tested, tested / temperature))
    return Calibration(temperature, before, after, assembly.y_test[mine].cpu().numpy())


def number_of(store: RunStore, run: int, client: int | str | None, dataset: Dataset | None = None) -> int | None:
    """A client's number, from its name or the number itself. Where names are numbers, a text is a name."""
    if client is None or isinstance(client, int):
        return client
    names = export.names_of_clients(store, run, dataset)
    if client in names:
        return names.index(client)
    number = client.isdigit() and not any(name.isdigit() for name in names)
    require(number, f"run {run}: there is no client {client!r}; they are {', '.join(names[:20])}")
    return int(client)


def stability(before: Cells, now: Cells) -> tuple[float, float]:
    """Return the population stability index of a column's cells, and its p value if both are of one population (Yurdakul 2018).

    Bins are tenths of the numbers ``before``, or words; missing values are a bin. Each bin counts half a row more. The index is the
    sum of (q - p) log(q / p) over the bins' shares p and q.
    """
    from scipy.stats import chi2, entropy

    cells = np.concatenate([before, now])
    if cells.dtype == object:
        at = np.unique(cells.astype(str), return_inverse=True)[1]
    else:
        some = np.isfinite(before)
        inner = np.unique(np.quantile(before[some], np.arange(1, 10) / 10)) if some.any() else np.zeros(1)
        at = np.unique(np.where(np.isnan(cells), -1, np.searchsorted(inner, cells)), return_inverse=True)[1]
    p, q = (np.bincount(part, minlength=at.max() + 1) + 0.5 for part in np.split(at, [len(before)]))
    index = float(entropy(p, q) + entropy(q, p))
    return index, float(chi2.sf(index / (1 / len(before) + 1 / len(now)), max(1, at.max())))
