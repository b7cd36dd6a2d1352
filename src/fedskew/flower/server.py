"""Executes a run with clients on nodes. The run store is the same as for simulated runs."""

import contextlib
import dataclasses
import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from fedskew.core.errors import BadInput, require
from fedskew.core.seeding import Secret
from fedskew.core.user_code import ORIGINS
from fedskew.data.dataset import Dataset
from fedskew.data.preprocessing import Preprocessing, Tabular, Texts, as_it_is
from fedskew.engine.sequential import Sequential
from fedskew.execution.build import Assembly, assemble, check_needs, setup_of, with_engine
from fedskew.execution.deal import ClientData
from fedskew.execution.learned import kept
from fedskew.execution.prepare import fitted
from fedskew.execution.run import Listener, Stop, execute, register
from fedskew.execution.site import Site
from fedskew.experiment.combinations import suited
from fedskew.experiment.config import Experiment, from_toml
from fedskew.flower.events import observed
from fedskew.flower.limits import tasks_on, weights_of
from fedskew.flower.nodes import Channel, Deployment, Nodes, deployment_of
from fedskew.flower.remote import RemoteClients
from fedskew.flower.tables import agreed, consecutive, sized, table_of
from fedskew.flower.wire import Decoded, Encoding, Reply, Request
from fedskew.models.encoder import Encoder
from fedskew.skew.concept import Labels
from fedskew.store import checkpoints
from fedskew.store.runs import RunStore

NO_LABELS = "labels not reported"


def serve(
    channel: Channel,
    config: Mapping[str, object],
    versions: Mapping[str, str],
    listener: Listener = lambda _: None,
    stop: Stop = lambda: False,
) -> int:
    """Execute or resume the run of an app's configuration. Returns the run's number in the store.

    ``config`` holds ``recipe`` (an experiment as TOML), ``runs`` (the store's folder), ``resume`` (a run's number, or 0) and
    the options of `Deployment` as ``deployment.timeout`` and so on. Raises `BadInput` before any node is asked.
    """
    deployment = deployment_of(config)
    run = int(str(config.get("resume", 0)))
    experiment = None if run else deployable(from_toml(str(config["recipe"]), "recipe"), deployment)
    with contextlib.closing(RunStore(Path(str(config["runs"])).expanduser())) as store:
        if experiment:
            run = register(store, experiment)
            store.add_facts(run, {"flower": {"token": uuid.uuid4().hex}})
        facts = store.run(run).facts
        require("flower" in facts, f"resume: run {run} was not made on Flower; use `fedskew resume {run}`")
        stored = {**facts["flower"], **versions, "deployment": dataclasses.asdict(deployment)}
        store.add_facts(run, {"flower": stored})
        with observed(deployment.status, deployment.json_log):
            execute(store, run, None, listener, stop, partial(begin, store, run, channel, deployment, experiment))
    return run


def deployable(experiment: Experiment, deployment: Deployment) -> Experiment:
    """Return the experiment with its engine and threads set for nodes. Raises `BadInput` if it cannot run on nodes."""
    check_needs(experiment)
    if deployment.agree:
        table_of(experiment)
    for part in experiment.components():
        origin = ORIGINS.get(type(part))
        if origin and origin.file_hash:
            raise BadInput(
                f"{origin.name} is in a file, which the nodes do not have; offer it from a package that is installed on them"
            )
    check_needs(experiment, dataclasses.replace(setup_of(experiment), simulated=False, labels_known=deployment.labels))
    return with_engine(experiment, Sequential(), experiment.training.threads or 1)


def first_request(token: str, experiment: Experiment, dataset: Dataset) -> Request:
    """Return the first request to a node. It does not have the shape of a row yet."""
    return Request(
        kind="meet",
        run=token,
        round=0,
        client=-1,
        clients=experiment.clients.number,
        recipe=experiment.toml(),
        classes=dataset.num_categories,
        shape=(),
    )


