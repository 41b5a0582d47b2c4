"""Attention modules whose projections are linear layers of reduced precision.

``nn.MultiheadAttention`` multiplies by ``torch.nn.functional.linear``, which stays as
it is, and in inference by one operator for all of it, as ``nn.TransformerEncoderLayer``
does. At level fast both get a stand-in. Where the row that rounds to bfloat16 would
take the projection, the module runs a copy of torch's own function for the general
case, which differs in what it projects with; everything else goes on as ever.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pai_torchacc._ledger import Ledger
from pai_torchacc.fusion.compiled import not_compiled_alone

_UNBATCHED = 2
_PROJECTING = (
    "multi_head_attention_forward",
    "_in_projection_packed",
    "_in_projection",
)
"""Functions of torch that call ``linear`` or each other."""


def install(c: Any, ledger: Ledger) -> None:
    """Put the stand-ins in place; the ledger takes them away."""
    attend = _attend(c)
    if attend is None:
        return
    for module, make in (
        (nn.MultiheadAttention, _attention_forward),
        (nn.TransformerEncoderLayer, _layer_forward),
    ):
        ledger.set_attribute(module, "forward", make(c))


@functools.cache
def _attend(c: Any) -> Any:
    """``F.multi_head_attention_forward`` with our projections; None: it is another."""
    own, accelerated = vars(F), c.linear
    stock = torch._C._nn.linear
    if not all(isinstance(own.get(name), FunctionType) for name in _PROJECTING):
        return None

    def linear(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
        dense = x if x.is_contiguous() else x.contiguous()
        result = accelerated(dense, w, bias)
        return stock(x, w, bias) if result is None else result

    names = dict(own, linear=linear)
    for name in reversed(_PROJECTING):
        names[name] = _copied(own[name], names)
    return names[_PROJECTING[0]]


def _copied(function: FunctionType, names: dict[str, Any]) -> FunctionType:
    copy = FunctionType(
        function.__code__,
        names,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _in_place_of(original: FunctionType, stand_in: FunctionType) -> Any:
    """The stand-in with the global names of the original, and none of ours.

    torch.jit.script compiles the original's source, and looks there for its names.
    """
    moved = FunctionType(
        stand_in.__code__,
        original.__globals__,
        original.__name__,
        stand_in.__defaults__,
        stand_in.__closure__,
    )
    return not_compiled_alone(functools.wraps(original)(moved))


def _is_as_torch_made_it(attend: Any) -> bool:
    """Whether nobody has patched what the copies call."""
    own, names = vars(F), attend.__globals__
    return own["linear"] is torch._C._nn.linear and all(
        own.get(name) is names[name] for name in _called(attend)
    )


@functools.cache
def _called(attend: Any) -> tuple[str, ...]:
    names = attend.__globals__
    used = {n for f in _PROJECTING for n in names[f].__code__.co_names}
    return tuple(used.intersection(names).difference(_PROJECTING, ["linear"]))


def _is_stocks(c: Any, attend: Any, module: nn.Module, query: Tensor) -> bool:
    """Whether the first projection of such a call would not be rounded to bfloat16.

    Nothing is where a module of another class, a parametrization or int8 weights have
    taken the place of the parameter.
    """
    if torch.compiler.is_compiling():
        return True
    parameters = module._parameters
    weight = parameters.get("in_proj_weight")
    if weight is None:
        weight = parameters.get("q_proj_weight")
    if weight is None or c.linear_row(query, weight) != "bf16":
        return True
    return not _is_as_torch_made_it(attend)


@functools.cache
def _attention_forward(c: Any) -> Any:
    original = vars(nn.MultiheadAttention)["forward"]
    attend, wants_gradient = _attend(c), torch.is_grad_enabled
    within = functools.partial(_within_sequences, attend.__globals__["linear"])
    is_stocks = functools.partial(_is_stocks, c, attend)

    def forward(  # noqa: PLR0913, PLR0917 - they are torch's
        self: nn.MultiheadAttention,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if is_stocks(self, query) or key.is_nested or value.is_nested:
            return original(
                *(self, query, key, value, key_padding_mask, need_weights, attn_mask),
                *(average_attn_weights, is_causal),
            )
        masks = key_padding_mask, attn_mask, self.bias_k
        is_whole = query is key is value and self._qkv_same_embed_dim
        is_bare = not (need_weights or is_causal or self.add_zero_attn)
        if is_whole and is_bare and masks == (None, None, None) and self.batch_first:
            return within(self, query), None
        is_turned = self.batch_first and query.dim() > 2  # noqa: PLR2004 - a batch
        if is_turned:  # who was the same tensor still is
            turned = {id(x): x.transpose(1, 0) for x in (query, key, value)}
            query, key, value = (turned[id(x)] for x in (query, key, value))
        attended, weights = attend(
            *(query, key, value, self.embed_dim, self.num_heads),
            *(self.in_proj_weight, self.in_proj_bias, self.bias_k, self.bias_v),
            *(self.add_zero_attn, self.dropout),
            *(self.out_proj.weight, self.out_proj.bias),
            training=self.training,
            key_padding_mask=key_padding_mask,
            need_weights=need_weights,
            attn_mask=attn_mask,
            use_separate_proj_weight=not self._qkv_same_embed_dim,
            q_proj_weight=self.q_proj_weight,
            k_proj_weight=self.k_proj_weight,
            v_proj_weight=self.v_proj_weight,
            average_attn_weights=average_attn_weights,
            is_causal=is_causal,
        )
        if is_turned:
            attended = attended.transpose(1, 0)
            if not (self.training or wants_gradient()):
                attended = attended.contiguous()  # as stock's one operator returns it
        return attended, weights

    return _in_place_of(original, forward)


def _within_sequences(
    linear: Callable[..., Tensor], module: nn.MultiheadAttention, x: Tensor
) -> Tensor:
    """Attention of sequences [..., positions, embed] with themselves, bare of options.

    Torch turns them first and copies what the projection gives. Where it does so, its
    result lies positions first, which decides over what falls to a dropout behind it.
    """
    heads, size = module.num_heads, module.head_dim
    projected = linear(x, module.in_proj_weight, module.in_proj_bias)
    parts = projected.unflatten(-1, (3, heads, size)).movedim(-3, 0)
    q, k, v = (part.transpose(-3, -2) for part in parts)
    if x.dim() == _UNBATCHED:
        q, k, v = (part.unsqueeze(0) for part in (q, k, v))
    dropout = module.dropout if module.training else 0.0
    y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
    weight, bias = module.out_proj.weight, module.out_proj.bias
    if x.dim() == _UNBATCHED or not (module.training or torch.is_grad_enabled()):
        return linear(y.transpose(1, 2).reshape(x.shape), weight, bias)
    y = linear(y.permute(2, 0, 1, 3).flatten(2), weight, bias)
    return y.transpose(0, 1)


@functools.cache
def _layer_forward(c: Any) -> Any:
    original = vars(nn.TransformerEncoderLayer)["forward"]
    is_stocks = functools.partial(_is_stocks, c, _attend(c))

    def forward(
        self: nn.TransformerEncoderLayer,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        # In training stock's forward calls the modules, which are served one by one.
        if self.training or is_stocks(self.self_attn, src):
            return original(self, src, src_mask, src_key_padding_mask, is_causal)
        masks = src_mask, src_key_padding_mask, is_causal
        if self.norm_first:
            x = src + self._sa_block(self.norm1(src), *masks)
            return x + self._ff_block(self.norm2(x))
        x = self.norm1(src + self._sa_block(src, *masks))
        return self.norm2(x + self._ff_block(x))

    return _in_place_of(original, forward)
