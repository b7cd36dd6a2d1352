"""The evidence: gains of methods over FedAvg in many cases, and the fixed protocol by which the packaged cases were measured.

A case is a data set with a skew, and its faces were measured. A gain has one of two measures, which are never mixed: one model for
all clients on the test rows, or each client's model on the client's held-out rows. A larger gain is better, even if the metric is
an error. `protocol.toml` has the data sets, skews, methods, learning rates and seeds.
"""

import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from fedskew.core.errors import BadInput, FedskewError
from fedskew.core.files import write_whole
from fedskew.core.groups import grouped
from fedskew.core.text import percent, title
from fedskew.measure.statistics import Verdict, decided, holm


class Planned(msgspec.Struct, frozen=True):
    """A case of the protocol: a data set, a skew, and the local work in a round."""

    data: str
    skew: tuple[str, ...]
    local: Literal["epochs", "steps"] = "epochs"
    model: str = "mlp:norm=group"

    @property
    def title(self) -> str:
        return f"{self.data}, {' + '.join(self.skew)}"

    def settings(self) -> dict[str, Any]:
        """Return the settings that are equal for all methods, as keywords of `Experiment`."""
        return {
            "dataset": self.data,
            "skew": list(self.skew),
            "model": self.model,
            "clients": {"number": 10, "held_out": HELD_OUT},
            "server_data": {"share": SERVER_SHARE},
            "local": TABLE["local"][self.local],
            "training": {"rounds": ROUNDS, "threads": 1},
            "evaluation": {"every": ROUNDS, "local_models": False},
            "checkpoint": {"every": ROUNDS},
            "engine": "stacked",
        }


TABLE = tomllib.loads((files("fedskew.advice") / "protocol.toml").read_text(encoding="utf-8"))
ROUNDS: int = TABLE["rounds"]
RATES: list[float] = TABLE["rates"]
TUNING_SEED: int = TABLE["tuning_seed"]
PASSES: list[list[int]] = TABLE["passes"]
SEEDS = [seed for part in PASSES for seed in part]
HELD_OUT: float = TABLE["held_out"]
SERVER_SHARE: float = TABLE["server_share"]
REFERENCE: str = TABLE["reference"]
ADAPTED: str = TABLE["adapted"]
BOUNDS: list[str] = TABLE["bounds"]
PUBLISHED: list[str] = TABLE["published"]
METHODS: list[str] = TABLE["methods"]
NEEDS: dict[str, str] = TABLE["needs"]
CASES = msgspec.convert(TABLE["cases"], tuple[Planned, ...])


Face = Literal["label", "feature", "quantity", "concept"]
Strengths: TypeAlias = Mapping[Face, float] | Mapping[str, float]
FACES: tuple[Face, ...] = ("label", "feature", "quantity", "concept")

Measure = Literal["test", "own"]
MEASURES: dict[Measure, str] = {
    "test": "with one model for all clients, on the test set",
    "own": "with a model for each client, on its held-out rows",
}

NAME = "evidence.json"
"""Name of the file of cases, both in the package and in the folder of a run store."""

SMALLEST_ERROR = 0.01
"""A smaller error of FedAvg counts as this error, so that gains divided by it stay finite."""

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=2)]
Positive = Annotated[float, msgspec.Meta(ge=0)]


class Gain(msgspec.Struct, array_like=True, frozen=True):
    """The gain of a method on one measure: mean over the seeds, half-width of its 95 % interval, and uncorrected p value."""

    method: str
    measure: Measure
    lr: Positive  # the learning rate that was best on the tuning seed
    gain: float
    half: Positive
    p: Share
    seeds: Count


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A data set with a skew, the metric that FedAvg reached, and the gains of other methods."""

    data: str
    skew: str
    model: str
    target: str
    metric: str
    better: Literal["higher", "lower"]
    dominant: Face | Literal[""]
    strengths: Annotated[dict[Face, Share], msgspec.Meta(min_length=4)]
    fedavg: dict[Measure, float]
    methods: tuple[Gain, ...]
    command: str = ""  # repeats the case; empty if the case is part of the protocol

    @property
    def title(self) -> str:
        return f"{self.data}, {self.skew}"

    @property
    def data_set(self) -> str:
        """The name of the data set without options."""
        return self.data.partition(":")[0]

    def error(self, measure: Measure) -> float:
        """Return FedAvg's error: the metric if smaller values are better, else 1 - metric."""
        reached = self.fedavg.get(measure, 0.0)
        return max(reached if self.better == "lower" else 1 - reached, SMALLEST_ERROR)

    def share(self, line: Gain) -> float:
        """Return the share of FedAvg's error that the method removes, clipped to [-1, 1]. -1 means that the error doubles."""
        return min(max(line.gain / self.error(line.measure), -1.0), 1.0)

    def verdicts(self) -> dict[tuple[str, Measure], Verdict]:
        """Return a verdict for each method and measure. Holm's correction covers all methods of the case on one measure."""
        return {
            (line.method, measure): decided(p, line.gain)
            for measure, lines in grouped((line.measure, line) for line in self.methods).items()
            for line, p in zip(lines, holm([line.p for line in lines]), strict=True)
        }