def begin(
    store: RunStore, run: int, channel: Channel, deployment: Deployment, experiment: Experiment | None
) -> tuple[Assembly, Site]:
    """Connect to the clients, and assemble the run. The clients report their numbers of rows.

    Without ``experiment``, resume the run of the store.
    """
    experiment = experiment or from_toml(store.run(run).experiment, f"run {run}")
    dataset = experiment.dataset.load()
    facts, clients = store.run(run).facts["flower"], experiment.clients.number
    most_rows = deployment.most_rows or len(dataset.y)
    if deployment.agree:
        learned = kept(store, run)
        preprocessing = learned.preprocessing if learned else None
        if not isinstance(preprocessing, Tabular | Texts):
            request = replace(first_request(facts["token"], experiment, dataset), purpose="columns")
            preprocessing = agreed(channel, request, deployment, most_rows, table_of(experiment))
        dataset = table_of(experiment).load(preprocessing)
        experiment = experiment.replace(model=sized(experiment.model, preprocessing))
    experiment = suited(experiment, dataset)
    # the server's rows set the size of a vocabulary and the scale of a loss
    model, x, _ = fitted(experiment.model, dataset, dataset.x, dataset.x_test)
    experiment = experiment.replace(task=experiment.task.fitted(dataset.y), model=model)
    shape = (model.length,) if isinstance(model, Encoder) else tuple(x.shape[1:])
    preprocessing = dataset.preprocessing or (None if dataset.texts else as_it_is(dataset.x, dataset.columns))
    template = replace(
        first_request(facts["token"], experiment, dataset),
        shape=shape,
        encoding=Encoding(preprocessing=preprocessing, classes=dataset.classes) if preprocessing else None,
        weights=weights_of(model, tasks_on(experiment, shape, dataset.num_categories)[0]),
    )
    # targets of another kind than classes are not counted
    deployment = dataclasses.replace(deployment, labels=deployment.labels and dataset.num_classes > 0)
    nodes = Nodes(channel, template, deployment, most_rows)
    population = facts.get("population", [])
    for k, (rows, measured_rows, counts) in enumerate(population):
        numbers = {"rows": rows, "measured_rows": measured_rows, "label_counts": tuple(counts)}
        nodes.met[k] = Reply(kind="meet", run=facts["token"], round=0, client=k, **numbers)
    if not population:
        nodes.await_clients(clients)
        met = [nodes.met[k] for k in range(clients)]
        population = [[reply.rows, reply.measured_rows, list(reply.label_counts)] for reply in met]
        store.add_facts(run, {"flower": {**facts, "population": population}})
    data = rows_by_client([nodes.met[k] for k in range(clients)], dataset, preprocessing)
    assembly = assemble(experiment, dataset, data)
    codec = Decoded(assembly.federation.codec)
    federation = dataclasses.replace(assembly.federation, codec=codec)
    if experiment.algorithm.contract().privacy:
        # new at each start: the same noise on two sums of a round, one without a client, would reveal that client's update
        federation = dataclasses.replace(federation, hidden=Secret.fresh())
        assembly = dataclasses.replace(assembly, repeated=repeated(store, run) if population else 0)
    if not deployment.labels:
        if dataset.num_classes:
            dataset = dataclasses.replace(dataset, classes=(NO_LABELS, *dataset.classes[1:]))
        assembly = dataclasses.replace(assembly, dataset=dataset, labels_known=False)
    assembly = dataclasses.replace(assembly, federation=federation)
    return assembly, RemoteClients(federation, codec, nodes, assembly.x_test[:1], assembly.y_test[:1])


def repeated(store: RunStore, run: int) -> int:
    """Return how many rounds at most are played again after a restart, although nodes already received their models.

    These are the rounds since the checkpoint, plus one that may have been in progress. The number is the maximum over all starts
    of the run, and the run's facts store it.
    """
    record, checkpoint = store.run(run), checkpoints.newest(store.run_folder(run), store.covered(run))
    facts = record.facts["flower"]
    total: int = facts.get("repeated", 0) + record.rounds_done - (checkpoint[1]["round"] if checkpoint else 0) + 1
    store.add_facts(run, {"flower": {**facts, "repeated": total}})
    return total


def rows_by_client(met: list[Reply], dataset: Dataset, preprocessing: Preprocessing | None) -> ClientData:
    """Return the clients' numbers of rows, by class if they report it. The server has no rows of clients."""
    classes, unknown = np.arange(dataset.num_classes), np.zeros_like(dataset.y[:1])
    labels = [
        np.repeat(classes if reply.label_counts else unknown, reply.label_counts or reply.rows, axis=0) for reply in met
    ]
    partition = consecutive(*(np.asarray(sizes) for sizes in ([m.rows for m in met], [m.measured_rows for m in met])))
    return ClientData(
        partition=partition,
        dataset=dataset,
        x=dataset.x[:0],
        x_test=dataset.x_test,
        labels=Labels(np.concatenate(labels), ()),
        test_labels=Labels(dataset.y_test, ()),
        drawn={},
        preprocessing=preprocessing,
    )
