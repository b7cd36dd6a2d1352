"""The file of a client's rows: arrays ``x`` and ``y``, and ``x_measured`` and ``y_measured`` if some are held out."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedskew.core.errors import DAMAGED, BadInput, require
from fedskew.core.files import replacing
from fedskew.data.targets import Rows as Arrays
from fedskew.execution.build import Assembly
from fedskew.execution.prepare import fitted
from fedskew.experiment.config import Architecture
from fedskew.flower.wire import first_line
from fedskew.models.encoder import PAD, Encoder
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


def read_rows(path: Path) -> Rows:
    """Read the rows of a client from a file. Raises `BadInput` for another kind of file, or if its arrays do not match."""
    try:
        with np.load(path, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise BadInput(f"rows {path}: there is no such file") from None
    except DAMAGED as error:
        raise BadInput(f"rows {path}: not a NumPy .npz file of plain arrays: {first_line(error)}") from None
    require({"x", "y"} <= set(found), f"rows {path}: holds {sorted(found)}; it needs the arrays x and y")
    for name, array in found.items():
        plain = array.ndim > 0 and (np.issubdtype(array.dtype, np.number) or array.dtype == bool)
        require(plain, f"rows {path}: {name} must be an array of numbers, not {array.dtype} of shape {array.shape}")
    found.setdefault("x_measured", found["x"][:0])
    found.setdefault("y_measured", found["y"][:0])
    for x, y in (("x", "y"), ("x_measured", "y_measured")):
        require(
            y in found and x in found, f"rows {path}: has only one of x_measured and y_measured; write both, or none"
        )
        require(len(found[x]) == len(found[y]), f"rows {path}: {len(found[x])} rows in {x}, {len(found[y])} in {y}")
        for name in (x, y):
            require(bool(np.isfinite(found[name]).all()), f"rows {path}: {name} holds values that are not finite")
    require(len(found["y"]) > 0, f"rows {path}: the file has no rows")
    return Rows(found["x"], found["y"], found["x_measured"], found["y_measured"])


def rows_of(assembly: Assembly, client: int) -> Rows:
    """Return the rows of one simulated client, in the order of its training."""
    data, partition, y = assembly.data, assembly.partition, assembly.data.labels.at(0)
    own = partition.rows(client)
    aside = partition.measured_rows(client) if partition.held_out else own[:0]
    x: Arrays = data.x
    if data.dataset.texts:  # the server has the vocabulary of its whole data set, and says how long a text is
        model, x, _ = fitted(assembly.experiment.model, data.dataset, data.dataset.x, data.dataset.x_test)
        x = padded(model, x)
    return Rows(x[own], y[own], x[aside], y[aside])


def padded(model: Architecture, x: Arrays) -> Arrays:
    """Widen token ids (n, L) to the encoder's maximum length. Other rows are returned unchanged."""
    if not isinstance(model, Encoder):
        return x
    return np.pad(x, [(0, 0), (0, model.length - x.shape[1])], constant_values=PAD)


def consecutive(sizes: Ints, measured: Ints) -> Partition:
    """Return the partition of a pool: first the training rows of all clients, one client after the other, then held-out rows.

    ``sizes`` and ``measured`` (K,) are the clients' numbers of rows.
    """
    ends, last = (np.cumsum([0, *numbers]) for numbers in (sizes, measured))
    aside = (np.arange(ends[-1], ends[-1] + last[-1]), last) if last[-1] else None
    names = tuple(str(k) for k in range(len(sizes)))
    return Partition(np.arange(ends[-1]), ends, names, empty=0, unassigned=0, held_out=aside)
