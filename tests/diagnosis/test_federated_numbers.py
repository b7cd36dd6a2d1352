"""The diagnosis of numbers without pooling finds what is planted."""

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import fedskew as fs
from fedskew.core.errors import BadInput
from fedskew.diagnosis.diagnose import by_bytes, rehearse
from fedskew.diagnosis.questions import Question, arrays
from fedskew.diagnosis.server import Inquiry
from fedskew.diagnosis.site import AnsweringSite
from fedskew.diagnosis.subject import Source
from tests.federated import lying, number_sites, wide_sites
from tests.planted import NUMBERS, planted_numbers


def sites_of(x: np.ndarray, y: np.ndarray, client: np.ndarray, fewest: int) -> dict[str, AnsweringSite]:
    return {
        str(k): AnsweringSite(pa.table({f"x{at}": v for at, v in enumerate(x[client == k].T)}), y[client == k], fewest)
        for k in range(client.max() + 1)
    }


def test_sums_by_stratum_and_the_histogram_count_the_same_rows():
    """Else their differences would be counts of few rows."""
    site = AnsweringSite(pa.table({"a": np.arange(200.0)}), np.random.default_rng(0).normal(size=200), 5)
    asked = {
        "target edges": np.linspace(-3, 3, 255),
        "strata": np.arange(256.0) // 52,
        "target scale": np.array([0.0, 1.0]),
    }
    histogram = site.targets.counts(asked)
    assert histogram.sum() == 200
    assert min(histogram[histogram > 0]) >= 5
    strata, number = site.targets.strata(Question(step="moments"), asked)
    assert number == 5
    by_stratum = np.bincount(np.arange(256) // 52, histogram, 5)
    assert np.bincount(strata, minlength=5).tolist() == by_stratum.tolist()
    order = np.argsort(site.y)
    assert (np.diff(strata[order]) >= 0).all()


@pytest.mark.parametrize("fewest", [1, 5])
def test_medians_and_tenths_of_a_site_lie_in_its_range(fewest):
    """They are middles of bins, and equal targets have no others."""
    rng = np.random.default_rng(0)
    x, client = rng.normal(size=(300, 2)), np.repeat([0, 1, 2], 100)
    y = np.where(client == 2, 5.0, rng.normal(0, 3, 300))
    holdings = rehearse(sites_of(x, y, client, fewest), Source("numbers"))["holdings"]
    assert holdings["rows"][2] == [5.0] * 4


@pytest.mark.slow
@pytest.mark.parametrize("skew", NUMBERS)
def test_a_planted_face_of_numbers_dominates_in_nineteen_of_twenty_seeds(skew):
    if skew == "quantity-lognormal:sigma=0.8":
        pytest.skip("its smallest sites have fewer than 20 rows, which 5 refuses")
    found = [
        rehearse(sites_of(*planted_numbers(skew, seed), 5), Source("planted"), seed)["dominant"] for seed in range(20)
    ]
    print(skew, "fewest 5:", found.count(NUMBERS[skew]), "of 20 seeds")
    assert found.count(NUMBERS[skew]) >= 19, found


@pytest.mark.slow
@pytest.mark.parametrize("targets", ["classes", "numbers"])
@pytest.mark.parametrize(("number", "fewest"), [(6, 1), (6, 5), (2, 1)])
def test_iid_sites_are_seldom_called_skewed(targets, number, fewest):
    """The faces are tested together at the level of 0.05."""
    called = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        rows = 100 * number
        y, site, x = rng.integers(0, 3, rows), rng.integers(0, number, rows), rng.standard_normal((rows, 8))
        if targets == "classes":
            x, y = x + 1.5 * np.eye(8)[y], y.astype(str)
        else:
            y = x @ rng.standard_normal(8) / np.sqrt(8) + 0.5 * rng.standard_normal(rows)
        called += [rehearse(sites_of(x, y, site, fewest), Source("iid"), seed)["dominant"]]
    print(targets, number, "sites, fewest", fewest, sum(map(bool, called)), "of 100 seeds called skewed")
    assert sum(map(bool, called)) <= 5, called


# sites that do not fit, and wrong answers


def test_sites_with_numbers_and_sites_with_classes_are_refused_in_one_line():
    mixed = {**number_sites(2), "genf": wide_sites(2)["genf"]}
    with pytest.raises(BadInput, match="sion has numbers as targets, but genf has classes") as caught:
        rehearse(mixed, Source("mixed"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (np.zeros(94), "all targets are the same; name a column whose values differ"),
        (np.where(np.arange(94) == 3, np.nan, 1.0), "some of its targets are no numbers"),
        (
            np.arange(94.0),
            "bern: no stratum of the target has 120 rows, twice --fewest 60; this site sends no sums of fewer",
        ),
    ],
)
def test_targets_that_say_nothing_are_refused(y, words):
    sites = {
        name: AnsweringSite(site.table, y, 60 if y[1] == 1 and y[3] == 3 else 2) for name, site in wide_sites(2).items()
    }
    with pytest.raises(BadInput, match=words):
        rehearse(sites, Source("nothing"))


def test_survival_times_are_refused_in_one_line():
    x, time = np.zeros((90, 2), np.float32), np.arange(1.0, 181).reshape(90, 2)
    time[:, 1] = np.arange(90) % 2
    data = fs.Dataset(name="lives", x=x, y=time, x_test=x[:9], y_test=time[:9], groups=np.arange(90) % 3)
    with pytest.raises(BadInput, match="lives has neither classes nor numbers; other targets need pooled rows"):
        fs.diagnose(dataset=data, federated=True, progress=False)


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (np.zeros(256), "genf: its histogram does not count its 94 targets"),
        (np.r_[np.full(2, 100.0), -106.0, np.zeros(253)], "genf: its histogram does not count its 94 targets"),
        (np.zeros(255), r"genf: histogram has shape \(255,\), not \(256,\)"),
    ],
)
def test_a_wrong_histogram_is_refused_with_the_site(counts, words):
    def change(answer):
        return msgspec.structs.replace(answer, numbers=arrays({"histogram": counts}))

    sites = number_sites(2)
    with pytest.raises(BadInput, match=words):
        Inquiry(tuple(sites), lying(sites, "targets", change)).result(Source("wrong"))


@pytest.mark.parametrize(
    ("sites", "step", "numbers", "words"),
    [
        (number_sites, "targets", {"target edges": np.zeros(3)}, "no 255 edges"),
        (number_sites, "targets", {}, "target edges"),
        (number_sites, "moments", {"target edges": np.arange(255.0), "strata": np.full(256, 1e9)}, "no strata"),
        (wide_sites, "targets", {"target edges": np.arange(255.0)}, "its targets are classes"),
    ],
)
def test_a_site_answers_a_question_that_does_not_fit_with_a_refusal_of_one_line(sites, step, numbers, words):
    site = sites(2)["bern"]
    first = site.answer(Question(step="columns"))
    from fedskew.data.tables.schema import merged

    known = merged({"bern": first.summary}).preprocessing
    answer = by_bytes({"bern": site})({"bern": Question(step=step, preprocessing=known, numbers=arrays(numbers))})
    assert words in answer["bern"].refused
    assert "\n" not in answer["bern"].refused
    assert not answer["bern"].numbers
