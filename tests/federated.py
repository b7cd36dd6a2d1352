"""Sites of a diagnosis without pooling, and all that leaves them."""

from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa

from fedskew.diagnosis.diagnose import by_bytes
from fedskew.diagnosis.questions import Answer, Question
from fedskew.diagnosis.server import Inquiry
from fedskew.diagnosis.site import AnsweringSite
from fedskew.diagnosis.subject import Source

HOSPITALS = ("bern", "genf", "sion")


def frame(n: int = 400, seed: int = 0) -> pd.DataFrame:
    """Patients of three hospitals, with whole numbers, words, gaps, an offset in one hospital and a rare word in another."""
    rng = np.random.default_rng(seed)
    hospital = rng.choice(3, n, p=[0.5, 0.3, 0.2])
    age = rng.integers(20, 90, n)
    made = pd.DataFrame(
        {
            "hospital": np.array(HOSPITALS)[hospital],
            "age": age,
            "pulse": rng.integers(50, 120, n) + 25 * (hospital == 1),
            "visits": np.where(rng.random(n) < 0.8, 0, rng.integers(1, 9, n)),
            "sex": rng.choice(["female", "male"], n),
            "smokes": np.where(rng.random(n) < 0.1 + 0.4 * (hospital == 2), None, rng.choice(["yes", "no"], n)),
            "ill": np.where(age + rng.normal(0, 20, n) > 60, "ill", "well"),
        }
    )
    made.loc[rng.random(n) < 0.05, "age"] = np.nan
    return made


def wide_sites(fewest: int) -> dict[str, AnsweringSite]:
    """Return sites with more inputs than directions, a text and a time, so that the diagnosis asks all steps."""
    rng = np.random.default_rng(0)
    texts = [f"{a} {b}" for a, b in rng.choice([f"word{i}" for i in range(30)], (90, 2))]
    day = pd.date_range("2020-01-01", periods=90).to_numpy()
    y = rng.choice(["a", "b"], 90)
    table = pa.table({f"x{at}": rng.standard_normal(90) for at in range(20)} | {"text": texts, "word": y, "day": day})
    # the first rows occur twice
    rows = pa.array([0, 1, 2, 3, *range(4, 90), 0, 1, 2, 3])
    return {name: AnsweringSite(table.take(rows), y[rows.to_numpy()], fewest) for name in HOSPITALS}


def number_sites(fewest: int) -> dict[str, AnsweringSite]:
    """Return these sites with numbers as targets."""
    y = np.random.default_rng(1).normal(size=94)
    return {name: AnsweringSite(site.table, y, fewest) for name, site in wide_sites(fewest).items()}


def leaves(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Every value that is no table or list, with its path."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if parts is None:
        yield path, value
    for key, part in parts or ():
        yield from leaves(part, (*path, str(key)))


class Recorder:
    """Sites whose answers are recorded as bytes."""

    def __init__(self, sites: dict[str, AnsweringSite]) -> None:
        self.sites, self.sent = sites, list[bytes]()

    def ask(self, questions: dict[str, Question]) -> dict[str, Answer]:
        found = {}
        for name, question in questions.items():
            self.sent.append(self.sites[name].reply(msgspec.msgpack.encode(question)))
            found[name] = msgspec.msgpack.decode(self.sent[-1], type=Answer)
        return found


def named_leaf(step: str, path: tuple[str, ...]) -> tuple[str, str]:
    """The line of `LEAVES` that a value of an answer belongs to."""
    if path[0] == "numbers":
        return step, path[1]
    if path[:2] == ("summary", "columns"):
        rest = path[3:]
        return step, ".".join(rest[:2]) if rest[0] == "numbers" else rest[0]
    return step, path[0]


def recorded(sites: dict[str, AnsweringSite]) -> tuple[Recorder, list[tuple[str, str]]]:
    made = Recorder(sites)
    Inquiry(tuple(sites), made.ask).result(Source("recorded"))
    found = []
    for data in made.sent:
        answer = msgspec.msgpack.decode(data)
        assert "refused" not in answer
        step = answer.pop("step")
        found += [named_leaf(step, path) for path, _ in leaves(answer) if path]
    return made, found


def lying(
    sites: dict[str, AnsweringSite], step: str, change: Callable[[Answer], Answer]
) -> Callable[[dict[str, Question]], dict[str, Answer]]:
    """Ask the sites, and change the answer of genf in this step."""
    honest = by_bytes(sites)

    def ask(questions: dict[str, Question]) -> dict[str, Answer]:
        answers = dict(honest(questions))
        if answers["genf"].step == step:
            answers["genf"] = change(answers["genf"])
        return answers

    return ask
