"""Settings of runs: those that differ, groups that differ in their seeds only, and names for readers."""

import hashlib
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import PurePath

from fedskew.core.errors import BadInput
from fedskew.core.files import toml_table
from fedskew.core.groups import grouped
from fedskew.core.text import BY_PLAIN_NAME, SERVERS, Folds, listed, parse_folds, plainly, title
from fedskew.report.words import ranges
from fedskew.store.records import ChosenEngine, Json
from fedskew.store.runs import RunRecord, RunStore

SEEDS = (("training", "seed"), ("clients", "partition_seed"))
"""Section and key of the two seeds. Both have their own lines in the table of settings."""

SPLIT = (("dataset", "split_seed"), ("dataset", "redraw"))
"""Section and key of the seed that draws the test rows, if each seed of a comparison draws its own. ``fold`` becomes ``folds``."""

FIRST = ("dataset", "skew", "clients", "model", "algorithm")
"""Sections of an experiment that are shown first."""

EMPTY: tuple[object, ...] = (0, "", "none", "auto", None, [])
"""Values that are hidden if a setting's default is unknown."""

ALWAYS = {"solver.lr", "local.epochs", "local.batch_size"}
"""Settings that are shown even if they have their default values."""

OWN_CLIENTS = {"natural", "from-folder"}
"""Skews that deal the same clients under every partition seed."""

ELSEWHERE = {"training.rounds", "evaluation.every"}
"""Settings that the page shows elsewhere."""

UNIMPORTANT = ("engine", "checkpoint", "training.threads", "training.states", "evaluation.margin")
"""Sections and settings that change no result."""


@dataclass(frozen=True)
class SettingValue:
    """One value, and the methods that use it as one text; empty if all methods use it."""

    text: str
    methods: str


@dataclass(frozen=True)
class Setting:
    """One setting with its distinct values."""

    label: str
    values: list[SettingValue]


@lru_cache(4096)
def table_of(text: str) -> Json:
    """Parse an experiment; return an empty table if it is not valid TOML. Callers must not change the table."""
    try:
        return toml_table(text, "experiment")
    except BadInput:
        return {}


def parsed(record: RunRecord) -> Json:
    """Return the table of the run's stored experiment, empty if it is not valid TOML. Callers must not change it."""
    return table_of(record.experiment)


def stored_section(record: RunRecord, name: str) -> Json:
    """Return a section of the run's stored experiment; empty if it has none, or one that is no table."""
    part = parsed(record).get(name)
    return part if isinstance(part, dict) else {}


def without_seeds(text: str) -> Json:
    """Return the experiment's table without name and seeds. If the text is not valid TOML: ``{"experiment": text}``."""
    table = table_of(text) or {"experiment": text}
    redrawn = split_of(table)
    table = {key: dict(part) if isinstance(part, dict) else part for key, part in table.items() if key != "name"}
    for section, key in (*SEEDS, *(SPLIT if redrawn else ())):
        if isinstance(table.get(section), dict):
            table[section].pop(key, None)
    if redrawn and (fold := table["dataset"].pop("fold", "")):
        table["dataset"]["folds"] = fold.partition("/")[2]
    return table


def held_out(record: RunRecord) -> bool:
    """True if the run measures clients on rows held out from training. A run that has not begun is judged by its options."""
    if "partition" in record.facts:
        return bool(record.facts["partition"].get("held_out"))
    value = stored_section(record, "clients").get("held_out", 0)
    return isinstance(value, int | float) and value > 0


def skews(record: RunRecord) -> set[str]:
    """Return the names of the run's skews."""
    skews_ = parsed(record).get("skew", [])
    skews_ = skews_ if isinstance(skews_, list) else [skews_]
    return {str(skew.get("name")) for skew in skews_ if isinstance(skew, dict)}


def pooled(record: RunRecord) -> bool:
    """True if one client holds all rows."""
    return "pooled" in skews(record)


def shares_no_model(record: RunRecord) -> bool:
    """True if the clients share no model, so that the server's model stays the initial one."""
    return not record.facts.get("shares_model", True) or stored_section(record, "sharing").get("layers") == ["*"]


def untrained(record: RunRecord) -> tuple[str, ...]:
    """Return the splits whose numbers are the initial model's, because the clients share none."""
    return ("test", "clients") if shares_no_model(record) else ()


def own_clients(record: RunRecord) -> bool:
    """True if the data or a stored partition define the clients. ``clients.number`` and the partition seed are then unused."""
    return bool(skews(record) & OWN_CLIENTS) and "shuffled" not in skews(record)


