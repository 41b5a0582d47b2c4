"""``nn.TransformerEncoderLayer`` whose layers are int8, in few calls.

Such a layer gets a class of its own, and loses it with them. In inference its two
products of a sublayer, the activation, the residual and the norm are computed by
``int8_sublayer``, and the heads of attention are read from where the projection leaves
them. Everything else is as in stock's forward, which computes what this cannot.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as _module

from pai_torchacc.fusion.foreign import is_torchs_own
from pai_torchacc.quantization import dispatch, operators
from pai_torchacc.quantization.attention import Int8MultiheadAttention
from pai_torchacc.quantization.layers import Int8Linear, Int8OutProjection
from pai_torchacc.quantization.quantizer import WEIGHTS, is_in_graph

_BATCHED = 3

_RELU, _GELU = 1, 2
_ACTIVATIONS = {F.relu: _RELU, torch.relu: _RELU, F.gelu: _GELU}
_NO_NORM, _FIRST, _LAST = range(3)
"""As the extension calls them."""

_BLOCKS = frozenset(("_sa_block", "_ff_block"))
"""Methods that somebody may have given to one layer."""

_NONE = None, None, None, 0
"""No second weight."""

_CALLED = (
    (nn.TransformerEncoderLayer, "forward"),
    (nn.TransformerEncoderLayer, "_sa_block"),
    (nn.TransformerEncoderLayer, "_ff_block"),
    (nn.LayerNorm, "forward"),
    (nn.Dropout, "forward"),
    (F, "layer_norm"),
    (nn.ReLU, "forward"),
    (nn.GELU, "forward"),
    (F, "relu"),
    (F, "gelu"),
)
"""What stock's forward would call. Where somebody has patched one of them, it is."""

_GLOBAL_HOOKS = (
    _module._global_forward_hooks,
    _module._global_forward_pre_hooks,
)


class Int8EncoderLayer(nn.TransformerEncoderLayer):
    """``nn.TransformerEncoderLayer`` around int8 layers."""

    self_attn: Any
    linear1: Any
    linear2: Any

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Compute what ``nn.TransformerEncoderLayer`` does."""
        # A hint without the mask that it is about means different things to stock.
        is_plain = not is_causal or src_mask is not None
        if not (is_plain and self._takes(src)):
            return super().forward(src, src_mask, src_key_padding_mask, is_causal)
        x = src.contiguous()
        masks = src_mask, src_key_padding_mask, is_causal
        return self._feed_forward(self._attention(x, *masks))

    def _takes(self, x: Tensor) -> bool:
        """Whether this call is one of inference that nobody observes."""
        if (
            is_in_graph()
            or operators.kernels.get("int8_sublayer") is None
            or torch.is_grad_enabled()
            or self.training
            or type(x) is not Tensor
            or x.dim() != _BATCHED
            or x.dtype != torch.float32
            or not x.is_cpu
            or dispatch.is_transformed()
            or dispatch._is_autocast()
            or not _are_as_torchs()
        ):
            return False
        modules = self._modules
        attention: Any = modules.get("self_attn")
        if type(attention) is not Int8MultiheadAttention or not _BLOCKS.isdisjoint(
            self.__dict__
        ):
            return False
        projection, width = attention._modules["out_proj"], attention.embed_dim
        layers = attention, projection, modules["linear1"], modules["linear2"]
        norms = modules["norm1"], modules["norm2"]
        dropouts = [modules.get(name) for name in ("dropout", "dropout1", "dropout2")]
        called: list[Any] = [*layers, *norms, *dropouts]
        if isinstance(self.activation, nn.Module):
            called.append(self.activation)
        return bool(
            x.shape[2] == width
            and tuple(map(type, layers)) == _LAYERS
            and all(type(dropout) is nn.Dropout for dropout in dropouts)
            and all(type(norm) is nn.LayerNorm for norm in norms)
            and all(norm.normalized_shape == (width,) for norm in norms)
            and self._activation()
            and not any(map(_is_observed, called))
            and all(_is_int8(layer, x) for layer in layers)
        )

    def _activation(self) -> int:
        """Which one it is, or 0."""
        of: Any = self.activation
        if type(of) is nn.ReLU:
            return _RELU
        if type(of) is nn.GELU:
            return _GELU if of.approximate == "none" else 0
        return next((n for fn, n in _ACTIVATIONS.items() if of is fn), 0)

    def _attention(
        self, x: Tensor, mask: Tensor | None, padding: Tensor | None, is_causal: bool
    ) -> Tensor:
        """Attention with what it adds to, and the norm before or behind it."""
        attention, heads, e = self.self_attn, self.self_attn.num_heads, x.shape[2]
        qkv = None
        if self.norm_first:
            qkv = _sublayer(x, _projection(attention), norm=self.norm1, place=_FIRST)
        if qkv is None:
            normal = self.norm1(x) if self.norm_first else x
            qkv = attention._project(normal, 0, 3 * e)
        if mask is not None or padding is not None:
            first = x.transpose(0, 1) if attention.batch_first else x
            mask, is_causal = attention._mask(
                first, first, first, padding, mask, is_causal, False
            )
        order = (2, 0, 3, 1, 4) if attention.batch_first else (2, 1, 3, 0, 4)
        parts = qkv.view(*x.shape[:2], 3, heads, e // heads).permute(order).unbind(0)
        attended = F.scaled_dot_product_attention(*parts, mask, 0.0, is_causal)
        order = (0, 2, 1, 3) if attention.batch_first else (2, 0, 1, 3)
        attended = attended.permute(order).reshape(x.shape)
        place = _NO_NORM if self.norm_first else _LAST
        y = _sublayer(
            *(attended, _weight(attention.out_proj)),
            residual=x,
            norm=self.norm1,
            place=place,
        )
        if y is None:
            y = x + attention._project_out(attended)
            y = y if self.norm_first else self.norm1(y)
        return y

    def _feed_forward(self, x: Tensor) -> Tensor:
        """Both linear layers, with the same around them."""
        y = _sublayer(
            *(x, _weight(self.linear1), self._activation(), _weight(self.linear2)),
            residual=x,
            norm=self.norm2,
            place=_FIRST if self.norm_first else _LAST,
        )
        if y is None and self.norm_first:
            return x + self._ff_block(self.norm2(x))
        return self.norm2(x + self._ff_block(x)) if y is None else y


_PACKED = {name: f"{name}_packed" for name in WEIGHTS}

_LAYERS = Int8MultiheadAttention, Int8OutProjection, Int8Linear, Int8Linear


_approved: list[tuple[Any, ...]] = [()]
"""What was last found to be torch's own."""


