"""A site's rows: its table converted by what the server of the run decided, and the file that holds them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from logging import WARNING
from pathlib import Path
from typing import TypeVar
from zipfile import ZipFile

import msgspec
import numpy as np

from fedskew.core.errors import DAMAGED, BadInput, first_line, require
from fedskew.core.files import replacing, write_whole
from fedskew.core.sites import Harmonisation, RowHarmonisation, SiteMaps, SiteSums, of_own_rows
from fedskew.data.dataset import numbered
from fedskew.data.datasets.table import TableData, held_out, names_of
from fedskew.data.preprocessing import Array, Symbols, Tabular, Texts
from fedskew.data.tables.summaries import Summary
from fedskew.data.targets import TARGETS, Rows as Arrays
from fedskew.data.texts import SiteWords, merged_vocabulary, site_words
from fedskew.execution.build import Assembly
from fedskew.execution.prepare import fitted
from fedskew.experiment.config import Architecture, Experiment
from fedskew.flower.events import event
from fedskew.flower.nodes import Channel, Deployment, Nodes
from fedskew.flower.wire import Reply, Request
from fedskew.models import TextCnn
from fedskew.models.encoder import PAD, Encoder
from fedskew.serving.predict import inputs_of, words_of
from fedskew.skew.partition import Ints, Partition


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a node: training rows ``x`` (n, ...) with targets ``y`` (n, ...), and the rows that measure the model."""

    x: Arrays
    y: Arrays
    x_measured: Arrays
    y_measured: Arrays


def write_rows(path: Path, rows: Rows) -> None:
    """Write a client's file. Only its owner may read it, and a new folder around it."""
    measured = {"x_measured": rows.x_measured, "y_measured": rows.y_measured} if len(rows.y_measured) else {}
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(path, mode=0o600) as partial:
            np.savez(partial, x=rows.x, y=rows.y, **measured)  # type: ignore[arg-type]
    except OSError as error:
        raise BadInput(f"rows {path}: cannot be written: {error.strerror}") from None


def check_unchanged(path: Path, note: Path) -> None:
    """Raise `BadInput` if a file has other rows than when ``note`` was written: held-out ones may have trained the model."""
    with ZipFile(path) as file:
        checksums = str({part.filename: part.CRC for part in file.infolist()})
    if not note.exists():
        write_whole(note, checksums, "rows", mode=0o600)
    require(
        note.read_text() == checksums,
        "its rows have changed since this run began; bring them back as they were, or begin a new run",
    )


def read_rows(path: Path) -> Rows:
    """Read the rows of a client from a file. Raises `BadInput` for another kind of file, or if its arrays do not match."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise BadInput(f"rows {path}: there is no such file") from None
    except DAMAGED as error:
        raise BadInput(f"rows {path}: not a NumPy .npz file of plain arrays: {first_line(error)}") from None
    require({"x", "y"} <= set(arrays), f"rows {path}: holds {sorted(arrays)}; it needs the arrays x and y")
    for name, array in arrays.items():
        plain = array.ndim > 0 and (np.issubdtype(array.dtype, np.number) or array.dtype == bool)
        require(plain, f"rows {path}: {name} must be an array of numbers, not {array.dtype} of shape {array.shape}")
    arrays.setdefault("x_measured", arrays["x"][:0])
    arrays.setdefault("y_measured", arrays["y"][:0])
    for x, y in (("x", "y"), ("x_measured", "y_measured")):
        require(
            y in arrays and x in arrays, f"rows {path}: has only one of x_measured and y_measured; write both, or none"
        )
        require(len(arrays[x]) == len(arrays[y]), f"rows {path}: {len(arrays[x])} rows in {x}, {len(arrays[y])} in {y}")
        for name in (x, y):
            require(bool(np.isfinite(arrays[name]).all()), f"rows {path}: {name} holds values that are not finite")
    require(len(arrays["y"]) > 0, f"rows {path}: the file has no rows")
    return Rows(arrays["x"], arrays["y"], arrays["x_measured"], arrays["y_measured"])


def rows_of(assembly: Assembly, client: int) -> Rows:
    """Return the rows of one simulated client, in the order of its training."""
    data, partition, y = assembly.data, assembly.partition, assembly.data.labels.at(0)
    training = partition.rows(client)
    aside = partition.measured_rows(client) if partition.held_out else training[:0]
    x: Arrays = data.x
    if data.dataset.texts:  # the server has the vocabulary of its whole data set, and says how long a text is
        model, x, _ = fitted(assembly.experiment.model, data.dataset, data.dataset.x, data.dataset.x_test)
        x = padded(model, x)
    return Rows(x[training], y[training], x[aside], y[aside])


def harmonised(rows: Rows, harmonisation: Harmonisation, received: Callable[[], SiteMaps]) -> Rows:
    """Return the rows after the change that is fitted to this site's training rows alone, or that ``received`` returns."""
    if not isinstance(harmonisation, RowHarmonisation):
        return rows
    alone = of_own_rows(harmonisation)
    require(
        not alone or len(rows.x) > 1,
        "this site has one training row, and so no deviation for the run's harmonisation; leave the site out of the run",
    )
    maps = harmonisation.fit(SiteSums.of([rows.x], np.arange(0))) if alone else received()
    x, x_measured = (maps.changed(part, np.zeros(len(part), dtype=np.int64)) for part in (rows.x, rows.x_measured))
    return replace(rows, x=x, x_measured=x_measured)


