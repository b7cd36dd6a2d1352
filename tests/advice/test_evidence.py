"""The file of evidence, its verdicts, and the page that shows it."""

import re
from html import unescape
from pathlib import Path

import pytest

from fedskew.advice.evidence import (
    ADAPTED,
    CASES,
    FACES,
    METHODS,
    NAME,
    NEEDS,
    REFERENCE,
    SEEDS,
    Evidence,
    add_case,
    cells,
    known,
    packaged,
    read,
    read_file,
    summary,
    text_of,
)
from fedskew.core.errors import BadInput
from fedskew.experiment.combinations import with_method
from fedskew.experiment.config import Experiment
from fedskew.report.html import evidence_page
from tests.advice.planted import case


def test_a_file_is_read_as_it_was_written() -> None:
    table = Evidence("a test", (case({"label": 0.5}, ("a", 0.1), ("b", -0.1)), case({}, ("a", 0.0), skew="t")))
    text = text_of(table)
    assert read(text.encode(), "x") == table
    assert text.count("\n") == 6
    assert packaged() == read(text_of(packaged()).encode(), "x")


@pytest.mark.parametrize("text", ["", "[]", '{"made_by": "x"}', '{"made_by": "x", "cases": [{"data": "a"}]}'])
def test_other_files_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"evidence e\.json: .*fedskew evidence run"):
        read(text.encode(), "e.json")


def test_a_case_replaces_the_one_of_its_title(tmp_path: Path) -> None:
    for one in (case({}, ("a", 0.1)), case({}, ("b", 0.2), skew="t"), case({}, ("c", 0.3))):
        add_case(tmp_path / NAME, one)
    assert [(one.skew, one.methods[0].method) for one in read_file(tmp_path / NAME).cases] == [("t", "b"), ("s", "c")]
    assert known(tmp_path)[-1].methods[0].method == "c"
    assert len(known(tmp_path)) == len(packaged().cases) + 2


def test_ones_own_case_replaces_a_packaged_one(tmp_path: Path) -> None:
    first = packaged().cases[0]
    add_case(tmp_path / NAME, case({}, ("a", 0.1), data=first.data, skew=first.skew))
    cases = known(tmp_path)
    assert len(cases) == len(packaged().cases)
    assert first not in cases


def test_verdicts_are_corrected_within_a_case_and_a_measure() -> None:
    for number, verdict in ((4, "higher"), (6, "undecided")):
        found = case({}, *[(f"m{at}", 0.1) for at in range(number)], p=0.01).verdicts()
        assert set(found.values()) == {verdict}
    assert case({}, ("a", -0.1), p=0.01).verdicts() == {("a", "test"): "lower"}


def test_a_share_is_of_the_error_that_is_left() -> None:
    high, low = (case({}, ("a", 0.1), ("b", -9.0), better=better) for better in ("higher", "lower"))
    assert [high.share(line) for line in high.methods] == [pytest.approx(0.2), -1.0]
    assert [low.share(line) for line in low.methods] == [pytest.approx(0.2), -1.0]


def test_the_package_has_the_whole_protocol() -> None:
    assert {one.title for one in packaged().cases} == {one.title for one in CASES}
    assert {line.seeds for case in packaged().cases for line in case.methods} == {len(SEEDS)}
    assert {line.method for case in packaged().cases for line in case.methods} == {*METHODS} - {REFERENCE}
    for one in packaged().cases:
        assert (ADAPTED, "own") in one.verdicts()
        assert set(one.strengths) == set(FACES)
        assert len({(line.method, line.measure) for line in one.methods}) == len(one.methods)
        assert set(one.fedavg) == {line.measure for line in one.methods}


def test_the_protocol_has_what_it_promises() -> None:
    sets = {one.data.partition(":")[0] for one in CASES}
    natural = {one.data.partition(":")[0] for one in CASES if one.skew[0] == "natural"}
    assert len(CASES) == len({one.title for one in CASES}) >= 30
    assert len({method.partition(":")[0] for method in METHODS}) == len(METHODS) >= 40
    assert len(sets) >= 6
    assert len(natural) >= 3
    for one in CASES:
        Experiment(**one.settings())
    for method in METHODS:
        with_method(Experiment(), method)
    assert set(NEEDS) <= {method.partition(":")[0] for method in METHODS}


def test_the_page_shows_every_gain_with_its_command() -> None:
    cases = packaged().cases
    rows = re.findall("<tr data-.*?</tr>", evidence_page(list(cells(cases)), "about"), re.S)
    assert len(rows) == sum(len(one.methods) for one in cases)
    for row, cell in zip(rows, cells(cases), strict=True):
        text = unescape(row)
        assert f">{cell['change']}<" in text
        assert f">{cell['verdict']}<" in text
        assert f">{cell['command']}<" in text
        assert f'data-label="{cell["strengths"]["label"]}"' in text


def test_the_summary_has_a_row_for_each_case() -> None:
    one = case({"label": 0.5}, ("a", 0.1), ("b", 0.2), p=0.001)
    [row] = summary([one])
    assert (row["best method"], row["its change"], row["higher"], row["gains"]) == ("b", "+20.0 ± 1.0 points", "2", "2")
