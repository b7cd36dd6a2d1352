"""Models at the sites, after the last round: each row is answered by the model that its site would use.

A site is a client that trains. Its model is its personal model after fine-tuning, if there is one, else the server's
model. The rows are the sites' test rows. If it is unknown which site a test row belongs to, they are the rows that each
client holds out. So all methods are measured on the same rows.
"""

import math
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedskew.core.records import Server
from fedskew.core.task import ConstantAnswer
from fedskew.core.trees import Tree
from fedskew.data.dataset import Dataset
from fedskew.execution.build import Assembly
from fedskew.loop import evaluate
from fedskew.loop.personal import measures_personal, personal_models
from fedskew.loop.work import Engine, States
from fedskew.skew.compose import mixture
from fedskew.skew.partition import Ints
from fedskew.store.runs import Row, RunStore
from fedskew.store.test_rows import units_at_sites

MOST_POOLED = 200
"""Maximum number of sites for which metrics of all rows together are computed by site. They take milliseconds each."""


class SiteRows(NamedTuple):
    """The rows on which models are measured at the sites, site by site."""

    x: Tensor  # (rows, ...)
    y: Tensor
    units: Ints | None  # (rows,) as in `test_rows.write`
    sites: Ints  # (sites,) numbers of the sites that have rows
    offsets: Ints  # (sites + 1,) where each site's rows begin


def kind_of_rows(assembly: Assembly) -> Literal["test", "held-out", ""]:
    """Say on which rows models are measured at the sites; empty if there are none."""
    owner = assembly.data.test_owner
    if owner is not None and bool((owner >= 0).any()):
        return "test"
    return "" if assembly.data.sites.held_out is None else "held-out"


def rarest_class(dataset: Dataset) -> int | None:
    """Return the class with the fewest rows in training and test rows together; None if targets are no classes."""
    if not dataset.num_classes:
        return None
    counts = np.bincount(np.concatenate([dataset.y, dataset.y_test]), minlength=dataset.num_classes)
    return int(np.where(counts > 0, counts, counts.max() + 1).argmin())


def facts_of_sites(assembly: Assembly) -> dict[str, object]:
    """Return what readers of the values at the sites must know: the rows, the rarest class, and the names of pooled sites."""
    rarest, dataset = rarest_class(assembly.dataset), assembly.dataset
    facts: dict[str, object] = {"rows": kind_of_rows(assembly)}
    facts |= {} if rarest is None else {"rarest": dataset.classes[rarest]}
    pooled = mixture(assembly.experiment.skew).pooled
    return facts | ({"names": list(assembly.data.sites.names[:MOST_POOLED])} if pooled else {})


def rows_at_sites(assembly: Assembly, round_: int, measured: Ints) -> SiteRows | None:
    """Return the rows at the sites; if they are held-out rows, only of the ``measured`` sites.

    None if there are none in this process.
    """
    data, fed, kind = assembly.data, assembly.federation, kind_of_rows(assembly)
    if kind == "test":
        assert data.test_owner is not None
        order = np.argsort(data.test_owner, kind="stable")
        rows = order[data.test_owner[order] >= 0]
        sites, sizes = np.unique(data.test_owner[rows], return_counts=True)
        x, y, units = assembly.x_test, assembly.test_targets(round_), assembly.dataset.test_units
    elif kind and len(fed.x):
        parts = {int(k): data.sites.measured_rows(k) for k in measured if len(data.sites.measured_rows(k))}
        sites, sizes, rows = (
            np.array([*parts]),
            np.array([*map(len, parts.values())]),
            np.concatenate([*parts.values()]),
        )
        persons = assembly.dataset.persons
        x, y, units = fed.x, fed.targets(round_), None if persons is None else persons[0]
    else:
        return None
    ids: Ints | None = rows if units is None else units[rows]
    if kind == "held-out" and getattr(assembly.experiment.dataset, "redraw", False):
        ids = None  # each seed has other training rows, and so other numbers for them
    elif ids is not None and mixture(assembly.experiment.skew).by_groups:
        ids = units_at_sites([data.sites.names[k] for k in np.repeat(sites, sizes)], ids, len(data.sites))
    at = torch.as_tensor(rows, device=x.device)
    return SiteRows(x[at], y[at], ids, sites, np.cumsum([0, *sizes]))


