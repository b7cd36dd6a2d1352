"""The frozen part at the front of an encoder: what it computes for a text never changes, so it is computed once."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fedskew.models.encoder import PIECE, EncoderNet, cut, layers_of, real

Tell = Callable[[int, int], None]
"""Called with the rows done and the rows in all."""


class Pass(nn.Module):
    """Stands where a part was: gives back the hidden states that it is given."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return next(a for a in (*args, *kwargs.values()) if isinstance(a, Tensor) and a.dim() == 3)


class ReachedError(Exception):
    """The frozen part is done; what follows need not be computed."""


def prefix(net: EncoderNet) -> list[tuple[nn.Module, str]]:
    """The longest run of parts from the embeddings on without a trainable parameter: the owner of each and its name there."""
    layers = layers_of(net.encoder)[1]
    parts: list[tuple[nn.Module, str]] = [(net.encoder, "embeddings")]
    parts += [(layers, str(i)) for i in range(len(layers))]
    trained = [any(p.requires_grad for p in getattr(*part).parameters()) for part in parts]
    return parts[: trained.index(True)] if True in trained else parts


def key(net: EncoderNet, x: Tensor) -> str:
    """Sixteen hex digits of everything that the frozen part's results depend on: its weights, its settings, the token ids."""
    digest = hashlib.sha256(net.encoder.config.to_json_string().encode())  # type: ignore[operator, union-attr]
    digest.update(f"{x.dtype}{tuple(x.shape)}".encode())
    for owner, name in prefix(net):
        for tensor in getattr(owner, name).state_dict().values():
            digest.update(tensor.cpu().contiguous().numpy().data)
    digest.update(x.cpu().contiguous().numpy().data)
    return digest.hexdigest()[:16]


def activations(net: EncoderNet, x: Tensor, out: Tensor, tell: Tell) -> None:
    """Fill ``out`` (n, L, H) with the hidden states after the frozen part for the token ids x (n, L), and 0 beyond a text's end.

    Rows of like length go together.
    """
    owner, name = prefix(net)[-1]

    def reached(module: nn.Module, args: Any, result: Any) -> None:
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
            tell(done, len(x))
    finally:
        hook.remove()


def suffix(net: EncoderNet) -> EncoderNet:
    """The module without its frozen part, for rows that hold what that computes; trainable parameters keep names and order."""
    memo: dict[int, Any] = {id(part): Pass() for part in (getattr(*place) for place in prefix(net))}
    return copy.deepcopy(net, memo)
