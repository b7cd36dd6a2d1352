"""Equal budgets and corrected verdicts, on stores whose numbers are known; ranks over several data sets."""

import math

import pytest

from fedskew.core.errors import BadInput
from fedskew.measure.statistics import holm, paired_p
from fedskew.report.budgets import Budget, budget_from
from fedskew.report.html import page
from fedskew.report.plots import plot, ranking
from fedskew.report.series import Results, per_client
from fedskew.store.runs import RunStore
from tests.commands import output_of


def add(
    store: RunStore,
    name: str,
    seed: int,
    accuracies: list[float],
    cost: float = 1.0,
    toml: str = "",
    clients: int = 0,
) -> None:
    """Add a finished run. Each round costs ``cost`` of every resource, and adds 0.1 to each client's accuracy."""
    run = store.add_run(
        name=name, experiment=toml, experiment_hash="", seed=seed, partition_seed=seed, rounds=len(accuracies)
    )
    for round_, accuracy in enumerate(accuracies, 1):
        spent = ("local_steps", "update_amount", "bytes_up", "bytes_down", "seconds")
        rows = [(None, "round", what, cost) for what in spent]
        own = [(k, "global-model", "accuracy", round_ / 10) for k in range(clients)]
        store.write_round(run, round_, [(None, "test", "accuracy", accuracy), *rows, *own])
    store.update(run, status="finished")


