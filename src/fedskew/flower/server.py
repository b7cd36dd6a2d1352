"""A run whose clients are on nodes: from the app's configuration to rounds in the same run store as simulated ones."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.core.algorithm import Algorithm
from fedskew.core.component import from_table, to_table
from fedskew.core.errors import require
from fedskew.core.own import MARK
from fedskew.core.seeding import Secret
from fedskew.data.dataset import Dataset
from fedskew.engine.sequential import Sequential
from fedskew.experiment.build import Assembly, assemble, check_needs, with_engine
from fedskew.experiment.config import COMPONENTS, Experiment, from_toml
from fedskew.experiment.deal import ClientData
from fedskew.experiment.run import Listener, Stop, execute, register
from fedskew.experiment.site import Site
from fedskew.flower.nodes import Channel, Deployment, Nodes, Recipe
from fedskew.flower.remote import Remote, There
from fedskew.flower.updates import Decoded
from fedskew.flower.wire import Reply
from fedskew.models import Mixed, TextCnn
from fedskew.models.encoder import Encoder
from fedskew.skew.compose import mixture
from fedskew.skew.concept import Labels
from fedskew.skew.partition import Partition
from fedskew.slots import Blocks
from fedskew.store import checkpoints
from fedskew.store.runs import RunStore

NOT_TOLD = "labels not told"
PREFIX = "deployment."


def serve(
    channel: Channel,
    config: Mapping[str, Any],
    versions: Mapping[str, str],
    listener: Listener = lambda _: None,
    stop: Stop = lambda: False,
) -> int:
    """Carry out the run that an app's configuration describes, or go on with one; its number in the store.

    ``config`` holds ``recipe`` (an experiment as TOML), ``runs`` (the store's folder), ``resume`` (a run's number, or 0) and
    the options of `Deployment` as ``deployment.timeout`` and so on. Raises `BadInput` before any node is asked.
    """
    options = {key.removeprefix(PREFIX): value for key, value in config.items() if key.startswith(PREFIX)}
    deployment = from_table(Deployment, options, "deployment")
    resumed = int(config.get("resume", 0))
    experiment = None if resumed else deployable(from_toml(str(config["recipe"]), "recipe"), deployment)
    store = RunStore(Path(str(config["runs"])).expanduser())
    if experiment:
        run = register(store, experiment)
        store.add_facts(run, {"flower": {"token": uuid.uuid4().hex}})
    else:
        run = resumed
        require(
            "flower" in store.run(run).facts, f"resume: run {run} was not made on Flower; use `fedskew resume {run}`"
        )
    facts = store.run(run).facts["flower"]
    store.add_facts(run, {"flower": {**facts, **versions, "deployment": dataclasses.asdict(deployment)}})
    try:
        execute(store, run, None, listener, stop, partial(begin, store, run, channel, deployment, experiment))
    finally:
        store.close()
    return run


def deployable(experiment: Experiment, deployment: Deployment) -> Experiment:
    """The experiment with what is left open filled in; raises `BadInput` with the reason if it cannot run on nodes."""
    check_needs(experiment)
    name = to_table(experiment.algorithm, COMPONENTS["algorithm"])["name"]
    require(
        MARK not in name,
        f"algorithm {name} is a file here, which the nodes do not have; offer it from a package that is installed on them",
    )
    require(
        not isinstance(experiment.model, (Encoder, TextCnn)),
        "a model that reads texts needs the words of all clients at the server, and they stay on the nodes; use a model of numbers",
    )
    require(
        type(experiment.algorithm).public is Algorithm.public and not isinstance(experiment.model, Mixed),
        f"{name} on public rows, and clients of different architectures, are only simulated so far; use another method and model",
    )
    require(
        not mixture(experiment.skew).concepts,
        "skew: labels whose meaning changes are only simulated; on nodes labels are those of their own rows: leave it out",
    )
    require(
        not experiment.faults.some,
        "faults are simulated; on nodes they come by themselves, and deployment.longest and deployment.fewest deal with them",
    )
    require(
        not experiment.evaluation.inexactness,
        "evaluation.inexactness needs the clients' rows at the server, and they stay on the nodes; leave it out",
    )
    require(
        deployment.labels or not isinstance(experiment.availability, Blocks),
        "availability blocks goes by the classes that clients hold, and nodes do not tell; set deployment.labels = true",
    )
    return with_engine(experiment, Sequential(), experiment.training.threads or 1)


def begin(
    store: RunStore, run: int, channel: Channel, deployment: Deployment, experiment: Experiment | None
) -> tuple[Assembly, Site]:
    """Meet the clients, and assemble the run from what they report; without ``experiment`` the run has begun before."""
    experiment = experiment or from_toml(store.run(run).experiment, f"run {run}")
    dataset = experiment.dataset.load()
    facts = store.run(run).facts["flower"]
    clients = experiment.clients.number
    recipe = Recipe(facts["token"], experiment.toml(), clients, dataset.num_classes, dataset.shape, len(dataset.y))
    nodes = Nodes(channel, recipe, deployment)
    known = facts.get("population", [])
    nodes.met = {k: reply(recipe, k, *one) for k, one in enumerate(known)}
    if not known:
        nodes.await_clients(clients)
        met = [nodes.met[k] for k in range(clients)]
        told = [[one.rows, one.measured_rows, list(one.label_counts)] for one in met]
        store.add_facts(run, {"flower": {**facts, "population": told}})
    held = population([nodes.met[k] for k in range(clients)], dataset)
    assembly = assemble(experiment, dataset, held)
    federation = dataclasses.replace(assembly.federation, codec=Decoded(assembly.federation.codec))
    if experiment.algorithm.privacy():
        # anew at each start: the same noise on two sums of a round, of which one lacks a client, would give its update away
        federation = dataclasses.replace(federation, hidden=Secret.fresh())
        assembly = dataclasses.replace(assembly, repeated=repeated(store, run) if known else 0)
    if not deployment.labels:
        classes = (NOT_TOLD, *dataset.classes[1:])
        assembly = dataclasses.replace(
            assembly, dataset=dataclasses.replace(dataset, classes=classes), labels_told=False
        )
    assembly = dataclasses.replace(assembly, federation=federation)
    return assembly, There(Remote(federation, nodes, assembly.x_test[:1]))


def repeated(store: RunStore, run: int) -> int:
    """How many rounds, at most, nodes have seen the models of and are played again, over all starts of a run that goes on.

    Those since the checkpoint, and one that may have been in flight; the run's facts keep the number.
    """
    record, found = store.run(run), checkpoints.newest(store.run_folder(run), store.covered(run))
    facts = record.facts["flower"]
    total: int = facts.get("repeated", 0) + record.rounds_done - (found[1]["round"] if found else 0) + 1
    store.add_facts(run, {"flower": {**facts, "repeated": total}})
    return total


def reply(recipe: Recipe, client: int, rows: int, measured_rows: int, label_counts: list[int]) -> Reply:
    """What a client told of itself when the run began."""
    counts = tuple(label_counts)
    return Reply(
        kind="meet",
        run=recipe.run,
        round=0,
        client=client,
        rows=rows,
        measured_rows=measured_rows,
        label_counts=counts,
    )


def population(met: list[Reply], dataset: Dataset) -> ClientData:
    """The clients' rows as the server knows them: how many each has, and of which class if they told. It has none of them."""
    classes = np.arange(dataset.num_classes)
    labels = [np.repeat(classes, one.label_counts) if one.label_counts else np.zeros(one.rows, np.int64) for one in met]
    sizes, aside = [one.rows for one in met], [one.measured_rows for one in met]
    ends, last = np.cumsum([0, *sizes]), np.cumsum([0, *aside])
    partition = Partition(
        indices=np.arange(ends[-1]),
        offsets=ends,
        names=tuple(str(one.client) for one in met),
        empty=0,
        unassigned=0,
        held_out=(np.arange(ends[-1], ends[-1] + last[-1]), last) if last[-1] else None,
    )
    return ClientData(
        partition=partition,
        dataset=dataset,
        x=dataset.x[:0],
        x_test=dataset.x_test,
        labels=Labels(np.concatenate(labels), ()),
        test_labels=Labels(dataset.y_test, ()),
        drawn={},
    )
