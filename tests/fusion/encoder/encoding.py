"""Self-attention and encoder layers, and what they are given."""

from __future__ import annotations

from typing import NamedTuple

import contract
import torch
from torch import Tensor, nn

LAYER, ATTENTION = OPS = ("encoder_layer", "multi_head_attention")

ENCODE = torch.ops.aten._transformer_encoder_layer_fwd
ATTEND = torch.ops.aten._native_multi_head_attention

MASKS = ("none", "pairs", "keys", "all")


class Sizes(NamedTuple):
    """Sequences, positions, numbers at each, heads and the hidden layer."""

    batch: int
    length: int
    width: int
    heads: int
    hidden: int


def mask_of(kind: str, sizes: Sizes) -> tuple[Tensor | None, int | None]:
    """A mask, true where nothing is seen, and torch's number of its kind."""
    batch, length, _, heads, _ = sizes
    pairs = torch.ones(length, length, dtype=torch.bool).triu(1)
    keys = torch.arange(length) >= torch.arange(batch).unsqueeze(1) + 1
    if kind == "pairs":
        return pairs, 0
    if kind == "keys":
        return keys, 1
    if kind == "all":
        both = keys.view(batch, 1, 1, length) | pairs
        return both.expand(batch, heads, length, length), 2
    return None, None


def weights(sizes: Sizes, dtype: torch.dtype) -> list[Tensor]:
    """In- and out-projection, norms and both layers, as the operator takes them."""
    _, _, width, _, hidden = sizes
    scale = width**-0.5
    draw = contract.draw
    return [
        draw(3 * width, width, dtype=dtype, scale=scale),
        draw(3 * width, dtype=dtype),
        draw(width, width, dtype=dtype, scale=scale),
        *(draw(width, dtype=dtype) for _ in range(5)),
        draw(hidden, width, dtype=dtype, scale=scale),
        draw(hidden, dtype=dtype),
        draw(width, hidden, dtype=dtype, scale=hidden**-0.5),
        draw(width, dtype=dtype),
    ]


def encoded(
    sizes: Sizes,
    x: Tensor,
    mask: str = "none",
    *,
    gelu: bool = False,
    norm_first: bool = False,
) -> Tensor:
    """The layer's result."""
    w = weights(sizes, x.dtype)
    given = mask_of(mask, sizes)
    width, heads = sizes.width, sizes.heads
    result: Tensor = ENCODE(
        *(x, width, heads, *w[:4], gelu, norm_first, 1e-5, *w[4:], *given)
    )
    return result


def attended(sizes: Sizes, x: Tensor, mask: str = "none") -> Tensor:
    """The result of attention."""
    w = weights(sizes, x.dtype)[:4]
    mask_given, kind = mask_of(mask, sizes)
    result: Tensor = ATTEND(
        *(x, x, x, sizes.width, sizes.heads, *w, mask_given, False, True, kind)
    )[0]
    return result


def model(sizes: Sizes, **options: object) -> nn.Module:
    """Two layers in eval mode."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(  # type: ignore[arg-type]
        sizes.width, sizes.heads, sizes.hidden, batch_first=True, **options
    )
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
