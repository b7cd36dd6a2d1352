"""The documentation is under test: generated pages are current, commands parse, examples run, every stored name is described."""

import dataclasses
import inspect
import posixpath
import re
import shlex
from collections.abc import Mapping
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion

from fedskew.advice.evidence import BOUNDS, cells, packaged
from fedskew.algorithms import ALGORITHMS
from fedskew.api.functions import run
from fedskew.claims.document import load
from fedskew.cli.main import parser
from fedskew.cli.request import experiment_from
from fedskew.core.algorithm import Algorithm
from fedskew.core.errors import FedskewError
from fedskew.data.dataset import Dataset
from fedskew.execution.plan import prepare
from fedskew.experiment.combinations import COMBINATIONS, with_method
from fedskew.experiment.config import Experiment, from_toml
from fedskew.measure.registry import Measures
from fedskew.skew import SKEWS
from tests.pages import ROOT, loaded


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    """The pages that the site makes from the code, by their path below docs."""
    return loaded("docs/generate.py").pages()


def test_the_page_of_performance_is_current() -> None:
    assert (ROOT / "docs" / "performance.md").read_text() == loaded("docs/generate.py").performance(), (
        "run python docs/generate.py"
    )


def test_pages_of_methods_hold_formulas_code_and_departures(made: dict[str, str], snapshot: SnapshotAssertion) -> None:
    """FedProx's page as a whole; and every method has every part that its file gives."""
    methods = loaded("docs/builder/methods.py")
    assert made["methods/fedprox.md"] == snapshot
    assert "It loses to FedAvg on" in made["methods/krum.md"]
    for name, cls in ALGORITHMS.items():
        text = made[f"methods/{name}.md"]
        hooks = [h for h in (*methods.CLIENT_HOOKS, *methods.SERVER_HOOKS) if h in vars(cls)]
        assert all(f"def {hook}(" in text for hook in hooks), name
        assert all(f"| `{field.name}` |" in text for field in dataclasses.fields(cls)), name
        assert text.count("```") % 2 == 0
    assert {f"methods/{name}.md" for name in COMBINATIONS} <= set(made)
    assert {"client_init", "objective", "direction", "local_final"} <= set(methods.CLIENT_HOOKS)
    assert all(hasattr(Algorithm, name) for name in (*methods.SERVER_HOOKS, *methods.NO_HOOKS))


def test_the_page_that_helps_to_choose_has_every_decided_gain_of_a_federated_method(made: dict[str, str]) -> None:
    decided = [
        cell for cell in cells(packaged().cases) if cell["verdict"] != "undecided" and cell["method"] not in BOUNDS
    ]
    better = [cell for cell in decided if cell["share"] > 0]
    gains = made["methods/choose.md"].partition("## What our runs decide")[2]
    assert 0 < len(better) < len(decided)
    assert gains.count("\n| ") == len(better) + 2
    assert all(f"| {cell['title']} |" in gains and f"| {cell['change']} |" in gains for cell in better)


def test_nothing_is_installed_from_the_package_index() -> None:
    """No release is there yet: an extra is installed in the clone."""
    pages = {"README.md": (ROOT / "README.md").read_text(), **committed(), **examples()}
    sources = {
        str(path): path.read_text(encoding="utf-8")
        for path in (ROOT / "src").rglob("*.*")
        if path.suffix in (".py", ".txt")
    }
    pages |= sources
    assert len(sources) > 200
    assert [
        path for path, text in pages.items() if "pip install 'fedskew" in text or "pip install fedskew" in text
    ] == []


def test_commands_on_pages_of_methods_fit_the_method(made: dict[str, str]) -> None:
    """Each is planned, with the checks of a real run, but not carried out, and no engine is tried."""
    refused = {}
    for name in {**ALGORITHMS, **COMBINATIONS}:
        line = re.search(r"^fedskew ((?:compare|run) .*)$", made[f"methods/{name}.md"], re.M)[1]
        parsed = parser().parse_args(shlex.split(line))
        method = next(word for word in line.split() if word.partition(":")[0] == name)
        experiment = with_method(experiment_from(parsed), method).replace(engine="sequential")
        if "adult" not in line:  # its files may be missing
            try:
                prepare([experiment], None, jobs=1)
            except FedskewError as error:
                refused[name] = str(error)
    assert refused == {}


DOCUMENTS = [f"results/{path.stem}.md" for path in (ROOT / "docs" / "results").glob("*.json")]
COMPLETE = ("reference/measurements.md", "reference/command-line.md", "reference/components.md", *DOCUMENTS)
"""Each stored number, verb, option, and each table, figure and claim of a document: nobody reads them from start to end."""


SMALL = ("failure-modes", "standard")
"""The document whose figures are compared with the links of its page."""