def padded(model: Architecture, x: Arrays) -> Arrays:
    """Widen token ids (n, L) to the encoder's maximum length. Other rows are returned unchanged."""
    if not isinstance(model, Encoder):
        return x
    return np.pad(x, [(0, 0), (0, model.length - x.shape[1])], constant_values=PAD)


def consecutive(sizes: Ints, measured: Ints, names: tuple[str, ...] = ()) -> Partition:
    """Return the partition of a pool: first the training rows of all clients, one client after the other, then held-out rows.

    ``sizes`` and ``measured`` (K,) are the clients' numbers of rows, ``names`` (K,) their names (by default their numbers).
    """
    ends, last = (np.cumsum([0, *numbers]) for numbers in (sizes, measured))
    aside = (np.arange(ends[-1], ends[-1] + last[-1]), last) if last[-1] else None
    names = names or tuple(map(str, range(len(sizes))))
    return Partition(np.arange(ends[-1]), ends, names, empty=0, unassigned=0, held_out=aside)


def check_table(table: TableData) -> None:
    """Log the notes on reading. Raise `BadInput` if the table cannot be read or sets an option that only the server may set."""
    for name in ("client", "client_from", "test"):
        require(not getattr(table, name), f"--table: leave out {name}; all rows of the table belong to this client")
    require(table.fewest == 1, f"--table: leave out fewest; use --fewest {table.fewest}")
    note(table, table.surveyed().notes)


def note(table: TableData, notes: Iterable[str]) -> None:
    """Tell the owner of a table what was made of its cells."""
    for line in notes:
        event(f"table {table.path}: {line}", level=WARNING)


def summary_of(table: TableData | None, experiment: Experiment, fewest: int) -> tuple[int, bytes]:
    """Return the number of rows of a table, and the summary of its columns as bytes; of texts, the counts of words.

    Each count covers at least ``fewest`` rows. If the table names its persons, and ``fewest`` is above 1, only the first row of
    each person counts. The owner's table says how many words of each text are counted. If the server chose this number, the
    difference of two answers could reveal words of fewer rows.
    """
    from fedskew.data.tables.columns import to_pandas
    from fedskew.data.tables.guard import shared

    if table is None:
        raise BadInput("the run agrees on the columns of tables; start the node with --table FILE,label=COLUMN")
    template = table_of(experiment)
    options = f"text={template.text},length={template.length}" if template.text else "no text=COLUMN"
    require(
        (table.text, table.length) == (template.text, template.length),
        f"table {table.path}: the run's table has {options}; start the node with the same",
    )
    survey = table.surveyed(once=fewest > 1)
    dropped = {*names_of(template.drop)}.intersection(survey.table.column_names)
    if table.text:
        texts = words_of(to_pandas(survey.table)[table.text])
        return len(survey.y), msgspec.msgpack.encode(site_words(texts.tolist(), table.length, fewest))
    summary, notes = shared(survey.table.drop_columns(sorted(dropped)), fewest)
    for note in notes:
        event(f"for the server, {note}")
    return len(survey.y), msgspec.msgpack.encode(summary)


