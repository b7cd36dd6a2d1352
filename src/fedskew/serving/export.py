"""Export a run's model: to one file for other programs, or as a folder with an ONNX file and a model card."""

import io
import logging
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import torch
from msgspec.structs import replace
from safetensors.torch import save
from torch import Tensor, nn

from fedskew.core.component import with_options
from fedskew.core.errors import BadInput, FedskewError, first_line, require
from fedskew.core.files import replacing_folder, toml_table, write_whole
from fedskew.core.task import Probabilistic, Task, TaskKind
from fedskew.core.trees import Tree
from fedskew.data.dataset import Dataset
from fedskew.data.find import digest
from fedskew.data.preprocessing import Tabular
from fedskew.execution.build import DTYPES, rate_of
from fedskew.execution.deal import client_data
from fedskew.execution.facts import tell_where
from fedskew.execution.learned import FILE, Learned, kept, learned_of, with_zeros
from fedskew.execution.prepare import network_of, size_of, tasks_of
from fedskew.execution.rounds import data_of, state_of
from fedskew.experiment.config import Architecture, Experiment, from_toml
from fedskew.experiment.keywords import Format
from fedskew.loop.personal import measures_personal, personal_models
from fedskew.loop.round import taken_apart
from fedskew.loop.sharing import PART
from fedskew.loop.work import overrides
from fedskew.measure.registry import METRICS, Measure, Measures, primary_of
from fedskew.models.encoder import Encoder
from fedskew.models.intercept import positions
from fedskew.models.mixed import MixedNet
from fedskew.models.own import OwnNet
from fedskew.report.experiments import between_sites, measured_rows, name_of, repeat_command, settings
from fedskew.report.series import Results
from fedskew.report.style import rendered
from fedskew.report.words import rows_of, value, with_interval
from fedskew.serving.graph import INPUT, OPSET, about, preprocessing_graph
from fedskew.slots import All
from fedskew.store import checkpoints
from fedskew.store.runs import RunStore

SUFFIX: dict[Format, str] = {"safetensors": ".safetensors", "torchscript": ".pt", "onnx": ".onnx"}


class WithAnswer(nn.Module):
    """A module that maps rows to the task's answers. The wrapped model returns features, too.

    The last columns of a row are intercepts of the outputs, if it has more than ``columns``.
    """

    def __init__(self, model: nn.Module, answer: Callable[[Tensor], Tensor], columns: int | None = None) -> None:
        super().__init__()
        self.model, self.answer, self.columns = model, answer, columns

    def forward(self, x: Tensor) -> Tensor:
        if self.columns is None:
            return self.answer(self.model(x)[1])
        return self.answer(self.model(x[:, : self.columns])[1] + x[:, self.columns :])


