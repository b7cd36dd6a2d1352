"""Computes the frozen first layers of an encoder only once for each text, because their result never changes."""

import copy
import hashlib
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedskew.models.encoder import PIECE, EncoderNet, cut, layers_of, real

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
