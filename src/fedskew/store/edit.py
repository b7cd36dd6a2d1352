"""Tag, rename and remove stored runs. A run that is in progress cannot be renamed or removed."""

import re
import shutil
from collections.abc import Sequence

from fedskew.core.errors import BadInput, FedskewError, require
from fedskew.store.lock import busy
from fedskew.store.runs import RunRecord, RunStore

COMPARISON = re.compile(r"c([0-9]{1,18})")
TAG = re.compile(r"[^\W\d][\w.-]*")


def tag(store: RunStore, records: Sequence[RunRecord], tags: Sequence[str], remove: bool = False) -> None:
    """Add tags to runs, or remove them. Raises `BadInput` for a tag that also selects runs, such as ``c2`` or ``latest``."""
    for word in tags:
        if not TAG.fullmatch(word) or word == "latest" or COMPARISON.fullmatch(word):
            raise BadInput(
                f"tag: {word!r} cannot be a tag; start it with a letter, and do not use latest or a comparison such as c2"
            )
    for record in records:
        old = record.facts.get("tags", [])
        new = [word for word in old if word not in tags] + ([] if remove else list(dict.fromkeys(tags)))
        store.add_facts(record.id, {"tags": new})


def rename(store: RunStore, token: str, name: str) -> None:
    """Rename one run or one comparison (``c2``). Raises `BadInput` for several runs, and for a run in progress."""
    require(bool(name.strip()), "rename: a name needs at least one character")
    records = store.select([token])
    if comparison := COMPARISON.fullmatch(token):
        with store.transaction():
            store.db.execute("UPDATE comparisons SET title=? WHERE id=?", (name, int(comparison[1])))
        return
    require(len(records) == 1, f"rename: {token!r} means {len(records)} runs; name one run, or a comparison such as c2")
    check_idle(store, records)
    with store.transaction():
        store.db.execute("UPDATE runs SET name=? WHERE id=?", (name, records[0].id))


def remove(store: RunStore, records: Sequence[RunRecord]) -> None:
    """Remove runs with their measurements, checkpoints and reports. A comparison without runs is removed, too."""
    check_idle(store, records)
    with store.transaction():
        store.db.executemany("DELETE FROM runs WHERE id=?", [(record.id,) for record in records])
        emptied = {record.comparison for record in records} - {record.comparison for record in store.runs()} - {None}
        store.db.executemany("DELETE FROM comparisons WHERE id=?", [(number,) for number in emptied])
    try:
        for record in records:
            if store.run_folder(record.id).exists():
                shutil.rmtree(store.run_folder(record.id))
        for name in [*(str(record.id) for record in records), *(f"c{number}" for number in emptied)]:
            (store.folder / f"{name}.html").unlink(missing_ok=True)
    except OSError as error:
        raise FedskewError(f"rm: the runs are removed, but not all of their files: {error}") from None


def check_idle(store: RunStore, records: Sequence[RunRecord]) -> None:
    """Raise `BadInput` if one of the runs is in progress."""
    for record in records:
        require(not (reason := busy(store, record.id)), reason)
