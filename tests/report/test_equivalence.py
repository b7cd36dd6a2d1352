"""The verdict *equivalent*, from a stated margin, in every view."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import fedskew as fs
from fedskew.core.errors import BadInput
from fedskew.measure.registry import Measures
from fedskew.measure.statistics import equivalence_p
from fedskew.report.answer import answer
from fedskew.report.budgets import Budget
from fedskew.report.series import Results
from fedskew.report.tables import verdict_rule
from fedskew.store.runs import RunStore
from tests.report import add, toml

FIRST = (0.80, 0.82, 0.79, 0.83, 0.81, 0.80)
CLOSE = (0.801, 0.819, 0.791, 0.831, 0.809, 0.801)
OTHERS = {
    "fedprox": CLOSE,
    "moon": (0.70, 0.83, 0.88, 0.71, 0.80, 0.90),
    "scaffold": (0.9, 0.91, 0.89, 0.93, 0.92, 0.9),
}


def store(folder: Path, margin: float | None, others: dict[str, tuple[float, ...]]) -> RunStore:
    """Return a store with a comparison of methods with FedAvg on six seeds."""
    made = RunStore(folder)
    for name, values in {"fedavg": FIRST, **others}.items():
        for seed, value in enumerate(values):
            text = toml(name, seed, 0, 1) + (f"\n[evaluation]\nmargin = {margin}\n" if margin else "")
            add(made, name, seed, [0.1, value], experiment=text)
    return made


def test_a_difference_surely_below_the_margin_is_equivalent(tmp_path: Path) -> None:
    with closing(store(tmp_path, 1.0, OTHERS)) as made:
        table = Results(made, made.runs()).summary
        assert table["verdict"].tolist() == ["", "equivalent", "undecided", "higher"]
        assert table["margin"].tolist() == [1.0] * 4
        alone = equivalence_p([b - a for a, b in zip(FIRST, CLOSE, strict=True)], 0.01)
        assert table["p_equivalent"][1] == pytest.approx(3 * alone)


def test_all_equivalent_methods_are_the_answer(tmp_path: Path) -> None:
    with closing(store(tmp_path, 1.0, {"fedprox": CLOSE})) as made:
        assert answer(Results(made, made.runs())).startswith("fedprox is equivalent to fedavg within 1 point.")


def test_without_a_margin_nothing_is_equivalent(tmp_path: Path) -> None:
    with closing(store(tmp_path, None, OTHERS)) as made:
        table = Results(made, made.runs()).summary
        assert table["verdict"].tolist() == ["", "undecided", "undecided", "higher"]
        assert table["p_equivalent"].isna().all()
        assert "equivalent" not in verdict_rule(table, Measures().primary())


def test_several_margins_are_refused(tmp_path: Path) -> None:
    with closing(store(tmp_path, 1.0, {})) as made:
        add(made, "moon", 0, [0.1, 0.8], experiment=toml("moon", 0, 0, 1) + "\n[evaluation]\nmargin = 2.0\n")
        with pytest.raises(BadInput, match="these runs state several margins, 1 and 2; name runs with the same margin"):
            _ = Results(made, made.runs()).summary


@pytest.mark.parametrize("options", ["redraw=false", "redraw=true"])
def test_ten_test_rows_show_no_equivalence(tmp_path: Path, options: str) -> None:
    path, rng = tmp_path / "table.csv", np.random.default_rng(0)
    rows = [f"{2 * (i % 2) + rng.normal():.3f},{'ab'[i % 2]}" for i in range(50)]
    path.write_text("\n".join(["x,y", *rows]) + "\n")
    runs = fs.compare(
        ["fedavg", "fedprox:mu=1e-6"],
        dataset=f"table:path={path},label=y,{options}",
        skew="iid",
        clients=2,
        rounds=1,
        seeds=5,
        margin=1,
        runs=tmp_path / "runs",
        progress=False,
    )
    for budget in (None, Budget("rounds", 1)):
        table = Results(runs.store, runs.records, budget).summary
        assert table["difference"][1] == 0
        assert table["p_equivalent"][1] > 0.5
        assert table["verdict"][1] == "undecided"
