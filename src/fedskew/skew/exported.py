"""Export a partition as files that any program can read: arrays without pickle, JSON, and a README that explains them."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import DAMAGED, BadInput, FedskewError, first_line, require
from fedskew.core.files import bounded, replacing, whole_path, write_whole
from fedskew.skew.partition import Ints, Partition

README = """\
# Client data, exported by fedskew

`partition.json` names the data set, its fingerprint, the skews, the seed and the clients. `partition.npz` holds

- `indices`, `offsets`: client k trains on the rows `indices[offsets[k]:offsets[k + 1]]` of the training set, counted from 0
- `held_out_indices`, `held_out_offsets`: the held-out rows of each client in the same layout, if there are any
- `label_counts` (clients, classes): training rows of each class, with the labels of round 0

If features or concepts differ, `transforms.npz` holds the drawn parameters of each skew as `NUMBER-SKEW-NAME`, clients along the
first axis (concepts for `table`, `turn`, `direction` and `across`). `rows.npz` then holds `x` and `y`: all training rows of the
data set, changed for the client that owns them, with the labels of round 0.

Read back with the same data and partition seed:

    fedskew run --dataset {dataset} --partition-seed {seed} {skews}
"""

WRITTEN = ("partition.json", "partition.npz", "README.md", "transforms.npz", "rows.npz")
"""Names of the files of an export."""

Arrays = Mapping[str, NDArray[np.generic]]


def export(
    folder: Path,
    partition: Partition,
    counts: Ints,
    facts: Mapping[str, object],
    drawn: Arrays,
    rows: Arrays,
    read_back: str,
) -> None:
    """Write the partition to a folder.

    ``counts`` (clients, classes) are its label counts. ``facts`` are the other entries of `partition.json`. ``drawn`` are the
    parameters of feature and concept skews. ``rows`` are the changed rows. ``read_back`` are the options that read the folder back.
    Raises `BadInput` if the folder already has such files, and `FedskewError` if it cannot be written.
    """
    old = [name for name in WRITTEN if (folder / name).exists()]
    require(not old, f"export: {folder} already holds {', '.join(old)}; name another folder, or remove these files")
    arrays = {"indices": partition.indices, "offsets": partition.offsets, "label_counts": counts}
    if partition.held_out is not None:
        arrays |= {"held_out_indices": partition.held_out[0], "held_out_offsets": partition.held_out[1]}
    try:
        files = {"partition": arrays} | ({"transforms": drawn, "rows": rows} if drawn else {})
        for name, content in files.items():
            with replacing(folder / f"{name}.npz") as partial:
                np.savez_compressed(partial, allow_pickle=False, **content)
        text = README.format(dataset=shlex.quote(str(facts["dataset"])), seed=facts["partition_seed"], skews=read_back)
        write_whole(folder / "README.md", text, "export")
        numbers = {"empty": partition.empty, "unassigned": partition.unassigned, "clients": list(partition.names)}
        write_whole(folder / "partition.json", json.dumps({**facts, **numbers}, indent=2) + "\n", "export")
    except OSError as error:
        raise FedskewError(f"export: {folder} cannot be written: {error.strerror}") from None


class PartitionFacts(msgspec.Struct):
    """The entries of `partition.json` that are read back."""

    clients: tuple[str, ...]
    empty: int
    unassigned: int
    fingerprint: str = ""


@dataclass(frozen=True, kw_only=True)
class FromFolder:
    """The clients and held-out rows that `fedskew skew --export` wrote to a folder, for the same data set.

    Feature and concept skews are not read back. Name them, too; with the same partition seed they are the same.
    """

    path: str

    idea: ClassVar[str] = "the clients that `fedskew skew --export` wrote to a folder"

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", whole_path(self.path))

    def facts(self) -> PartitionFacts:
        """Read `partition.json`. Raises `BadInput` if it is missing or damaged."""
        try:
            return msgspec.json.decode((Path(self.path) / "partition.json").read_bytes(), type=PartitionFacts)
        except (*DAMAGED, msgspec.MsgspecError) as error:
            raise BadInput(
                f"skew from-folder: {self.path} holds no partition that `fedskew skew --export` wrote: {reason(error)}"
            ) from None

    def read(self, num_rows: int) -> Partition:
        """Read the partition of a data set with ``num_rows`` training rows.

        Raises `BadInput` if it is damaged or belongs to other data.
        """
        facts = self.facts()
        try:
            most, ends = 8 * num_rows, 8 * (len(facts.clients) + 1)
            with np.load(Path(self.path) / "partition.npz", allow_pickle=False) as z:

                def part(of: str) -> tuple[Ints, Ints]:
                    rows, cuts = bounded(z, f"{of}indices", most), bounded(z, f"{of}offsets", ends)
                    return rows.astype(np.int64), cuts.astype(np.int64)

                indices, offsets = part("")
                aside = part("held_out_") if "held_out_indices" in z else None
        except DAMAGED as error:
            raise BadInput(f"skew from-folder: cannot read {self.path}/partition.npz: {reason(error)}") from None
        held_out, ends_held_out = aside or (indices[:0], offsets * 0)
        rows = np.concatenate([indices, held_out])
        valid = (
            len(offsets) == len(ends_held_out) == len(facts.clients) + 1
            and offsets[0] == ends_held_out[0] == 0
            and offsets[-1] == len(indices)
            and ends_held_out[-1] == len(held_out)
            and bool((np.diff(offsets) > 0).all() and (np.diff(ends_held_out) >= 0).all())
            and len(np.unique(rows)) == len(rows) <= num_rows
            and bool(rows.min() >= 0 and rows.max() < num_rows)
        )
        require(
            valid, f"skew from-folder: {self.path}/partition.npz is not a partition of {num_rows} rows; export it again"
        )
        return Partition(indices, offsets, facts.clients, facts.empty, facts.unassigned, aside)

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        part = self.read(len(labels))
        if part.held_out is None:
            return [part.rows(k) for k in range(len(part))]
        return [np.concatenate([part.rows(k), part.measured_rows(k)]) for k in range(len(part))]


def reason(error: Exception) -> str:
    """Return the first line of an error's message, or its class."""
    return getattr(error, "strerror", None) or first_line(error)