def _are_as_torchs() -> bool:
    """Whether stock's forward would call torch's own, and nothing else of it."""
    now = tuple([getattr(owner, name) for owner, name in _CALLED])
    if now != _approved[0]:
        if not all(is_torchs_own(*one) for one in _CALLED):
            return False
        _approved[0] = now
    return not (_GLOBAL_HOOKS[0] or _GLOBAL_HOOKS[1])


def _is_observed(module: nn.Module) -> bool:
    """Whether a call of it does more, or something else, than its class does."""
    own = module.__dict__
    return bool(
        own["_forward_hooks"]
        or own["_forward_pre_hooks"]
        or own["training"]
        or "forward" in own
    )


def _is_int8(layer: Any, x: Tensor) -> bool:
    """Whether so many rows are computed in int8, by a weight in one piece."""
    state, buffers = layer._int8, layer._buffers
    name = _PACKED[layer.weight_name]
    return (
        name in buffers
        and f"{name}_1" not in buffers
        and not (state.floats and state.is_float(x, x.shape[2]))
    )


_Weight = tuple[Tensor, Tensor, Any, int, int]


def _weight(layer: Any) -> _Weight:
    """Packed, with scales, bias and sizes."""
    buffers, name = layer._buffers, layer.weight_name
    scale, bias = buffers[f"{name}_scale"], layer._parameters["bias"]
    return buffers[f"{name}_packed"], scale, bias, *layer._int8.shape


def _projection(attention: Any) -> _Weight:
    """The same of queries, keys and values."""
    buffers, name = attention._buffers, attention.weight_name
    bias = attention._parameters["in_proj_bias"]
    shape = attention._int8.shape
    return buffers[f"{name}_packed"], buffers[f"{name}_scale"], bias, *shape


def _sublayer(
    x: Tensor,
    weight: _Weight,
    activation: int = 0,
    second: _Weight | None = None,
    *,
    residual: Tensor | None = None,
    norm: Any,
    place: int,
) -> Tensor | None:
    """Give the operator's result, or None where it gives the call back."""
    kernel = operators.kernels.get("int8_sublayer")
    if kernel is None:
        return None
    affine = (norm.weight, norm.bias, norm.eps) if place else (None, None, 0.0)
    last = _NONE if second is None else second[:4]
    return kernel(x, *weight, activation, *last, residual, *affine, place)


def settle(model: nn.Module) -> None:
    """Swap the classes of layers in which all is int8, and only of these."""
    for module in model.modules():
        if type(module) is nn.TransformerEncoderLayer and _is_ours(module):
            module.__class__ = Int8EncoderLayer
        elif type(module) is Int8EncoderLayer and not _is_ours(module):
            module.__class__ = nn.TransformerEncoderLayer


def _is_ours(layer: Any) -> bool:
    own = layer._modules
    attention = own.get("self_attn")
    projection = getattr(attention, "out_proj", None)
    layers = attention, projection, own.get("linear1"), own.get("linear2")
    return tuple(map(type, layers)) == _LAYERS
