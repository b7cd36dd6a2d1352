"""The last layer at the first place only, for encoders whose first hidden state is all that is used.

No other place of the last layer reaches the output: its keys and values are needed everywhere, its queries, its attention and its
feed-forward part at one place instead of L. Of a BERT layer's twelve H x H products a place two are left, forward and backward,
and the hidden state at the first place is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn


def attended(part: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Attention of the first place (n, 1, H) to all L places."""

    def heads(x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, part.attention_head_size)).transpose(1, 2)

    first = None if mask is None else mask[:, :, :1]
    out = F.scaled_dot_product_attention(heads(query), heads(key), heads(value), first, scale=part.scaling)
    return out.transpose(1, 2).flatten(2)


def of_bert(layer: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, *_: Any, **__: Any) -> Tensor:
    """BERT's layer and its descendants': RoBERTa, ELECTRA, XLM-RoBERTa, CamemBERT."""
    part, first = layer.attention.self, hidden_states[:, :1]
    seen = attended(part, part.query(first), part.key(hidden_states), part.value(hidden_states), attention_mask)
    return layer.feed_forward_chunk(layer.attention.output(seen, first))


def of_distilbert(
    layer: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, *_: Any, **__: Any
) -> Tensor:
    part, first = layer.attention, hidden_states[:, :1]
    seen = attended(part, part.q_lin(first), part.k_lin(hidden_states), part.v_lin(hidden_states), attention_mask)
    hidden = layer.sa_layer_norm(part.out_lin(seen) + first)
    return layer.output_layer_norm(layer.ffn(hidden) + hidden)


KNOWN: dict[str, Callable[..., Tensor]] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "electra"), of_bert),
    "distilbert": of_distilbert,
}
"""A kind of encoder, as its configuration calls it -> its layer's forward pass at the first place."""


def first_place_only(layer: nn.Module, config: Any) -> None:
    """Let an encoder's last layer give (n, 1, H) instead of (n, L, H); one of an unknown kind stays as it is."""
    known = KNOWN.get(config.model_type)
    if known and not getattr(config, "is_decoder", False) and config._attn_implementation in ("sdpa", "eager"):
        layer.forward = MethodType(known, layer)
