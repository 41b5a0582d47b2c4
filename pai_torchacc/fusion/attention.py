"""Functions of attention whose projections are linear layers of reduced precision.

``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer`` call
``F.multi_head_attention_forward``, which multiplies by ``F.linear``, or in inference
one operator each for all of it. At level fast these three functions get stand-ins: a
copy of the first that projects by the row of linear layers, and both operators in their
parts where that row rounds to bfloat16. The modules, and what they make of masks, hooks
and subclasses, stay torch's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import has_torch_function

from pai_torchacc._ledger import Ledger
from pai_torchacc.fusion.activations import ACTIVATIONS
from pai_torchacc.fusion.compiled import not_compiled_alone
from pai_torchacc.fusion.foreign import is_torchs_own

ATTEND = "multi_head_attention_forward"
_PROJECTING = (ATTEND, "_in_projection_packed", "_in_projection")
"""Functions of torch that call ``linear`` or each other."""

_N_POSITIONAL = 13
"""Arguments of attention that modules give by position."""
_N_LAYER = 20
"""Arguments of an encoder layer."""

Linear = Callable[..., Tensor]


def install(c: Any, ledger: Ledger) -> None:
    """Put the stand-ins in place; the ledger takes them away."""
    is_own = all(is_torchs_own(F, name) for name in _PROJECTING)
    linear = _linear(c)
    ledger.set_attribute(F, ATTEND, _attention(c, linear) if is_own else None)
    table = torch.jit._builtins._get_builtin_table()
    for make in (_native_attention, _encoder_layer):
        stand_in = make(c, linear)
        ledger.set_attribute(torch, stand_in.__name__, stand_in)
        ledger.set_item(table, id(stand_in), f"aten::{stand_in.__name__}")


def _linear(c: Any) -> Linear:
    accelerated, row_of, stock = c.linear_act, c.linear_row, torch._C._nn.linear

    def linear(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
        dense = x
        if not x.is_contiguous():  # sequences first, of a batch that lies first
            turns = x.dim() > 1 and row_of(x.transpose(0, 1), w) is not None
            dense = x.contiguous() if turns else x
        result = accelerated(dense, w, bias, 0)  # no activation
        return stock(x, w, bias) if result is None else result

    return linear


def _attention(c: Any, linear: Linear) -> Any:
    """The stand-in of ``F.multi_head_attention_forward``."""
    original, copies = vars(F)[ATTEND], _copies(linear)
    is_untouched = _watch()
    is_compiling = torch.compiler.is_compiling

    def turned(*args: Any, **options: Any) -> Any:
        return _turned(linear, args, options), None

    def chosen(args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if (
            is_compiling()
            or len(args) != _N_POSITIONAL
            or has_torch_function((*args, *options.values()))
            or not is_untouched()
        ):
            return original
        if _is_bare(args, options) and _rounds(c, args[0].transpose(0, 1), args[5]):
            return turned
        return copies[ATTEND]

    def multi_head_attention_forward(*args: Any, **options: Any) -> Any:
        return chosen(args, options)(*args, **options)

    return _in_place_of(original, multi_head_attention_forward)


def _copies(linear: Linear) -> dict[str, Any]:
    """Names of ``torch.nn.functional``, of which some functions call this linear."""
    own = vars(F)
    names = dict(own, linear=linear)
    for name in _PROJECTING:
        names[name] = _moved(own[name], names)
    return names


def _moved(function: FunctionType, names: dict[str, Any]) -> FunctionType:
    moved = FunctionType(
        function.__code__,
        names,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    moved.__kwdefaults__ = function.__kwdefaults__
    return moved


def _in_place_of(original: FunctionType, stand_in: FunctionType) -> Any:
    """The stand-in with the global names of the original, and none of ours.

    torch.jit.script compiles the original's source, and looks there for its names.
    """
    moved = _moved(stand_in, original.__globals__)
    return not_compiled_alone(functools.wraps(original)(moved))


def _watch() -> Callable[[], bool]:
    """What tells whether nobody has patched since what the copies call."""
    own = vars(F)
    used = {n for f in _PROJECTING for n in own[f].__code__.co_names}
    called = {n: own[n] for n in used.intersection(own) if n != ATTEND}
    called["linear"] = torch._C._nn.linear

    def is_untouched() -> bool:
        return all(own.get(name) is value for name, value in called.items())

    return is_untouched


def _is_bare(args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Whether a batch of sequences attends to itself and nothing else is asked."""
    query, key, value, embed, heads, weight = args[:6]
    asks = (
        options.get("need_weights", True),
        options.get("is_causal"),
        options.get("use_separate_proj_weight"),
        args[9],  # add_zero_attn
    )
    given = *args[7:9], options.get("key_padding_mask"), options.get("attn_mask")
    return (
        query is key is value
        and weight is not None
        and not any(asks)
        and all(tensor is None for tensor in given)
        and query.dim() == 3  # noqa: PLR2004
        and query.shape[2] == embed
        and weight.shape == (3 * embed, embed)
        and embed % heads == 0
    )


