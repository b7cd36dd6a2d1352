"""Names of runs for readers: ``FedProx mu = 0.1``, in LaTeX ``FedProx ($\\mu = 0.1$)``.

Tables for programs (data frames, CSV, JSON) keep the raw names, ``fedprox:mu=0.1``.
"""

import re
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from fedskew.core.text import BY_PLAIN_NAME, SERVERS, plainly, title
from fedskew.report.experiments import differing_settings, parsed, settings_of
from fedskew.report.intervals import folds_of
from fedskew.report.words import listed, ranges
from fedskew.store.records import Json
from fedskew.store.runs import RunRecord, RunStore

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
    number = re.fullmatch(r"(-?[0-9.]+)(?:e([+-]?)0*([0-9]+))?", value)
    if not number:
        return f"${symbol}$ = {escaped(value)}"
    power = f" \\cdot 10^{{{number[2].strip('+')}{number[3]}}}" if number[3] else ""
    return f"${symbol} = {number[1]}{power}$"


def escaped(text: str) -> str:
    """Escape the characters that LaTeX reads as commands."""
    return "".join(SPECIAL.get(sign, sign) for sign in text)


def name_of(spec: str, experiment: Json | None = None) -> Name:
    """Split ``fedprox:mu=0.1`` into its parts. Any other text, such as a name that the user chose, is the method.

    The server optimiser of the ``experiment`` is added, unless the method's name implies it, such as ``fedadam``.
    """
    found = SPEC.fullmatch(spec)
    raw = plainly(found["name"] or "") if found else ""
    if not found or not (found["own"] or raw in BY_PLAIN_NAME):
        return Name(spec)
    options = tuple((key, value.strip("\"'")) for key, value in OPTION.findall(found["options"] or ""))
    if found["own"]:
        return Name(found["own"], options)
    server = (experiment or {}).get("server")
    used = server.get("name", "sgd") if isinstance(server, dict) else "sgd"
    named = raw in ("fedavgm", "fedadagrad", "fedadam", "fedyogi")
    return Name(title(raw), options, "" if named or used == "sgd" else SERVERS.get(used, used))


def display_name(record: RunRecord) -> str:
    """Return the name of one run for readers."""
    return str(name_of(record.name, parsed(record)))


def names(records: Sequence[RunRecord]) -> list[Name]:
    """Return the name of each run; runs of one name differ in their seeds only.

    If two different raw names would look alike, the method shows its file; if that does not help, the raw name stays.
    """
    found = [
        replace(name_of(r.name, parsed(r)), settings=s)
        for r, s in zip(records, differing_settings(records), strict=True)
    ]
    raw: dict[str, set[str]] = {}
    for record, name in zip(records, found, strict=True):
        raw.setdefault(str(name), set()).add(record.name)
    return [
        apart(record.name, name, raw[str(name)]) if len(raw[str(name)]) > 1 else name
        for record, name in zip(records, found, strict=True)
    ]


def apart(spec: str, name: Name, alike: Collection[str]) -> Name:
    """Add the file of ``spec`` to its name, with as many folders as needed to differ from the other raw names, ``alike``."""
    places = {one: PurePath(one.rpartition("::")[0]).parts for one in alike}
    for number in range(1, 1 + max(map(len, places.values()))):
        if len({parts[-number:] for parts in places.values()}) == len(places):
            return replace(name, method=f"{name.method} ({'/'.join(places[spec][-number:])})")
    return Name(spec, settings=name.settings)


def titled(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Rename the runs for readers. As with `distinct`, runs of one name then differ in their seeds only."""
    return [replace(record, name=str(name)) for record, name in zip(records, names(records), strict=True)]


def comparison_title(store: RunStore, records: Sequence[RunRecord]) -> str:
    """Return the title of the runs' comparison; if they belong to several, list the methods."""
    comparisons = {record.comparison for record in records}
    if len(comparisons) == 1 and None not in comparisons:
        found = store.query("SELECT title FROM comparisons WHERE id=?", list(comparisons))
        if found and found[0][0]:
            parts = [str(name_of(part)) for part in str(found[0][0]).split(" vs ")]
            return " vs ".join(parts) if len(parts) <= 4 else f"{parts[0]} and {len(parts) - 1} other methods"
    methods = list(dict.fromkeys(record.name for record in titled(records)))
    return listed(methods) if len(methods) <= 4 else f"{methods[0]} and {len(methods) - 1} other methods"


def repeat_command(store: RunStore, records: Sequence[RunRecord]) -> str:
    """Return ``fedskew compare runs/1/experiment.toml --algorithms fedavg scaffold --seeds 0 1``.

    That works if the methods have equal other settings and the same seeds. Otherwise return a command that repeats one run.
    """
    first = next((record for record in records if plain_method(record)), records[0])
    file = shlex.quote(str(store.run_folder(first.id) / "experiment.toml"))
    if len(records) == 1:
        return f"fedskew run {file}"
    methods = list(dict.fromkeys(record.name for record in records))
    runs = {method: [record for record in records if record.name == method] for method in methods}
    seeds = [[record.seed for record in own] for own in runs.values()]
    alike = all(
        record.partition_seed == record.seed
        and (others(record) == others(first) if plain_method(record) else plainly(base(record)) in BY_PLAIN_NAME)
        for record in records
    )
    folds = folds_of(first)
    whole = folds is None or len(seeds[0]) % folds.number == 0
    if not (alike and whole and plain_method(first)) or any(own != seeds[0] for own in seeds):
        return f"fedskew run {file}  (one for each of the runs {ranges([r.id for r in records])})"
    words = [*map(shlex.quote, methods), *(["--folds", str(folds)] if folds else []), "--seeds", *map(str, seeds[0])]
    return " ".join([f"fedskew compare {file} --algorithms", *words])


def plain_method(record: RunRecord) -> bool:
    """True if the run has the name of its algorithm. A combination, such as fedadam, has its own name and other settings."""
    algorithm: Json = parsed(record).get("algorithm", {})
    return isinstance(algorithm, dict) and base(record) == algorithm.get("name")


def base(record: RunRecord) -> str:
    """Return the run's name without options."""
    return record.name.partition(":")[0]


def others(record: RunRecord) -> dict[str, str]:
    """Return the run's settings without the method's own."""
    return {key: text for key, text in settings_of(record.experiment).items() if key.split(".")[0] != "algorithm"}
