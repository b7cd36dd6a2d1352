"""A document's figures are drawn from its runs: lines, bands, bars, clients, layers, partitions; also from an export."""

import dataclasses
import json

import numpy as np
import pytest

from fedskew.claims.document import ClaimTable, Document, Panel, load
from fedskew.claims.export import exported, read
from fedskew.claims.figures import measure_of, over_rounds, pictures
from fedskew.claims.page import captions, html, markdown, mixed, texts_of
from fedskew.claims.quantities import Measured, quantity, words_for
from fedskew.claims.verdicts import Results, interval
from fedskew.core.errors import BadInput
from fedskew.report.html import in_grey
from fedskew.store.records import RunRecord


def run(seed: int, accuracy: list[float], rounds: int = 4) -> Measured:
    """A run of two clients, two layers and two labels. Client k's accuracy is the whole's plus k / 10."""
    record = RunRecord(
        id=seed, comparison=None, name="a", experiment="", experiment_hash=f"h{seed}", seed=seed, partition_seed=seed,
        status="finished", message="", rounds=rounds, rounds_done=rounds, created="2026", updated="2027",
        facts={"layers": ["conv1", "fc"], "measures": [{"split": "client", "name": "mu", "note": "strength"}]},
    )  # fmt: skip
    at, values = np.arange(len(accuracy)), np.array(accuracy)
    series = {("test", "accuracy", None): (at, values)}
    series |= {("global-model", "accuracy", k): (at, values + k / 10) for k in (0, 1)}
    series |= {("client", "mu", k): (at[1:], values[1:] * 0 + k) for k in (0, 1)}
    series |= {("layer", "cosine", k): (at[1:], values[1:] * 0 + k) for k in (0, 1)}
    return Measured(record, series, [(0, "north", "cat", 3), (0, "north", "dog", 1), (1, "south", "cat", 2)])


RESULTS: Results = {
    "ours, low": {0: run(0, [0.1, 0.2, 0.3, 0.4, 0.5]), 1: run(1, [0.1, 0.4, 0.5, 0.6, 0.7])},
    "other, low": {0: run(0, [0.1, 0.1, 0.2, 0.2, 0.3])},
}
PANELS = (
    Panel(kind="curves", of="accuracy", band="range"),
    Panel(kind="bars", of="accuracy"),
    Panel(kind="clients", of="global-model/accuracy", arms=("ours, low",)),
    Panel(kind="layers", of="layer/cosine", arms=("ours, low", "other, low")),
    Panel(kind="partition", arms=("other, low",)),
    Panel(kind="clients", of="client/mu", arms=("ours, low",)),
    Panel(kind="curves", of="loss", arms=("never run",)),
)
TABLE = ClaimTable(
    name="figure-1", title="Figure 1: all kinds", arms=("ours, low", "other, low", "never run"),
    measures=("accuracy", "accuracy-at:0.5"), clients=("global-model/accuracy", "layer/cosine", "client/mu"), panels=PANELS,
    printed={"ours, low": {"accuracy": 0.9}},
)  # fmt: skip
KEYS = ["figure-1-1", "figure-1-2", "figure-1-3", "figure-1-4-conv1", "figure-1-4-fc", "figure-1-5", "figure-1-6"]


def document() -> Document:
    whole = load("dualmetric")
    return dataclasses.replace(whole, arms={arm: {} for arm in TABLE.arms}, tables=(TABLE,), claims=())


def test_every_panel_with_runs_is_drawn() -> None:
    drawn = pictures(TABLE, RESULTS)
    assert [picture.key for picture in drawn] == KEYS
    texts = [str(picture.on_page(legend=True)["svg"]) for picture in drawn]
    for text, names in zip(
        texts,
        [
            TABLE.arms[:2],
            ["low"],
            ["client 1", "client 2"],
            TABLE.arms[:2],
            TABLE.arms[:2],
            ["north", "cat"],
            ["client 1"],
        ],
        strict=True,
    ):
        assert all(name in text for name in names)
    assert [(picture.heading, picture.draw("").axes[0].get_lines()[0].get_ydata()[-1]) for picture in drawn[3:5]] == [
        ("conv1", 0.0),
        ("fc", 1.0),
    ]