def change(case: Case, line: Gain) -> str:
    """Return the change of the metric as text: ``+2.1 ± 0.5 points``, or ``rmse -0.3 ± 0.1``."""
    if case.better == "higher":
        return f"{100 * line.gain:+.1f} ± {100 * line.half:.1f} points"
    return f"{case.metric} {-line.gain:+.3g} ± {line.half:.2g}"


class Evidence(msgspec.Struct, frozen=True):
    """The cases, and the command that made them."""

    made_by: str
    cases: tuple[Case, ...]


@cache
def packaged() -> Evidence:
    """Return the evidence in the package."""
    return read((files("fedskew.advice") / NAME).read_bytes(), NAME)


def known(folder: Path | None = None) -> Sequence[Case]:
    """Return the package's cases and those in the folder of a run store. If titles are equal, the folder's case counts."""
    in_folder = read_file(folder / NAME).cases if folder else ()
    titles = {case.title for case in in_folder}
    return (*(case for case in packaged().cases if case.title not in titles), *in_folder)


def read(data: bytes, where: str) -> Evidence:
    """Read evidence from JSON. ``where`` names the file in messages. Raises `BadInput` if it is no evidence."""
    try:
        return msgspec.json.decode(data, type=Evidence)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadInput(f"evidence {where}: {error}; `fedskew evidence run` makes such a file") from None


def read_file(path: Path) -> Evidence:
    """Read a file of evidence. If the file does not exist, the evidence has no cases."""
    if not path.is_file():
        return Evidence("fedskew evidence", ())
    try:
        return read(path.read_bytes(), str(path))
    except OSError as error:
        raise FedskewError(f"evidence {path}: cannot be read: {error.strerror}") from None


def text_of(evidence: Evidence) -> str:
    """Return the evidence as JSON with one line for each gain, so that changes of the file are easy to read."""
    text = msgspec.json.encode(evidence).decode()
    for before, after in (
        ('[{"data"', '[\n{"data"'),
        ('},{"data"', '},\n{"data"'),
        ('"methods":[[', '"methods":[\n['),
        ("],[", "],\n["),
    ):
        text = text.replace(before, after)
    return text + "\n"


def add_case(path: Path, case: Case) -> None:
    """Write the case to the file. It replaces a case with the same title."""
    before = read_file(path)
    others = [other for other in before.cases if other.title != case.title]
    write_whole(path, text_of(Evidence(before.made_by, (*others, case))), "evidence")


MEASURED_ON: dict[Measure, str] = {"test": "one model, test rows", "own": "clients' own held-out rows"}


def cells(cases: Sequence[Case]) -> Iterator[dict[str, Any]]:
    """Yield the rows of all gains over FedAvg, case by case.

    ``change`` is the change of the metric, with its 95 % interval; ``share`` is the gain divided by FedAvg's error.
    """
    for case in cases:
        verdicts = case.verdicts()
        for line in case.methods:
            yield {
                "data": case.data,
                "skew": case.skew,
                "dominant": case.dominant or "none",
                "strengths": case.strengths,
                "method": line.method,
                "title": title(line.method.partition(":")[0]),
                "measured_on": MEASURED_ON[line.measure],
                "lr": line.lr,
                "fedavg": reached(case, line.measure),
                "change": change(case, line),
                "share": case.share(line),
                "removed": percent(case.share(line)),
                "verdict": verdicts[line.method, line.measure],
                "seeds": line.seeds,
                "command": repeats(case, line),
            }


def reached(case: Case, measure: Measure) -> str:
    """Return FedAvg's metric as text."""
    value = case.fedavg.get(measure, float("nan"))
    return f"{100 * value:.1f} %" if case.better == "higher" else f"{case.metric} {value:.4g}"


def repeats(case: Case, line: Gain) -> str:
    """Return the command that repeats a gain."""
    options = f"--case {shlex.quote(case.title)} --algorithms {line.method} --seeds {line.seeds}"
    return case.command or f"fedskew evidence run {options} --runs again"


def summary(cases: Sequence[Case]) -> list[dict[str, str]]:
    """Return one row for each case: strengths, FedAvg's metric, the number of decided gains, the largest gain on test rows."""
    rows = []
    for case in cases:
        verdicts = list(case.verdicts().values())
        best = max((line for line in case.methods if line.measure == "test"), key=lambda line: line.gain, default=None)
        faces: dict[str, str] = {face: f"{case.strengths[face]:.2f}" for face in FACES}
        rows.append(
            {
                "data": case.data,
                "skew": case.skew,
                **faces,
                "FedAvg": reached(case, "test"),
                "best method": best.method if best else "",
                "its change": change(case, best) if best else "",
                "higher": str(verdicts.count("higher")),
                "lower": str(verdicts.count("lower")),
                "gains": str(len(verdicts)),
            }
        )
    return rows


def described(cases: Sequence[Case]) -> str:
    """Say in a sentence how many cases, methods and gains the evidence has."""
    methods = {line.method for case in cases for line in case.methods}
    number = sum(len(case.methods) for case in cases)
    sets = {case.data_set for case in cases}
    decided = sum(verdict != "undecided" for case in cases for verdict in case.verdicts().values())
    return (
        f"{len(cases)} cases of {len(sets)} data sets, {len(methods)} methods beside FedAvg, {number} gains; {decided} of them are "
        "decided after Holm's correction."
    )
