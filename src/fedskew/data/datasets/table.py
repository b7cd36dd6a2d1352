"""The user's own CSV, JSON lines, Parquet or Arrow files as a data set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from fedskew.core.errors import BadInput, require
from fedskew.core.files import whole_path
from fedskew.core.limits import NonNegativeInt, OpenShare, PositiveInt
from fedskew.core.text import count
from fedskew.data.dataset import Dataset, Ints, numbered, places_of
from fedskew.data.find import Files
from fedskew.data.preprocessing import Tabular, Texts
from fedskew.data.splits import Redrawn, held_out, in_fold, units_of
from fedskew.data.targets import TARGETS, Numbered
from fedskew.data.texts import Vocabulary, of_texts

if TYPE_CHECKING:
    import pyarrow as pa

    from fedskew.data.tables.columns import Columns
    from fedskew.data.tables.mapping import Mappings
    from fedskew.data.tables.schema import Kind
    from fedskew.data.tables.summaries import Summary
    from fedskew.data.tables.survey import Survey

MOST_KEPT = 1 << 24
"""Bytes of files whose rows stay in memory until another table is read."""


@dataclass(frozen=True, kw_only=True)
class TableData(Redrawn):
    """Rows of the file or folder ``path``; the natural clients are the values of the column ``client``, or else the files.

    One file without ``client`` has no natural clients; a skew deals its rows. The test set is the file or folder ``test``. If
    ``path`` is a folder with files ``NAME.test.csv``, these are the test rows of the client in ``NAME.csv``. Otherwise it is a
    random ``test_share`` of each client's rows (rounded down), in equal shares of the classes. ``split_seed`` draws it; with
    ``redraw`` each seed of a comparison draws its own. ``fold=2/5`` tests the second of five folds of the rows instead,
    ``fold=2/4:clients`` the second of four folds of whole clients. All rows are loaded into memory, or ``rows`` of them at random.
    Classes of the test set alone stay in it: no client trains on them, and their rows count as errors. Rows without label or client
    are dropped; ``notes`` counts them.

    ``person`` is a column that names the person of each row, if some have several rows. The rows of a person stay together: all
    are test rows or none is, and all are held out or none is. The column is no input. Rows without a person are dropped. If a
    tested person has rows at clients that are not tested, or in both files, no model trains on these rows.

    ``client_from=COLUMN:FILE.csv`` groups the values of a column into clients: the file has the columns ``value`` and ``client``,
    and a line for each value. ``drop`` are columns that are left out, one name or a list.

    ``label`` is the column of classes. To predict numbers, name their column as ``target`` instead. To predict any number of labels
    for each row, name their columns of 0 and 1: ``labels=a|b|c``. For survival, name the columns ``time`` and ``event``. An event
    is 1 if it happened at this time, and 0 if it had not happened when the observation ended at this time.

    With ``text``, the rows are the texts of this column; other columns are not used. A row has the ids of the first ``length``
    words, with the ``vocabulary`` most frequent words, or the tokens of a pretrained encoder.

    With ``fewest=K`` the preprocessing is made of what nodes with ``--fewest K`` send: each natural client hides words of fewer
    than K of its rows, and its largest and smallest values.
    """

    path: str
    label: str = ""
    target: str = ""
    labels: str = ""
    time: str = ""
    event: str = ""
    client: str = ""
    client_from: str | None = None
    person: str | None = None
    drop: str | tuple[str, ...] | None = None
    text: str = ""
    test: str = ""
    test_share: OpenShare = 0.2
    rows: NonNegativeInt = 0
    length: PositiveInt = 64
    vocabulary: Vocabulary = 20_000
    fewest: PositiveInt = 1

    takes: ClassVar[str] = "path"
    idea: ClassVar[str] = (
        "your own CSV, JSON lines, Parquet or Arrow files; with client=COLUMN or a file a client use it with --skew natural"
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", whole_path(self.path))
        if not self.test and any(Path(self.path).glob("*.test.*")):
            object.__setattr__(self, "test", self.path)
        if self.test:
            object.__setattr__(self, "redraw", False)
        super().__post_init__()
        if self.test and self.fold:
            raise BadInput("test=FILE gives the test rows, so there are no folds; leave out one of them")
        targets = sum(map(bool, (self.label, self.target, self.labels, self.time or self.event)))
        require(
            targets == 1,
            "needs one of label=COLUMN for classes, target=COLUMN for numbers, labels=COLUMN|COLUMN for sets of labels, and "
            "time=COLUMN,event=COLUMN for survival",
        )
        require(bool(self.time) == bool(self.event), "time=COLUMN and event=COLUMN belong together")
        require(
            not self.labels or (len(self.label_columns) > 1 and len({*self.label_columns}) == len(self.label_columns)),
            f"labels={self.labels} must be two or more different columns; for one column write label={self.labels}",
        )
        require(not self.labels or not self.text, "labels of texts are not read from tables yet; use label=COLUMN")
        roles = [("time" if self.time else "label", name) for name in (self.column, *self.label_columns[1:])]
        roles += [("event", self.event), ("client", self.client_roles[0]), ("person", self.person or "")]
        check_roles([*roles, ("text", self.text), *(("column to drop", name) for name in names_of(self.drop))])
        require(not self.person or self.fewest == 1, "fewest counts rows, not persons; leave out fewest or person")
        if self.client_from:
            object.__setattr__(self, "client_from", ":".join([self.client_roles[0], whole_path(self.client_roles[1])]))
        object.__setattr__(self, "test", whole_path(self.test))

    @property
    def column(self) -> str:
        """The column to predict, or the first of several."""
        return self.label or self.target or self.time or self.label_columns[0]

    @property
    def others(self) -> tuple[str, ...]:
        """Further columns of the target."""
        return (self.event,) if self.event else self.label_columns[1:]

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The columns of ``labels``."""
        return tuple(filter(None, self.labels.split("|")))

    @property
    def client_roles(self) -> tuple[str, str]:
        """The column of the clients, and the file that groups its values."""
        return client_roles(self.client, self.client_from)

    @property
    def file_a_client(self) -> bool:
        """True if ``path`` is a folder with several files, and no column names the clients."""
        # imported here, because other data sets need no PyArrow
        from fedskew.data.tables.files import files_of

        return not self.client_roles[0] and Path(self.path).is_dir() and len(files_of([Path(self.path)])) > 1

    @property
    def task(self) -> str:
        """The default task."""
        columns = {"multi-label": self.labels, "survival": self.time, "regression": self.target}
        return next((task for task, column in columns.items() if column), "classification")

    @property
    def model(self) -> str:
        """The default model."""
        return "text-cnn" if self.text else "mlp"

    def surveyed(
        self, client: str = "", preprocessing: Tabular | None = None, once: bool = False, test: bool = False
    ) -> Survey:
        """Read the rows and targets of ``path``, or of the ``test`` file. Cells are read as ``preprocessing`` reads them.

        With ``once``, only the first row of each person counts.
        """
        # imported here, because other data sets need no pandas and PyArrow
        from fedskew.data.tables.files import files_of
        from fedskew.data.tables.survey import Roles, check_dropped, survey

        roles = Roles(
            label=self.column,
            client=client,
            client_map=self.client_roles[1] if client else "",
            drop=names_of(self.drop),
            text=self.text,
            event=self.event,
            person=self.person or "",
            written="" if client else self.client_roles[0],
            numeric=not self.label,
            once=once,
        )
        path, most, training = self.test if test else self.path, self.rows or None, self.mappings() if test else None
        files = files_of([Path(path)], test)
        rows = survey(files, roles, preprocessing=preprocessing, most=most, fair=False, training=training)
        if not test:
            check_dropped(roles.drop, [rows])
        return with_labels(rows, self.label_columns, path) if self.labels else rows

    def mappings(self, clients: tuple[str, ...] = ()) -> Mappings:
        """Return how the TOML files beside the files of ``path`` map them. ``clients`` are the values of ``client``."""
        from fedskew.data.tables.files import files_of, stem
        from fedskew.data.tables.mapping import Mappings, mapping_of

        files = {stem(path): mapping_of(path) for path in files_of([Path(self.path)])}
        return Mappings(files=files, column=self.client, clients=clients if self.client else ())

    def all_rows(self) -> Survey:
        """Return the rows before test rows are drawn. Small files are read once for all splits, until one of them changes."""
        from fedskew.data.tables.files import files_of
        from fedskew.data.tables.mapping import mapping_path

        data = files_of([Path(self.path)])
        files = [*data, *map(mapping_path, data), Path(self.client_roles[1] or self.path)]
        stats = [path.stat() for path in files if path.exists()]
        if sum(stat.st_size for stat in stats) > MOST_KEPT:
            return self.surveyed(self.client_roles[0])
        of_all_splits = replace(self, split_seed=0, redraw=True, fold="", whole=None)
        return read_once(of_all_splits, tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats))

    def summaries(self, table: pa.Table, clients: Numbered | None) -> tuple[dict[str, Summary], tuple[str, ...]]:
        """Return the summary of these rows; with ``fewest``, of each natural client, and notes on what these hide."""
        from fedskew.data.tables.guard import as_own_file, shared, summary

        if clients is None or self.fewest == 1:
            return {self.path: summary(table)}, ()
        owner, names = clients
        parts = {names[at]: shared(as_own_file(table.filter(owner == at)), self.fewest) for at in np.unique(owner)}
        hidden = tuple(f"{name}: {note}" for name, (_, notes) in parts.items() for note in notes)
        return {name: summary for name, (summary, _) in parts.items()}, hidden

    def encoding(self, table: pa.Table, clients: Numbered | None, kinds: Mapping[str, Kind]) -> Columns:
        """Fit the preprocessing to these training rows. ``kinds`` says what each column is."""
        from fedskew.data.tables.schema import merged

        sites, hidden = self.summaries(table, clients)
        encode = merged(sites, self.column, kinds)
        return replace(encode, notes=(*encode.notes, *hidden))

    def load(self, preprocessing: Tabular | Texts | None = None) -> Dataset:
        """Load the rows by the ``preprocessing`` that sites agreed on. Without it, fit one to these rows."""
        from fedskew.data.tables.columns import Columns
        from fedskew.data.tables.survey import copied_tests

        agreed = preprocessing if isinstance(preprocessing, Tabular) else None
        rows = self.surveyed(self.client_roles[0], agreed) if agreed else self.all_rows()
        clients, kinds = self.clients_and_kinds(rows, fit=preprocessing is None and not self.text)
        if self.test:
            fitted = self.encoding(rows.table, clients, kinds).preprocessing if kinds else agreed
            split = self.with_test_file(rows, fitted)
        else:
            split = self.with_drawn_rows(rows)
        split, notes = self.without_tested_persons(split)
        table, y = rows.table.filter(split.trained), rows.y[split.trained]
        clients = clients and (rows.client[split.trained], rows.clients)
        files = Files(dataset=Path(self.path).name, licence="", classes=len(split.classes), source=self.path)
        facts = {"groups_test": clients and split.owner, "persons": split.persons, "test_units": split.units}
        if self.text:
            texts, test_texts = (part[self.text].to_pylist() for part in (table, split.table))
            words = preprocessing if isinstance(preprocessing, Texts) else Texts(length=self.length)
            if not self.whole:
                notes += copied_tests(np.array(texts, object), y, np.array(test_texts, object), split.y)
            return of_texts(
                files,
                (texts, y),
                (test_texts, split.y),
                split.classes,
                structs.replace(words, column=self.text, target=self.column, others=self.others),
                self.vocabulary,
                clients,
                words is preprocessing,
                fewest=self.fewest,
                notes="; ".join(notes),
                **facts,
            )
        if agreed:
            missing = [name for name in agreed.names if name not in table.column_names]
            require(not missing, f"{self.path}: has no column {', '.join(missing)}, on which the sites agreed")
        encode = Columns(agreed, ()) if agreed else self.encoding(table, clients, kinds)
        x, x_test = encode(table), encode(split.table)
        if not self.whole:
            notes += copied_tests(x, y, x_test, split.y)
        return files.build(
            (x, y),
            (x_test, split.y),
            split.classes,
            columns=encode.preprocessing.inputs,
            clients=clients,
            preprocessing=structs.replace(encode.preprocessing, others=self.others),
            notes="; ".join([*notes, *encode.notes, *(f"test: {note}" for note in encode.gaps(split.table))]),
            **facts,
        )

    def clients_and_kinds(self, rows: Survey, fit: bool) -> tuple[Numbered | None, Mapping[str, Kind]]:
        """Return the natural clients, and what each column is if a preprocessing will be ``fit`` to the rows.

        All rows decide what a column is; scales and words come from training rows alone. Raises `BadInput` if the rows have one
        class only, or no clients although ``fewest`` needs some.
        """
        from fedskew.data.tables.schema import kinds_of

        if self.label and len(rows.classes) < 2:
            raise BadInput(f"{self.path}: all rows have the label {''.join(rows.classes)!r}; choose another column")
        natural = bool(self.client_roles[0]) or len(rows.clients) > 1
        require(
            natural or self.fewest == 1,
            f"{self.path}: fewest={self.fewest} is about the rows of each client; give client=COLUMN, or a file a client",
        )
        clients = (rows.client, rows.clients) if natural else None
        return clients, kinds_of(self.summaries(rows.table, clients)[0]) if fit else {}

    def with_test_file(self, rows: Survey, preprocessing: Tabular | None) -> Split:
        """Return the rows, and the test rows of the file ``test``. Its cells are read as ``preprocessing`` reads them."""
        test = self.surveyed(preprocessing=preprocessing, test=True)
        classes, notes = [*(self.label_columns or rows.classes)], [f"test: {note}" for note in test.notes]
        unseen = [at for at, word in enumerate(test.classes) if word not in classes]
        if unseen:
            new, number = [test.classes[at] for at in unseen], test.counts[:, unseen].sum()
            classes += new
            notes.insert(0, f"{len(new)} classes with {number} rows are in the test set only: {', '.join(new[:5])}")
        absent = sorted(set(rows.table.column_names) - set(test.table.column_names))
        require(bool(self.text) or not absent, f"{self.test}: has no columns {absent[:5]}")
        y = np.array([classes.index(word) for word in test.classes])[test.y] if self.label else test.y
        person = test_person = None
        if rows.person is not None and test.person is not None:
            person, test_person = np.split(numbered([*rows.person, *test.person])[0], [len(rows.y)])
        trained, (owner, lines) = np.ones(len(rows.y), dtype=np.bool_), self.owner_in(test, rows.clients)
        noted = (*notes, *lines)
        return Split(rows, trained, test.table, y, tuple(classes), person, test_person, notes=noted, owner=owner)

    def owner_in(self, test: Survey, clients: Sequence[str]) -> tuple[Ints | None, list[str]]:
        """Return the number of each test row's client among the ``clients`` (n,), or -1, and a note on rows of other clients.

        The client is in the column of the clients or, without it, the name of the file. The numbers are None if no row is of any
        client.
        """
        from fedskew.data.tables.survey import clients_by_value, words

        column, groups = self.client_roles
        if column and column not in test.table.column_names:
            return None, []
        names: list[str | None] = [test.clients[at] for at in test.client]
        if column:
            names = words(test.table, column, Path(self.test)).to_pylist()
        by_value = clients_by_value(Path(groups)) if groups else {}
        owner = places_of([by_value.get(str(name)) for name in names] if groups else names, clients)
        others = np.flatnonzero(owner < 0)
        if len(others) == len(owner):
            return None, ["no test row is of a client that trains; they are at no site"] * bool(column)
        return owner, [
            f"{len(others)} of {len(owner)} test rows are of clients that do not train, such as {names[at]!r}; they are at no site"
            for at in others[:1]
        ]

    def with_drawn_rows(self, rows: Survey) -> Split:
        """Draw test rows: a fold, or a share of each client's rows."""
        classes, person = self.label_columns or rows.classes, None if rows.person is None else numbered(rows.person)[0]
        target = {"label": "classes", "labels": "labels", "target": "number", "time": "survival"}
        kind = next(target[option] for option in target if getattr(self, option))
        stratum = TARGETS[kind].strata(rows.y, classes)[0]
        if self.fold:
            drawn = in_fold(rows.client, self.fold, self.split_seed, stratum, person)
        else:
            drawn = held_out(rows.client, self.test_share, self.split_seed, stratum, person)
        require(
            bool(drawn.any()),
            f"{self.path}: no client has the {1 / self.test_share:.0f} rows that one test row needs; give test=FILE",
        )
        test_person = None if person is None or self.whole else person[drawn]
        units = units_of(drawn, rows.client, self.fold, person)
        y, owner, trained = rows.y[drawn], rows.client[drawn], ~drawn | bool(self.whole)
        return Split(rows, trained, rows.table.filter(drawn), y, classes, person, test_person, units, owner=owner)

    def without_tested_persons(self, split: Split) -> tuple[Split, list[str]]:
        """Leave out training rows of persons with test rows. Return the split, and notes on all of its rows."""
        from fedskew.data.tables.survey import all_notes

        rows = split.rows
        notes = [*all_notes(rows, self.label), *split.notes]
        if split.person is None or split.test_person is None:
            return split, notes
        alone = ~np.isin(split.person, split.test_person)
        notes += notes_on_persons(rows, self.person or "", int((split.trained & ~alone).sum()))
        split = replace(split, trained=split.trained & alone)
        require(bool(split.trained.any()), f"{self.path}: each person has test rows, so no row is left for training")
        return split, notes