def test_a_panel_circles_lowest_points_and_draws_the_first_clients() -> None:
    lowest = Panel(kind="curves", of="accuracy", arms=("other, low",), lowest=True)
    first = Panel(kind="clients", of="global-model/accuracy", arms=("ours, low",), first=1)
    of_lowest, of_first = pictures(dataclasses.replace(TABLE, panels=(lowest, first)), RESULTS)
    line, circle = of_lowest.draw("").axes[0].get_lines()[:2]
    assert circle.get_xydata().tolist() == [[1, 0.1]] == [min(line.get_xydata().tolist(), key=lambda point: point[1])]
    assert "Circles" in of_lowest.caption
    assert next(line.get_label() for line in of_first.draw("").axes[0].get_lines()) == "client 1"
    assert "client 2" not in str(of_first.on_page(legend=True)["svg"])


def test_runs_without_a_measure_of_clients_have_no_figure_of_it() -> None:
    without = {arm: {0: dataclasses.replace(run(0, [0.1]), series={})} for arm in TABLE.arms[:2]}
    assert [picture.key for picture in pictures(TABLE, without)] == ["figure-1-1", "figure-1-2", "figure-1-5"]


def test_a_panel_that_compares_arms_needs_runs_of_two() -> None:
    alone = {"ours, low": RESULTS["ours, low"]}
    assert [picture.key for picture in pictures(TABLE, alone)] == ["figure-1-3", "figure-1-6"]


def test_accuracy_of_clients_and_cosines_have_a_linear_axis() -> None:
    wide = {"ours, low": {0: run(0, [0.001, 0.002, 0.3, 0.5, 0.9])}}
    for panel, tick in ((PANELS[2], "50 %"), (dataclasses.replace(PANELS[3], arms=("ours, low",)), "0.5")):
        picture, *_ = pictures(dataclasses.replace(TABLE, panels=(panel,)), wide)
        axes = picture.draw("").axes[0]
        assert axes.get_yscale() == "linear"
        assert axes.yaxis.get_major_formatter()(0.5, 0) == tick or not axes.yaxis.get_major_formatter()(0.5, 0)


def test_clients_without_names_are_numbered_from_1_in_all_figures() -> None:
    dealt = [(k, str(k), label, 2) for k in (0, 1) for label in ("cat", "dog")]
    of_seed = {0: dataclasses.replace(run(0, [0.1]), dealt=dealt)}
    (picture,) = pictures(dataclasses.replace(TABLE, panels=PANELS[4:5]), {"other, low": of_seed})
    assert [text.get_text() for text in picture.draw("").axes[0].get_yticklabels()] == ["1", "2"]


def test_band_is_the_range_or_the_interval() -> None:
    lines = {"a": {0: (np.array([1, 2]), np.array([1.0, 2.0])), 1: (np.array([1]), np.array([3.0]))}}
    table = over_rounds(lines, "range").set_index("round")
    assert table[["mean", "low", "high", "runs"]].to_numpy().tolist() == [[2.0, 1.0, 3.0, 2], [2.0, 2.0, 2.0, 1]]
    half = 12.7062047364 * np.sqrt(2) / np.sqrt(2)  # Student's t with one degree of freedom; the deviation is sqrt(2)
    table = over_rounds(lines, "interval").set_index("round")
    assert table.loc[1, "high"] == pytest.approx(2 + half)
    assert np.isnan(table.loc[2, "high"])


def test_quantity_after_a_share_of_the_rounds() -> None:
    assert quantity("accuracy-at:0.5", run(0, [0.1, 0.2, 0.3, 0.4, 0.5])) == 0.3
    assert np.isnan(quantity("accuracy-at:0.5", run(0, [0.1, 0.2], rounds=40)))
    with pytest.raises(BadInput, match="unknown quantity"):
        quantity("acuracy-at:0.5", run(0, [0.1]))


def test_bands_of_a_quantity_without_a_range_are_not_cut() -> None:
    panel = Panel(kind="curves", of="first-layer-cosine", arms=("ours, low",))
    (picture,) = pictures(dataclasses.replace(TABLE, panels=(panel,)), RESULTS)
    assert picture.label == "first layer cosine"
    assert measure_of("first-layer-cosine").low == -np.inf