def _heads(projected: Tensor, n_heads: int) -> Any:
    """Queries, keys and values [batch, heads, positions, size] of [batch, n, 3 e]."""
    size = projected.shape[-1] // 3 // n_heads
    parts = projected.unflatten(-1, (3, n_heads, size)).unbind(2)
    return (part.transpose(1, 2) for part in parts)


def _turned(linear: Linear, args: tuple[Any, ...], options: dict[str, Any]) -> Tensor:
    """Attention of a query [n, batch, embed], whose batch most often lies first.

    Torch projects positions first, and copies what the projection gives.
    """
    x = args[0].transpose(0, 1)
    n_heads, in_weight, in_bias = args[4:7]
    dropout, out_weight, out_bias = args[10:13]
    q, k, v = _heads(linear(x, in_weight, in_bias), n_heads)
    if not options.get("training", True):
        dropout = 0.0
    y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
    return linear(y.permute(2, 0, 1, 3).flatten(2), out_weight, out_bias)


def _within(linear: Linear, x: Tensor, n_heads: int, *weights: Tensor) -> Tensor:
    """Attention of x [batch, n, embed], its result as x."""
    in_weight, in_bias, out_weight, out_bias = weights
    q, k, v = _heads(linear(x, in_weight, in_bias), n_heads)
    y = F.scaled_dot_product_attention(q, k, v)
    return linear(y.transpose(1, 2).reshape(x.shape), out_weight, out_bias)


def _stand_in(name: str, n_args: int, serve: Callable[..., Any]) -> Any:
    """An operator of torch's; ``serve`` gives None where it is not to take part."""
    is_compiling, stock = torch.compiler.is_compiling, getattr(torch, name)
    # Dynamo may have met the stand-in under torch's name, and not the function itself.
    traced = getattr(torch.ops.aten, name)

    @not_compiled_alone
    def stand_in(*args: Any, **options: Any) -> Any:
        if is_compiling():
            return traced(*args, **options)
        result = None if options or len(args) != n_args else serve(*args)
        return stock(*args, **options) if result is None else result

    # Graphs of torch.compile and pickles hold it by torch's name.
    stand_in.__module__ = "torch"
    stand_in.__name__ = stand_in.__qualname__ = name
    return stand_in


def _rounds(c: Any, x: Tensor, weight: Tensor, embed: int | None = None) -> bool:
    """Whether this projection runs in bfloat16, and has the size that is said."""
    fits = embed is None or weight.shape == (3 * embed, embed)
    return fits and c.linear_row(x, weight) == "bf16"


def _native_attention(c: Any, linear: Linear) -> Any:
    """``nn.MultiheadAttention`` in inference."""

    def attend(*args: Any) -> Any:
        query, key, value, embed, heads, in_weight, *weights = args[:9]
        mask, needs_weights = args[9:11]
        if (
            needs_weights
            or mask is not None
            or not query is key is value
            or not _rounds(c, query, in_weight, embed)
        ):
            return None
        return _within(linear, query, heads, in_weight, *weights), None

    return _stand_in("_native_multi_head_attention", _N_POSITIONAL, attend)


def _encoder_layer(c: Any, linear: Linear) -> Any:
    """``nn.TransformerEncoderLayer`` in inference."""
    relu, gelu = (ACTIVATIONS.index(name) for name in ("relu", "gelu"))

    def layer(*args: Any) -> Tensor | None:
        x, embed, heads, in_weight, *_ = args
        if args[18] is not None or not _rounds(c, x, in_weight, embed):  # a mask
            return None
        with_gelu, norm_first, eps = args[7:10]
        norms, (w1, b1, w2, b2) = (args[10:12], args[12:14]), args[14:18]

        def norm(x: Tensor, which: int) -> Tensor:
            return F.layer_norm(x, (embed,), *norms[which], eps)

        def attended(x: Tensor) -> Tensor:
            return _within(linear, x, heads, *args[3:7])

        def fed_forward(x: Tensor) -> Tensor:
            h = c.linear_act(x, w1, b1, gelu if with_gelu else relu)
            if h is None:
                h = (F.gelu if with_gelu else F.relu)(linear(x, w1, b1))
            return linear(h, w2, b2)

        if norm_first:
            x = x + attended(norm(x, 0))
            return x + fed_forward(norm(x, 1))
        x = norm(x + attended(x), 0)
        return norm(x + fed_forward(x), 1)

    return _stand_in("_transformer_encoder_layer_fwd", _N_LAYER, layer)
