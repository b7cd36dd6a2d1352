"""The frozen layers at the front of an encoder: their result for a text never changes, so it is computed once."""

import copy
import hashlib
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedskew.models.encoder import PIECE, EncoderNet, cut, layers_of, real

OnProgress = Callable[[int, int], None]
"""Progress callback: called with the number of rows done and of all rows."""


class Pass(nn.Module):
    """Takes the place of a frozen layer: returns its input, the hidden states."""

    def forward(self, *args: object, **kwargs: object) -> Tensor:
        return next(a for a in (*args, *kwargs.values()) if isinstance(a, Tensor) and a.dim() == 3)


class ReachedError(Exception):
    """Ends a forward pass after the frozen layers."""


def prefix(net: EncoderNet) -> list[tuple[nn.Module, str]]:
    """The frozen layers from the embeddings on, up to the first with a trainable parameter: each one's owner and name there."""
    layers = layers_of(net.encoder)[1]
    parts: list[tuple[nn.Module, str]] = [(net.encoder, "embeddings")]
    parts += [(layers, str(i)) for i in range(len(layers))]
    trained = [any(p.requires_grad for p in getattr(*part).parameters()) for part in parts]
    return parts[: trained.index(True)] if True in trained else parts


def key(net: EncoderNet, x: Tensor) -> str:
    """A hash, sixteen hex digits, of all that the frozen layers' results depend on: weights, settings and token ids."""
    digest = hashlib.sha256(net.encoder.config.to_json_string().encode())  # type: ignore[operator, union-attr]
    digest.update(f"{x.dtype}{tuple(x.shape)}".encode())
    for owner, name in prefix(net):
        for tensor in getattr(owner, name).state_dict().values():
            digest.update(tensor.cpu().contiguous().numpy().data)
    digest.update(x.cpu().contiguous().numpy().data)
    return digest.hexdigest()[:16]


def activations(net: EncoderNet, x: Tensor, out: Tensor, on_progress: OnProgress) -> None:
    """Fill ``out`` (n, L, H) with the hidden states after the frozen layers for the token ids x (n, L), 0 after a text's end.

    Rows of similar length are computed together.
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
    """The module without its frozen layers, for rows that hold their results. Trainable parameters keep names and order."""
    memo: dict[int, object] = {id(part): Pass() for part in (getattr(*place) for place in prefix(net))}
    return copy.deepcopy(net, memo)
