"""What was asked, and how to ask it again: read from the TOML and the facts that each run has stored."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedskew.report.words import listed, ranges
from fedskew.store.runs import RunRecord

SEEDS = (("training", "seed"), ("clients", "partition_seed"))
"""Section and key of the two seeds; they are shown apart from the rest of an experiment."""


@dataclass(frozen=True)
class Answer:
    """One value, and the methods that have it; no methods if all have it."""

    text: str
    methods: str


@dataclass(frozen=True)
class Question:
    """A line of what was asked: one answer, or several where runs differ."""

    label: str
    answers: list[Answer]


@dataclass(frozen=True)
class Recipe:
    """Runs of one method whose experiments differ in nothing but seeds."""

    method: str
    toml: str  # that of the first of them
    runs: list[RunRecord]


def parsed(record: RunRecord) -> dict[str, Any]:
    """The stored experiment as nested values; empty if it is not valid TOML."""
    try:
        return tomllib.loads(record.experiment)
    except tomllib.TOMLDecodeError:
        return {}


def without_seeds(record: RunRecord) -> dict[str, Any]:
    """The experiment without name and seeds; the text itself under ``experiment`` if it is not valid TOML."""
    table = parsed(record) or {"experiment": record.experiment}
    table.pop("name", None)
    for section, key in SEEDS:
        if isinstance(table.get(section), dict):
            table[section].pop(key, None)
    return table


def held_out(record: RunRecord) -> bool:
    """Whether clients are measured on rows kept from training."""
    clients = parsed(record).get("clients")
    value = clients.get("held_out", 0) if isinstance(clients, dict) else 0
    return isinstance(value, int | float) and value > 0


def asked(records: Sequence[RunRecord]) -> list[Question]:
    """The sections of the experiments in the order of the first, with rounds and seeds in front."""
    tables = {record.id: without_seeds(record) for record in records}
    for table in tables.values():
        if isinstance(table.get("training"), dict):
            table["training"].pop("rounds", None)
    questions = [
        question("rounds", records, lambda record: str(record.rounds)),
        seeds("training seeds", records, lambda record: record.seed),
        seeds("partition seeds", records, lambda record: record.partition_seed),
    ]
    for section in dict.fromkeys(key for table in tables.values() for key in table):
        questions.append(question(section, records, lambda record, key=section: shown(tables[record.id].get(key))))
    return questions


def provenance(records: Sequence[RunRecord]) -> list[Question]:
    """Data, engine and versions as the runs noted them."""
    return [
        question(key, records, lambda record, key=key: shown(record.facts.get(key)))
        for key in ("data", "parameters", "engine", "versions")
        if any(key in record.facts for record in records)
    ]


def question(label: str, records: Sequence[RunRecord], read: Callable[[RunRecord], str]) -> Question:
    """One line: the distinct values of ``read``, each with its methods."""
    holders: dict[str, dict[str, None]] = {}
    for record in records:
        holders.setdefault(read(record), {})[record.name] = None
    if len(holders) == 1:
        return Question(label, [Answer(text, "") for text in holders])
    return Question(label, [Answer(text, listed(list(names))) for text, names in holders.items()])


def seeds(label: str, records: Sequence[RunRecord], read: Callable[[RunRecord], int]) -> Question:
    """One line: the seeds of the methods' runs."""
    own: dict[str, list[int]] = {}
    for record in records:
        own.setdefault(record.name, []).append(read(record))
    return question(label, records, lambda record: ranges(own[record.name]))


def recipes(records: Sequence[RunRecord]) -> list[Recipe]:
    """The experiments to repeat, one for all runs that differ only in seeds."""
    found: list[tuple[dict[str, Any], Recipe]] = []
    for record in records:
        table = without_seeds(record)
        for known, recipe in found:
            if recipe.method == record.name and known == table:
                recipe.runs.append(record)
                break
        else:
            found.append((table, Recipe(record.name, record.experiment, [record])))
    return [recipe for _, recipe in found]


def mixed(records: Sequence[RunRecord]) -> list[str]:
    """Methods whose runs differ in more than their seeds, with the sections that differ, one line each."""
    lines = []
    for method in dict.fromkeys(record.name for record in records):
        own = [without_seeds(record) for record in records if record.name == method]
        keys = dict.fromkeys(key for table in own for key in table)
        differing = [key for key in keys if any(table.get(key) != own[0].get(key) for table in own)]
        if differing:
            lines.append(f"{method}: {listed(differing)}")
    return lines


def shown(value: Any) -> str:
    """A TOML or JSON value in one line: ``label-dirichlet (alpha = 0.1, min_rows = 10)``."""
    if isinstance(value, dict):
        inner = ", ".join(f"{key} = {shown(part)}" for key, part in value.items() if key != "name" and part != "")
        if "name" not in value:
            return inner or "–"
        return f"{value['name']} ({inner})" if inner else str(value["name"])
    if isinstance(value, list):
        return " + ".join(map(shown, value)) if any(isinstance(v, dict) for v in value) else str(value)
    if isinstance(value, bool):
        return str(value).lower()
    return "–" if value is None else str(value)
