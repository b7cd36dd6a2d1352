"""Harmonisation in a run: intercepts of sites on both engines, personal models, and resumed runs."""

import dataclasses
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fedskew as fs
from fedskew.core.errors import BadInput
from fedskew.data.dataset import Dataset
from fedskew.engine import Sequential, Stacked
from fedskew.engine.states import ClientStates
from fedskew.execution.build import Assembly, assemble
from fedskew.execution.deal import client_data
from fedskew.execution.rounds import state_of
from fedskew.execution.run import execute, register
from fedskew.experiment.combinations import experiment_from
from fedskew.experiment.config import Experiment, from_toml
from fedskew.loop.personal import evaluate_personal, personal_models
from fedskew.loop.round import play_round, start
from fedskew.loop.sharing import PART
from fedskew.models.intercept import positions
from fedskew.store import checkpoints
from fedskew.store.runs import RunStore
from tests.stored import numbers

SIZES = (30, 18, 44)
ENGINES = [Sequential(), Stacked()]


def dataset(seed: int = 0) -> Dataset:
    """Rows of three sites with one rule; the label is more frequent at some sites than their columns say."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((sum(SIZES), 4)).astype(np.float32)
    at = np.repeat(np.arange(3), SIZES)
    y = (x[:, 0] + np.array([-2.0, 0, 2])[at] + 0.5 * rng.standard_normal(len(x)) > 0).astype(np.int64)
    return Dataset(
        x=x,
        y=y,
        x_test=x[::5],
        y_test=y[::5],
        classes=("no", "yes"),
        groups=at,
        columns=tuple("abcd"),
        name="three sites",
    )


DATA = dataset()
SETTINGS = {"skew": "natural", "model": "softmax", "rounds": 4, "epochs": 2, "batch_size": 8, "lr": 0.3}


def experiment(harmonisation: str, **settings: object) -> Experiment:
    return Experiment(**{**SETTINGS, "harmonisation": harmonisation, **settings})


def played(assembly: Assembly, engine: Sequential | Stacked, rounds: int = 4) -> tuple[torch.Tensor, ClientStates]:
    server, states = start(assembly.federation, assembly.x0), ClientStates()
    for _ in range(rounds):
        server = play_round(assembly.federation, engine, server, states).server
    return server.x, states


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox:mu=0.1", "scaffold"])
@pytest.mark.parametrize("rate", ["0", "1e-300"])
def test_site_bias_that_is_held_at_0_equals_fedavg_bit_for_bit(engine: object, algorithm: str, rate: str) -> None:
    """With 0, the intercept is not trained; 1e-300 keeps it at the site, and is 0 in float32."""
    if (algorithm, rate) == ("scaffold", "1e-300"):  # it sends vectors of the model's size, so no site can keep a part
        return
    plain, held = (
        played(assemble(experiment(name, algorithm=algorithm), DATA), engine)[0]
        for name in ("none", f"site-bias:rate={rate}")
    )
    assert torch.equal(held[:-2], plain)
    assert torch.equal(held[-2:], torch.zeros(2))


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_site_bias_equals_an_independent_loop(engine: object) -> None:
    """One full-batch step a round: the shared part is averaged by rows, the intercept of each site stays."""
    one = experiment("site-bias:rate=2.5", batch_size="all", epochs=1, dtype="float64", held_out=0.0)
    assembly = assemble(one, DATA)
    x, states = played(assembly, engine, rounds=3)
    weight, bias = assembly.x0[:8].view(2, 4).clone(), assembly.x0[8:10].clone()
    rows = [assembly.partition.rows(k) for k in range(3)]
    own = torch.zeros(3, 2, dtype=torch.float64)
    for _ in range(3):
        steps = []
        for k in range(3):
            parameters = [p.clone().requires_grad_() for p in (weight, bias, own[k])]
            logits = torch.as_tensor(DATA.x[rows[k]]).double() @ parameters[0].T + parameters[1] + parameters[2]
            steps.append(torch.autograd.grad(F.cross_entropy(logits, torch.as_tensor(DATA.y[rows[k]])), parameters))
        share = torch.tensor([len(r) for r in rows]).double() / sum(map(len, rows))
        weight = weight - 0.3 * sum(s * step[0] for s, step in zip(share, steps, strict=True))
        bias = bias - 0.3 * sum(s * step[1] for s, step in zip(share, steps, strict=True))
        own = own - 0.3 * 2.5 * torch.stack([step[2] for step in steps])
    torch.testing.assert_close(x, torch.cat([weight.flatten(), bias, torch.zeros(2)]), rtol=0, atol=1e-12)
    stored = states.get(np.arange(3), lambda: {PART: torch.zeros(2).double()})[PART]
    torch.testing.assert_close(stored * 2.5**0.5, own, rtol=0, atol=1e-12)


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_prior_adds_the_logarithm_of_the_site_s_shares_to_the_answers_and_to_nothing_else(engine: object) -> None:
    plain, prior = (assemble(experiment(name, dtype="float64"), DATA) for name in ("none", "prior"))
    x, _ = played(plain, engine)
    corrected, states = played(prior, engine)
    assert torch.equal(corrected[:-2], x)
    fed = prior.federation
    server = start(fed, corrected)
    counts = prior.data.label_counts()
    share = counts.sum(0) / counts.sum()
    means = evaluate_personal(fed, engine, server, states, np.arange(3))
    for k in range(3):
        own = (counts[k] + 2 * share) / (counts[k].sum() + 2)
        w = personal_models(fed, engine, server, states, np.array([k]))[0]
        expected = torch.as_tensor(np.log(own) - np.log(share))
        torch.testing.assert_close(w[positions(fed.task.space)], expected, rtol=0, atol=1e-12)
        assert torch.equal(w[:-2], x)
        rows = torch.as_tensor(prior.partition.measured_rows(k))
        logits = plain.federation.task.logits(x, fed.x[rows]) + expected
        loss = F.cross_entropy(logits, fed.y[rows])
        torch.testing.assert_close(means["loss"][k], loss, rtol=0, atol=1e-10)


@pytest.mark.parametrize("harmonisation", ["site-scale", "combat:protected=[a]", "site-bias", "prior"])
def test_engines_agree_and_a_resumed_run_equals_an_undisturbed_one(harmonisation: str, tmp_path: object) -> None:
    values = {}
    for engine in ("sequential", "stacked"):
        whole = experiment(harmonisation, engine=engine, dtype="float64", training__threads=1, checkpoint__every=2)
        store = RunStore(tmp_path / engine)
        run, parted = register(store, whole), register(store, whole)
        execute(store, run, DATA)
        with pytest.raises(fs.FedskewError, match="stopped"):
            execute(store, parted, DATA, stop=partial(next, iter([False, False, True])))
        execute(store, parted, DATA)
        assert numbers(store, run) == numbers(store, parted)
        *where, values[engine] = zip(*numbers(store, run), strict=True)
        assert ("personal" in where[2]) == (harmonisation in ("site-bias", "prior"))
    np.testing.assert_allclose(values["sequential"], values["stacked"], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("harmonisation", ["none", "site-scale", "site-bias", "prior"])
def test_test_rows_at_the_sites_are_answered_as_the_site_would(harmonisation: str, tmp_path: Path) -> None:
    """Each test row is changed as its site's rows, and has its site's intercept; the server's model has none."""
    at = DATA.groups[::5]
    data = dataclasses.replace(DATA, groups_test=at)
    runs = fs.run(experiment(harmonisation, engine="sequential", training__threads=1), data=data, runs=tmp_path)
    assembly, server, states = state_of(runs.store, 1, data)
    task, losses = assembly.federation.task, []
    for k in range(3):
        rows = torch.as_tensor(data.x_test[at == k])
        if harmonisation == "site-scale":
            own = torch.as_tensor(data.x[assembly.partition.rows(k)])
            rows = (rows - own.mean(0)) / own.std(0, correction=0)
        personal = harmonisation in ("site-bias", "prior")
        one = np.array([k])
        w = personal_models(assembly.federation, Sequential(), server, states, one)[0] if personal else server.x
        losses.append(task.loss(task.logits(w, rows), torch.as_tensor(data.y_test[at == k])))
    [stored] = runs.store.last([1], ["sites/loss"])
    assert stored.value == pytest.approx(float(torch.cat(losses).mean()), abs=1e-6)