def test_only_our_mean_is_black_and_a_number_that_all_seeds_share_has_no_interval() -> None:
    grey = '<span class="half">{}</span>'.format
    assert in_grey(f"0.94 → {interval(0.5, 0.1)}") == f"{grey('0.94 →')} 0.500 {grey('± 0.100')}"
    assert in_grey(interval(2.5, 0.0)) == interval(2.5, 1e-14) == interval(2.5, np.nan) == "2.50"


def test_words_for_quantities() -> None:
    names = ["accuracy-at:0.2", "rounds-to:0.85", "update-amount"]
    assert list(map(words_for, names)) == ["accuracy at 20 % of the rounds", "rounds to 0.85", "update amount"]


def test_a_sentence_that_all_captions_share_stands_once() -> None:
    two = tuple(Panel(kind="curves", of="accuracy", arms=("ours, low",), lowest=lowest) for lowest in (False, True))
    common, drawn = captions(pictures(dataclasses.replace(TABLE, panels=two), RESULTS))
    assert common == ["Means over 2 seeds, with their 95 % interval."]
    assert [picture.caption for picture in drawn] == ["", "Circles are at the lowest points."]
    assert captions([]) == ([], [])


def test_quantity_over_some_rounds() -> None:
    """The mean over rounds 2 to 3; the model before training, round 0, does not count."""
    assert quantity("accuracy-in:2-3", run(0, [0.1, 0.2, 0.3, 0.5, 0.9])) == pytest.approx(0.4)
    assert quantity("accuracy-in:0-1", run(0, [0.1, 0.2])) == pytest.approx(0.2)
    assert np.isnan(quantity("accuracy-in:5-30", run(0, [0.1, 0.2])))
    assert words_for("accuracy-in:5-30") == "accuracy in rounds 5 to 30"


def test_classes_of_clients_and_rows_that_move() -> None:
    """North has cats (75 %) and dogs (25 %), south only cats. A class with at most a twentieth of the rows does not count."""
    one = run(0, [0.1])
    assert quantity("classes-each", one) == 1.5
    assert quantity("classes-each", dataclasses.replace(one, dealt=[(0, "a", "cat", 19), (0, "a", "dog", 1)])) == 1
    one.record.facts["partition"] = {"clients": 3, "server_rows": 5, "shared_rows_each": 4}
    assert quantity("rows-moved", one) == 17


def test_words_of_a_document_are_a_table_of_their_own() -> None:
    words = ClaimTable(name="table-1", title="Table I", words=(("value", "note"), ("rate", "0.1", "ours")))
    page_of = dataclasses.replace(document(), tables=(words,), arms={})
    assert "| rate | 0.1 | ours |" in markdown(page_of, "quick", {})
    assert '<table class="words">' in html(page_of, "quick", {}, {})
    for wrong in ({"words": (("value",), ("rate", "0.1", "ours"))}, {"measures": ("accuracy",)}):
        with pytest.raises(BadInput, match="words need a text for every column"):
            dataclasses.replace(words, **wrong)


def test_matrix_has_arms_by_the_parts_of_their_names() -> None:
    (titles, rows), missing = texts_of(dataclasses.replace(TABLE, matrix=True, arms=TABLE.arms[:2], panels=()), RESULTS)
    assert (titles, missing) == (["low"], [])
    assert [row[0] for row in rows] == ["ours", "other"]
    assert rows[0][1].startswith("0.9 → 0.6")


def test_a_comparison_has_quantities_as_rows_and_the_statistic_of_the_second_arm_and_the_first() -> None:
    printed = {"ours, low": {"accuracy": 0.5}, "other, low": {"accuracy": 0.7}}
    table = dataclasses.replace(TABLE, compare="difference", printed=printed, panels=())
    (titles, rows), missing = texts_of(table, RESULTS)
    assert (titles, missing) == (["ours, low", "other, low", "difference"], ["never run"])
    # ours ends at 0.5 and 0.7; the other arm, which has seed 0 only, at 0.3
    assert [row[3] for row in rows] == ["0.2 → −0.200", "−0.100"]
    assert rows[0][:2] == ["accuracy", "0.5 → 0.60 ± 1.27"]
    assert rows[1][0] == "accuracy at 50 % of the rounds"
    ratio = dataclasses.replace(table, compare="ratio")
    assert texts_of(ratio, RESULTS)[0][1][0][3] == "1.4 → 0.600"
    alone = dataclasses.replace(table, arms=("never run", "other, low"))
    assert texts_of(alone, RESULTS)[0][0] == ["other, low"]