def client_roles(client: str, client_from: str | None) -> tuple[str, str]:
    """Return the column of the clients, and the file that groups its values; both empty if there is none."""
    require(not (client and client_from), "client and client_from both name the clients; leave out one")
    column, _, path = (client_from or f"{client}:").partition(":")
    form = f"client_from must be COLUMN:FILE.csv, a file with the columns value and client, got {client_from!r}"
    require(not client_from or bool(column and path), form)
    return column, path


def check_roles(roles: Sequence[tuple[str, str]]) -> None:
    """Raise `BadInput` if two of the roles, (role, column), have the same column."""
    for (role, name), (other, same) in combinations(roles, 2):
        require(not name or name != same, f"column {name!r} cannot be both the {role} and the {other}; leave out one")


@lru_cache(maxsize=1)
def read_once(source: TableData, stamps: tuple[tuple[int, int, int], ...]) -> Survey:
    """Return all rows of a table. ``stamps`` tell when its files changed."""
    return source.surveyed(source.client_roles[0])


def names_of(drop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns to leave out."""
    return (drop,) if isinstance(drop, str) else tuple(dict.fromkeys(drop or ()))


@dataclass(frozen=True)
class Split:
    """The rows of a table, and its test rows, which are some of them or from another file."""

    rows: Survey
    trained: NDArray[np.bool_]  # (rows,) True for training rows
    table: pa.Table  # the test rows
    y: NDArray[Any]  # targets of the test rows
    classes: tuple[str, ...]
    person: Ints | None = None  # (rows,) numbers of the persons
    test_person: Ints | None = None
    units: Ints | None = None  # of the test rows, as in `Dataset`
    notes: tuple[str, ...] = ()
    owner: Ints | None = None  # (test rows,) number of each row's client in `rows`; -1 for another client

    @property
    def persons(self) -> tuple[Ints, Ints] | None:
        """The persons of the training rows and of the test rows."""
        if self.person is None or self.test_person is None:
            return None
        return self.person[self.trained], self.test_person


def notes_on_persons(survey: Survey, column: str, left_out: int) -> list[str]:
    """Return notes on the persons, and on ``left_out``, the number of training rows that are left out because of them."""
    assert survey.person is not None
    clients = Counter(person for person, _ in {*zip(survey.person, survey.client.tolist(), strict=True)})
    several = sum(number > 1 for number in clients.values())
    notes = [
        f"{count(len(clients), 'person')} in column {column!r}, which is no input: a person's rows stay together as test, held-out "
        "or training rows" + (f"; {count(several, 'person')} at several clients" if several else "")
    ]
    return notes + ([f"{count(left_out, 'row')} of tested persons outside the test rows left out"] if left_out else [])


def with_labels(survey: Survey, labels: tuple[str, ...], path: str) -> Survey:
    """Return the survey with all columns ``labels`` as targets (rows, labels). The given survey has only the first as target."""
    from fedskew.data.tables.survey import require_columns, target_numbers

    require_columns(Path(path), survey.table, labels[1:])
    columns = [survey.y, *(target_numbers(survey.table, name, Path(path)) for name in labels[1:])]
    for name, values in zip(labels, columns, strict=True):
        odd = ~np.isin(values, (0, 1))
        require(not odd.any(), f"{path}: column {name!r} is a label and must hold 0 or 1, {int(odd.sum())} rows do not")
    y = np.stack(columns, axis=1).astype(np.int64)
    return replace(survey, table=survey.table.drop_columns(list(labels[1:])), y=y)
