"""MultiheadAttention with int8 projections.

Between the projections everything is as in stock: masks, dropout, softmax. Where the
switch is off, and for nested tensors, it is stock's own forward with dequantized
weights, its fast path included.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pai_torchacc.quantization import dispatch, operators, quantizer
from pai_torchacc.quantization.storage import QuantizedModule

_BATCHED = 3


class Int8MultiheadAttention(QuantizedModule, nn.MultiheadAttention):
    """``nn.MultiheadAttention`` with an int8 ``in_proj_weight``.

    ``out_proj`` may be int8 as well. The weight is packed as one piece for attention
    within a sequence; attention between sequences splits it, for good, into what is
    multiplied with the queries and with the keys and values.
    """

    weight_name = "in_proj_weight"
    packed_on = ("cpu", "cuda")
    has_cuda_kernels = True

    _reset_parameters = QuantizedModule.reset_parameters

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute what ``nn.MultiheadAttention`` does."""
        # A hint without the mask that it is about means different things to stock.
        is_plain = not is_causal or attn_mask is not None
        if not is_plain or not self._is_ours(query, key, value):
            return super().forward(
                *(query, key, value, key_padding_mask, need_weights, attn_mask),
                *(average_attn_weights, is_causal),
            )
        is_batched = F._mha_shape_check(
            query, key, value, key_padding_mask, attn_mask, self.num_heads
        )
        query, key, value = self._sequences_first(query, key, value, is_batched)
        mask, is_causal = self._mask(
            *(query, key, value, key_padding_mask, attn_mask),
            *(is_causal, need_weights),
        )
        attended, weights = self._attend(
            query, key, value, mask, is_causal, need_weights
        )
        result = self._project_out(attended)
        if weights is not None and average_attn_weights:
            weights = weights.mean(dim=1)
        if not is_batched:
            return result.squeeze(1), None if weights is None else weights.squeeze(0)
        if self.batch_first:
            result = result.transpose(1, 0).contiguous()
        return result, weights

    def _is_ours(self, *inputs: Tensor) -> bool:
        if not quantizer.is_in_graph() and operators.kernels.get("int8_linear") is None:
            return False
        if self._scale().device.type not in self.packed_on:
            return False
        return not any(x.is_nested for x in inputs)

    def _sequences_first(
        self, query: Tensor, key: Tensor, value: Tensor, is_batched: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Sequences first, batch second; who was the same tensor still is."""

        def turned(x: Tensor) -> Tensor:
            if not is_batched:
                return x.unsqueeze(1)
            return x.transpose(1, 0) if self.batch_first else x

        q = turned(query)
        k = q if key is query else turned(key)
        return q, k, k if value is key else turned(value)

    def _mask(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        padding: Tensor | None,
        mask: Tensor | None,
        is_causal: bool,
        need_weights: bool,
    ) -> tuple[Tensor | None, bool]:
        """Both masks as one that fits [batch, heads, targets, sources], to be added.

        And whether the kernel is to make a causal one. Sizes that do not fit are
        refused. All as in ``F.multi_head_attention_forward``.
        """
        (n_targets, n_batch), n_sources = query.shape[:2], key.shape[0]
        padding = F._canonical_mask(
            padding,
            *("key_padding_mask", F._none_or_dtype(mask), "attn_mask", query.dtype),
        )
        is_made = is_causal and padding is None and not need_weights
        mask = None if is_made else mask
        mask = F._canonical_mask(mask, "attn_mask", None, "", query.dtype, False)
        if query.shape[-1] != self.embed_dim or key.shape != value.shape:
            shapes = [tuple(x.shape) for x in (query, key, value)]
            raise AssertionError(f"{shapes} do not fit in {self.embed_dim} dimensions")
        if mask is not None:
            sizes: tuple[int, ...] = n_targets, n_sources
            if mask.dim() == _BATCHED:
                sizes = n_batch * self.num_heads, *sizes
            if mask.shape != sizes:
                raise RuntimeError(f"attn_mask: {tuple(mask.shape)} should be {sizes}")
            if mask.dim() == _BATCHED:
                mask = mask.view(n_batch, self.num_heads, n_targets, n_sources)
        if padding is not None:
            sizes = (n_batch, n_sources)[2 - padding.dim() :]
            if not torch.jit.is_tracing() and tuple(padding.shape) != sizes:
                raise AssertionError(
                    f"key_padding_mask: {tuple(padding.shape)} should be {sizes}"
                )
            padding = padding.reshape(n_batch, 1, 1, n_sources)
            mask = padding if mask is None else mask + padding
        return mask, is_causal and padding is None

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Attended values [targets, batch, embed]; weights [batch, heads, t, s]."""
        n_batch, heads = query.shape[1], self.num_heads
        q, k, v = (
            x.reshape(x.shape[0], n_batch, heads, self.head_dim).permute(1, 2, 0, 3)
            for x in self._project_in(query, key, value)
        )
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = (q * math.sqrt(1.0 / self.head_dim)) @ k.transpose(-2, -1)
            scores = scores if mask is None else scores + mask
            weights = F.softmax(scores, dim=-1)
            if dropout > 0.0:
                weights = F.dropout(weights, p=dropout)
            attended = weights @ v
        else:
            attended = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal)
        return attended.permute(2, 0, 1, 3).flatten(2), weights

    # Projections.

    def _project_in(
        self, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, ...]:
        e = self.embed_dim
        if key is value:
            if query is key:
                return self._project(query, 0, 3 * e).split(e, -1)
            self._split(2)
            return (
                self._project(query, 0, e),
                *self._project(key, e, 3 * e).split(e, -1),
            )
        self._split(3)
        inputs = enumerate((query, key, value))
        return tuple(self._project(x, i * e, (i + 1) * e) for i, x in inputs)

    def _rows(self, n_pieces: int) -> tuple[int, ...]:
        e = self.embed_dim
        return ((3 * e,), (e, 2 * e), (e, e, e))[n_pieces - 1]

    def _pieces_of(self, plain: Tensor, n_pieces: int = 0) -> dict[str, Tensor]:
        """In so many pieces, or in as many as there are."""
        parts = plain.split(self._rows(n_pieces or len(self._packed()) or 1))
        return {
            name: quantizer.pack(part)
            for name, part in zip(self._names, parts, strict=False)
        }

    def _split(self, n_pieces: int) -> None:
        """Pack the weight in at least so many pieces.

        What is packed while a CUDA graph is captured would be there at its replay only.
        """
        packed = self._packed()
        if packed and packed[0].is_cuda and torch.cuda.is_current_stream_capturing():
            return
        if 0 < len(packed) < n_pieces and not quantizer.is_in_graph():
            with quantizer.ordinary():
                pieces = self._pieces_of(self._plain(), n_pieces)
            self.__dict__["_buffers"] = self._buffers | pieces

    def _project(self, x: Tensor, first: int, last: int) -> Tensor:
        """``x @ w[first:last].T + bias[first:last]``."""
        parts, at = [], 0
        scale, bias = self._scale(), self._parameters["in_proj_bias"]
        packed: list[Any] = self._packed() or [None]
        state = self._int8
        is_float = bool(state.floats) and state.is_float(x, self.embed_dim)
        for piece, rows in zip(packed, self._rows(len(packed)), strict=True):
            begin, at = at, at + rows
            if at <= first or begin >= last:
                continue
            own = None if bias is None else bias[begin:at]
            part = None
            if not is_float:
                part = dispatch.product(
                    *("int8_linear", x, piece, scale[begin:at], own),
                    *(rows, self.embed_dim),
                )
            if part is None:
                weight = self._float_weight(x.dtype)[begin:at]
                part = F.linear(x, weight, own)
            parts.append(part[..., max(first - begin, 0) : last - begin])
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def _project_out(self, x: Tensor) -> Tensor:
        """Project as stock, which does not call ``out_proj`` with its hooks."""
        projection: Any = self.out_proj
        if isinstance(projection, QuantizedModule):
            return type(projection).forward(projection, x)
        return F.linear(x, projection.weight, projection.bias)
