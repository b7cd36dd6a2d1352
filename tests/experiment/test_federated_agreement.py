"""The diagnosis without pooling agrees with the diagnosis of pooled rows."""

import numpy as np
import pyarrow as pa
import pytest

from fedskew.experiment.config import Experiment
from fedskew.experiment.diagnose import diagnosis, from_experiment, from_files
from fedskew.experiment.federated import Facts
from fedskew.experiment.federated_site import Site
from fedskew.experiment.rehearsal import rehearse, sites_of_files, sites_of_subject
from fedskew.experiment.subject import Subject
from fedskew.measure.heterogeneity.columns import differences
from fedskew.measure.heterogeneity.diagnose import diagnose
from tests.data.test_real import real_data
from tests.federated import frame
from tests.planted import FACES


def test_labels_sizes_and_columns_equal_the_pooled_ones(tmp_path):
    table = tmp_path / "patients.csv"
    frame().to_csv(table, index=False)
    pooled = diagnosis(from_files([table], "ill", "hospital"))
    found = rehearse(*sites_of_files([table], "ill", "hospital", 1))
    assert found["label_counts"] == pooled["label_counts"]
    for at in (0, 2):
        assert found["faces"][at]["each"] == pytest.approx(pooled["faces"][at]["each"], abs=1e-12)
        assert found["faces"][at]["value"] == pytest.approx(pooled["faces"][at]["value"], abs=1e-12)
    assert {column["column"] for column in pooled["columns"]} >= {"pulse", "smokes"}
    assert [c["text"] for c in found["columns"]] == [c["text"] for c in pooled["columns"]]
    for one, other in zip(found["columns"], pooled["columns"], strict=True):
        assert one["each"] == pytest.approx(other["each"], abs=1e-12)
        assert one["p"] == pytest.approx(other["p"], rel=1e-9)
    assert found["measures"]["label"] == pytest.approx(pooled["measures"]["label"], nan_ok=True)
    assert [one["face"] for one in found["faces"]] == [one["face"] for one in pooled["faces"]]


def subject_of(dataset: str, skew: str = "natural", seed: int = 0) -> Subject:
    experiment = Experiment(dataset=dataset, skew=skew, clients={"number": 10, "partition_seed": seed})
    return from_experiment(experiment, dataset)


@pytest.mark.parametrize("dataset", ["heart", "uci-har", "uci-har:form=features", "adult"])
@pytest.mark.slow
def test_feature_and_concept_are_close_to_the_pooled_ones(dataset):
    """The kinds of inputs and the rows of reference differ."""
    if dataset != "heart":
        real_data()
    subject = subject_of(dataset)
    pooled = diagnosis(subject)
    found = rehearse(*sites_of_subject(subject, 1))
    print(
        dataset,
        [
            (a["face"], round(a["value"], 3), round(b["value"], 3))
            for a, b in zip(pooled["faces"], found["faces"], strict=True)
        ],
    )
    for one, other in zip(found["faces"], pooled["faces"], strict=True):
        tolerance = 1e-12 if one["face"] in ("label", "quantity") else 0.05
        assert one["value"] == pytest.approx(other["value"], abs=tolerance)
    assert found["dominant"] == pooled["dominant"]


def test_columns_of_fractions_agree_to_the_width_of_their_bins():
    subject = subject_of("heart")
    pooled = diagnose(subject.x, subject.y, subject.client, permutations=1)
    found = rehearse(*sites_of_subject(subject, 1))
    for at, name in enumerate(("label", "feature", "quantity", "concept")):
        tolerance = 1e-12 if name in ("label", "quantity") else 0.05
        assert found["faces"][at]["value"] == pytest.approx(pooled.face(name).value, abs=tolerance)
    facts = [(name, "mean", "", subject.x[:, at].astype(float)) for at, name in enumerate(subject.inputs)]
    facts += [("label", "share", name, (subject.y == at).astype(float)) for at, name in enumerate(subject.classes)]
    expected = differences(facts, subject.client, subject.clients)
    for one, other in zip(found["columns"], expected, strict=True):
        assert (one["column"], one["client"], one["kind"]) == (other.column, other.client, other.kind)
        assert one["effect"] == pytest.approx(other.effect, abs=0.02)
        assert (one["here"], one["elsewhere"]) == pytest.approx((other.here, other.elsewhere), abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("skew", FACES)
def test_a_planted_face_dominates_in_nineteen_of_twenty_seeds(skew):
    """With 14 rows of each class and site, rounded counts would hide concepts."""
    found = [rehearse(*sites_of_subject(subject_of("digits", skew, seed), 1), seed)["dominant"] for seed in range(20)]
    assert found.count(FACES[skew]) >= 19, found


@pytest.mark.slow
@pytest.mark.parametrize(("number", "fewest"), [(6, 1), (6, 5), (2, 1)])
def test_iid_sites_are_seldom_called_skewed(number, fewest):
    """The faces are tested together at the level of 0.05."""
    called = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        rows = 100 * number
        y, site = rng.integers(0, 3, rows), rng.integers(0, number, rows)
        x = rng.standard_normal((rows, 8)) + 1.5 * np.eye(8)[y]
        sites = {
            str(k): Site(pa.table({str(i): x[site == k, i] for i in range(8)}), y[site == k].astype(str), fewest)
            for k in range(number)
        }
        called += [rehearse(sites, Facts("iid"), seed)["dominant"]]
    print(number, "sites, fewest", fewest, sum(map(bool, called)), "of 100 seeds called skewed")
    assert sum(map(bool, called)) <= 7, called