def client_rows(record: RunRecord) -> str:
    """Return on which rows the run measures clients: ``held-out`` or ``training``."""
    return "held-out" if held_out(record) else "training"


def kinds_of_rows(records: Sequence[RunRecord]) -> str:
    """Join `client_rows` of all runs: ``held-out``, ``training`` or ``held-out or training``."""
    return " or ".join(sorted({client_rows(record) for record in records}))


def measured_rows(records: Sequence[RunRecord]) -> str:
    """Describe on which rows the runs measure a client."""
    return {
        "held-out": "rows held out from its training",
        "training": "own training rows",
    }.get(kinds_of_rows(records), "rows (held out from its training in some runs, its training rows in others)")


def settings(records: Sequence[RunRecord]) -> list[Setting]:
    """Return the settings without default values, plus rounds and seeds, the most important first."""
    tables = {record.id: without_defaults(record) for record in records}
    lines = {
        key: setting(key.replace("_", " "), records, [value_text(tables[record.id].get(key)) for record in records])
        for key in dict.fromkeys(key for table in tables.values() for key in table if table[key])
    }
    return [
        *(lines.pop(section) for section in FIRST if section in lines),
        setting("rounds", records, [str(record.rounds) for record in records]),
        seeds("training seeds", records, [record.seed for record in records]),
        seeds("partition seeds", records, [record.partition_seed for record in records]),
        *lines.values(),
    ]


def without_defaults(record: RunRecord) -> Json:
    """Return the run's experiment without seeds, default values and empty sections."""
    table: Json = {}
    for section, value in without_seeds(record.experiment).items():
        if not isinstance(value, dict):
            table[section] = value
            continue
        usual = {} if section in FIRST else record.facts.get("defaults", {}).get(section, {})
        parts = {
            key: part
            for key, part in value.items()
            if (name := f"{section}.{key}") not in ELSEWHERE
            and (name in ALWAYS or (part != usual[key] if key in usual else part not in EMPTY))
        }
        if section == "clients" and own_clients(record):
            parts.pop("number", None)
        if parts and "name" in value:
            parts = {"name": value["name"]} | parts
        if parts or section in FIRST:
            table[section] = parts
    return table


def provenance(records: Sequence[RunRecord]) -> list[Setting]:
    """Return data, model size, versions and engine of the runs as settings. The engine trial is the first run's."""
    facts: list[Json] = [{**record.facts, "notes": record.facts.get("data", {}).get("notes")} for record in records]
    for of_run in facts:  # seeds with other test rows have the same notes
        of_run["data"] = {k: v for k, v in of_run.get("data", {}).items() if k != "notes"} or None
    lines = [
        setting(key, records, [value_text(of_run.get(key)) for of_run in facts])
        for key in ("data", "notes", "parameters", "versions")
        if any(of_run.get(key) for of_run in facts)
    ]
    engines = [record.facts.get("engine", {}) for record in records]
    if any(engines):
        lines.append(setting("engine", records, [value_text(engine.get("name")) for engine in engines]))
    if seconds := next(filter(None, engines), ChosenEngine()).get("estimated_seconds_a_round"):
        tried = listed([f"{name} {value_text(value)} s a round" for name, value in seconds.items()])
        lines.append(Setting("engine trial", [SettingValue(tried, "")]))
    return lines


def tuning(records: Sequence[RunRecord]) -> dict[str, list[dict[str, object]]]:
    """Return, for each tuned method, the settings that were tried, each with its value on held-out rows."""
    return {r.name: r.facts["tuned"].get("candidates", []) for r in records if "tuned" in r.facts}


def setting(label: str, records: Sequence[RunRecord], texts: Sequence[str]) -> Setting:
    """Make a setting from its text in each run; each distinct text lists its methods."""
    methods = grouped(zip(texts, (record.name for record in records), strict=True))
    several = len(methods) > 1
    values = [SettingValue(text, listed([*dict.fromkeys(names)]) * several) for text, names in methods.items()]
    return Setting(label, values)


def seeds(label: str, records: Sequence[RunRecord], numbers: Sequence[int]) -> Setting:
    """Make a setting from the seed of each run: ranges for each method."""
    by_method = grouped(zip((record.name for record in records), numbers, strict=True))
    return setting(label, records, [ranges(by_method[record.name]) for record in records])