def answered(
    assembly: Assembly, engine: Engine, server: Server, states: States, at: SiteRows
) -> tuple[Tree, Tensor | None]:
    """Return the scores of each row (rows, ...) under its site's model, and the outputs if metrics of all rows need them."""
    fed, parts = assembly.federation, [(assembly.federation.task, server.x, slice(0, len(at.y)))]
    if measures_personal(fed):
        one = np.zeros_like(at.sites) if mixture(assembly.experiment.skew).pooled else at.sites
        models = personal_models(fed, engine, server, states, one)
        spans = [slice(lo, hi) for lo, hi in pairwise(at.offsets.tolist())]
        parts = [*zip(fed.tasks_of(one), models, spans, strict=True)]
    if fed.task.joint or fed.task.pooled_names:
        outputs = torch.cat([evaluate.outputs_of(task, w, at.x[span]) for task, w, span in parts])
        return evaluate.scored_outputs(fed.task, outputs.split(evaluate.CHUNK), at.y, pool=False)[0], outputs
    scores = [evaluate.per_row(task, w, at.x[span], at.y[span]) for task, w, span in parts]
    return {name: torch.cat([part[name] for part in scores]) for name in scores[0]}, None


def measured_at_sites(
    assembly: Assembly, engine: Engine, server: Server, states: States, measured: Ints
) -> tuple[list[Row], evaluate.RowValues | None]:
    """Return the metrics over all rows at the sites and at each site, as rows, and the values of the rows."""
    at = rows_at_sites(assembly, server.round, measured)
    if at is None:
        return [], None
    task, kind, rarest = assembly.federation.task, assembly.experiment.task, rarest_class(assembly.dataset)
    scores, outputs = answered(assembly, engine, server, states, at)

    def metrics(span: slice, pool: bool) -> dict[str, float]:
        y, part, pooled = at.y[span], {name: values[span] for name, values in scores.items()}, dict[str, float]()
        if outputs is not None:
            part, pooled = evaluate.scored_outputs(task, outputs[span].split(evaluate.CHUNK), y, pool)
        values = evaluate.over_rows(task, part, pooled) | {"rows": float(len(y))}
        if rarest is not None and "accuracy" in part:
            values["recall_of_rarest"] = float(part["accuracy"][y == rarest].mean())
        return values

    whole = metrics(slice(0, len(at.y)), pool=True)
    if rarest is not None and outputs is not None:
        whole["answers"] = float(len(outputs.argmax(-1).unique()))
    if isinstance(kind, ConstantAnswer):
        y, fitted, sites = assembly.dataset.y, kind.fitted(assembly.dataset.y), assembly.data.sites
        whole["constant"] = evaluate.evaluate_constant(task, fitted.constant(y, task.num_outputs), at.y).get(
            kind.primary, math.nan
        )
        if not mixture(assembly.experiment.skew).pooled:
            own = [fitted.constant(y[sites.rows(k)] if len(sites.rows(k)) else y, task.num_outputs) for k in at.sites]
            each = torch.stack(own).repeat_interleave(torch.as_tensor(np.diff(at.offsets)), dim=0).to(at.y.device)
            values = evaluate.over_rows(task, *evaluate.scored_outputs(task, each.split(evaluate.CHUNK), at.y))
            whole["constant_of_sites"] = values.get(kind.primary, math.nan)
    by_site: dict[int | None, dict[str, float]] = {None: whole}
    for k, (lo, hi) in zip(at.sites, pairwise(at.offsets.tolist()), strict=True):
        by_site[int(k)] = metrics(slice(lo, hi), len(at.sites) <= MOST_POOLED)
    known = assembly.experiment.measures.stored
    rows: list[Row] = [
        (site, "sites", name, value)
        for site, values in by_site.items()
        for name, value in values.items()
        if math.isfinite(value) and ("sites", name) in known
    ]
    return rows, evaluate.row_values(task, kind.primary, scores, outputs, at.y, at.units)


def reported_by_sites(store: RunStore, run: int, assembly: Assembly, round_: int) -> list[Row]:
    """Return the metrics at each site that clients on other machines have reported of their held-out rows after a round, as rows.

    There are no values over all rows, none of each row, and no recall of the rarest class: only the clients have the rows.
    """
    if kind_of_rows(assembly) != "held-out":
        return []
    split = "personal-model" if measures_personal(assembly.federation) else "global-model"
    names = [f"{split}/{metric.name}" for metric in assembly.experiment.task.metrics]
    last = store.last([run], names, per_client=True, until={run: round_})
    # a client that did not answer has an older score
    scores: list[Row] = [(m.client, "sites", m.name, m.value) for m in last if m.round == round_]
    clients = {client for client, *_ in scores if client is not None}
    return [*((k, "sites", "rows", float(len(assembly.partition.measured_rows(k)))) for k in sorted(clients)), *scores]