def test_published_exports_make_their_page(made: dict[str, str]) -> None:
    for path in (ROOT / "docs" / "results").glob("*.json"):
        tables = load(path.stem.rpartition("-")[0]).tables
        assert made[f"results/{path.stem}.md"].count("\n## ") >= len(tables), path.stem


def test_no_page_is_longer_than_3000_words(made: dict[str, str]) -> None:
    words = {path: len(text.split()) for path, text in {**made, **committed()}.items()}
    assert {path: number for path, number in words.items() if number > 3000 and path not in COMPLETE} == {}


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 900


def test_the_readme_has_the_ratios_of_the_page_of_performance() -> None:
    page = (ROOT / "docs" / "performance.md").read_text()
    ratios = [float(found) for found in re.findall(r": ([\d.]+) times as fast as the best", page)]
    softmax, cnn = f"1/{ratios[0]:.1f} of the time", f"{1 / ratios[3]:.2f} times as long"
    assert all(text in " ".join((ROOT / "README.md").read_text().split()) for text in (softmax, cnn))


@pytest.mark.slow
def test_every_picture_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    pictures = loaded("docs/builder/pictures.py")
    made = pictures.pictures()
    assert set(made) == pictures.paths()
    assert all(text.startswith(b"<?xml") and len(text) < 50_000 for text in made.values())


def committed() -> dict[str, str]:
    """The pages in the repository, by their path below docs."""
    docs = ROOT / "docs"
    return {path.relative_to(docs).as_posix(): path.read_text() for path in docs.rglob("*.md")}


LINK = re.compile(r"(?<!`)\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")


def dead_links(base: str, text: str, known: Mapping[str, str], files: Path) -> list[str]:
    """Links of one page to pages, anchors and files that are not there. Paths of ``known`` are relative to ``files``."""
    found = []
    plain = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.S)
    for link in (one or other for one, other in LINK.findall(plain)):
        path, _, anchor = link.partition("#")
        if re.match(r"\w+:", link):
            continue
        target = posixpath.normpath(posixpath.join(posixpath.dirname(base), path)) if path else base
        page = known.get(target)
        if (page is None and not (files / target).exists()) or (
            anchor and anchor not in {slug(head) for head in re.findall(r"^#+ (.*)$", page or "", re.M)}
        ):
            found.append(link)
    return found