def test_the_documents_numbers_are_shown_of_arms_that_were_not_run() -> None:
    arms, printed = ("a, low", "never run, low"), {"never run, low": {"accuracy": 0.9}}
    table = dataclasses.replace(TABLE, arms=arms, printed=printed, measures=("accuracy",), matrix=True, panels=())
    assert texts_of(table, {}) == ((["low"], [["never run", "0.9 → –"]]), ["a, low", "never run, low"])
    listed = dataclasses.replace(table, matrix=False)
    assert texts_of(listed, {})[0] == (["accuracy, document", "accuracy"], [["never run, low", "0.9", "–"]])
    whole = dataclasses.replace(document(), arms={arm: {} for arm in arms}, tables=(table,))
    text = markdown(whole, "quick", {})
    assert "| never run | 0.9 → – |" in text
    assert "\n\nNot run." in text


def test_an_export_has_what_the_figures_draw() -> None:
    of_document = document()
    text = json.dumps(exported(of_document, "quick", RESULTS, {}))
    _, again = read(text.encode(), "export")
    tables = [[p.draw("").get_axes()[0].get_title() for p in pictures(TABLE, r)] for r in (RESULTS, again)]
    assert tables[0] == tables[1]
    assert again["other, low"][0].dealt == RESULTS["other, low"][0].dealt
    assert list(again["ours, low"][0].dealt) == []  # no panel draws it
    assert again["ours, low"][1].of_clients("layer/cosine")[1][1].tolist() == [1.0] * 4


def test_page_has_tables_figures_and_claims() -> None:
    whole = html(document(), "quick", RESULTS, {})
    assert whole.count("<figure>") == len(KEYS)
    assert "Not run: never run." in whole
    assert "accuracy at 50 % of the rounds" in whole
    assert "No claim is about this part." in whole
    runs = document().scale("quick").seeds * 3
    assert f"Of these {runs} runs, 3 have finished." in whole
    assert "<code>dualmetric:measured=updated</code>" in whole  # in the list of what the document leaves open
    compared = dataclasses.replace(document(), tables=(dataclasses.replace(TABLE, compare="difference"),))
    assert "The document's number stands before the arrow" in markdown(compared, "quick", RESULTS)
    text = markdown(document(), "quick", RESULTS, place=lambda picture: f"![{picture.key}]")
    assert [line for line in text.splitlines() if line.startswith("![")] == [f"![{key}]" for key in KEYS]


@pytest.mark.parametrize(
    ("panel", "message"),
    [
        ({"kind": "clients", "of": "layer/cosine"}, "needs one arm"),
        ({"kind": "curves", "of": "accuracy", "arms": ("nobody",)}, "no 'nobody'"),
        ({"kind": "clients", "of": "global-model/loss", "arms": ("never run",)}, "no 'global-model/loss'"),
    ],
)
def test_wrong_panels_are_refused(panel: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        dataclasses.replace(TABLE, panels=(Panel(**panel),))  # type: ignore[arg-type]


def test_the_page_says_if_runs_of_the_same_data_have_different_rows() -> None:
    def results(*fingerprints: str) -> Results:
        runs = {arm: {seed: run(seed, [0.1, 0.5]) for seed in (0, 1)} for arm in TABLE.arms[:2]}
        for of_seed, fingerprint in zip(runs.values(), fingerprints, strict=True):
            for measured in of_seed.values():
                measured.record.facts["data"] = {"name": "ag-news", "fingerprint": fingerprint}
        return runs

    assert mixed(document(), "quick", results("a", "a")) == ""
    assert "Runs on ag-news have different rows" in html(document(), "quick", results("a", "b"), {})
    by_seed = results("a", "a")
    for runs in by_seed.values():
        runs[1].record.facts["data"] = {"name": "ag-news", "fingerprint": "b"}
    assert "ag-news" in mixed(document(), "full", by_seed)
    assert mixed(document(), "quick", by_seed) == ""  # at this scale each seed draws its own rows
