"""The pages of methods: one page a method, made from its file, its measured cost, its results and its reference."""

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from fedskew.advice.evidence import cells, packaged
from fedskew.algorithms import ALGORITHMS
from fedskew.cli.components import algorithm_rows, options_of
from fedskew.conformance.cost import LEGEND, measure_cost
from fedskew.core.algorithm import Algorithm
from fedskew.core.component import compact
from fedskew.core.text import title
from fedskew.experiment.combinations import COMBINATIONS, Combination
from fedskew.experiment.references import references

DOCS = Path(__file__).parents[1]
SERVER_HOOKS = ("server_init", "convene", "broadcast", "weights", "shares", "mean_delta", "aggregate", "decided")
NO_HOOKS = ("contract", "accepts")
CLIENT_HOOKS = tuple(
    name
    for name, value in vars(Algorithm).items()
    if inspect.isfunction(value) and not name.startswith("_") and name not in (*SERVER_HOOKS, *NO_HOOKS)
)
"""In the order of a round."""

COST = {
    "client keeps": "client_state",
    "server keeps": "server_state",
    "down": "down",
    "up": "up",
    "a local step": "compute",
}
"""Columns of what a method costs."""

STUDIES = {"digits": "digits, ten clients, Dirichlet label skew 0.1", "uci-har": "UCI-HAR, 21 people"}
"""The data of the pages results/separation-*.md."""