def in_dtype_of(model: nn.Module, rows: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Convert floating-point arguments to the type of the model's parameters."""
    dtype = next(model.parameters()).dtype
    return tuple(x.to(dtype) if x.is_floating_point() else x for x in rows)


def export(
    store: RunStore,
    run: int,
    form: Format = "safetensors",
    path: Path | None = None,
    warn: Callable[[str], None] = lambda _: None,
    dataset: Dataset | None = None,
    client: int | None = None,
) -> Path:
    """Write the global model of a run's newest checkpoint, or a client's personal model; return the path.

    ``safetensors`` holds the parameters by their names in the model. ``torchscript`` and ``onnx`` hold a program from rows
    (n, ...) to logits (n, K). ``dataset`` is needed if the run's data came from a Python program. ``warn`` is called with one
    line if the newest checkpoint is damaged and the previous one is used. Raises `BadInput` if the model cannot be written in
    this format, or if the clients do not share a whole model.
    """
    path = path or store.run_folder(run) / f"model{SUFFIX[form]}"
    model = trained(store, run, warn, dataset, client)
    if form == "safetensors":
        contents = save(named_weights(model))
    else:
        contents = program(WithAnswer(model.net, model.kind.predictions).eval(), model.example, form)
    return write_whole(path, contents, "export")


class Trained(NamedTuple):
    """A model with the weights of a run."""

    task: Task
    w: Tensor  # (P,)
    net: nn.Module  # with these weights
    model: Architecture
    learned: Learned
    dtype: torch.dtype

    @property
    def kind(self) -> TaskKind:
        return self.task.kind

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The trained parameters by name, without frozen ones."""
        return self.task.space.unflatten(self.w)

    @property
    def example(self) -> Tensor:
        """Two rows as input for tracing."""
        shape = 2, *self.learned.shape
        # filled with ones, because an encoder cuts its rows at padding, 0
        return torch.zeros(shape, dtype=torch.long) if self.task.ids else torch.ones(shape, dtype=self.dtype)


def check_alone(store: RunStore, run: int, what: str, cure: str) -> None:
    """Raise `BadInput` if a network alone does not answer as the run's model does."""
    harmonised = "harmonisation" in toml_table(store.run(run).experiment, f"run {run}")
    require(not harmonised, f"{what} cannot hold what the run's harmonisation does at each site; {cure}")


def trained(
    store: RunStore,
    run: int,
    warn: Callable[[str], None] = lambda _: None,
    dataset: Dataset | None = None,
    client: int | None = None,
) -> Trained:
    """Load the global model of a run's newest checkpoint, or the personal model of a ``client``.

    The data set is loaded only for a personal model, or if the run's folder lacks the preprocessing. Raises `BadInput` if the
    clients share no whole model, if the client has no personal model, or if no client took part in any round.
    """
    experiment = from_toml(store.run(run).experiment, f"run {run}")
    checkpoint = checkpoints.newest(store.run_folder(run), store.used(run))
    if checkpoint is None:
        raise BadInput(f"run {run}: it has no checkpoint yet")
    tell_where(warn, store, run, checkpoint[1]["round"])
    cohorts = [m.value for m in store.curves([run], ["round/clients"]) if m.round <= checkpoint[1]["round"]]
    require(
        max(cohorts, default=1) > 0,
        f"run {run}: no client took part in any round, so its model was never trained; see `fedskew show {run}`",
    )
    learned = kept(store, run, checkpoint[1])
    if learned is None or client is not None:
        dataset = data_of(store, run, dataset)
        learned = learned or learned_of(experiment, client_data(experiment, dataset))
    kind = with_options(experiment.task, learned.task, f"run {run}: {FILE}: task")
    model = with_options(experiment.model, learned.model, f"run {run}: {FILE}: model")
    model = network_of(model, experiment.harmonisation)
    try:
        size = size_of(model, learned.shape, kind.num_outputs(learned.categories))
    except (RuntimeError, TypeError, ValueError) as error:
        raise BadInput(f"run {run}: its model cannot be built for rows of shape {learned.shape}: {error}") from None
    require(
        size in (None, checkpoint[0]["x"].numel()),
        f"run {run}: its model has another number of parameters than its checkpoint; {FILE} or the stored experiment has changed",
    )
    dtype = DTYPES[experiment.training.dtype]
    tasks = tasks_of(experiment.training, kind, model, learned.shape, learned.categories, torch.device("cpu"))
    # client k has architecture k modulo their number
    at = 0 if client is None else client % len(tasks)
    if client is None:
        if len(tasks) > 1 or not experiment.algorithm.contract().shares_model:
            raise BadInput(f"run {run}: its clients have separate models, and no shared one; {name_one(store, run)}")
        require(
            shares_all(experiment),
            f"run {run}: its clients keep a part of the model, so there is no complete shared model; {name_one(store, run)}",
        )
        w = checkpoint[0]["x"]
        learned = with_trained_intercepts(run, experiment, learned, checkpoint[0], tasks[0])
    else:
        w = of_clients(store, run, dataset)(client)
        learned = replace(learned, sites=learned.sites and learned.sites.only(client))
    net = model.build(learned.shape, tasks[0].num_outputs, torch.Generator()).to(dtype)
    net.load_state_dict(tasks[0].space.unflatten(w), strict=False)
    return Trained(tasks[at], w, net.using(at) if isinstance(net, MixedNet) else net, model, learned, dtype)


def with_trained_intercepts(
    run: int, experiment: Experiment, learned: Learned, checkpoint: Tree, task: Task
) -> Learned:
    """Return ``learned`` with what the intercepts that clients have trained add to the server's, which a warm-up may have moved."""
    clients = checkpoint["clients"]
    rate, (states, _) = rate_of(experiment.harmonisation), taken_apart(clients.get("states", {}))
    if rate and "slots" in clients:
        raise BadInput(f"run {run}: its intercepts are on the disk; write --client NAME for one site")
    if not rate or PART not in states:  # nodes keep theirs
        return learned
    intercepts = np.zeros((len(learned.by_site.names), states[PART].shape[1]))
    added = states[PART] - checkpoint["x"][positions(task.space)]
    intercepts[clients["ids"].cpu()] = added.double().cpu() * rate**0.5
    return replace(learned, sites=replace(learned.by_site, intercept=with_zeros(intercepts)))


def names_of_clients(store: RunStore, run: int, dataset: Dataset | None = None) -> tuple[str, ...]:
    """Return the names of a run's clients, by number. The store has the first names, the data have all."""
    names = tuple(store.partition(run).drop_duplicates("client")["client_name"])
    clients = store.run(run).facts.get("partition", {}).get("clients", len(names))
    return names if len(names) == clients else state_of(store, run, dataset)[0].partition.names


def name_one(store: RunStore, run: int) -> str:
    """What to write for a client's model."""
    names = store.partition(run)["client_name"].unique()
    more = f", ... ({len(names)} clients)" if len(names) > 5 else ""
    return f"write --client NAME (client=NAME in Python) for the model of one: {', '.join(map(str, names[:5]))}{more}"


def named_weights(model: Trained) -> dict[str, Tensor]:
    """Return the trained parameters by their names in the user's module."""
    part = f"nets.{model.net.used}." if isinstance(model.net, MixedNet) else ""
    prefix = "inner." if isinstance(model.net, OwnNet) else part
    weights = ((name, value) for name, value in model.parameters.items() if name.startswith(part))
    return {name.removeprefix(prefix): value.contiguous().clone() for name, value in weights}


def shares_all(experiment: Experiment) -> bool:
    """Whether the clients share a whole model."""
    return experiment.algorithm.contract().shares_model and isinstance(experiment.sharing, All)


def has_personal(experiment: Experiment) -> bool:
    """Whether clients have models of their own, so that a row's answer depends on its client."""
    tuned = experiment.evaluation.adapt_steps > 0
    return tuned or overrides(experiment.algorithm, "personal") or not shares_all(experiment)


def of_clients(store: RunStore, run: int, dataset: Dataset | None) -> Callable[[int], Tensor]:
    """Return a function from a client's number to the parameters (P,) of its personal model."""
    assembly, server, states = state_of(store, run, dataset)
    fed = assembly.federation
    if not measures_personal(fed) and assembly.data.maps is None:
        raise BadInput(f"run {run}: its clients have no personal models; leave out --client (client=NAME in Python)")

    at_sites = measures_personal(fed) and between_sites(store.run(run))
    require(not at_sites, f"run {run}: the sites keep their own models; leave out --client (client=NAME in Python)")

    def of_client(client: int) -> Tensor:
        clients = len(fed.clients)
        require(0 <= client < clients, f"run {run}: there is no client {client}; they are 0 to {clients - 1}")
        return personal_models(fed, assembly.engine, server, states, np.array([client]))[0].cpu()

    return cache(of_client)


def program(net: nn.Module, example: Tensor, form: Format) -> bytes:
    """Return a program for any number of rows shaped like the example's."""
    if form == "onnx":
        return network_graph(net, example).model_proto.SerializeToString()
    traced = io.BytesIO()
    with refused("torchscript"):
        torch.jit.save(torch.jit.trace(net, example), traced)
    return traced.getvalue()


def network_graph(
    net: nn.Module, example: Tensor, opset: int | None = None, output: str = "logits"
) -> torch.onnx.ONNXProgram:
    """Return the ONNX program of a module, from ``x`` to ``output``. Raises `BadInput` if there is none."""
    require(
        find_spec("onnxscript") is not None,
        "export: ONNX needs the package onnxscript; pip install '.[onnx]' in the clone, or write --format torchscript",
    )
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # hides warnings about packages that only other models need
    with warnings.catch_warnings(), refused("onnx"):
        warnings.simplefilter("ignore", FutureWarning)  # PyTorch warns about its own code
        exported = torch.onnx.export(
            net,
            (example,),
            dynamo=True,
            verbose=False,
            input_names=["x"],
            output_names=[output],
            dynamic_shapes=({0: torch.export.Dim("rows")},),
            opset_version=opset,
        )
    assert exported
    return exported


@contextmanager
def refused(form: str) -> Iterator[None]:
    """Turn an exporter's error into a one-line `BadInput`."""
    try:
        yield
    except Exception as error:
        raise BadInput(
            f"export: this model cannot be written as {form} ({first_line(error)}); take safetensors"
        ) from None


def answered(kind: TaskKind, outputs: Tensor) -> Tensor:
    """Turn a model's outputs into probabilities (n, K) if the task has any, else into predicted numbers (n,)."""
    return kind.probabilities(outputs) if isinstance(kind, Probabilistic) else kind.predictions(outputs)


PROGRAM = Path(__file__).with_name("predict_onnx.py")
"""The Python file that is copied into the folder."""
CHECKSUMS = "SHA256SUMS"
"""Checksums of the folder's files, as ``sha256sum --check`` reads them. They tell an earlier export from a user's own files."""


def write_folder(
    store: RunStore,
    run: int,
    path: Path | None = None,
    client: int | None = None,
    warn: Callable[[str], None] = lambda _: None,
    dataset: Dataset | None = None,
) -> Path:
    """Write the folder of a run's global model, or of a client's personal model; return its path.

    If the package onnxscript is missing, or ONNX cannot compute the model, there is no ``model.onnx``; ``warn`` gets the reason.
    The folder replaces an earlier export as a whole. Raises `BadInput` if it holds other or changed files.
    """
    folder = path or store.run_folder(run) / ("model" if client is None else f"model-of-client-{client}")
    model = trained(store, run, warn, dataset, client)
    if model.learned.agreed:
        warn(f"{folder}: {model.learned.agreed}")
    try:
        check_earlier(folder)
        with replacing_folder(folder) as new:
            (new / "model.safetensors").write_bytes(save(named_weights(model)))
            (new / "preprocessing.json").write_bytes(msgspec.json.format(msgspec.json.encode(model.learned)))
            (new / "experiment.toml").write_text(store.run(run).experiment, encoding="utf-8")
            try:
                (new / "model.onnx").write_bytes(graph_of(model))
                shutil.copyfile(PROGRAM, new / "predict.py")
                reason = ""
            except BadInput as error:
                reason = str(error)
                warn(f"{folder} has no model.onnx: {reason}")
            (new / "README.md").write_text(card(store, run, client, reason, model.learned.agreed), encoding="utf-8")
            lines = [f"{digest(file)}  {file.name}\n" for file in sorted(new.iterdir())]
            (new / CHECKSUMS).write_text("".join(lines), encoding="utf-8")
    except OSError as error:
        raise FedskewError(f"export {folder}: cannot be written: {error.strerror}") from None
    return folder


def card(store: RunStore, run: int, client: int | None, without_graph: str, agreed: str) -> str:
    """Write the card of the global model, or of one client's personal model, as Markdown.

    ``without_graph`` says why there is no ONNX file; it is empty if there is one. ``agreed`` is from `Learned.agreed`.
    """
    record, partition = store.run(run), store.partition(run)
    names = dict(zip(partition["client"], partition["client_name"], strict=True))
    metrics = {metric.name for metric in METRICS}
    measures = [m for m in Measures().shown() if m.split == "test" and m.name in metrics]
    split, per_client = ("test", False) if client is None else ("personal-model", True)
    last = store.last([run], [f"{split}/{m.name}" for m in measures], per_client=per_client)
    numbers = {m.name: m.value for m in last if m.client == client}
    primary, split = primary_of([record]), "global-model" if client is None else "personal-model"
    scores = {m.client: m.value for m in store.last([run], [f"{split}/{primary.name}"], per_client=True)}
    rows = partition.groupby("client")["rows"].sum().items()
    text = rendered(
        "card.md",
        record=record,
        name=name_of(record.name),
        client=client,
        whose="the global model" if client is None else f"the personal model of client {names.get(client, client)}",
        data=record.facts.get("data", {}),
        dealt=record.facts.get("partition", {}),
        versions=record.facts.get("versions", {}),
        settings=settings([record]),
        metrics=[(measure, numbers[measure.name]) for measure in measures if measure.name in numbers],
        over_seeds=over_seeds(store, run),
        value=value,
        primary=primary,
        clients=[(names[number], size, scores[number]) for number, size in rows if number in scores],
        measured_rows=measured_rows([record]),
        epsilon=store.last([run], ["round/epsilon"]),
        repeat=repeat_command(store, [record]),
        without_graph=without_graph,
        agreed=agreed,
    )
    return f"{text}\n"


def over_seeds(store: RunStore, run: int) -> Callable[[Measure], str]:
    """Return a function that formats a measure over all seeds of the run's method in the same comparison."""
    record = store.run(run)
    alike = [r for r in store.runs("comparison=?", (record.comparison,)) if r.name == record.name]
    row = rows_of(Results(store, alike).summary)[0] if len(alike) > 1 else {}

    def text(measure: Measure) -> str:
        if measure.key not in row:
            return "one seed: no interval"
        return f"{with_interval(measure, row[measure.key], row[f'{measure.key}_half'])}, {len(alike)} seeds"

    return text


def check_earlier(folder: Path) -> None:
    """Raise `BadInput` unless the folder is absent, empty, or exactly what an export wrote."""
    files = sorted(folder.iterdir()) if folder.exists() else []
    sums = folder / CHECKSUMS
    lines = sums.read_text(encoding="utf-8", errors="replace").splitlines() if sums.is_file() else []
    for file in files:
        require(
            file == sums or (file.is_file() and f"{digest(file)}  {file.name}" in lines),
            f"export: {folder} holds {file.name}, which no export wrote or which has changed since; give another folder",
        )
    if folder.resolve() == Path.cwd():
        raise BadInput("export: it replaces a whole folder, and this is the current folder; name another one")


def graph_of(model: Trained) -> bytes:
    """Return the ONNX program from raw rows, as files hold them, to predictions. Raises `BadInput` if ONNX cannot do this."""
    preprocessing = model.learned.preprocessing
    if preprocessing is None or isinstance(model.model, Encoder):
        raise BadInput("its preprocessing cannot be computed by ONNX")
    if model.kind.target == "symbols":
        raise BadInput(
            "it predicts at each place of a row, but predict.py predicts once a row; write --format onnx for the network alone"
        )
    sites, columns, example = model.learned.by_site, None, model.example
    if (sites.factor or sites.column) and not isinstance(preprocessing, Tabular):
        raise BadInput("ONNX holds what differs between sites only for tables of numbers and words")
    if sites.column and sites.intercept:
        [columns] = model.learned.shape
        example = torch.cat([example, example.new_zeros(len(example), len(sites.intercept[0]))], dim=1)
    output = "probabilities" if isinstance(model.kind, Probabilistic) else "predictions"
    net = WithAnswer(model.net, partial(answered, model.kind), columns).eval()
    program = network_graph(net, example, OPSET, output)
    from onnx import compose, helper

    kind = "INT64" if model.task.ids else {torch.float32: "FLOAT", torch.float64: "DOUBLE"}[model.dtype]
    first, second = preprocessing_graph(preprocessing, kind, sites), program.model_proto
    first.ir_version = second.ir_version
    whole = compose.merge_models(first, second, io_map=[(INPUT, "x")], prefix2="network/")
    helper.set_model_props(whole, about(preprocessing, model.learned.classes, sites, model.learned.agreed))
    return whole.SerializeToString()