def recipes(records: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """Group the runs of one method that differ in their seeds only."""
    return list(grouped(((r.name, str(without_seeds(r.experiment))), r) for r in records).values())


def distinct(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Add settings to the names of runs that share a name but not their settings: ``fedavg, solver.lr=0.1``.

    Afterwards, runs of one name differ in their seeds only. Settings that change no result, such as the engine, are ignored. If
    a data file changed between two runs, the name shows its fingerprint: ``fedavg, data=44bd1e7c``.
    """
    return [
        replace(record, name=", ".join([record.name, *(f"{key}={value}" for key, value in settings)]))
        for record, settings in zip(records, differing_settings(records), strict=True)
    ]


def differing_settings(records: Sequence[RunRecord]) -> list[tuple[tuple[str, str], ...]]:
    """Return, for each run, the (setting, value) pairs in which the runs of its name differ."""
    settings = {record.id: dict(settings_of(record.experiment)) for record in records}
    for record in records:  # a setting that tuning chose for each split anew is a part of the method
        tuned = record.facts.get("tuned", {})
        for key in tuned["setting"] if tuned.get("nested") else ():
            settings[record.id].pop(key, None)
    prints = grouped(((record.name, split_of(parsed(record))), fingerprint(record)) for record in records)
    for record in records:
        if len({*prints[record.name, split_of(parsed(record))]} - {""}) > 1:
            settings[record.id]["data"] = fingerprint(record)[:8] or "unknown"
    keys = {
        name: differing_keys(of_name)
        for name, of_name in grouped((record.name, settings[record.id]) for record in records).items()
    }
    return [
        tuple((key, settings[record.id][key]) for key in keys[record.name] if key in settings[record.id])
        for record in records
    ]


def split_of(table: Json) -> str:
    """Return the seed that drew the experiment's test rows, and their fold. Empty if all seeds of a comparison share test rows."""
    dataset = table.get("dataset")
    if not isinstance(dataset, dict) or dataset.get("redraw") is not True:
        return ""
    return f"{dataset.get('split_seed')} {dataset.get('fold', '')}".strip()


def fingerprint(record: RunRecord) -> str:
    """Return the fingerprint of the run's data; empty if the run has not read its data yet."""
    return str(record.facts.get("data", {}).get("fingerprint", ""))


@lru_cache(4096)
def settings_of(text: str) -> Mapping[str, str]:
    """Return an experiment's settings that may change a result, except seeds: ``{"solver": "sgd", "solver.lr": "0.1"}``."""
    if not table_of(text):
        return {"experiment": hashlib.sha256(text.encode()).hexdigest()[:8]}
    settings = {
        section if key == "name" else f"{section}.{key}": value_text(part)
        for section, value in without_seeds(text).items()
        for key, part in (value if isinstance(value, dict) else {"name": value}).items()
    }
    return {
        key: text
        for key, text in settings.items()
        if key.split(".")[0] not in UNIMPORTANT and key not in UNIMPORTANT and not key.endswith(".file_text")
    }


def differing_keys(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the keys with several values. An option is compared only between runs with the same component."""
    differing = []
    for key in dict.fromkeys(key for each in settings for key in each):
        section = key.partition(".")[0]
        values = grouped((None if key == section else each.get(section), each.get(key)) for each in settings)
        if any(len({*several}) > 1 for several in values.values()):
            differing.append(key)
    return differing


def value_text(value: object) -> str:
    """Format a TOML or JSON value in one line: ``label-dirichlet (alpha = 0.1, min_rows = 10)``."""
    if isinstance(value, dict):
        inner = ", ".join(
            f"{key} = ({value_text(part)})" if isinstance(part, dict) else f"{key} = {value_text(part)}"
            for key, part in value.items()
            if key != "name" and part != ""
        )
        if "name" not in value:
            return inner or "–"
        return f"{value['name']} ({inner})" if inner else str(value["name"])
    if isinstance(value, list):
        parts = list(map(value_text, value))
        return " + ".join(parts) if any(isinstance(v, dict) for v in value) else listed(parts) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    return "–" if value is None else str(value)


def observations(records: Sequence[RunRecord]) -> dict[int, tuple[int, int]]:
    """Return (partition seed, seed) of the independent observation that each run belongs to, by run.

    If several partitions have several training seeds, the seeds of a partition are one observation, with seed 0.
    """
    of_partition = grouped((record.partition_seed, record.seed) for record in records)
    crossed = len(of_partition) > 1 and any(len({*seeds}) > 1 for seeds in of_partition.values())
    return {record.id: (record.partition_seed, 0 if crossed else record.seed) for record in records}


def folds_of(record: RunRecord) -> Folds | None:
    """Return the split into folds if the run tests one of its folds; otherwise None."""
    folds = str(stored_section(record, "dataset").get("fold", "")).partition("/")[2]
    return parse_folds(folds) if folds else None


OPTION = re.compile(r"([\w.]+)=((?:\[[^]]*\]|\"[^\"]*\"|[^,\[])*)")
SPEC = re.compile(
    rf"(?:.*::(?P<own>\w+)|(?P<name>[^:,=]+))(?::(?P<options>{OPTION.pattern}(?:,{OPTION.pattern})*))?", re.S
)
"""Compact form of a method with options. `fedskew.core.component` parses it, too, but needs PyTorch; this file does not."""

GREEK = {
    *("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "kappa", "lambda", "mu", "nu", "rho"),
    *("sigma", "tau", "phi", "psi", "omega"),
}

SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
SPECIAL |= {sign: f"\\{sign}" for sign in "&%$#_{}"}
"""Characters that LaTeX reads as commands."""


@dataclass(frozen=True)
class Name:
    """The parts of a run's name: method, options, server optimiser, and settings in which runs of the same name differ."""

    method: str
    options: tuple[tuple[str, str], ...] = ()
    server: str = ""
    settings: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        options = ", ".join(f"{key} = {value}" for key, value in self.options)
        parts = [f"{self.method} {options}".strip() + self.added]
        return ", ".join([*parts, *(f"{key} = {value}" for key, value in self.settings)])

    @property
    def added(self) -> str:
        return f" + {self.server} server" if self.server else ""

    @property
    def latex(self) -> str:
        """The name in LaTeX, with options as formulas."""
        options = ", ".join(formula(*option) for option in (*self.options, *self.settings))
        return escaped(self.method + self.added) + (f" ({options})" if options else "")


def formula(key: str, value: str) -> str:
    """Format an option in LaTeX: ``$\\mu = 0.1$``; a value that is no number stays text."""
    word, _, index = re.sub(r"(?<=[a-z])(?=[0-9])", "_", key).partition("_")
    if word in GREEK or len(key) == 1:
        below = index if index.isdecimal() else f"\\mathrm{{{escaped(index)}}}"
        symbol = (f"\\{word}" if word in GREEK else word) + (f"_{{{below}}}" if index else "")
    else:
        symbol = f"\\mathrm{{{escaped(key)}}}"
    is_number = re.fullmatch(r"-?[0-9.]+(e[+-]?[0-9]+)?", value)
    return f"${symbol} = {in_formula(value)}$" if is_number else f"${symbol}$ = {escaped(value)}"


def in_formula(number: str) -> str:
    """Format a number in a LaTeX formula: ``1.2 \\cdot 10^{-6}`` for ``1.2e-06``."""
    return re.sub(r"e\+?(-?)0*([0-9]+)$", r" \\cdot 10^{\1\2}", number)


def escaped(text: str) -> str:
    """Escape the characters that LaTeX reads as commands."""
    return "".join(SPECIAL.get(sign, sign) for sign in text)


def name_of(spec: str, experiment: Json | None = None) -> Name:
    """Split ``fedprox:mu=0.1`` into its parts. Any other text, such as a name that the user chose, is the method.

    The server optimiser of the ``experiment`` is added, unless the method's name implies it, such as ``fedadam``.
    """
    match = SPEC.fullmatch(spec)
    raw = plainly(match["name"] or "") if match else ""
    if not match or not (match["own"] or raw in BY_PLAIN_NAME):
        return Name(spec)
    options = tuple((key, value.strip("\"'")) for key, value in OPTION.findall(match["options"] or ""))
    if match["own"]:
        return Name(match["own"], options)
    server = (experiment or {}).get("server")
    used = server.get("name", "sgd") if isinstance(server, dict) else "sgd"
    implied = raw in ("fedavgm", "fedadagrad", "fedadam", "fedyogi")
    return Name(title(raw), options, "" if implied or used == "sgd" else SERVERS.get(used, used))


def display_name(record: RunRecord) -> str:
    """Return the name of one run for readers."""
    return str(name_of(record.name, parsed(record)))


def names(records: Sequence[RunRecord]) -> list[Name]:
    """Return the name of each run; runs of one name differ in their seeds only.

    If two different raw names would look alike, the method shows its file; if that does not help, the raw name stays.
    """
    records_names = [
        replace(name_of(record.name, parsed(record)), settings=settings)
        for record, settings in zip(records, differing_settings(records), strict=True)
    ]
    raw = grouped(zip(map(str, records_names), (record.name for record in records), strict=True))
    return [apart(record.name, name, {*raw[str(name)]}) for record, name in zip(records, records_names, strict=True)]


def apart(spec: str, name: Name, alike: Collection[str]) -> Name:
    """Add the file of ``spec`` to its name, with as many folders as needed to differ from the other raw names in ``alike``."""
    if len(alike) == 1:
        return name
    places = {other: PurePath(other.rpartition("::")[0]).parts for other in alike}
    for number in range(1, 1 + max(map(len, places.values()))):
        if len({parts[-number:] for parts in places.values()}) == len(places):
            return replace(name, method=f"{name.method} ({'/'.join(places[spec][-number:])})")
    return Name(spec, settings=name.settings)


def titled(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Rename the runs for readers. As with `distinct`, runs of one name then differ in their seeds only."""
    return [replace(record, name=str(name)) for record, name in zip(records, names(records), strict=True)]


def comparison_title(store: RunStore, records: Sequence[RunRecord]) -> str:
    """Return the title of the runs' comparison; if they belong to several, list the methods."""
    numbers = {record.comparison or 0 for record in records}
    stored = store.titles().get(min(numbers), "") if len(numbers) == 1 else ""
    of_runs = dict.fromkeys(record.name for record in titled(records))
    methods = [str(name_of(part)) for part in stored.split(" vs ")] if stored else list(of_runs)
    if len(methods) > 4:
        return f"{methods[0]} and {len(methods) - 1} other methods"
    return " vs ".join(methods) if stored else listed(methods)


def between_sites(record: RunRecord) -> bool:
    """True if the run's clients were nodes on other machines, with their own rows."""
    return "flower" in record.facts


def repeat_command(store: RunStore, records: Sequence[RunRecord]) -> str:
    """Return ``fedskew compare runs/1/experiment.toml --algorithms fedavg scaffold --seeds 0 1``.

    That works if the methods have equal other settings and the same seeds. Otherwise return a command that repeats one run. Runs
    between sites have commands of their own: ``fedskew flower init app-1 --recipe runs/1/experiment.toml; flwr run app-1``.
    """
    deployed, simulated = ([r for r in records if between_sites(r) is there] for there in (True, False))
    if deployed:
        rest = [repeat_command(store, simulated)] if simulated else []
        return "; ".join([*(deploy_command(store, record) for record in deployed), *rest])
    first = next((record for record in records if plain_method(record)), records[0])
    file = shlex.quote(str(store.run_folder(first.id) / "experiment.toml"))
    if len(records) == 1:
        return f"fedskew run {file}"
    pairs = grouped((record.name, (record.partition_seed, record.seed)) for record in records)
    methods, pairs_of_first = list(pairs), pairs[records[0].name]
    partitions, of_first = ([*dict.fromkeys(pair[at] for pair in pairs_of_first)] for at in (0, 1))
    crossed = len(partitions) > 1 and pairs_of_first == [(p, s) for p in partitions for s in of_first]
    alike = all(
        (crossed or record.partition_seed == record.seed)
        and (others(record) == others(first) if plain_method(record) else plainly(base(record)) in BY_PLAIN_NAME)
        for record in records
    )
    folds = folds_of(first)
    whole = folds is None or len(of_first) % folds.number == 0
    same = all(each == pairs_of_first for each in pairs.values())
    if not (alike and whole and same and plain_method(first)):
        return f"fedskew run {file}  (one for each of the runs {ranges([r.id for r in records])})"
    words = [*map(shlex.quote, methods), *(["--folds", str(folds)] if folds else [])]
    words += [*(["--partitions", *map(str, partitions)] if crossed else []), "--seeds", *map(str, of_first)]
    return " ".join([f"fedskew compare {file} --algorithms", *words])


def deploy_command(store: RunStore, record: RunRecord) -> str:
    """Return the commands that repeat a run between sites; its nodes must be connected."""
    file = shlex.quote(str(store.run_folder(record.id) / "experiment.toml"))
    changed = record.facts["flower"].get("deployment", {})
    settings = " ".join(f"deployment.{key}={str(value).lower()}" for key, value in changed.items())
    config = f" --run-config {shlex.quote(settings)}" if settings else ""
    return f"fedskew flower init app-{record.id} --recipe {file}{store.option}; flwr run app-{record.id}{config}"


def plain_method(record: RunRecord) -> bool:
    """True if the run has the name of its algorithm. A combination, such as fedadam, has its own name and other settings."""
    return base(record) == stored_section(record, "algorithm").get("name")


def base(record: RunRecord) -> str:
    """Return the run's name without options."""
    return record.name.partition(":")[0]


def others(record: RunRecord) -> dict[str, str]:
    """Return the run's settings without the method's own."""
    return {key: text for key, text in settings_of(record.experiment).items() if key.split(".")[0] != "algorithm"}