def table(rows: Iterable[Mapping[str, Any]], columns: Iterable[str]) -> str:
    columns = list(columns)
    lines = ["| " + " | ".join(columns) + " |", "| " + " | ".join("---" for _ in columns) + " |"]
    for row in rows:
        cells = [f"`{row[c]}`" if c in ("name", "options") and row[c] else str(row.get(c, "")) for c in columns]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def with_cost(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [{**row, **{title: row.get(key, "") for title, key in COST.items()}} for row in rows]


def pages() -> dict[str, str]:
    """The overview and one page for each method, by path below ``docs``."""
    made = {"methods/index.md": index()}
    for name, method in {**ALGORITHMS, **COMBINATIONS}.items():
        made[f"methods/{name}.md"] = page(name, method) if isinstance(method, type) else combination(name, method)
    return made


def index() -> str:
    rows = with_cost(algorithm_rows(ALGORITHMS))
    linked = [{**row, "method": f"[{title(row['name'])}]({row['name']}.md)"} for row in rows]
    columns = ["method", "idea", "changes", *COST]
    parts = [
        "# Methods",
        "Each page shows a method's formulas beside its code, its options, its cost, and what it reached in our comparisons. "
        "The pages are made from the code: formulas and departures from the head of the method's file, costs as they are measured. "
        "[Which method?](choose.md) helps to choose one.",
        f"In the columns of cost: {LEGEND}.",
        table([row for row in linked if row["name"] in ALGORITHMS], columns),
        "## Names for combinations",
        "Methods of the field that are FedAvg with another component or setting. Their options are the component's.",
        table([row for row in linked if row["name"] in COMBINATIONS], columns),
    ]
    return "\n\n".join(parts) + "\n"


class Head:
    """The docstring of a method's file: title, formula lines by who acts, paragraphs."""

    def __init__(self, cls: type) -> None:
        text = inspect.getdoc(inspect.getmodule(cls)) or ""
        first, *blocks = text.split("\n\n")
        self.title = first.partition(" (")[0].rstrip(".")
        self.formulas: dict[str, list[str]] = {}
        self.paragraphs: list[str] = []
        for block in blocks:
            if not all(line.startswith("    ") for line in block.splitlines()):
                self.paragraphs.append(" ".join(block.splitlines()).replace("``", "`"))
                continue
            who = ""
            for line in inspect.cleandoc(block).splitlines():
                who = line.split()[0] if line[0] != " " else who
                self.formulas.setdefault(who, []).append(line)


def page(name: str, cls: type[Algorithm]) -> str:
    head = Head(cls)
    names = [p.partition(":")[0] for p in head.paragraphs]
    notes = [
        f"**{word}.** {sentence(p.partition(':')[2].strip())}" if word in ("Departures", "Elsewhere") else p
        for word, p in zip(names, head.paragraphs, strict=True)
    ]
    reduces = "; ".join(f"`{own or 'as it is'}` is `{other}`" for own, other in cls.reduces_to.items())
    cost = {**measure_cost(cls()).row(), "changes": cls.changes}
    parts = [
        f"# {title(name)} (`{name}`)",
        f"{sentence(cls.idea)}. {cited(cls.cites)}",
        run(name),
        "## Formulas and code",
        beside(head, cls),
        *notes,
        "## Options",
        options(cls),
        f"Reduces to, over whole trajectories: {reduces}." if reduces else "",
        *(("## Decisions", "A run stores:", decisions(cls)) if cls.decides else ()),
        "## Cost",
        table(with_cost([cost]), ["changes", *COST]),
        f"{sentence(LEGEND)}.",
        "## Measured",
        evidence(name),
        advised(name),
        "## Cite",
        bibtex(cls.cites),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def decisions(cls: type[Algorithm]) -> str:
    rows = [(*key.split("/"), note) for key, note in cls.decides.items()]
    return table(
        [{"split": split, "name": name, "what": note} for split, name, note in rows], ["split", "name", "what"]
    )


def combination(name: str, method: Combination) -> str:
    parts = [
        f"# {title(name)} (`{name}`)",
        f"{sentence(method.idea)}. {cited(method.cites)}",
        f"It is FedAvg with another component or setting (`src/fedskew/experiment/combinations.py`). It changes: {method.changes}.",
        run(name),
        "## Options",
        f"`{options_of(method.options)}`" if dataclasses.fields(method.options) else "None.",
        "## Measured",
        evidence(name),
        advised(name),
        *(("## Cite", bibtex(method.cites)) if method.cites else ()),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


SERVER_ROWS = "--server-data 0.05"
NEEDS = {
    "fedga": SERVER_ROWS,
    "dualmetric": SERVER_ROWS,
    "fedmd": SERVER_ROWS,
    "feddf": SERVER_ROWS,
    "fairfed": "--dataset adult --skew natural",
    "f3": f"--dataset adult --skew natural {SERVER_ROWS}",
    "f3-gradient": f"--dataset adult --skew natural {SERVER_ROWS}",
    "fedbn": "--model mlp:norm=group",
}
"""Options without which a method does not run."""


def run(name: str) -> str:
    """Commands that compare the method and check its promises."""
    command = f"fedskew compare --algorithms fedavg {name} {NEEDS.get(name, '')}".strip()
    if name == "fedavg":
        command = "fedskew run --algorithm fedavg"
    if name == "dp-fedavg":
        command = "fedskew run --clients 50 --skew iid --algorithm dp-fedavg:q=0.2 --selection poisson:rate=0.2"
    check = f"\nfedskew check {name}" if name in ALGORITHMS else ""
    return f"```sh\n{command}{check}\n```"


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def cited(keys: tuple[str, ...]) -> str:
    return " ".join(references()[key].line() + "." for key in keys)


def bibtex(keys: tuple[str, ...]) -> str:
    entries = "\n\n".join(references()[key].bibtex.strip() for key in keys)
    return f"`fedskew cite RUN` prints the entries of everything that a run used.\n\n```bibtex\n{entries}\n```"


def studied() -> Iterator[tuple[str, str, dict[str, str]]]:
    """Study, method and named cells of each row of the pages on separation."""
    for study in STUDIES:
        lines = (DOCS / "results" / f"separation-{study}.md").read_text(encoding="utf-8").splitlines()
        columns: list[str] = []
        for line in lines:
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if line.startswith("| method"):
                columns = cells
            elif line.startswith("| `"):
                yield study, cells[0].strip("`"), dict(zip(columns, cells, strict=True))


def evidence(name: str) -> str:
    """The method's rows of the comparisons under equal conditions."""
    rows = [
        {
            "data": f"[{STUDIES[study]}](../results/separation-{study}.md)",
            "as": f"`{method}`",
            **{
                column: cells[column]
                for column in ("lr", "final accuracy %", "against FedAvg", "clients' own models %")
            },
        }
        for study, method, cells in studied()
        if re.split(r"[:,]", method)[0] == name
    ]
    if not rows:
        return (
            "No comparison under equal conditions has this method yet. Compare it on your data with the command above."
        )
    won = " and ".join(r["data"] for r in rows if "higher" in r["against FedAvg"])
    lost = " and ".join(r["data"] for r in rows if "lower" in r["against FedAvg"])
    said = [f"It beats FedAvg on {won}." if won else "", f"It loses to FedAvg on {lost}." if lost else ""]
    if name != "fedavg" and not (won or lost):
        said = ["No difference from FedAvg is decided after Holm's correction."]
    made = "`python experiments/separation.py digits` and `uci-har` make these rows: five seeds, a tuned learning rate for each."
    text = " ".join(part for part in (*said, made) if part)
    return f"{text}\n\n{table(rows, rows[0])}"


def advised(name: str) -> str:
    """The method's gains over FedAvg in the cases that `fedskew diagnose` takes its advice from."""
    rows = [
        {
            "data": cell["data"],
            "skew": f"`{cell['skew']}`",
            "as": f"`{cell['method']}`",
            "measured on": cell["measured_on"],
            "change from FedAvg": cell["change"],
            "seeds": cell["seeds"],
        }
        for cell in cells(packaged().cases)
        if re.split(r"[:,]", cell["method"])[0] == name
    ]
    if not rows:
        return ""
    said = "[Our protocol](../evidence.md) makes these rows. The intervals are not corrected for the number of comparisons."
    return f"{said}\n\n{table(rows, rows[0])}"


def beside(head: Head, cls: type) -> str:
    """The formulas in one column, the hooks that carry them out in the other."""
    rows = []
    for who, hooks in (("client", CLIENT_HOOKS), ("server", SERVER_HOOKS)):
        lines = [
            line for key, group in head.formulas.items() if (key == "server") == (who == "server") for line in group
        ]
        code = "\n\n".join(source(cls, hook) for hook in hooks if getattr(cls, hook) is not getattr(Algorithm, hook))
        rows.append(cell("text", "\n".join(lines)) + cell("python", code or "# as FedAvg: the base class"))
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return f'<table class="beside" markdown="block">\n<tr><th>the paper</th><th>the hooks</th></tr>\n{body}\n</table>'


def cell(language: str, text: str) -> str:
    return f'<td valign="top" markdown="block">\n\n```{language}\n{text}\n```\n\n</td>'


def source(cls: type, hook: str) -> str:
    """A hook's code without its types, which are the base class's."""
    code = ast.parse(textwrap.dedent(inspect.getsource(getattr(cls, hook))))
    function = code.body[0]
    assert isinstance(function, ast.FunctionDef)
    names = ", ".join(argument.arg for argument in function.args.args)
    lines = textwrap.dedent(inspect.getsource(getattr(cls, hook))).splitlines()
    return "\n".join([f"def {hook}({names}):", *lines[function.body[0].lineno - 1 :]])


def options(cls: type) -> str:
    """The options with their defaults and what is usually tried."""
    rows = [
        {
            "name": f.name,
            "default": f"`{compact(f.default)}`",
            "usual values": cls.ranges.get(f.name, choices(cls, f.name)),
        }
        for f in dataclasses.fields(cls)
    ]
    return table(rows, ["name", "default", "usual values"])


def choices(cls: type, option: str) -> str:
    """What the type allows, where it is a list of words."""
    hint = get_type_hints(cls)[option]
    return ", ".join(str(choice) for choice in get_args(hint)) if get_origin(hint) is Literal else ""
