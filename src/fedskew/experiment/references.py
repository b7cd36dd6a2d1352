"""Citations: the papers that the components of a run are based on, from the packaged BibTeX file."""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from unicodedata import normalize

from fedskew.core.component import canonical, label, parse
from fedskew.core.errors import BadInput
from fedskew.core.files import toml_table
from fedskew.experiment.combinations import COMBINATIONS, with_method
from fedskew.experiment.config import COMPONENTS, Experiment, from_table_of_sections, from_toml
from fedskew.store.runs import RunRecord

ITSELF = "fedskew"
"""BibTeX key of fedskew itself."""


@dataclass(frozen=True)
class Reference:
    """One BibTeX entry."""

    key: str
    kind: str  # article, inproceedings, ...
    fields: dict[str, str]
    bibtex: str  # the entry's text

    @property
    def names(self) -> list[str]:
        """The key and the alternative keys (``ids``)."""
        return [self.key, *(part.strip() for part in self.fields.get("ids", "").split(",") if part.strip())]

    @property
    def short(self) -> str:
        """Surnames, year and where to find it: ``Li et al. 2020, arXiv:1812.06127``."""
        fields = {name: plain_text(value) for name, value in self.fields.items()}
        surnames = [person.partition(",")[0].strip() for person in fields.get("author", "").split(" and ")]
        few = len(surnames) <= 4 and "others" not in surnames
        where = {"eprint": "arXiv:", "doi": "doi:", "title": ""}
        place = next(f"{mark}{fields[name]}" for name, mark in where.items() if name in fields)
        return f"{', '.join(surnames) if few else f'{surnames[0]} et al.'} {fields.get('year', '')}, {place}"

    def line(self) -> str:
        """Format the entry in one line of plain text: authors, title, venue, year, arXiv number."""
        fields = {name: plain_text(value) for name, value in self.fields.items()}
        venue = next((fields[name] for name in ("booktitle", "journal", "howpublished") if name in fields), "")
        arxiv = f"arXiv:{fields['eprint']}" if "eprint" in fields else ""
        dated = " ".join(part for part in (venue, fields.get("volume", ""), fields.get("year", "")) if part)
        extras = [fields.get(name, "") for name in ("note", "url")]
        return ", ".join(part for part in (authors(fields), fields.get("title", ""), dated, arxiv, *extras) if part)


def authors(fields: dict[str, str]) -> str:
    """Format authors: ``Li, T. and Sahu and Zaheer`` in BibTeX gives ``T. Li, Sahu, Zaheer``."""
    people = [person.strip() for person in fields.get("author", "").split(" and ") if person.strip()]
    names = [" ".join(reversed(person.split(", "))) for person in people if person != "others"]
    return ", ".join(names) + (" et al." if "others" in people else "")


def plain_text(value: str) -> str:
    """Remove TeX's braces from a field, and replace TeX's accents by letters."""
    marks = {'"': "\u0308", "'": "\u0301", "v": "\u030c"}
    value = re.sub(r"\{?\\([\"'v])\{?(\w)\}?\}?", lambda m: m[2] + marks[m[1]], value)
    return normalize("NFC", re.sub(r"[{}]", "", value))


def parsed(text: str) -> dict[str, Reference]:
    """Parse BibTeX; return the entries by key and alternative keys.

    Each field must be on its own line, and a line with a single brace must end an entry.
    """
    entries: dict[str, Reference] = {}
    for match in re.finditer(r"^@(\w+)\{([^,\s]+),\n(.*?)^\}$", text, re.S | re.M):
        fields = dict(re.findall(r"^  (\w+) = \{(.*)\},?$", match[3], re.M))
        entry = Reference(match[2], match[1], fields, match[0])
        for name in entry.names:
            if name in entries:
                raise ValueError(f"references.bib: duplicate entry {name!r}")
            entries[name] = entry
    return entries


@cache
def references() -> dict[str, Reference]:
    """Return the entries of the packaged file, by key."""
    return parsed((files("fedskew") / "references.bib").read_text(encoding="utf-8"))


def paper_of(cites: Iterable[str]) -> str:
    """Return the papers of these keys in short form; unknown keys are left out."""
    return "; ".join(references()[key].short for key in cites if key in references())


@dataclass(frozen=True)
class Citation:
    """A paper, and the parts of an experiment that are based on it."""

    reference: Reference
    used_by: tuple[str, ...]


def citations(experiments: Iterable[Experiment]) -> tuple[list[Citation], list[str]]:
    """Return the papers that the experiments cite, and keys cited by the user's components that the file does not have."""
    used: dict[str, dict[str, None]] = {ITSELF: {"this program": None}}
    unknown: dict[str, None] = {}
    for experiment in experiments:
        for name, keys in parts(experiment):
            for key in keys:
                if key in references():
                    used.setdefault(references()[key].key, {})[name] = None
                else:
                    unknown[f"{key} ({name})"] = None
    return [Citation(references()[key], tuple(by)) for key, by in used.items()], list(unknown)


def without_code(toml: str, where: str) -> tuple[Experiment, list[str]]:
    """Read a stored experiment. If it names missing or unconfirmed code, read it without these components.

    Returns the experiment, and the names of the components that were left out.
    """
    try:
        return from_toml(toml, where), []
    except BadInput:
        table = toml_table(toml, where)
        of_user = [
            (section, name)
            for section, catalogue in COMPONENTS.items()
            for name in names_in(table.get(section))
            if canonical(name.partition(":")[0], catalogue.ours) not in catalogue.ours
        ]
        if not of_user:
            raise
        rest = {section: value for section, value in table.items() if section not in dict(of_user)}
        return from_table_of_sections(rest, where), [f"{where}: {section} {name}" for section, name in of_user]


def names_in(section: object) -> list[str]:
    """Return the names of the components in a stored section."""
    parts = section if isinstance(section, list) else [section]
    return [str(part.get("name") if isinstance(part, dict) else part) for part in parts if part is not None]


def bibliography(records: Sequence[RunRecord]) -> tuple[list[Citation], list[str]]:
    """Return the papers that stored runs cite, and the user's components without an entry."""
    read = [without_code(r.experiment, f"run {r.id}") for r in records]
    works, unknown = citations(experiment for experiment, _ in read)
    unknown += [f"{name} (code that no longer exists, or that you have not run)" for _, names in read for name in names]
    return works, unknown


def bibtex(works: Sequence[Citation], unknown: Sequence[str]) -> str:
    """Return the entries as BibTeX. A comment above each entry names the parts that use it."""
    lines = [f"% no entry for {name}\n" for name in unknown]
    return "".join(lines) + "\n\n".join(f"% {', '.join(w.used_by)}\n{w.reference.bibtex}" for w in works)


def parts(experiment: Experiment) -> list[tuple[str, tuple[str, ...]]]:
    """Return the components and the named combination of an experiment, each with the keys that it cites."""
    components = [
        (f"{section} {label(component, catalogue)}", getattr(component, "cites", ()))
        for section, catalogue in COMPONENTS.items()
        for component in experiment.parts(section)
    ]
    return [*combination(experiment), *components]


def combination(experiment: Experiment) -> list[tuple[str, tuple[str, ...]]]:
    """Return the combination that the experiment's name gives, if the experiment still has its settings."""
    with suppress(BadInput):
        name = parse(experiment.name, "name")[0]
        if name in COMBINATIONS and with_method(experiment, experiment.name) == experiment:
            return [(f"algorithm {name}", COMBINATIONS[name].cites)]
    return []
