"""Export a run's model as a folder: weights, an ONNX file with preprocessing, a Python file, and a model card."""

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
from safetensors.torch import save
from torch import Tensor, nn

from fedskew.core.errors import BadInput, FedskewError, require
from fedskew.core.files import replacing_folder
from fedskew.core.task import TaskKind
from fedskew.data.dataset import Dataset
from fedskew.data.find import digest
from fedskew.models.encoder import Encoder
from fedskew.report.card import card
from fedskew.serving.export import Trained, answered, named_weights, network_graph, trained
from fedskew.serving.graph import INPUT, OPSET, about, preprocessing_graph
from fedskew.store.runs import RunStore

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
    made = trained(store, run, warn, dataset, client)
    try:
        check_earlier(folder)
        with replacing_folder(folder) as new:
            (new / "model.safetensors").write_bytes(save(named_weights(made)))
            (new / "preprocessing.json").write_bytes(msgspec.json.format(msgspec.json.encode(made.learned)))
            (new / "experiment.toml").write_text(store.run(run).experiment, encoding="utf-8")
            try:
                write_graph(made, new / "model.onnx")
                shutil.copyfile(PROGRAM, new / "predict.py")
                reason = ""
            except BadInput as error:
                reason = str(error)
                warn(f"{folder} has no model.onnx: {reason}")
            (new / "README.md").write_text(card(store, run, client, reason), encoding="utf-8")
            lines = [f"{digest(file)}  {file.name}\n" for file in sorted(new.iterdir())]
            (new / CHECKSUMS).write_text("".join(lines), encoding="utf-8")
    except OSError as error:
        raise FedskewError(f"export {folder}: cannot be written: {error.strerror}") from None
    return folder


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
    require(
        folder.resolve() != Path.cwd(),
        "export: it replaces a whole folder, and this one is the current one; name another",
    )


class Answering(nn.Module):
    """A module that maps inputs to probabilities (n, K) or predicted numbers (n,): the network and the task's last step."""

    def __init__(self, net: nn.Module, kind: TaskKind) -> None:
        super().__init__()
        self.net, self.kind = net, kind

    def forward(self, x: Tensor) -> Tensor:
        return answered(self.kind, self.net(x)[1])


def write_graph(made: Trained, path: Path) -> None:
    """Write the ONNX file that maps raw rows, as files hold them, to predictions. Raises `BadInput` if ONNX cannot do this."""
    known = made.learned.preprocessing
    if known is None or isinstance(made.model, Encoder):
        raise BadInput("its preprocessing cannot be computed by ONNX")
    if made.kind.target == "symbols":
        raise BadInput(
            "it predicts at each place of a row, but predict.py predicts once a row; write --format onnx for the network alone"
        )
    program = network_graph(Answering(made.net, made.kind).eval(), made.example, OPSET)
    from onnx import compose, helper

    kind = "INT64" if made.task.ids else {torch.float32: "FLOAT", torch.float64: "DOUBLE"}[made.dtype]
    first, second = preprocessing_graph(known, kind), program.model_proto
    first.ir_version = second.ir_version
    whole = compose.merge_models(first, second, io_map=[(INPUT, "x")], prefix2="network/")
    helper.set_model_props(whole, about(known, made.learned.classes))
    path.write_bytes(whole.SerializeToString())
