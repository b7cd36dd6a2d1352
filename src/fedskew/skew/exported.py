"""A partition as plain files that any program reads: arrays without pickle, JSON, and a README that explains them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import DAMAGED, BadInput, FedskewError, require
from fedskew.core.npz import bounded
from fedskew.core.places import whole_path
from fedskew.skew.partition import Ints, Partition

README = """\
# Client data, exported by fedskew

`partition.json` names the data set, its fingerprint, the skews, the seed and the clients. `partition.npz` holds

- `indices`, `offsets`: client k trains on the rows `indices[offsets[k]:offsets[k + 1]]` of the training set, counted from 0
- `held_out_indices`, `held_out_offsets`: in the same way the rows kept to measure each client, where there are some
- `label_counts` (clients, classes): training rows of each class, as the clients see them at the start

`transforms.npz`, where features or concepts differ, holds what each skew drew, `NUMBER-SKEW-NAME`, the clients along the first axis
(`table`, `turn`, `direction` and `across` of a concept belong to the concepts). `rows.npz`, there too, holds `x` and `y`: all
training rows of the data set as the clients that own them see them at the start.

Read back with the same data and partition seed:

    fedskew run --dataset {dataset} --partition-seed {seed} {skews}
"""

WRITTEN = ("partition.json", "partition.npz", "README.md", "transforms.npz", "rows.npz")
"""Names of the files."""


def export(
    folder: Path,
    partition: Partition,
    counts: Ints,
    facts: Mapping[str, Any],
    drawn: Mapping[str, NDArray[Any]],
    rows: Mapping[str, NDArray[Any]],
    again: str,
) -> None:
    """Write the folder; raises `FedskewError` if it cannot be written, and `BadInput` if it holds a file of one of the names."""
    there = [name for name in WRITTEN if (folder / name).exists()]
    require(
        not there, f"export: {folder} holds {', '.join(there)} already; name another folder, or remove what is there"
    )
    arrays = {"indices": partition.indices, "offsets": partition.offsets, "label_counts": counts}
    if partition.held_out is not None:
        arrays |= {"held_out_indices": partition.held_out[0], "held_out_offsets": partition.held_out[1]}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save(folder / "partition.npz", arrays)
        if drawn:
            save(folder / "transforms.npz", drawn)
            save(folder / "rows.npz", rows)
        text = README.format(dataset=shlex.quote(facts["dataset"]), seed=facts["partition_seed"], skews=again)
        (folder / "README.md").write_text(text, encoding="utf-8")
        told = {**facts, "empty": partition.empty, "unassigned": partition.unassigned, "clients": list(partition.names)}
        (folder / "partition.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise FedskewError(f"export: {folder} cannot be written: {error.strerror}") from None


def save(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    np.savez_compressed(path, allow_pickle=False, **arrays)


@dataclass(frozen=True, kw_only=True)
class FromFolder:
    """The clients and rows that `fedskew skew --export` wrote to a folder, held-out rows too; for the very data it was made of.

    Features and concepts are skews to name beside it; with the same partition seed they come out the same.
    """

    path: str

    face: ClassVar[str] = "none"
    idea: ClassVar[str] = "the clients that `fedskew skew --export` wrote to a folder"

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", whole_path(self.path))

    def facts(self) -> dict[str, Any]:
        """What the folder says of its partition."""
        try:
            facts = json.loads((Path(self.path) / "partition.json").read_text(encoding="utf-8"))
            assert isinstance(facts["clients"], list)
            return dict(facts)
        except (*DAMAGED, AssertionError) as error:
            raise BadInput(
                f"skew from-folder: {self.path} holds no partition that `fedskew skew --export` wrote: {reason(error)}"
            ) from None

    def read(self, num_rows: int) -> Partition:
        """The partition, of a data set with so many training rows."""
        facts = self.facts()
        try:
            most, ends = 8 * num_rows, 8 * (len(facts["clients"]) + 1)
            with np.load(Path(self.path) / "partition.npz", allow_pickle=False) as z:
                made = Partition(
                    indices=bounded(z, "indices", most).astype(np.int64),
                    offsets=bounded(z, "offsets", ends).astype(np.int64),
                    names=tuple(str(name) for name in facts["clients"]),
                    empty=int(facts["empty"]),
                    unassigned=int(facts["unassigned"]),
                    held_out=(
                        bounded(z, "held_out_indices", most).astype(np.int64),
                        bounded(z, "held_out_offsets", ends).astype(np.int64),
                    )
                    if "held_out_indices" in z
                    else None,
                )
        except DAMAGED as error:
            raise BadInput(f"skew from-folder: cannot read {self.path}/partition.npz: {reason(error)}") from None
        aside = made.held_out or (made.indices[:0], made.offsets * 0)
        rows = np.concatenate([made.indices, aside[0]])
        sound = (
            len(made.offsets) == len(aside[1]) == len(made.names) + 1
            and made.offsets[0] == aside[1][0] == 0
            and made.offsets[-1] == len(made.indices)
            and aside[1][-1] == len(aside[0])
            and bool((np.diff(made.offsets) > 0).all() and (np.diff(aside[1]) >= 0).all())
            and len(np.unique(rows)) == len(rows) <= num_rows
            and bool(rows.min() >= 0 and rows.max() < num_rows)
        )
        require(
            sound, f"skew from-folder: {self.path}/partition.npz is no partition of {num_rows} rows; export it again"
        )
        return made

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        part = self.read(len(labels))
        if part.held_out is None:
            return [part.rows(k) for k in range(len(part))]
        return [np.concatenate([part.rows(k), part.measured_rows(k)]) for k in range(len(part))]


def reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error).strip() or type(error).__name__).splitlines()[0]