@pytest.fixture
def store(tmp_path) -> RunStore:
    """Return a store. A round of ``dear`` costs three times as much as a round of ``cheap``."""
    made = RunStore(tmp_path)
    for seed in (0, 1, 2):
        add(made, "cheap", seed, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
        add(made, "dear", seed, [0.3, 0.5, 0.7, 0.8], cost=3.0)
    return made


@pytest.mark.parametrize(
    ("budget", "cheap", "dear"),
    [
        (None, 0.6, 0.8),
        (Budget("rounds"), 0.4, 0.8),
        (Budget("rounds", 2), 0.2, 0.5),
        (Budget("steps"), 0.6, 0.5),
        (Budget("u", 3), 0.3, 0.3),
        (Budget("bytes"), 0.6, 0.5),
        (Budget("bytes", 6.0), 0.3, 0.3),
        (Budget("seconds", 5.9), 0.5, 0.3),
    ],
)
def test_runs_are_read_where_the_budget_is_spent(store: RunStore, budget: Budget | None, cheap: float, dear: float):
    table = Results(store, store.runs(), budget).summary.set_index("method")
    assert table["accuracy"].tolist() == pytest.approx([cheap, dear])


def test_a_budget_that_a_run_cannot_spend_is_refused(store: RunStore) -> None:
    with pytest.raises(BadInput, match="a run spent only 6 of 7 steps; write steps=6 or less"):
        _ = Results(store, store.runs(), Budget("steps", 7)).summary


@pytest.mark.parametrize(
    "text", ["parsec", "bytes=many", "bytes=-1", "rounds=0", "u=inf", "rounds=", "rounds=nan", "bytes=1e400"]
)
def test_wrong_budgets_give_one_line_errors(text: str) -> None:
    with pytest.raises(BadInput) as error:
        budget_from(text)
    assert "\n" not in str(error.value)


def sparse(folder, every: int) -> RunStore:
    """Run two methods for twelve rounds, measured before round 1 and every few rounds. ``dear`` costs twice as much a round."""
    made = RunStore(folder)
    for seed in (0, 1, 2):
        for name, cost in (("cheap", 1.0), ("dear", 2.0)):
            toml = f'name = "{name}"\n'
            run = made.add_run(
                name=name, experiment=toml, experiment_hash="", seed=seed, partition_seed=seed, rounds=12
            )
            for round_ in range(13):
                costs = ("bytes_up", "bytes_down", "local_steps") if round_ else ()
                rows = [(None, "round", what, cost) for what in costs]
                rows += [(None, "round", "drift", float(round_))] if round_ else []
                if round_ % every == 0:
                    rows.append((None, "test", "accuracy", 0.1 + round_ * cost / 100 + seed / 50))
                made.write_round(run, round_, rows)
            made.update(run, status="finished")
    return made


@pytest.mark.parametrize(
    ("requested", "lowered", "rounds"),
    [
        ("bytes=24", "bytes=16", ["8", "4"]),
        ("bytes=17", "bytes=16", ["8", "4"]),
        ("bytes", "bytes=16", ["8", "4"]),
        ("rounds=7", "rounds=4", ["4", "4"]),
        ("rounds=8", "rounds=8", ["8", "8"]),
        ("rounds", "rounds=12", ["12", "12"]),
    ],
)
def test_a_budget_ends_at_rounds_that_were_measured(tmp_path, requested: str, lowered: str, rounds: list[str]) -> None:
    """A row has the same numbers as if all rounds were measured, at the lowered budget."""
    some, every = sparse(tmp_path / "some", 4), sparse(tmp_path / "every", 1)
    table = Results(some, some.runs(), budget_from(requested)).summary
    assert table["after_round"].tolist() == rounds
    dense = Results(every, every.runs(), budget_from(lowered)).summary
    columns = ["after_round", "accuracy", "megabytes_up", "megabytes_down", "drift", "difference", "verdict"]
    assert table[columns].equals(dense[columns])


@pytest.mark.parametrize(
    ("requested", "enough"), [("rounds=3", "rounds=4"), ("bytes=15", "bytes=16"), ("steps=1", "steps=8")]
)
def test_the_untrained_model_is_not_a_methods_result(tmp_path, requested: str, enough: str) -> None:
    made = sparse(tmp_path, 4)
    with pytest.raises(
        BadInput, match=f"up to {requested} there is no amount .* write {enough} or more, or run again with"
    ):
        _ = Results(made, made.runs(), budget_from(requested)).summary
    assert Results(made, made.runs(), budget_from(enough)).summary["accuracy"].min() > 0.12


def test_ranks_clients_and_figures_end_where_the_budget_is_spent(tmp_path) -> None:
    """``early`` wins after one round, ``late`` at the end. There are two data sets, and one has more rounds."""
    made = RunStore(tmp_path)
    for number, rounds in enumerate((2, 3)):
        toml = f'[dataset]\nname = "d{number}"\n'
        for name, first, last in (("late", 0.1, 0.9), ("early", 0.5, 0.6)):
            add(made, name, 0, [first] + [last] * (rounds - 1), toml=toml, clients=3)
    one, two, records = Budget("rounds", 1), Budget("rounds"), made.runs()
    for budget, order in ((one, ["early", "late"]), (two, ["late", "early"])):
        last = int(budget.amount or 2)
        names, _, ranks = ranking(Results(made, records, budget))
        assert [names[k] for k in ranks.mean.argsort()] == order
        assert per_client(Results(made, records, budget))["accuracy"].tolist() == pytest.approx([last / 10] * 12)
        assert max(plot(Results(made, records, budget), "accuracy").axes[0].lines[0].get_xdata()) == last
        assert plot(Results(made, records, budget), "clients").axes[0].lines[0].get_ydata()[0] == pytest.approx(
            last / 10
        )
        assert plot(Results(made, records, budget), "ranks").axes[0].texts[0].get_text().startswith(order[0])
    assert per_client(Results(made, records))["accuracy"].tolist() == pytest.approx([0.2] * 6 + [0.3] * 6)
    assert "1.00  early" in output_of("show", "1-4", "--runs", tmp_path, "--budget", "rounds=1")
    assert "0.9000" not in output_of("show", "1", "--runs", tmp_path, "--budget", "rounds=1")


def test_verdicts_are_corrected_for_the_number_of_comparisons(tmp_path) -> None:
    """A single method is higher at the level of 5 %. If there are four others, the same differences are undecided."""
    gaps = (0.01, 0.02, 0.07)
    assert 0.05 / 5 < (p := paired_p([0.1 + g for g in gaps])) < 0.05 / 2
    made = RunStore(tmp_path)
    for seed, gap in enumerate(gaps):
        add(made, "base", seed, [0.5])
        add(made, "good", seed, [0.6 + gap])
    alone = Results(made, made.runs()).summary.iloc[1]
    assert (alone.verdict, alone.comparisons, alone.p) == ("higher", 1, pytest.approx(p))
    for seed in (0, 1, 2):
        for k in range(4):
            add(made, f"other-{k}", seed, [0.5 + 0.1 * (seed - 1)])
    table = Results(made, made.runs()).summary.set_index("method")
    assert table.loc["good", "p"] == pytest.approx(holm([p, 1, 1, 1, 1])[0])
    assert table.loc["good", "verdict"] == "undecided"
    assert table.loc["good", "cliffs_delta"] == 1
    assert math.isnan(table.loc["base", "p"])


def test_a_method_without_pairs_makes_no_other_need_more_seeds(tmp_path) -> None:
    made = RunStore(tmp_path)
    for seed in range(3):
        add(made, "base", seed, [0.5])
        add(made, "good", seed, [0.6])
    add(made, "stopped", 0, [0.5])
    good = Results(made, made.runs()).summary.set_index("method").loc["good"]
    # six equal differences have p = 1/32, below 5 %, and this is the only comparison
    assert (good.comparisons, good.verdict, good.seeds_to_decide) == (1, "undecided", 6)


def test_methods_are_ranked_within_each_data_set(tmp_path) -> None:
    made = RunStore(tmp_path)
    for number, (a, b, c) in enumerate([(0.9, 0.8, 0.7), (0.5, 0.6, 0.4), (0.9, 0.2, 0.1)]):
        toml = f'[dataset]\nname = "d{number}"\n'
        for name, accuracy in (("a", a), ("b", b), ("c", c)):
            add(made, name, 0, [accuracy], toml=toml)
    add(made, "only-once", 0, [1.0], toml='[dataset]\nname = "d0"\n')
    names, blocks, ranks = ranking(Results(made, made.runs()))
    assert (names, blocks) == (["a", "b", "c"], 3)
    assert ranks.mean.tolist() == pytest.approx([4 / 3, 5 / 3, 3])
    # q(0.05; 3) = 2.343 (Demsar 2006, table 5a)
    assert ranks.critical_difference == pytest.approx(2.343 * math.sqrt(12 / 18), abs=0.002)
    texts = [text.get_text() for text in plot(Results(made, made.runs()), "ranks").axes[0].texts]
    assert texts == ["a  1.33", "b  1.67", "c  3.00"]
    assert "figure-ranks" in page(Results(made, made.runs()))
    assert ranking(Results(made, made.runs()[:3])) is None
    with pytest.raises(BadInput, match="at least two data sets"):
        plot(Results(made, made.runs()[:3]), "ranks")