def table_of(experiment: Experiment) -> TableData:
    """Return the server's table. Raises `BadInput` if the experiment has none, or a model with a vocabulary of its own."""
    table = experiment.dataset
    if not isinstance(table, TableData):
        raise BadInput("deployment.agree: sites agree on the columns of tables; use --dataset table:FILE,label=COLUMN")
    require(
        not isinstance(experiment.model, Encoder),
        "deployment.agree: a pretrained model has its own tokens, so there is nothing to agree on; leave it out",
    )
    return table


def agreed(
    channel: Channel, request: Request, deployment: Deployment, most_rows: int, table: TableData
) -> Tabular | Texts:
    """Ask all clients for summaries of their columns, and merge these into one preprocessing.

    Raises `BadInput` if a site's columns differ. The message names the site and the setting that its owner must write.
    """
    from fedskew.data.tables.schema import merged

    nodes = Nodes(channel, request, replace(deployment, labels=False), most_rows)
    nodes.await_clients(request.clients)
    met = [nodes.met[k] for k in range(request.clients)]
    if table.text:
        words = merged_vocabulary((opened(reply, SiteWords).counts for reply in met), table.vocabulary)
        return Texts(column=table.text, vocabulary=words, length=table.length)
    columns = merged({reply.site: opened(reply, Summary) for reply in met}, table.column)
    for line in columns.notes:
        event(line, level=WARNING)
    return columns.preprocessing


Sent = TypeVar("Sent", Summary, SiteWords)


def opened(reply: Reply, kind: type[Sent]) -> Sent:
    """Return the summary in a reply. Raises `BadInput`, which names the site, if no table gives it."""
    try:
        return msgspec.msgpack.decode(reply.summary, type=kind)
    except msgspec.MsgspecError as error:
        raise BadInput(f"{reply.site}: its summary cannot be read: {error}") from None


def sized(model: Architecture, preprocessing: Tabular | Texts) -> Architecture:
    """Return the model with as many ids as the agreed vocabulary has. The server's own rows may lack some words."""
    if isinstance(preprocessing, Texts) and isinstance(model, TextCnn) and not model.vocabulary:
        return replace(model, vocabulary=len(preprocessing.vocabulary) + 2)
    return model


def rows_of_table(table: TableData, request: Request, experiment: Experiment) -> Rows:
    """Convert the table to rows of numbers. A random share ``clients.held_out`` of them, or of its persons' rows, is held out.

    Logs cells that the run never saw. Raises `BadInput` if a column is missing, or if a target is not a class of the run.
    """
    from fedskew.data.tables.columns import Columns, to_pandas

    path, encoding, target = table.path, request.encoding, TARGETS[experiment.task.target]
    require(
        table.task == target.task,
        f"table {path}: has targets for {table.task}, but the run needs {target.words}; start the node with --table "
        f"FILE,{target.column}",
    )
    if encoding is None or isinstance(encoding.preprocessing, Array | Symbols):
        raise BadInput(
            f"table {path}: the run learns from arrays, not from a table; start the node with --rows FILE.npz"
        )
    require(
        not experiment.shared_data.beta,
        f"table {path}: lacks the run's shared_data, rows that all clients have; start the node with --rows FILE.npz",
    )
    preprocessing = encoding.preprocessing
    survey = table.surveyed(preprocessing=preprocessing if isinstance(preprocessing, Tabular) else None)
    missing = [name for name in preprocessing.names if name not in survey.table.column_names]
    require(not missing, f"table {path}: has no column {', '.join(missing)}, which the run learns from")
    if isinstance(preprocessing, Tabular):
        note(table, Columns(preprocessing, ()).gaps(survey.table, "no row from which the run took its columns"))
    x = padded(experiment.model, inputs_of(preprocessing, experiment.model, to_pandas(survey.table)))
    y = survey.y
    if table.label:
        strange = sorted(set(survey.classes) - set(encoding.classes))
        known_classes = ", ".join(encoding.classes)
        require(
            not strange,
            f"table {path}: column {table.label!r} holds {str(*strange[:1])!r}, which is no class of the run: {known_classes}",
        )
        y = np.array([encoding.classes.index(word) for word in survey.classes])[y]
    person = None if survey.person is None else numbered(survey.person)[0]
    aside = held_out(np.zeros(len(y), np.int64), experiment.clients.held_out, person=person)
    return Rows(x[~aside], y[~aside], x[aside], y[aside])
