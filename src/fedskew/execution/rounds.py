"""Play and measure the rounds of a run, and convert its state to and from a checkpoint."""

import time
from collections.abc import Iterator

from fedskew.core.errors import BadInput, require
from fedskew.core.machine import span
from fedskew.core.records import Server
from fedskew.core.trees import Tree, num_bytes
from fedskew.data.dataset import Dataset
from fedskew.engine.states import AnyStates, ClientStates, opened
from fedskew.execution import measurements
from fedskew.execution.build import Assembly, assemble
from fedskew.execution.initial import shapes
from fedskew.execution.site import Site
from fedskew.experiment.config import from_toml
from fedskew.experiment.settings import Auto
from fedskew.loop.round import fresh, start
from fedskew.loop.work import States
from fedskew.store import checkpoints
from fedskew.store.runs import Row, RunStore

STATES = "client-states.bin"
"""File in a run's folder with the client states, if they are on disk."""

LARGE = 1 << 30
"""Above this number of bytes in total, client states are stored on disk."""


def rounds_of(
    assembly: Assembly, site: Site, server: Server, states: States
) -> Iterator[tuple[Server, list[Row], float]]:
    """Yield the server, the round's measurements and its seconds: once for the current round, then after each new round."""
    fed, experiment = assembly.federation, assembly.experiment
    clients, every = measurements.at_most(fed.clients, assembly), measurements.measured_every(assembly)
    started = server.round > assembly.initial.round
    yield server, [] if started else measurements.model_rows(assembly, site, server, states, clients), 0.0
    while server.round < experiment.training.rounds:
        began = time.perf_counter()
        after = server.round + 1
        due = after == experiment.training.rounds or after % every == 0
        outcome = site.play_round(fed, server, states, measure_local=due and experiment.evaluation.local_models)
        server = outcome.server
        with span("measures"):
            rows = measurements.round_rows(assembly, outcome)
        if due:
            with span("evaluation"):
                rows += measurements.model_rows(assembly, site, server, states, clients)
            with span("measures"):
                rows += measurements.inexactness_rows(assembly, site.engine, outcome)
                rows += measurements.update_rows(assembly, outcome)
        rows += site.fault_rows()
        seconds = time.perf_counter() - began
        yield server, [*rows, (None, "round", "seconds", seconds)], seconds


def checkpoint_of(server: Server, states: AnyStates) -> Tree:
    """Return everything that the next round depends on, except the number of finished rounds."""
    return {"x": server.x, "opt": server.opt, "state": server.state, "clients": states.checkpoint()}


def taken_up(begun: Server, tree: Tree, round_: int) -> Server:
    """Restore the server from ``tree``, made by `checkpoint_of`. ``begun`` is the server before the first round."""
    return begun._replace(x=tree["x"], opt=tree.get("opt", {}), state=tree.get("state", {}), round=round_)


def goes_on(assembly: Assembly, begun: Server, states: AnyStates, simulated: bool) -> Server:
    """Return the server before the run's first round, and fill ``states``. If it goes on with another run, both are that run's.

    Raises `BadInput` if that run's method had other states, or if the clients are not ``simulated``.
    """
    tree, fed = assembly.initial.tree, assembly.federation
    if tree is None:
        return begun
    what = f"training: init {assembly.experiment.training.init}"
    require(simulated, f"{what}: nodes have no states of another run; start from its model, without :ROUND")
    server, ids = taken_up(begun, tree, assembly.initial.round), tree["clients"]["ids"].cpu().numpy()
    of_clients = tree["clients"].get("states", {})
    like = shapes(fresh(fed, server.x)) if len(ids) else {}
    require(
        (shapes((begun.opt, begun.state)), like) == (shapes((server.opt, server.state)), shapes(of_clients, 1)),
        f"{what}: its method or codec had other states; start from its model, without :ROUND",
    )
    states.put(ids, of_clients)
    return server


def on_disk(assembly: Assembly) -> bool:
    """True if client states are stored on disk: if ``training.states`` says so, or for ``auto`` if they exceed `LARGE`."""
    storage, fed = assembly.experiment.training.states, assembly.federation
    return storage == "disk" or (storage == "auto" and len(fed.clients) * num_bytes(fresh(fed, assembly.x0)) > LARGE)


def resume(
    store: RunStore, run: int, assembly: Assembly, kind: type[ClientStates] | None = None, to_show: int | None = None
) -> tuple[Server, AnyStates]:
    """Restore server and client states from the newest checkpoint whose rounds are all in the store, or from the start.

    ``kind`` is the class of the states if other machines hold them. ``to_show`` is the last round that counts; with it, no file is
    written and a checkpoint must exist. Raises `BadInput` for a checkpoint of another run, which a copied folder may contain.
    """
    folder, num_clients, record = store.run_folder(run), len(assembly.partition), store.run(run)
    covered = to_show if to_show is not None else store.covered(run) if record.rounds_done else None
    newest = checkpoints.newest(folder, covered)
    server = start(assembly.federation, assembly.x0)
    if newest is None:
        require(to_show is None, f"run {run}: it has no checkpoint yet of round {to_show} or before")
        to_disk = kind is None and on_disk(assembly)
        states = opened(folder / STATES, num_clients) if to_disk else (kind or ClientStates)()
        return goes_on(assembly, server, states, simulated=kind is None), states
    tree, facts = newest
    hashes = (record.experiment_hash, record.facts.get("hash_before"))
    if facts.get("experiment") not in hashes or record.rounds_done == 0:
        raise BadInput(
            f"run {run}: the checkpoint of round {facts['round']} in {folder} is of another run; move that folder, or choose "
            "another one with --runs"
        )
    tree = checkpoints.to_device(tree, assembly.x0.device)
    server, clients = taken_up(server, tree, facts["round"]), tree["clients"]
    if "slots" in clients:
        return server, opened(folder / STATES, num_clients, clients, to_show is not None)
    return server, (kind or ClientStates).restore(clients["ids"].cpu().numpy(), clients.get("states", {}))


def data_of(store: RunStore, run: int, dataset: Dataset | None = None) -> Dataset:
    """Return the data on which a run was trained: ``dataset`` if given. Raises `BadInput` if they have changed since."""
    record = store.run(run)
    data = dataset or from_toml(record.experiment, f"run {run}").dataset.load()
    before = record.facts.get("data", {}).get("fingerprint")
    require(
        before in (None, data.fingerprint()),
        f"run {run}: {data.name} has changed since the training, and its rows are needed here; bring them back as they were, or "
        "train a new run",
    )
    return data


def state_of(store: RunStore, run: int, dataset: Dataset | None = None) -> tuple[Assembly, Server, States]:
    """Return assembly, server and client states of a run's newest checkpoint.

    ``dataset`` is needed if the run's data came from a Python program. Raises `BadInput` if the data have changed since.
    """
    record = store.run(run)
    require(
        record.rounds_done > 0,
        f"run {run} has not finished a round yet; `{store.resume_command(run)}` continues it",
    )
    experiment = from_toml(record.experiment, f"run {run}")
    require(not isinstance(experiment.engine, Auto), f"run {run} has not chosen its engine yet")
    assembly = assemble(experiment, data_of(store, run, dataset))
    server, states = resume(store, run, assembly, to_show=store.used(run))
    return assembly, server, states