def slug(heading: str) -> str:
    """The anchor of a heading on the site and on GitHub."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\- ]", "", heading.lower()).strip())


def examples() -> dict[str, str]:
    """Tutorials and gallery by their path below docs. The comments of a tutorial hold its text."""
    paths = [path for folder in ("tutorials", "gallery") for path in (ROOT / "docs" / folder).glob("*.py")]
    return {path.relative_to(ROOT / "docs").as_posix(): path.read_text() for path in paths}


def test_links_of_the_site_lead_somewhere(made: dict[str, str]) -> None:
    links = loaded("docs/builder/links.py")
    written = {**committed(), **{path.replace(".py", ".md"): text for path, text in examples().items()}}
    drawings = {path: re.findall(r"\.\./(pictures/[^)]*)", made[path]) for path in DOCUMENTS}
    [small] = [each for each in loaded("docs/generate.py").exports() if (each["document"], each["scale"]) == SMALL]
    drawn = loaded("docs/builder/documents.py").drawings(small)
    assert sorted(drawings["results/{}-{}.md".format(*SMALL)]) == sorted(f"pictures/{name}" for name in drawn)
    pictures = dict.fromkeys({*chain(*drawings.values())} | loaded("docs/builder/pictures.py").paths(), "")
    indexes = dict.fromkeys(("contributing.md", "tutorials/index.md", "gallery/index.md"), "")
    pages = {path: links.of_site(text, path) for path, text in {**made, **written}.items()}
    known = {**pages, **pictures, **indexes, "evidence-table.html": ""}
    dead = {path: dead_links(path, text, known, ROOT / "docs") for path, text in pages.items()}
    assert {path: links for path, links in dead.items() if links} == {}
    assert all("src/" not in link for text in pages.values() for link in re.findall(r"\]\(([^)]*)\)", text))


def test_links_of_the_repository_lead_somewhere() -> None:
    """Also where nothing is built."""
    pages = {f"docs/{path}": text for path, text in {**committed(), **examples()}.items()}
    pages |= {path.name: path.read_text() for path in ROOT.glob("*.md")}
    pages["docs/llms.txt"] = (ROOT / "docs" / "llms.txt").read_text()
    dead = {path: dead_links(path, text, pages, ROOT) for path, text in pages.items()}
    assert {path: links for path, links in dead.items() if links} == {}


def test_a_dead_link_is_found() -> None:
    pages = {
        "a/b.md": "# One two\n[x](c.md) [y](../d.md#gone) [z](#one-two) `[c](no.md)` [o](https://x.org)",
        "d.md": "# D",
    }
    assert dead_links("a/b.md", pages["a/b.md"], pages, Path("nowhere")) == ["c.md", "../d.md#gone"]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_formulas_of_every_method_stand_in_its_files_head(name: str) -> None:
    assert re.search(r"\n    \S", inspect.getmodule(ALGORITHMS[name]).__doc__), (
        "the algorithm's lines, indented by four"
    )


def test_every_skew_stands_on_its_page() -> None:
    page = (ROOT / "docs" / "data" / "skews.md").read_text()
    assert [name for name in SKEWS if f"`{name}`" not in page] == []
    toml = re.search(r"```toml\n(.*?)```", page, re.S)[1]
    assert from_toml(toml).labels("skew") == ["label-dirichlet", "quantity-lognormal"]


def test_every_stored_name_is_described(tmp_path) -> None:
    x = np.random.default_rng(0).standard_normal((60, 4))
    x[:, -1] = np.arange(60) % 2
    y = np.arange(60) // 2 % 2
    people = Dataset(x=x, y=y, x_test=x, y_test=y, classes=("no", "yes"), sensitive="sex")
    numbers = Dataset(x=x, y=x[:, 0].copy(), x_test=x, y_test=x[:, 1].copy())
    times = dataclasses.replace(numbers, y=np.abs(x[:, [0, -1]]), y_test=np.abs(x[:, [0, -1]]), target="")
    ids = y[:, None]
    symbols = dataclasses.replace(people, x=ids, y=ids, x_test=ids, y_test=ids, target="symbols", sensitive="")
    sets = {"y": (x > 0).astype(int), "y_test": (x < 1).astype(int), "classes": tuple("abcd"), "target": "labels"}
    adapted = {"evaluation": {"adapt_steps": 1}}
    measured_runs: list[tuple[Dataset, dict[str, object]]] = [
        (people, {"evaluation": {"inexactness": True, "adapt_steps": 1, "layers": True, "classes": True}}),
        (people, {"algorithm": "ifca"}),
        (people, {"skew": "concept-swap:clusters=1,at_round=1,rho=1e-9"}),
        (people, {"algorithm": "dp-fedavg:q=1.0", "selection": "poisson:rate=1.0"}),
        *((numbers, {"task": f"regression:{error}", **adapted}) for error in ("squared", "absolute", "quantile")),
        (times, {"task": "survival", **adapted}),
        (symbols, {"model": "transformer:width=2,layers=1,heads=1", **adapted}),
        (dataclasses.replace(numbers, **sets), adapted),
    ]
    stored = set()
    for data, changes in measured_runs:
        settings = {"training": {"rounds": 1}, "local": {"epochs": 1}, "engine": "stacked", "skew": "iid"}
        clients = {"number": 4, "held_out": 0.4, "unseen": 0.5}
        frame = run(Experiment(**{**settings, "clients": clients, **changes}), data=data, runs=tmp_path).measurements()
        stored |= set(zip(frame["split"], frame["name"], strict=True))
    # what only deployed runs store is compared in tests/flower/test_broken_nodes.py
    deployed = {("round", "rejected"), *(key for key in Measures().stored if key[0] == "fault")}
    decided = {tuple(key.split("/")) for key in ALGORITHMS["ifca"].decides}  # the method's page describes them
    assert stored | deployed == set(Measures().stored) | decided


PHRASES = (
    *(
        r"\b(?i:that|those|the ones?) of\b",
        "_(that|those)_of_",
        r"\b(?i:so) many\b",
        r"\b(?i:of) which\b",
        "_of_which_",
    ),
    *(r"\b(?i:such) an? one\b", r"\bwhich \w+ where\b", "told apart", "to be had of", "refers to itself"),
)
"""Words that stopped readers."""


@pytest.mark.parametrize("phrase", PHRASES)
def test_phrases_that_confused_readers_are_gone(phrase: str) -> None:
    found = [(path, match) for path, text in prose().items() for match in re.finditer(phrase, text)]
    assert [f"{path}: ...{match.string[max(0, match.start() - 40) : match.end()]}" for path, match in found] == []


@cache
def prose() -> dict[Path, str]:
    """The text of the files that people read, without line breaks."""
    paths = [path for top in FOLDERS for path in (ROOT / top).rglob("*") if path.suffix in SUFFIXES]
    paths = [path for path in (*ROOT.glob("*.md"), *paths) if path != Path(__file__)]
    return {path: " ".join(path.read_text(encoding="utf-8").split()) for path in paths}


FOLDERS = ("benchmarks", "docs", "experiments", "src", "tests")
SUFFIXES = {".md", ".py", ".toml", ".html", ".bib"}
