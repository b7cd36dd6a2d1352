"""Exercise 14.4.3: the bound on client drift against closed forms, and against what full-batch steps do."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from fedskew.claims.document import DOCUMENTS, load
from fedskew.claims.extras import EXTRAS, bound, draw_bound, drift_bound
from fedskew.claims.reproduce import estimate, plan
from fedskew.cli.main import main
from fedskew.data.datasets.synthetic import SyntheticSoftmax
from tests.commands import output_of

torch.set_num_threads(1)


def quadratics(hessians: torch.Tensor, centres: torch.Tensor):
    """Local and whole gradients of 1/2 (w - b_k)' A_k (w - b_k), equal weights."""

    def local(w: torch.Tensor) -> torch.Tensor:
        return torch.einsum("kij,kj->ki", hessians, w - centres)

    def whole(w: torch.Tensor) -> torch.Tensor:
        return torch.einsum("kij,mkj->mi", hessians, w[:, None] - centres) / len(centres)

    return local, whole


def random_problem(seed: int, common: bool):
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(1 if common else 4, 3, 3, generator=generator, dtype=torch.float64)
    hessians = (root @ root.mT + 0.1 * torch.eye(3).double()).expand(4, 3, 3)
    centres = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    w = torch.randn(3, generator=generator, dtype=torch.float64)
    return hessians, centres, w


@given(st.integers(0, 10_000), st.floats(0.01, 1.9))
@settings(max_examples=25, deadline=None)
def test_nothing_exceeds_its_bound(seed: int, share: float) -> None:
    hessians, centres, w = random_problem(seed, common=False)
    smooth = float(torch.linalg.eigvalsh(hessians.mean(0)).max())
    found = bound(*quadratics(hessians, centres), w, 4, share / smooth, 12, smooth)
    room = 1 + 1e-9
    assert (found.farthest <= found.smooth * room).all()
    assert (found.farthest <= found.convex * room).all()
    assert (found.apart <= found.farthest).all()
    assert (found.drift <= 2 * found.farthest * room).all()


def test_with_a_common_hessian_the_distance_is_the_closed_form() -> None:
    """(I - (I - rate A)^E) A^-1 (grad F_k - grad F), which for a common Hessian is the same everywhere."""
    hessians, centres, w = random_problem(3, common=True)
    a, rate, steps = hessians[0], 0.05, 7
    found = bound(*quadratics(hessians, centres), w, 4, rate, steps, float(torch.linalg.eigvalsh(a).max()))
    eye = torch.eye(3).double()
    shift = (eye - torch.linalg.matrix_power(eye - rate * a, steps)) @ (centres - centres.mean(0)).T
    assert float(found.apart[-1]) == pytest.approx(float(shift.norm(dim=0).mean()), rel=1e-12)
    assert float(found.drift[-1]) == pytest.approx(float(found.apart[-1]), rel=1e-12)
    assert float(found.zeta) == pytest.approx(float(((centres - centres.mean(0)) @ a).norm(dim=1).max()), rel=1e-12)
    assert found.convex.tolist() == pytest.approx([rate * step * float(found.zeta) for step in range(1, 8)], rel=1e-12)


def test_bounds_hold_on_the_data_of_the_book_and_are_drawn() -> None:
    found = drift_bound(rate=0.1, steps=6)
    assert set(found) == {"IID", "sorted by label"}
    for part in found.values():
        assert (part.farthest <= part.convex).all()
        assert (part.convex <= part.smooth * (1 + 1e-12)).all()
        assert (part.farthest.diff() > 0).all()
    assert float(found["sorted by label"].farthest[-1]) > 3 * float(found["IID"].farthest[-1])
    bounds = {name: {k: v.tolist() for k, v in part._asdict().items()} for name, part in found.items()}
    panels = [draw_bound(bounds, name).axes[0] for name in bounds]
    assert panels[0].get_ylim() == panels[1].get_ylim()
    panels[0].figure.draw_without_rendering()
    assert {"0.1", "1"} <= {tick.get_text() for tick in panels[0].get_yticklabels()}
    lines = panels[1].get_lines()
    assert [line.get_label() for line in lines] == ["bound, smooth", "bound, convex", "farthest client", "drift"]
    assert list(lines[2].get_ydata()) == pytest.approx(found["sorted by label"].farthest.tolist())


def test_objective_of_the_book_has_the_stated_smoothness() -> None:
    """L is half the largest eigenvalue of X'X / n; two steps' bound zeta (2 rate + rate^2 L) shows which L was used."""
    x = SyntheticSoftmax(test="train").draw(np.random.default_rng(0)).x
    for part in drift_bound(rate=0.1, steps=2).values():
        taken = (float(part.smooth[1]) / float(part.zeta) - 0.2) / 0.01
        assert taken == pytest.approx(np.linalg.norm(x, 2) ** 2 / len(x) / 2, rel=1e-6)
        assert taken * 0.1 <= 2, "the convex bound needs a rate of at most 2 / L"


def test_the_command_draws_the_exercise(tmp_path, monkeypatch) -> None:
    found = drift_bound(steps=2)
    monkeypatch.setattr("fedskew.claims.extras.drift_bound", lambda: found)
    words = ["reproduce", "drift-demo", "--only", "exercise-14.4.3", "--runs", str(tmp_path)]
    sorted_row = next(line for line in output_of(*words).splitlines() if line.startswith("sorted by label"))
    assert sorted_row.split()[3:5] == ["2", f"{float(found['sorted by label'].farthest[-1]):.3g}"]
    assert 'aria-label="sorted by label' in (tmp_path / "drift-demo-quick-exercise-14.4.3.html").read_text()


def test_every_document_names_parts_of_the_registry() -> None:
    assert {name for document in DOCUMENTS for name in load(document).extras} == set(EXTRAS)


def test_the_estimate_comes_before_all_computing(tmp_path, monkeypatch, capsys) -> None:
    order = []
    monkeypatch.setattr("fedskew.cli.reproduce.estimate", lambda *_: order.append("estimate") or 60.0)
    monkeypatch.setattr("fedskew.cli.reproduce.computed", lambda name: order.append(name) or {})
    monkeypatch.setattr("fedskew.cli.reproduce.complete", lambda *_: order.append("runs"))
    monkeypatch.setattr("fedskew.cli.reproduce.write", lambda *_: tmp_path)
    monkeypatch.setattr("fedskew.cli.reproduce.print_result", lambda *_: None)
    main(["reproduce", "drift-demo", "--runs", str(tmp_path)])
    assert order == ["estimate", *load("drift-demo").extras, "runs"]
    assert "this will take about 1 min" in " ".join(capsys.readouterr().err.split())


def test_the_estimate_of_a_slow_method_times_one_step(monkeypatch) -> None:
    steps = []
    monkeypatch.setattr("fedskew.engine.choose.once", lambda *_: steps.append(1) or 60.0)
    assert estimate(plan(load("drift-demo"), "quick")[:1], 1) > 60
    assert len(steps) == 1
