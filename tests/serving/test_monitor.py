"""New rows against training rows: the population stability index, its chance, and values that training never had."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedskew as fs
from fedskew.serving.predict import stability
from tests.commands import output_of


def test_the_index_of_words_by_hand():
    """10 and 30 of 40 rows before, 30 and 10 of 40 now; each bin counts half a row more."""
    before, now = (np.array(["a"] * a + ["b"] * (40 - a), dtype=object) for a in (10, 30))
    p, q = np.array([10.5, 30.5]) / 41, np.array([30.5, 10.5]) / 41
    index, chance = stability(before, now)
    assert index == pytest.approx(((q - p) * np.log(q / p)).sum(), rel=1e-12)
    assert chance < 1e-4


def test_numbers_fall_into_tenths_and_missing_ones_into_a_bin():
    before = np.arange(1.0, 101)
    assert stability(before, before) == (0, 1)
    assert stability(before, np.tile(before, 2))[0] < 0.001
    gone = np.where(before <= 50, np.nan, before)
    counts = np.array([0, *[10] * 10]), np.array([50, *[0] * 5, *[10] * 5])
    p, q = ((part + 0.5) / (part + 0.5).sum() for part in counts)
    assert stability(before, gone)[0] == pytest.approx(((q - p) * np.log(q / p)).sum(), rel=1e-12)
    assert stability(np.full(5, np.nan), np.full(9, np.nan)) == (0, 1)


@pytest.mark.parametrize("words", [False, True])
def test_the_p_value_is_about_uniform_if_nothing_changes(words):
    rng = np.random.default_rng(0)
    draws = (lambda n: rng.choice(list("abcd"), n).astype(object)) if words else rng.normal
    chances = [
        stability(draws(size=2000) if not words else draws(2000), draws(size=300) if not words else draws(300))[1]
        for _ in range(400)
    ]
    assert 0.02 < np.mean(np.array(chances) < 0.05) < 0.09


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> fs.Runs:
    folder = tmp_path_factory.mktemp("monitor")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": rng.normal(50, 9, 500).round(),
            "dose": rng.normal(size=500),
            "colour": rng.choice(["red", "blue"], 500),
        }
    )
    frame = frame.assign(note=[f"text {i} of {i % 7}" for i in range(500)], site=rng.choice(["a", "b"], 500))
    frame.assign(ill=rng.choice(["no", "yes"], 500)).to_csv(folder / "visits.csv", index=False)
    data = f"table:path={folder}/visits.csv,label=ill,client=site,test_share=0.01"
    return fs.run(dataset=data, rounds=1, runs=folder / "runs", progress=False)


def visits(runs: fs.Runs) -> pd.DataFrame:
    return pd.read_csv(runs.store.folder.parent / "visits.csv")


def test_the_column_that_moved_comes_first_and_unseen_values_are_counted(runs):
    frame = visits(runs).head(100)
    frame["age"] += 20
    frame.loc[:24, "colour"] = "green"
    frame.loc[:9, "dose"] = np.nan
    table = fs.load_model(runs).monitor(frame).set_index("column")
    assert table.index[0] == "age"
    assert table.stability_index["age"] > 0.25
    assert table.p["age"] < 1e-6
    assert table.outside["colour"] == 0.25
    assert table.outside["dose"] == 0.1
    # no training row lacks a dose, so missing doses have no input of their own
    by_hand = stability(visits(runs).dose.to_numpy(), frame.dose.to_numpy())[0]
    assert table.stability_index["dose"] == pytest.approx(by_hand, rel=0.1)
    assert table.outside["age"] == (frame.age > visits(runs).age.max()).mean()


def test_the_rows_of_a_site_are_compared_with_its_own_training_rows(tmp_path: Path) -> None:
    """Sites differ. Rows that name no site are compared with all rows, with a line."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"site": ["a", "b"] * 200, "age": rng.normal([40, 60] * 200, 5).round(), "ill": [0, 1, 1, 0] * 100}
    )
    frame.to_csv(tmp_path / "visits.csv", index=False)
    data = f"table:path={tmp_path}/visits.csv,label=ill,client=site"
    models = [
        fs.load_model(
            fs.run(dataset=data, skew="natural", algorithm=name, rounds=1, runs=tmp_path / name, progress=False), client
        )
        for name, client in (("fedavg", None), ("local-only", "a"))
    ]
    of_one = frame[frame.site == "a"]
    for rows, model in ((of_one, models[0]), (of_one.drop(columns="site"), models[1])):
        table = model.monitor(rows)
        assert table.stability_index.max() < 0.05
        assert table.p.min() > 0.9
    with pytest.warns(
        UserWarning, match="the new rows name no client of training, so they are compared with the rows of all"
    ):
        assert models[0].monitor(of_one.drop(columns="site")).stability_index.max() > 1


def test_the_verb_prints_the_table(runs):
    command = ["monitor", "1", str(runs.store.folder.parent / "visits.csv"), "--runs", str(runs.store.folder)]
    assert output_of(*command).split()[:4] == ["column", "stability_index", "p", "outside"]
    assert len(json.loads(output_of(*command, "--json"))) == 3