OWN = """
from dataclasses import dataclass
import numpy as np
from fedskew.core.sites import SiteMaps

@dataclass(frozen=True, kw_only=True)
class Centred:
    protected = ()
    unknown = "left as they are"

    def fit(self, sites):
        shift = np.vstack([-sites.mean, 0 * sites.mean[:1]])
        return SiteMaps(np.ones_like(shift), shift, np.zeros((len(shift), 0, shift.shape[1])), sites.protected)
"""


def test_a_harmonisation_of_a_file_changes_rows_and_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(OWN)
    one = experiment("./mine.py::Centred", engine="sequential", training__threads=1, rounds=1)
    runs = fs.run(one, data=DATA, runs=tmp_path)
    data = assemble(from_toml(runs.store.run(1).experiment), DATA).data
    for k in range(3):
        np.testing.assert_allclose(data.x[data.partition.rows(k)].mean(0), 0, atol=1e-6)
    assert fs.check("./mine.py::Centred").kept
    assert fs.load_model(runs).predict({name: [0.0] for name in "abcd"}, warn=lambda _: None).shape[0] == 1


def test_a_run_starts_from_the_shared_model_of_another(tmp_path: Path) -> None:
    first = experiment("site-bias", engine="sequential", training__threads=1, rounds=2)
    runs = fs.run(first, data=DATA, runs=tmp_path)
    tree, _ = checkpoints.load(checkpoints.latest(runs.store.run_folder(1)))
    again = fs.run(first, data=DATA, runs=tmp_path, init=1)
    assert torch.equal(assemble(from_toml(again.store.run(2).experiment), DATA).x0, tree["x"])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"harmonisation": "site-bias", "algorithm": "scaffold"}, "scaffold stores vectors .*harmonisation none"),
        ({"harmonisation": "prior", "task": "regression"}, "prior corrects shares of classes"),
        ({"harmonisation": "site-bias", "model": "mixed", "algorithm": "local-only"}, "use --model mlp"),
    ],
)
def test_harmonisations_that_cannot_work_are_refused_in_one_line(settings: dict[str, object], words: str) -> None:
    data = DATA
    if "task" in settings:
        data = dataclasses.replace(DATA, y=DATA.y + 0.5, y_test=DATA.y_test + 0.5, classes=(), target="number")
    with pytest.raises(BadInput, match=words) as error:
        assemble(experiment_from(None, {**SETTINGS, **settings}), data)
    assert "\n" not in str(error.value)


def test_harmonisation_changes_no_label_of_a_concept() -> None:
    """The half-space of a flip lies in the rows as the data set has them, so training and test rows keep one rule."""
    skew = ["natural", "concept-flip:clusters=1,at_round=1"]
    data = dataclasses.replace(DATA, x=DATA.x + 5, x_test=DATA.x_test + 5)
    plain, harmonised = (client_data(experiment(name, skew=skew), data) for name in ("none", "site-scale"))
    assert (harmonised.x_test != plain.x_test).any()
    for before, after in ((plain.labels, harmonised.labels), (plain.test_labels, harmonised.test_labels)):
        assert np.array_equal(before.at(1), after.at(1))
    training = {row.tobytes(): label for row, label in zip(data.x, plain.labels.at(1), strict=True)}
    assert [training[row.tobytes()] for row in data.x_test] == harmonised.test_labels.at(1).tolist()
